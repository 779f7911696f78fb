"""`shardwise plan show`: price a plan from a file, as written or edited by hand."""

from shardwise.apps.cli.command import command, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer


@command(
    "plan show",
    "plan_path plot_path trace_path show_detail show_book as_json",
    plan_path="With --resolve: the whole plan as a file.",
    plot_path="Pipeline chart, PNG or SVG.",
)
def show(out: Outputs) -> None:
    """Price the plan in a file and compare it with the book's rules.

    --set remat=block changes a field first. audit:NAME is a plan of a published run
    (`shardwise book list`).
    """
    from shardwise.apps.cli.plan_train import shown_lines
    from shardwise.commands.plan_file.show import PlanShowRequest
    from shardwise.errors import BadRequest
    from shardwise.plans import save_plan

    asked = request_of(PlanShowRequest)
    if out.plan_path and not asked.resolve:
        raise BadRequest("-o writes the whole plan; it goes with --resolve")
    answer = asked.answer()
    if out.plan_path:
        save_plan(answer.best.plan, out.plan_path)
    inputs = {"path": str(asked.path), "set": asked.sets}
    more = shown_lines(asked, answer.priced.plan, out.plan_path)
    show_answer(answer, out, inputs, more=("", *more) if more else ())
    if out.plot_path or out.trace_path:
        from shardwise.apps.cli.timeline import write_timeline

        write_timeline(answer.best, out)
