"""An op of a compiled program, chosen by rank, line or name, and all that it was on its way."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.boundary import read_packed
from shardwise.boundary.records import Record
from shardwise.errors import BadRequest, shown
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.text import Module
from shardwise.profiler.hlo.work import HloOp
from shardwise.profiler.stages.passes import OpKey, PassChange, changes, key_of, pass_name
from shardwise.profiler.stages.texts import jaxpr_of, stablehlo_of
from shardwise.profiler.timeline import HloTimeline, OpRow
from shardwise.work import grouped

DEAREST = "dearest"
NAMED, AROUND = 5, 3
"""Ops that an error names; ops of the schedule before and after one."""
_MOST = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTexts:
    """The texts of one compile: of JAX, and the module after each pass, by the pass."""

    jaxpr: str
    stablehlo: str
    passes: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Record):
    """A part of the schedule."""

    name: str
    """The instruction."""
    opcode: str
    """What it does."""
    stream: str
    """What it runs on."""
    start: float
    """Seconds from the start of the step to that of its first run."""
    seconds: float
    """Seconds of its first run."""
    own: bool
    """Whether it is of the op that is followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages(Record):
    """One op at every stage of the compiler."""

    op: str
    """What JAX calls it."""
    source: str
    """Its file:line; "" where the program tells none."""
    seconds: float | None
    """Seconds of a step, with the waits for it; null without a timeline."""
    share: float | None
    """The same as a share of the step; null without a timeline."""
    jaxpr: Sequence[str]
    """Its equations in the jaxpr."""
    stablehlo: Sequence[str]
    """Its ops in StableHLO."""
    hlo: Sequence[str]
    """Its instructions in the optimised program."""
    schedule: Sequence[Turn]
    """What runs around the longest of them, in the order of the schedule."""
    changes: Sequence[PassChange]
    """What each pass of the compiler changed of it."""


def read_stages(path: Path) -> StageTexts:
    """What a compile kept (`ahead/job.py`)."""
    found = json.loads(read_packed(path, "the stages of a compile", most=_MOST))
    passes = [(pass_name(name), str(text)) for name, text in found["passes"]]
    return StageTexts(jaxpr=found["jaxpr"], stablehlo=found["stablehlo"], passes=passes)


def stages_of(
    kept: StageTexts,
    module: Module,
    ops: Sequence[HloOp],
    timeline: HloTimeline | None,
    what: str = DEAREST,
) -> Stages:
    """The stages of the op that `what` names: "dearest" or its rank, a source line ("mine.py:11"),
    an instruction, a scope, or a part of what JAX calls it; of several the dearest.

    Raises BadRequest where there is none, with the dearest that there are.
    """
    rows = {row.op.op.id: row for row in timeline.rows} if timeline else {}
    key, mine = chosen(module, ops, rows, what)
    seconds = sum(spent(rows[o.op.id]) for o in mine if o.op.id in rows) if rows else None
    step = timeline.expected if timeline else 0.0
    return Stages(
        op=key.name,
        source=f"{key.file}:{key.line}" if key.file else "",
        seconds=seconds,
        share=seconds / step if seconds is not None and step else None,
        jaxpr=jaxpr_of(kept.jaxpr, key),
        stablehlo=stablehlo_of(kept.stablehlo, key),
        hlo=[_instruction(module, o) for o in mine],
        schedule=_schedule(ops, rows, mine),
        changes=tuple(changes(kept.passes, key)),
    )


def chosen(
    module: Module, ops: Sequence[HloOp], rows: Mapping[str, OpRow], what: str
) -> tuple[OpKey, Sequence[HloOp]]:
    """An op of JAX and its instructions, those that take most seconds first."""

    def cost(item: HloOp) -> float:
        return spent(rows[item.op.id]) if item.op.id in rows else 0.0

    groups = grouped((o for o in ops if o.op_name), lambda item: key_of_op(module, item))
    ranked = sorted(groups, key=lambda key: -sum(map(cost, groups[key])))
    if not ranked:
        raise BadRequest("the program has no op with a name in JAX, so none can be followed")
    if what == DEAREST or what.isdecimal():
        place = 1 if what == DEAREST else int(what)
        found = ranked[place - 1 : place] if place else []
    else:
        found = [key for key in ranked if _means(what, key, groups[key])]
    if not found:
        some = ", ".join(f"{key.file.rpartition('/')[2]}:{key.line}" for key in ranked[:NAMED])
        raise BadRequest(
            f"--stages {shown(what)} names no op of the program; give a rank from 1 to "
            f"{len(ranked)}, a scope, an instruction, or a line: the dearest are {some}"
        )
    return found[0], sorted(groups[found[0]], key=lambda o: -cost(o))


def key_of_op(module: Module, item: HloOp) -> OpKey:
    """What an op of the program is of; a fusion without a line is of the line of what it holds."""
    source = next(iter(item.sources), None)
    if source is not None:
        return OpKey(item.op_name, source.file, source.line)
    found = module.computation(item.computation).find(item.name)
    inside = (module.computation(name) for name in (found.called if found else ()))
    keys = (key_of(module, i) for c in inside for i in c.instructions if i.op_name == item.op_name)
    return next((key for key in keys if key.file), OpKey(item.op_name, "", 0))


def _means(what: str, key: OpKey, mine: Sequence[HloOp]) -> bool:
    line = f"{key.file}:{key.line}"
    if line == what or line.endswith(f"/{what}") or what in (o.name for o in mine):
        return True
    return what in _WORDS.split(key.name) or key.name.endswith(what)


_WORDS = re.compile(r"[/()]+")
"""Between the words of what JAX calls an op: `jit(step)/transpose(jvp(mlp))/dot_general`."""


def _instruction(module: Module, item: HloOp) -> str:
    found = module.computation(item.computation).find(item.name)
    if found is None:
        return f"%{item.name}"
    text = f"%{found.name} = {found.opcode}({', '.join(f'%{o}' for o in found.operands)})"
    more = {k: v for k, v in found.fields.items() if k not in ("metadata", "backend_config")}
    return ", ".join([text, *(f"{k}={v}" for k, v in more.items())])


def _schedule(
    ops: Sequence[HloOp], rows: Mapping[str, OpRow], mine: Sequence[HloOp]
) -> tuple[Turn, ...]:
    """The ops of the computation around the op's longest instruction, in the order of their start,
    and what runs beside it on other streams."""
    if not rows or mine[0].op.id not in rows:
        return ()
    first = rows[mine[0].op.id]
    here = [o for o in ops if o.computation == mine[0].computation and o.op.id in rows]
    turns = sorted((rows[o.op.id] for o in here), key=lambda row: row.start)
    at = next(i for i, row in enumerate(turns) if row is first)
    ends = first.start + first.seconds
    shown_rows = [
        row
        for i, row in enumerate(turns)
        if abs(i - at) <= AROUND or (row.start < ends and row.start + row.seconds > first.start)
    ]
    own = {o.op.id for o in mine}
    return tuple(
        Turn(
            name=row.op.name,
            opcode=row.op.opcode,
            stream=row.op.op.stream,
            start=row.start,
            seconds=row.seconds,
            own=row.op.op.id in own,
        )
        for row in shown_rows
    )
