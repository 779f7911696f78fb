"""`shardwise calibrate`: measure what runs here or elsewhere, and write it as a hardware file."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.apps.cli.command import command, given, on_command_line, refuse, request_of
from shardwise.apps.cli.options import Outputs, is_marked, read
from shardwise.apps.cli.output import progress_line, show_answer, stage_line
from shardwise.apps.cli.parts import needed_for
from shardwise.errors import BadRequest

if TYPE_CHECKING:
    from shardwise.commands.run.calibrate import MachineAnswer, ServerAnswer

MACHINE = ("cpu_devices", "name", "timeout")
"""Options of a calibration of the devices here; the others are of a server's."""


@command(
    "calibrate",
    "file show_detail as_json",
    file="Hardware file, for --hw; a server's engine goes beside it as FILE.engine.toml.",
)
def calibrate(out: Outputs) -> None:
    """Measure the devices here, or a server that runs PLAN, and write the constants.

    Without PLAN: matmuls, memory, attention and collectives of this machine, as a hardware file
    that prices plans on it (`--hw FILE --on NAME:DEVICES`).

    With PLAN: constants of the chip and the engine, fitted on a short load on a live server
    (--endpoint) or on records of one. The load streams completions of random prompts, with
    lengths near those of the plan.
    """
    from shardwise.boundary import check_output

    here, file = not on_command_line("plan"), out.file
    if here:
        others = [name for name in read()["calibrate"] if name not in ("plan", *MACHINE)]
        refuse(others, "is of servers; name their PLAN")
        if file is None:
            raise BadRequest("name the hardware file to write: -o FILE.toml")
        check_output(file, "-o", force=is_marked("force"), endings=(".toml",))
    else:
        refuse(MACHINE, "is of this machine's devices; leave PLAN out")
    with needed_for("calibrating"):
        from shardwise.commands.run.calibrate import CalibrateRequest, MachineAnswer
    asked = request_of(CalibrateRequest)
    if not here and file is not None:
        check_output(_beside(file), "-o", force=is_marked("force"))
    with stage_line() as watch:
        line = None if here else progress_line("calibrating", "parts")
        answer = asked.answer(line, watch)
    files = [] if file is None else _write(answer, file)
    inputs = {name: value for name, value in given(asked).items() if (name in MACHINE) is here}
    inputs |= {"out": file and str(file)}
    if isinstance(answer, MachineAnswer):
        answer = replace(answer, file=str(file))
        more = [f"\nWrote {file}: --hw {file} --on {answer.slice}"]
    else:
        answer = replace(answer, files=files)
        more = [f"wrote {one}" for one in files]
    show_answer(answer, out, inputs, more=more)


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
