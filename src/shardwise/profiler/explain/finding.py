"""A rule gives findings (`roofline/finding.py`); what rules say of them in common."""

from collections.abc import Callable, Iterable

from shardwise.profiler.explain.evidence import Evidence
from shardwise.profiler.timeline import OpRow
from shardwise.roofline.finding import Finding
from shardwise.work import grouped

WORTH = 0.01
"""The least share of a step that a finding must cost to be told; a feeling."""


Rule = Callable[[Evidence], Iterable[Finding]]


def moved(rows: Iterable[OpRow]) -> tuple[float, list[str]]:
    """V of collectives per step, and the axes that they are over."""
    wires = [(row.count, row.op.op.collective) for row in rows]
    size = sum(count * float(wire.bytes) for count, wire in wires if wire is not None)
    return size, sorted({axis for _, wire in wires if wire is not None for axis in wire.axes})


def by_source(e: Evidence, rows: Iterable[OpRow]) -> dict[str, list[OpRow]]:
    """Rows grouped by the source line that they come from: of what they read, where the compiler
    made them itself."""
    return grouped(rows, lambda row: e.where(row.op))
