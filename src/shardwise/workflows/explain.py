"""Explain a plan's program or any function on a slice, and the two verbs of the Python API."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.plans import ServePlan, TrainPlan, load_plan
from shardwise.profiler.ahead import Limits, compile_ahead, target_of
from shardwise.profiler.ahead.live import Exported, export, renamed
from shardwise.profiler.child import Watch
from shardwise.profiler.explain import Explanation, Line, explain_program
from shardwise.profiler.explain.finding import WORTH
from shardwise.workflows.compile import (
    CompiledPlan,
    Program,
    compile_function,
    compile_plan,
    need_parts,
    program_of,
)
from shardwise.workflows.inputs import Hardware

LIVE_BUILDER = "shardwise.profiler.ahead.live:loaded_program"


def compile(
    what: Any,
    *args: Any,
    on: str | None = None,
    mesh: Any = None,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    watch: Watch | None = None,
) -> CompiledPlan | Program:
    """Compile for a slice that is not here, by the real compiler.

    `what` is a plan or a plan's file (`on` moves it to another slice), the name "module:function"
    with that of its arguments "module:abstract_args", or a function with abstract arguments; a
    function needs `on`, and `mesh` (axis -> degree, or a jax mesh) where its arguments have no
    sharding. `options` are the compiler's, by XLA's names. The result has, for each program, what
    the compiler made (`compiled`), its counted `work` and its `timeline`.
    """
    hardware = Hardware()
    common: dict[str, Any] = {"options": options, "limits": limits, "watch": watch}
    if isinstance(what, TrainPlan | ServePlan):
        return compile_plan(what, hardware, on=on, **common)
    if isinstance(what, Path) or (isinstance(what, str) and not args):
        return compile_plan(load_plan(what), hardware, on=on, **common)
    if on is None:
        raise BadRequest("a function is compiled for a slice; say which, as on='v5e:4x4'")
    piece = hardware.slice(on).slice
    if isinstance(what, str):
        if len(args) != 1 or not isinstance(args[0], str):
            raise BadRequest(f"'{what}' is a name; give the name of its arguments' function too")
        return compile_function(what, args[0], piece, mesh, **common)
    return compile_live(what, args, piece, mesh, **common)


def compile_live(
    function: Any, args: tuple[Any, ...], piece: Slice, mesh: Any = None, **common: Any
) -> Program:
    """Compile a function of this process: traced here, compiled in a child."""
    need_parts()
    platform = "tpu" if piece.chip.vendor == "google" else "cuda"
    sent: Exported = export(function, args, mesh, platform)
    target = target_of(piece, mesh_coordinates(piece, sent.mesh))
    with TemporaryDirectory(prefix="shardwise-") as folder:
        path = Path(folder) / "function"
        path.write_bytes(sent.code)
        arguments = {
            "path": str(path),
            "specs": list(sent.specs),
            "donated": list(sent.donated),
            "mesh": dict(sent.mesh),
        }
        compiled = compile_ahead(target, LIVE_BUILDER, arguments, **common)
    name = getattr(function, "__qualname__", type(function).__name__)
    return program_of(name, renamed(compiled, sent.names), piece, {})


def explain(
    what: Any,
    *args: Any,
    on: str | None = None,
    mesh: Any = None,
    phase: str | None = None,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    watch: Watch | None = None,
) -> Explanation:
    """Say where the time of a compiled step goes and what in it is a mistake.

    Arguments as `compile`; `phase` picks a program of a serving plan (decode if not given). The
    result has the timeline, seconds by source line and named scope, the arguments' shardings in our
    notation, and findings with their cost and a remedy.
    """
    made = compile(what, *args, on=on, mesh=mesh, options=options, limits=limits, watch=watch)
    if isinstance(made, Program):
        return explained(made, Hardware().slice(made.compiled.slice).slice)
    programs = {program.phase: program for program in made.programs}
    wanted = phase or next(iter(programs))
    if wanted not in programs:
        raise BadRequest(f"phase '{wanted}' is none of this plan's: {', '.join(programs)}")
    return explained(programs[wanted], made.priced.answer.piece)


def explained(program: Program, piece: Slice) -> Explanation:
    """The explanation of a compiled program."""
    return explain_program(
        program.compiled.hlo,
        piece,
        program.work.mesh,
        buffers=program.compiled.buffers,
        fits=program.compiled.fits,
    )


def explain_result(e: Explanation, most: int = 30) -> dict[str, Any]:
    """An explanation as plain values; seconds are per step and device."""
    t = e.timeline
    return {
        "step_seconds": {"lower": t.lower, "expected": t.expected, "upper": t.upper},
        "hfu": t.hfu,
        "streams": dict(t.streams),
        "exposed": dict(t.exposed),
        "exposed_communication": t.exposed_communication,
        "lines": [_line(line) for line in e.lines[:most]],
        "scopes": [_line(line) for line in e.scopes[:most]],
        "arguments": [
            {"name": a.name, "layout": a.layout, "dtype": a.dtype, "bytes": a.bytes}
            for a in sorted(e.arguments, key=lambda a: -a.bytes)[:most]
        ],
        "findings": [{**asdict(f), "microseconds": f.microseconds} for f in e.findings],
        "longest_wait": _longest_wait(e),
        "unknown_ops": [item.name for item in t.unknown],
        "uncounted_loops": list(t.uncounted),
    }


def _longest_wait(e: Explanation) -> dict[str, Any] | None:
    """The line that waits longest for a network or a copy, where that is worth telling."""
    line = max(e.lines, key=lambda line: line.exposed, default=None)
    if line is None or line.exposed < WORTH * e.timeline.expected:
        return None
    return {"where": line.where, "exposed": line.exposed, "bound_by": line.bound_by}


def _line(line: Line) -> dict[str, Any]:
    return asdict(line)
