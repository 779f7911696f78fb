"""`shardwise plan serve`: the cheapest servers for a load within its targets."""

from shardwise.apps.cli.command import command, given, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import progress_line, show_answer, stage_line


@command(
    "plan serve",
    "plan_path plot_path show_detail show_why csv_path as_json",
    plot_path="The front of speed and cost, and a decode step's parts, as a PNG or SVG.",
)
def serve(out: Outputs) -> None:
    """Find the cheapest servers that hold a load.

    A load holds if 95 % of its requests meet the targets in simulation, also in slow runs, with 5 %
    of every target to spare. Without --rate, the load is the largest that one server holds, or that
    a given slice holds."""
    from shardwise.commands.plan_serve.serve import ServePlanRequest, next_line
    from shardwise.plans import save_plan

    with stage_line() as watch:
        asked = request_of(ServePlanRequest)
        answer = asked.answer(progress_line("simulating", "runs"), watch)
    if out.plan_path:
        save_plan(answer.plan, out.plan_path)
    more = (next_line(asked, out.plan_path, answer),)
    show_answer(answer, out, given(asked, out), more=more)
    if out.plot_path:
        from shardwise.apps.cli.serve_chart import plot_serving

        plot_serving(answer, out.plot_path)
