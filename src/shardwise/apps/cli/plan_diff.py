"""`shardwise plan diff`: what changes between two plan files, and what it does to the estimate."""

from shardwise.apps.cli.command import command, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer


@command("plan diff", "show_detail as_json")
def diff(out: Outputs) -> None:
    """Choices that differ between two plan files, and their effect on the prediction."""
    from shardwise.commands.plan_file.diff import PlanDiffRequest

    asked = request_of(PlanDiffRequest)
    show_answer(asked.answer(), out, {"first": str(asked.first), "second": str(asked.second)})
