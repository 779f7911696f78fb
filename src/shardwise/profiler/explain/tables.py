"""Where the time of a step goes: by source line and by named scope."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwise.profiler.explain.evidence import Evidence
from shardwise.profiler.hlo.work import HloOp
from shardwise.profiler.timeline import HloTimeline, OpRow
from shardwise.work import grouped, tally


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """Ops of one source line or scope. `seconds` are of the compute stream per step plus what is
    `exposed` of copies and collectives; `hidden` is their time behind it. `bound_by` is what bounds
    most of the seconds, `flops` and `hbm_bytes` are per step and device."""

    where: str
    seconds: float
    exposed: float
    hidden: float
    share: float
    bound_by: str
    flops: float
    hbm_bytes: float
    phases: tuple[str, ...]
    ops: int


def by_line(e: Evidence) -> tuple[TimeShare, ...]:
    """One line per source line, most seconds first; what the compiler made itself belongs to the
    line of what it reads."""
    return _lines(e.timeline, e.where)


def by_scope(timeline: HloTimeline) -> tuple[TimeShare, ...]:
    """One line per outermost named scope, most seconds first."""
    return _lines(timeline, lambda item: item.scope.split("/")[0] or "(no scope)")


def _lines(timeline: HloTimeline, place: Callable[[HloOp], str]) -> tuple[TimeShare, ...]:
    groups = grouped(timeline.rows, lambda row: place(row.op))
    lines = [_line(where, rows, timeline.expected) for where, rows in groups.items()]
    return tuple(sorted(lines, key=lambda line: -line.seconds))


def _line(where: str, rows: Sequence[OpRow], step: float) -> TimeShare:
    beside = [row for row in rows if row.op.op.stream != "compute"]
    bounds = tally((row.bound_by, _spent(row)) for row in rows)
    seconds = sum(map(_spent, rows))
    return TimeShare(
        where=where,
        seconds=seconds,
        exposed=sum(row.exposed for row in rows),
        hidden=sum(max(row.per_step - row.exposed, 0.0) for row in beside),
        share=seconds / step if step else 0.0,
        bound_by=max(bounds, key=lambda name: bounds[name]),
        flops=sum(row.flops * row.count for row in rows),
        hbm_bytes=sum(row.hbm_bytes for row in rows),
        phases=tuple(dict.fromkeys(row.op.op.phase for row in rows if row.op.op.phase)),
        ops=len(rows),
    )


def _spent(row: OpRow) -> float:
    """Seconds of a step that the compute stream runs an op, or waits for it."""
    return row.per_step if row.op.op.stream == "compute" else row.exposed
