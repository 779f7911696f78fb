"""Where the time of a step goes: by source line and by named scope."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwise.profiler.explain.evidence import Evidence
from shardwise.profiler.hlo.work import HloOp
from shardwise.profiler.timeline import HloTimeline, OpRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
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


def by_line(e: Evidence) -> tuple[Line, ...]:
    """One line per source line, most seconds first; what the compiler made itself belongs to the
    line of what it reads."""
    return _lines(e.timeline, e.where)


def by_scope(timeline: HloTimeline) -> tuple[Line, ...]:
    """One line per outermost named scope, most seconds first."""
    return _lines(timeline, lambda item: item.scope.split("/")[0] or "(no scope)")


def _lines(timeline: HloTimeline, place: Callable[[HloOp], str]) -> tuple[Line, ...]:
    groups: dict[str, list[OpRow]] = {}
    for row in timeline.rows:
        groups.setdefault(place(row.op), []).append(row)
    lines = [_line(where, rows, timeline.expected) for where, rows in groups.items()]
    return tuple(sorted(lines, key=lambda line: -line.seconds))


def _line(where: str, rows: Iterable[OpRow], step: float) -> Line:
    rows = list(rows)
    bounds: dict[str, float] = {}
    seconds = exposed = hidden = 0.0
    for row in rows:
        spent = row.per_step if row.op.op.stream == "compute" else row.exposed
        seconds += spent
        exposed += row.exposed
        hidden += max(row.per_step - row.exposed, 0.0) if row.op.op.stream != "compute" else 0.0
        bounds[row.bound_by] = bounds.get(row.bound_by, 0.0) + spent
    return Line(
        where=where,
        seconds=seconds,
        exposed=exposed,
        hidden=hidden,
        share=seconds / step if step else 0.0,
        bound_by=max(bounds, key=lambda name: bounds[name]),
        flops=sum(row.flops * float(row.op.op.count) for row in rows),
        hbm_bytes=sum(float(row.op.op.hbm_bytes) * float(row.op.op.count) for row in rows),
        phases=tuple(dict.fromkeys(row.op.op.phase for row in rows if row.op.op.phase)),
        ops=len(rows),
    )
