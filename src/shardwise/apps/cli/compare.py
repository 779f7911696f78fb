"""`shardwise compare`: a plan, its compiled program and a capture of it, part by part."""

from shardwise.apps.cli.command import command, request_of
from shardwise.apps.cli.compile import program_inputs, refuse_misses
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer, stage_line


@command("compare", "show_detail as_json")
def compare(out: Outputs) -> None:
    """Compare a plan with its compiled program; no accelerator is needed.

    Shows FLOPs, bytes and seconds by op class, collectives by kind and axes, and memory by kind,
    for one device and one step. Sentences say what differs, and where in the program.
    """
    from shardwise.commands.program.compare import CompareRequest

    asked = request_of(CompareRequest)
    with stage_line() as watch:
        answer = asked.answer(watch)
    show_answer(answer, out, program_inputs(asked, out, asked.phase))
    refuse_misses(answer.misses)
