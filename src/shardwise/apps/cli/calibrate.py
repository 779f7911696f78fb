"""`shardwise calibrate`: measure what runs here or elsewhere, and write it as a hardware file."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, file_option, forced
from shardwise.apps.cli.numbers import NUMBER, WHOLE
from shardwise.apps.cli.options import given, hardware_options, key_options, refuse, request_of
from shardwise.apps.cli.output import json_option, show_answer
from shardwise.apps.cli.pages import sections_options
from shardwise.apps.cli.parts import needed_for
from shardwise.apps.cli.progress import progress_line, stage_line
from shardwise.errors import BadRequest

if TYPE_CHECKING:
    from shardwise.commands.run.calibrate import MachineAnswer, ServerAnswer

MACHINE = ("cpu_devices", "name", "timeout")
"""Options of a calibration of the devices here; the others are of a server's."""


@click.command(cls=AnswerCommand)
@click.argument("plan", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--cpu-devices", type=WHOLE, metavar="N", help="Here: measure N virtual CPU devices.")
@click.option("--name", default="here", show_default=True, help="Here: of the chip in the file.")
@click.option(
    "--timeout", type=NUMBER, default=900.0, metavar="SECONDS", help="Here: of the whole.  [900]"
)
@click.option("--endpoint", metavar="URL", help="An OpenAI-compatible server that runs the plan.")
@key_options
@click.option("--records", "records_path", metavar="FILE", help="Records of its requests instead.")
@click.option("--served-model", metavar="NAME", help="Its name for the model; default the plan's.")
@click.option(
    "--requests",
    type=WHOLE,
    default=64,
    show_default=True,
    help="Requests to send.",
)
@click.option(
    "--rate",
    type=NUMBER,
    default=4.0,
    show_default=True,
    help="Requests per second.",
)
@click.option(
    "--kv-tokens",
    type=WHOLE,
    default=0,
    help="Tokens that its cache holds; default counted.",
)
@click.option("--engine", default="", metavar="NAME", help="Start from it; default the plan's.")
@file_option(
    "-o",
    "out",
    help="Hardware file, for --hw; a server's engine goes beside it as FILE.engine.toml.",
)
@hardware_options(price=False)
@sections_options("detail")
@json_option
def calibrate(**options: Any) -> None:
    """Measure the devices here, or the server of PLAN, and write what was found.

    Without PLAN: matmuls, memory, attention and collectives of this machine, as a hardware file
    that prices plans on it (`--hw FILE --on NAME:DEVICES`).

    With PLAN: the chip's and the engine's own numbers, fitted on a short load on a live server
    (--endpoint) or on records of one. The load streams completions of random prompts around the
    plan's lengths.
    """
    from shardwise.boundary import check_output

    here, out = options["plan"] is None, options["out"]
    if here:
        others = [name for name in options if name not in (*MACHINE, *_OUTPUTS)]
        refuse(others, "is of servers; name their PLAN")
        if out is None:
            raise BadRequest("name the hardware file to write: -o FILE.toml")
        check_output(out, "-o", force=forced(), endings=(".toml",))
    else:
        refuse(MACHINE, "is of this machine's devices; leave PLAN out")
        check_outputs(options["records_path"])
        if out is not None:
            check_output(_beside(out), "-o", force=forced())
    with needed_for("calibrating"):
        from shardwise.commands.run.calibrate import CalibrateRequest, MachineAnswer
    with stage_line() as watch:
        line = None if here else progress_line("calibrating", "parts")
        answer = request_of(CalibrateRequest, options).answer(line, watch)
    files = [] if out is None else _write(answer, out)
    asked = {k: v for k, v in options.items() if (k in MACHINE) is here and k not in _OUTPUTS}
    inputs = given(asked) | {"out": out and str(out)}
    if isinstance(answer, MachineAnswer):
        answer = replace(answer, file=str(out))
        more = [f"\nWrote {out}: --hw {out} --on {answer.slice}"]
    else:
        answer = replace(answer, files=files)
        inputs = {"plan": str(options["plan"]), **inputs}
        more = [f"wrote {file}" for file in files]
    show_answer(answer, options, inputs=inputs, more=more)


_OUTPUTS = ("plan", "out", "as_json", "force", "show_detail")


def _beside(out: Path) -> Path:
    """The engine's file."""
    return out.with_suffix(".engine.toml")


def _write(answer: "MachineAnswer | ServerAnswer", out: Path) -> list[str]:
    """The hardware file, and beside it the engine's where there is one."""
    from shardwise.boundary import write_text

    paths = [out, _beside(out)][: len(answer.texts)]
    for path, text in zip(paths, answer.texts, strict=True):
        write_text(path, text, option="-o")
    return list(map(str, paths))
