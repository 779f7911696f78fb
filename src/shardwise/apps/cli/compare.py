"""`shardwise compare`: a plan, its compiled program and a capture of it, part by part."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.compile import PHASES, compile_options, program_inputs, refuse_misses
from shardwise.apps.cli.options import request_of
from shardwise.apps.cli.output import show_answer
from shardwise.apps.cli.progress import stage_line


@click.command(cls=AnswerCommand)
@click.argument("what", metavar="PLAN")
@compile_options
@click.option("--phase", type=PHASES, help="Default: all.")
@click.option(
    "--capture",
    type=click.Path(dir_okay=True, path_type=Path),
    metavar="FILE",
    help="A capture of the program (.xplane.pb or trace.json.gz): measured beside both.",
)
def compare(**options: Any) -> None:
    """Hold a plan beside its program, as compiled for a slice that is not here.

    FLOPs, bytes and seconds by op class, collectives by kind and axes, all of them by phase and
    component of the model, memory by kind, all of one device and one step; and in sentences what
    differs, and where the program does it.
    """
    from shardwise.commands.program.compare import CompareRequest

    with stage_line() as watch:
        answer = request_of(CompareRequest, options).answer(watch)
    show_answer(answer, options, inputs=program_inputs(options))
    refuse_misses(answer.misses)
