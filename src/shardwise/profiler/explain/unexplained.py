"""What of a step nothing explains: seconds above what its ops need, that no finding tells of."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from shardwise.boundary.records import Record
from shardwise.profiler.explain.evidence import Evidence
from shardwise.profiler.explain.finding import Finding
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.timeline import OpRow, vector_seconds
from shardwise.roofline.price import HBM, MATH
from shardwise.work import grouped, tally

TOLD = 0.15
"""The share of a step from which it is said that nothing explains it (a feeling)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexplained(Record):
    """What of a step neither products, bytes and waits nor a finding explain."""

    seconds: float
    """Seconds per step."""
    share: float
    """Share of the step."""
    where: str
    """file:line of most of it."""
    most: float
    """Seconds of it there."""
    name: str
    """The op that has most of it there."""
    takes: float
    """Seconds that this op takes."""
    needs: float
    """Seconds that its products, bytes and vector operations need."""


def unexplained(e: Evidence, findings: Sequence[Finding]) -> Unexplained | None:
    """What nothing explains, where that is worth telling."""
    over = partial(_above, e)
    told = tally((f.where, f.seconds) for f in findings)
    lines = {
        where: (max(sum(map(over, rows)) - told.get(where, 0.0), 0.0), rows)
        for where, rows in grouped(e.timeline.rows, lambda row: e.where(row.op)).items()
    }
    total, step = sum(seconds for seconds, _ in lines.values()), e.timeline.expected
    if not lines or total <= TOLD * step:
        return None
    where = max(lines, key=lambda at: lines[at][0])
    most, rows = lines[where]
    row = max(rows, key=over)
    return Unexplained(
        seconds=total,
        share=total / step,
        where=where,
        most=most,
        name=row.op.name,
        takes=spent(row),
        needs=needs(e, row),
    )


def _above(e: Evidence, row: OpRow) -> float:
    """Seconds per step of an op above what it needs."""
    return max(spent(row) - needs(e, row), 0.0)


def needs(e: Evidence, row: OpRow) -> float:
    """Seconds per step that an op's products, bytes or vector operations take at the rates which
    the chip really has; of what the compute stream waits for, the wait."""
    if row.op.op.stream != "compute":
        return row.exposed
    chip = e.piece.chip
    math = row.peak.get(MATH, 0.0) / chip.efficiency.matmul
    moved = row.peak.get(HBM, 0.0) / chip.efficiency.hbm
    return max(math, moved, vector_seconds(row.op, chip)) * row.count
