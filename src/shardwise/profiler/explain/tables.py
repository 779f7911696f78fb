"""Where the time of a step goes: by source line, by component and by named scope."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwise.boundary.records import Record
from shardwise.models.components import CORE, SCAN
from shardwise.profiler.explain.evidence import TO_READERS, Evidence
from shardwise.profiler.hlo.scopes import component_in, scope_of
from shardwise.profiler.hlo.sources import in_library
from shardwise.profiler.hlo.text import Instruction
from shardwise.profiler.hlo.work import HloOp
from shardwise.profiler.timeline import HloTimeline, OpRow
from shardwise.work import grouped, tally

PARTS: Mapping[str, str] = {
    **dict.fromkeys(("attention", CORE, "linear_attention", SCAN), "attention"),
    **dict.fromkeys(("mlp_dense", "shared_experts", "moe_latent"), "MLP"),
    **dict.fromkeys(("router", "routed_experts"), "experts"),
    **dict.fromkeys(("lm_head", "mtp"), "head"),
    **dict.fromkeys(("embedding", "embedding_per_layer"), "embedding"),
    "norms": "norm",
}
"""Components (`models/components.py`) as a table names them; others by their own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare(Record):
    """Ops of one source line, component or scope, per step and device."""

    where: str
    """The line, component or scope."""
    seconds: float
    """Seconds of the compute stream, with what is exposed of copies and collectives."""
    exposed: float
    """Seconds that compute waits for copies and collectives."""
    hidden: float
    """Seconds of copies and collectives behind compute."""
    share: float
    """Share of the step."""
    bound_by: str
    """What bounds most of the seconds."""
    flops: float
    """FLOPs."""
    hbm_bytes: float
    """HBM bytes."""
    phases: tuple[str, ...]
    """The passes that the ops belong to."""
    ops: int
    """How many ops."""


def by_line(e: Evidence) -> tuple[TimeShare, ...]:
    """One line per source line, most seconds first; what the compiler made itself belongs to the
    line of what it reads, or of what reads it."""
    return _lines(e.timeline, e.where)


def by_scope(e: Evidence) -> tuple[TimeShare, ...]:
    """One line per outermost named scope, most seconds first. An op without one is of the scope of
    what it is made for; where a program names none, of the function around it."""
    return _lines(e.timeline, lambda item: _scope(e, item))


def by_component(e: Evidence) -> tuple[TimeShare, ...]:
    """One line per part of the model, and per axes that arrays are exchanged over."""
    return _lines(e.timeline, lambda item: _component(e, item))


def users_place(e: Evidence, where: str) -> str:
    """A line of the user's as it is; of a line in a library, the part of the model that it
    computes, or its named scope: a user cannot change the line."""
    if not in_library(where, e.packages):
        return where
    rows = [row for row in e.timeline.rows if e.where(row.op) == where]
    if not rows:
        return where
    item = max(rows, key=spent).op
    own = item.op.component or e.near(item, lambda i: component_in(i.op_name), TO_READERS)
    return PARTS.get(own, own) if own else _scope(e, item)


def _component(e: Evidence, item: HloOp) -> str:
    if item.op.collective is not None:
        return f"exchange over {' and '.join(item.op.collective.axes) or 'one device'}"
    own = item.op.component or e.near(item, lambda i: component_in(i.op_name), TO_READERS)
    return PARTS.get(own, own) if own else _scope(e, item)


def _scope(e: Evidence, item: HloOp) -> str:
    found = _outermost(item.op_name) or e.near(item, lambda i: _outermost(i.op_name), TO_READERS)
    found = found or e.near(item, lambda i: _function(e, i), TO_READERS)
    return found or e.near(item, _argument, TO_READERS) or "(no scope)"


def _argument(found: Instruction) -> str:
    """An argument of the program: what only moves it is of no function."""
    return f"argument {found.op_name}" if found.opcode == "parameter" and found.op_name else ""


def _outermost(op_name: str) -> str:
    """The outermost named scope; the letters of an einsum are none."""
    words = (word for word in scope_of(op_name).split("/") if word and "->" not in word)
    return next(words, "")


def _function(e: Evidence, found: Instruction) -> str:
    """The function of the innermost frame, as `layer()`."""
    name = next((s.function for s in e.module.sources(found)), "")
    return f"{name.rpartition('.')[2]}()" if name else ""


def _lines(timeline: HloTimeline, place: Callable[[HloOp], str]) -> tuple[TimeShare, ...]:
    groups = grouped(timeline.rows, lambda row: place(row.op))
    lines = [_line(where, rows, timeline.expected) for where, rows in groups.items()]
    return tuple(sorted(lines, key=lambda line: -line.seconds))


def _line(where: str, rows: Sequence[OpRow], step: float) -> TimeShare:
    beside = [row for row in rows if row.op.op.stream != "compute"]
    bounds = tally((row.bound_by, spent(row)) for row in rows)
    seconds = sum(map(spent, rows))
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


def spent(row: OpRow) -> float:
    """Seconds of a step that the compute stream runs an op, or waits for it."""
    return row.per_step if row.op.op.stream == "compute" else row.exposed
