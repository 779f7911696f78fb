"""Explain a compiled program; compile a function of this process."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from shardwise.boundary import write_text
from shardwise.boundary.records import Record, part
from shardwise.commands.program.compiling import PlanProgram, need_parts, program_of
from shardwise.hardware import Slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead import compile_ahead, target_of
from shardwise.profiler.ahead.live import ExportedFunction, export, renamed
from shardwise.profiler.explain import Explanation, explain_program
from shardwise.profiler.explain import TimeShare as TimeShare
from shardwise.profiler.explain.causes import Cause as Cause
from shardwise.profiler.explain.causes import UnknownTime as UnknownTime
from shardwise.profiler.explain.finding import WORTH, Finding
from shardwise.profiler.explain.graph import OpGraph as OpGraph
from shardwise.profiler.explain.graph import dot_text, svg_text
from shardwise.profiler.explain.partitioned import LineCollective
from shardwise.roofline.bounds import Bounds

LIVE_BUILDER = "shardwise.profiler.ahead.live:loaded_program"


def compile_live(
    function: Any, args: tuple[Any, ...], piece: Slice, mesh: Any = None, **common: Any
) -> PlanProgram:
    """Compile a function of this process: traced here, compiled in a child."""
    need_parts()
    platform = piece.chip.compiler.platform if piece.chip.compiler else "cpu"
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
    return program_of(name, renamed(compiled, sent.names), piece, None)


def explained(program: PlanProgram, piece: Slice, packages: Sequence[str] = ()) -> Explanation:
    """The explanation of a compiled program; lines of installed `packages` count as the user's."""
    return explain_program(
        program.compiled.hlo,
        piece,
        program.work.mesh,
        buffers=program.compiled.buffers,
        fits=program.compiled.fits,
        partitioned=program.compiled.partitioned,
        packages=packages,
    )


def write_graph(path: Path, graph: OpGraph, title: str) -> None:
    """The ops as a graph: a picture (.svg), or for Graphviz (.dot)."""
    text = svg_text if path.suffix.lower() == ".svg" else dot_text
    write_text(path, text(graph, title), option="--graph")


@dataclass(frozen=True, kw_only=True)
class ArgumentLayout(Record):
    """Sharding of an argument of a program."""

    name: str
    """Its name."""
    layout: str
    """How it is cut, in the notation."""
    dtype: str
    """Its dtype."""
    bytes: float
    """Bytes on a device."""


@dataclass(frozen=True, kw_only=True)
class PlacedFinding(Finding):
    """A mistake with its file as it is seen from here."""

    microseconds: float
    """Microseconds that it costs, per step and device."""


@dataclass(frozen=True, kw_only=True)
class LongestWait(Record):
    """The line that waits longest for a network or a copy."""

    where: str
    """file:line."""
    exposed: float
    """Seconds per step that it waits."""
    bound_by: str
    """Resource that it waits for."""


@dataclass(frozen=True, kw_only=True)
class ExplainedProgram(Record):
    """Where the time of a compiled step goes, and what in it is a mistake; seconds are per step
    and device."""

    phase: str
    """train, decode or prefill, or the name of a function."""
    slice: str
    """The chips, as COUNT*CHIP:SHAPE."""
    step_seconds: Bounds
    """Seconds of a step."""
    hfu: float
    """Share of the step for which matrix units are at their peak."""
    streams: Mapping[str, float]
    """Seconds of each stream."""
    exposed: Mapping[str, float]
    """Seconds that compute waits for each stream."""
    exposed_communication: float
    """Seconds that compute waits for networks."""
    lines: Sequence[TimeShare]
    """By source line, most seconds first."""
    components: Sequence[TimeShare]
    """By component of the model."""
    scopes: Sequence[TimeShare]
    """By outermost named scope."""
    arguments: Sequence[ArgumentLayout]
    """The largest arguments."""
    findings: Sequence[PlacedFinding]
    """Mistakes that cost 1 % of the step or more, the dearest first."""
    floor_seconds: float
    """Seconds that its ops take at the peaks of the chip, each by its busiest resource."""
    causes: Sequence[Cause]
    """Why it takes longer than that, the most seconds first."""
    unknown: Sequence[UnknownTime]
    """Ops that take longer and none of the causes tells why; with the floor and the causes they add
    up to the step."""
    longest_wait: LongestWait | None
    """The line that waits longest; null where none waits for 1 % of the step."""
    unknown_ops: Sequence[str]
    """Ops without FLOPs and bytes in the compiled text."""
    uncounted_loops: Sequence[str]
    """Loops whose rounds the text does not tell; they count once."""
    collectives: Sequence[LineCollective] | None = part()
    """Collectives by kind, axes and line, of a program that was partitioned and not compiled."""


MOST_ROWS = 30
"""Lines, components, scopes and arguments that a document has of each."""


def explained_program(
    phase: str, slice: str, e: Explanation, partitioned: bool = False
) -> ExplainedProgram:
    """What is told of an explanation, of a program that was compiled or only partitioned."""
    t = e.timeline
    arguments = sorted(e.arguments, key=lambda a: -a.bytes)[:MOST_ROWS]
    return ExplainedProgram.part_of(
        t,
        phase=phase,
        slice=slice,
        step_seconds=Bounds(lower=t.lower, expected=t.expected, upper=t.upper),
        lines=_placed(e.lines[:MOST_ROWS]),
        components=_placed(e.components[:MOST_ROWS]),
        scopes=_placed(e.scopes[:MOST_ROWS]),
        arguments=[ArgumentLayout.part_of(a) for a in arguments],
        findings=[placed(f) for f in e.findings],
        floor_seconds=e.parts.floor,
        causes=_placed(e.parts.causes),
        unknown=_placed(e.parts.unknown),
        longest_wait=next(iter(_placed(_longest_wait(e))), None),
        unknown_ops=[item.name for item in t.unknown],
        uncounted_loops=t.uncounted,
        collectives=_placed(e.collectives) if partitioned else None,
    )


def _longest_wait(e: Explanation) -> Iterator[LongestWait]:
    """The line that waits longest for a network or a copy, where that is worth telling."""
    line = max(e.lines, key=lambda line: line.exposed, default=None)
    if line is not None and line.exposed >= WORTH * e.timeline.expected:
        yield LongestWait(where=line.where, exposed=line.exposed, bound_by=line.bound_by)


P = TypeVar("P", TimeShare, Cause, UnknownTime, LongestWait, LineCollective)


def _placed(rows: Iterable[P]) -> list[P]:
    """With their files' paths as they are seen from here, or from the folder of installed
    packages."""
    return [replace(row, where=seen(row.where)) for row in rows]


PLACE = re.compile(r"/[^\s:]+:\d+")
"""A line of a file by its whole path."""


def placed(found: Finding) -> PlacedFinding:
    """A finding with the paths of its files as they are seen from here."""
    return PlacedFinding.of(
        found,
        microseconds=found.seconds * 1e6,
        where=seen(found.where),
        what=PLACE.sub(lambda place: seen(place[0]), found.what),
    )


def seen(where: str) -> str:
    """A place with its file's path as it is seen from here."""
    where = where.removeprefix(f"{Path.cwd()}/")
    for root in ("/site-packages/", "/src/"):
        if where.startswith("/") and root in where:
            where = where.rpartition(root)[2]
    return where


def short_place(where: str) -> str:
    """A line or a scope for a table: the end of one that is long."""
    return where if len(where) <= 60 else "..." + where[-57:]
