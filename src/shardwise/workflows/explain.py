"""Explain a compiled program; compile a function of this process."""

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shardwise.boundary import write_text
from shardwise.hardware import Slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead import compile_ahead, target_of
from shardwise.profiler.ahead.live import ExportedFunction, export, renamed
from shardwise.profiler.explain import Explanation, TimeShare, explain_program
from shardwise.profiler.explain.finding import WORTH
from shardwise.profiler.explain.graph import OpGraph as OpGraph
from shardwise.profiler.explain.graph import dot_text, svg_text
from shardwise.workflows.compile import (
    PlanProgram,
    need_parts,
    program_of,
)

LIVE_BUILDER = "shardwise.profiler.ahead.live:loaded_program"


def compile_live(
    function: Any, args: tuple[Any, ...], piece: Slice, mesh: Any = None, **common: Any
) -> PlanProgram:
    """Compile a function of this process: traced here, compiled in a child."""
    need_parts()
    platform = "tpu" if piece.chip.vendor == "google" else "cuda"
    sent: ExportedFunction = export(function, args, mesh, platform)
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


def explained(program: PlanProgram, piece: Slice) -> Explanation:
    """The explanation of a compiled program."""
    return explain_program(
        program.compiled.hlo,
        piece,
        program.work.mesh,
        buffers=program.compiled.buffers,
        fits=program.compiled.fits,
    )


def write_graph(path: Path, graph: OpGraph, title: str) -> None:
    """The ops as a graph: a picture (.svg), or for Graphviz (.dot)."""
    text = svg_text if path.suffix.lower() == ".svg" else dot_text
    write_text(path, text(graph, title), option="--graph")


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
        "components": [_line(line) for line in e.components[:most]],
        "scopes": [_line(line) for line in e.scopes[:most]],
        "arguments": [
            {"name": a.name, "layout": a.layout, "dtype": a.dtype, "bytes": a.bytes}
            for a in sorted(e.arguments, key=lambda a: -a.bytes)[:most]
        ],
        "findings": [_placed({**asdict(f), "microseconds": f.microseconds}) for f in e.findings],
        "unexplained": _placed(asdict(e.unexplained)) if e.unexplained else None,
        "longest_wait": _longest_wait(e),
        "unknown_ops": [item.name for item in t.unknown],
        "uncounted_loops": list(t.uncounted),
    }


def _longest_wait(e: Explanation) -> dict[str, Any] | None:
    """The line that waits longest for a network or a copy, where that is worth telling."""
    line = max(e.lines, key=lambda line: line.exposed, default=None)
    if line is None or line.exposed < WORTH * e.timeline.expected:
        return None
    return _placed({"where": line.where, "exposed": line.exposed, "bound_by": line.bound_by})


def _line(line: TimeShare) -> dict[str, Any]:
    return _placed(asdict(line))


def _placed(row: dict[str, Any]) -> dict[str, Any]:
    """With its file's path as it is seen from here, or from the folder of installed packages."""
    where = row["where"].removeprefix(f"{Path.cwd()}/")
    for root in ("/site-packages/", "/src/"):
        if where.startswith("/") and root in where:
            where = where.rpartition(root)[2]
    return {**row, "where": where}
