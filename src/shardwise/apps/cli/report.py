"""`shardwise report`: what a report folder of `shardwise compile` holds."""

from shardwise.apps.cli.command import command, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer


@command("report", "show_detail show_stages as_json csv_path")
def report(out: Outputs) -> None:
    """Timeline, ops, memory and graph of a program that `compile --out` kept.

    It compiles nothing. Without DIRECTORY it reads the sample that ships with shardwise.
    """
    from shardwise.commands.program.report import ReportRequest

    asked = request_of(ReportRequest)
    inputs = {"folder": asked.folder, "phase": asked.phase, "top": asked.top}
    show_answer(asked.answer(), out, inputs)
