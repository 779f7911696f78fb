"""`shardwise profile`: run a plan or a function here, or read a capture, and say what took long."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.compile import PHASES
from shardwise.apps.cli.files import check_outputs, folder_option
from shardwise.apps.cli.numbers import NUMBER, WHOLE
from shardwise.apps.cli.options import given, parameters, request_of
from shardwise.apps.cli.output import document_of, json_option, show_answer
from shardwise.apps.cli.pages import sections_options
from shardwise.apps.cli.progress import stage_line
from shardwise.boundary.records import plain

PATH = click.Path(dir_okay=True, path_type=Path)


@click.command(cls=AnswerCommand)
@click.argument("what", metavar="[PLAN|MODULE:FUNCTION]", required=False)
@click.option(
    "--steps",
    type=WHOLE,
    default=10,
    show_default=True,
    help="Steps to time.",
)
@click.option("--cpu-devices", type=WHOLE, metavar="N", help="Run on N virtual CPU devices.")
@click.option("--phase", type=PHASES, help="Of a plan.")
@click.option("--args", metavar="MODULE:NAME", help="Makes a function's arguments.")
@click.option("--mesh", metavar="X=4,Y=2", help="Mesh of a function; default x, all devices.")
@click.option(
    "--on", metavar="SLICE", help="Prices compiled ops on it (with --capture: and --hlo)."
)
@click.option("--capture", type=PATH, metavar="FILE", help="Read one that was made elsewhere.")
@click.option("--hlo", type=PATH, metavar="FILE", help="Compiled text of the capture's program.")
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="Change a plan.")
@click.option("--hw", "hw_files", multiple=True, metavar="FILE", help="Adds a chip.")
@click.option("--timeout", type=NUMBER, default=900.0, metavar="SECONDS", help="[900]")
@folder_option("--out", metavar="DIR", help="Keep capture, tables and compiled text.")
@sections_options("detail")
@json_option
def profile(what: str | None, capture: Path | None, out: Path | None, **_: Any) -> None:
    """Time steps of a plan or of a function on the devices here, op by op.

    Measured seconds stand beside those of the compiled program and, for a plan, of the planner.
    With --capture nothing is run: an .xplane.pb or trace.json.gz of a CPU, GPU or TPU is read.
    """
    check_outputs(what)
    from shardwise.commands.program.profile import Profile, ProfileRequest
    from shardwise.commands.program.profiling import write_profile

    options = parameters()
    with stage_line() as watch:
        answer = request_of(ProfileRequest, options).answer(watch)
    read = capture is not None
    asked = ("capture", "hlo", "on", "mesh") if read else [k for k in options if k != "as_json"]
    inputs, more = given({name: options[name] for name in asked}), []
    if out is not None and isinstance(answer, Profile):
        doc = plain(document_of(answer, inputs))
        answer = replace(answer, files=write_profile(out, answer.profiled, doc))
        more = [f"\nCapture and tables in {out}"]
    show_answer(answer, options, inputs=inputs, more=more)
