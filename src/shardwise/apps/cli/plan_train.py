"""`shardwise plan train`: the simplest training plan as fast as predictions can tell, and why."""

from shardwise.apps.cli.command import command, given, request_of
from shardwise.apps.cli.next_steps import next_lines
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import progress_line, show_answer, stage_line


@command(
    "plan train",
    "plot_path trace_path plan_path show_detail show_why show_book csv_path as_json",
    plot_path="Pipeline chart, PNG or SVG.",
)
def train(out: Outputs) -> None:
    """Choose mesh, microbatches, schedule, storage and remat so that a step fits and is best.

    Which plans are looked at: docs/legality.md; what axes, remat and ZeRO mean:
    docs/site/concepts.md. The best are priced again by an event timeline of their own pipeline
    stages.
    """
    from shardwise.commands.plan_train.train import TrainPlanRequest
    from shardwise.plans import save_plan

    asked = request_of(TrainPlanRequest)
    with stage_line() as watch:
        answer = asked.answer(progress_line("searching"), watch)
    if out.plan_path:
        save_plan(answer.best.plan, out.plan_path)
    more = next_lines(asked, out.plan_path, answer.best)
    show_answer(answer, out, given(asked, out), more=more)
    if out.plot_path or out.trace_path:
        from shardwise.apps.cli.timeline import write_timeline

        write_timeline(answer.best, out)
