"""A plan beside its compiled program, and beside a capture of it: part by part, in one table.

FLOPs, bytes and seconds by op class, collectives by kind and axes, all of them by `Work.by_key`,
memory by kind; then sentences that say what differs and where the compiled program does it. All
figures are of one device and one step. Seconds by class add up what each op takes alone, whatever
hides it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwise.boundary.records import Record, hidden
from shardwise.boundary.records import part as optional
from shardwise.commands.pricing.plans import Priced
from shardwise.commands.program.compiling import (
    PlanProgram,
    planned_lines,
    said_of,
    short_op,
    short_source,
)
from shardwise.models import ModelConfig, load_model
from shardwise.plans import ServePlan, TrainPlan
from shardwise.profiler.buffer_kinds import REST, BufferPlace, memory_of, places
from shardwise.profiler.collectives import rules
from shardwise.profiler.collectives.added import ADDED
from shardwise.profiler.collectives.lines import read_lines
from shardwise.profiler.collectives.served import SERVED
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.work import HloOp, HloWork
from shardwise.profiler.trace import Capture, MeasuredProgram, measure
from shardwise.profiler.trace import read_trace as read_trace
from shardwise.units import format_bytes, format_count, format_gib, format_seconds
from shardwise.work import Key, Op, Work, grouped, tally

UNITS: Mapping[str, str] = {"flops": "FLOPs", "collective_runs": "runs"} | dict.fromkeys(
    ("step", "seconds"), "seconds"
)
"""Of the parts of a comparison; the others are bytes."""
BY_KEY = ("flops", "hbm_bytes", "collective_bytes")
"""The parts that are also shown key by key, as PART_by_key."""
UNNAMED = "(no scope)"
WORTH = 0.02
"""Share of a part's total from which a difference is said in words."""


LEFT = 1e-3
"""Share of the peak from which what no kind of memory has is a row: figures have three digits."""


@dataclass(frozen=True, kw_only=True)
class ComparedFigure(Record):
    """One figure by its three producers."""

    what: str
    """Name of the row."""
    predicted: float | None
    """As planned; null where nothing is."""
    compiled: float | None
    """As compiled; null where the program has none."""
    measured: float | None = optional()
    """As captured (--capture)."""
    part: str = hidden()

    @property
    def unit(self) -> str:
        """What the figures count."""
        return UNITS.get(self.part.removesuffix("_by_key"), "bytes")

    @property
    def difference(self) -> float:
        """Compiled less predicted."""
        return (self.compiled or 0.0) - (self.predicted or 0.0)


def figure_of(
    part: str,
    what: str,
    predicted: float | None,
    compiled: float | None,
    measured: float | None = None,
) -> ComparedFigure:
    """A figure of a part of `Compared`."""
    return ComparedFigure(
        part=part, what=what, predicted=predicted, compiled=compiled, measured=measured
    )


@dataclass(frozen=True, kw_only=True)
class Compared(Record):
    """One program beside its plan, part by part, each of a device and a step; parts without a
    figure are left out."""

    phase: str
    """train, decode or prefill."""
    slice: str
    """The chips, as COUNT*CHIP:SHAPE."""
    fits: bool
    """Whether the program fits a device's memory."""
    where_it_goes: Mapping[str, float]
    """Seconds of each part of the planned step; {} of prefill."""
    step: Sequence[ComparedFigure] | None = optional()
    """Seconds of the step: lower, expected, upper."""
    seconds: Sequence[ComparedFigure] | None = optional()
    """Seconds by op class, one after the other."""
    flops: Sequence[ComparedFigure] | None = optional()
    """FLOPs by op class."""
    hbm_bytes: Sequence[ComparedFigure] | None = optional()
    """HBM bytes by op class."""
    collective_bytes: Sequence[ComparedFigure] | None = optional()
    """V in bytes by collective and axes."""
    collective_runs: Sequence[ComparedFigure] | None = optional()
    """Runs by collective and axes."""
    flops_by_key: Sequence[ComparedFigure] | None = optional()
    """FLOPs by phase, component and class."""
    hbm_bytes_by_key: Sequence[ComparedFigure] | None = optional()
    """HBM bytes by phase, component and class."""
    collective_bytes_by_key: Sequence[ComparedFigure] | None = optional()
    """V in bytes by phase, component and collective."""
    memory: Sequence[ComparedFigure] | None = optional()
    """Bytes at the peak by kind."""
    differences: Sequence[str]
    """What differs, in sentences, the largest first."""

    def figures(self, name: str) -> Sequence[ComparedFigure]:
        """The figures of one part."""
        return getattr(self, name) or ()


def compare_program(
    priced: Priced, program: PlanProgram, captured: Capture | None = None
) -> Compared:
    """One compiled program of a plan beside what the planner says of it.

    `captured` is a capture of that program. Raises BadRequest for one that has none of its ops.
    """
    priced, measured = program.priced or priced, None
    if captured is not None:
        module = read_module(program.compiled.hlo)
        measured = measure(captured, program.work, module)
    cfg = load_model(priced.plan.model)
    found = places(program.compiled.buffers, priced.plan, cfg)
    work, _ = said_of(priced, program.phase)
    said = sums_of(work, priced.plan.mesh, program.phase)
    made = sums_of(adopted(program.work), program.work.mesh, program.phase)
    rows = (
        *_step(program, measured),
        *_seconds(priced, program, measured),
        *_by_part(said, made),
        *_by_key(said, made),
        *_memory(program, found),
    )
    sentences = [
        *memory_sentences(priced.plan, rows, found),
        *difference_sentences(program, rows, "collective_bytes"),
        *rewrite_sentences(priced, program, cfg),
        *difference_sentences(program, rows, "flops"),
        *difference_sentences(program, rows, "hbm_bytes"),
        *exposed_sentences(program),
        *scope_sentences(made),
    ]
    return Compared(
        phase=program.phase,
        slice=program.compiled.slice,
        fits=program.compiled.fits,
        where_it_goes=_where_it_goes(priced, program.phase),
        **grouped(rows, lambda row: row.part),
        differences=sentences,
    )


def _where_it_goes(priced: Priced, phase: str) -> Mapping[str, float]:
    """Where the planned step goes; of a serving plan, whose phases are two, only the decode step is
    told apart."""
    return {} if phase == "prefill" else priced.answer.time_parts.named()


# Keys ---------------------------------------------------------------------------------------------

Sums = Mapping[Key, Mapping[str, Any]]


def adopted(work: HloWork) -> Work:
    """The counting of a program, in which what the compiler made without a name (copies, most) is
    of the phase and component of the op that it is made for, or else of the one that made it."""
    named = {item.op.id: item.op for item in work.ops if item.op.component}
    readers: dict[str, Op] = {}
    for item in reversed(work.ops):
        heir = item.op if item.op.component else readers.get(item.op.id)
        if heir is not None:
            readers.update(dict.fromkeys(item.op.after, heir))
    return Work(tuple(_adopted(item, readers, named) for item in work.ops))


def _adopted(item: HloOp, readers: Mapping[str, Op], named: Mapping[str, Op]) -> Op:
    op = item.op
    if item.op_name or op.component or op.collective is not None:
        return op
    makers = (named[id] for id in op.after if id in named)
    heir = readers.get(op.id) or next(makers, None)
    return replace(op, phase=heir.phase, component=heir.component) if heir else op


def sums_of(work: Work, mesh: Mapping[str, int], phase: str) -> Sums:
    """A Work by key; what a program does outside a derivative is of the program's phase."""
    ops = work.over(mesh).ops
    return Work(
        tuple(replace(op, phase=phase) if op.phase == "step" else op for op in ops)
    ).by_key()


def key_text(key: Key) -> str:
    """A key in words: phase, component, and the class or the collective."""
    return f"{key.phase or '?'} {key.component or UNNAMED} {_doing(key)}"


def _doing(key: Key) -> str:
    axes = "+".join(sorted(key.axes)) or "?"
    return f"{key.collective} over {axes}" if key.collective else key.op_class


# Rows ---------------------------------------------------------------------------------------------


def _step(program: PlanProgram, measured: MeasuredProgram | None) -> Iterator[ComparedFigure]:
    t, said = program.timeline, program.planned.seconds
    for bound in ("lower", "expected", "upper"):
        spent = measured.step_seconds if measured is not None and bound == "expected" else None
        yield figure_of("step", bound, getattr(said, bound), t and getattr(t, bound), spent)


def _seconds(
    priced: Priced, program: PlanProgram, measured: MeasuredProgram | None
) -> Iterator[ComparedFigure]:
    _, estimate = said_of(priced, program.phase)
    rows = program.timeline.rows if program.timeline else ()
    sides = (
        tally((t.op.op_class, float(t.total)) for t in estimate.ops),
        tally((row.op.op.op_class, row.per_step) for row in rows),
        tally((o.op.op.op_class, o.seconds) for o in (measured.ops if measured else ())),
    )
    for what in _either(*sides):
        figures = [side.get(what) for side in sides]
        if any(figures):
            yield figure_of("seconds", what, *figures)


AMOUNTS = {part: part for part in BY_KEY} | {"collective_runs": "runs"}
"""Parts that are made of keys, and what they add up."""


def _by_part(said: Sums, made: Sums) -> Iterator[ComparedFigure]:
    """FLOPs and HBM bytes by op class, collectives by kind and axes."""
    for part, amount in AMOUNTS.items():
        wires = part.startswith("collective")
        sides = (
            tally((_doing(k), float(s[amount])) for k, s in side.items() if bool(k.axes) is wires)
            for side in (said, made)
        )
        rows = _pairs(part, *sides)
        yield from sorted(rows, key=lambda row: row.what) if wires else rows


def _by_key(said: Sums, made: Sums) -> Iterator[ComparedFigure]:
    """Every key; None where a side has nothing under it."""
    for part in BY_KEY:
        for key in _either(said, made):
            figures = [
                float(side[key][part]) or None if key in side else None for side in (said, made)
            ]
            if any(figures):
                yield figure_of(f"{part}_by_key", key_text(key), *figures)


def _either(*sides: Mapping[Any, Any]) -> dict[Any, None]:
    """The keys of any side, each once, in order."""
    return dict.fromkeys(what for side in sides for what in side)


def _pairs(
    part: str, said: Mapping[str, float], made: Mapping[str, float]
) -> Iterator[ComparedFigure]:
    for what in _either(said, made):
        pair = said.get(what, 0.0), made.get(what, 0.0)
        if any(pair):
            yield figure_of(part, what, *pair)


def _memory(program: PlanProgram, found: Sequence[BufferPlace]) -> Iterator[ComparedFigure]:
    peak = program.planned.peak_bytes, float(program.compiled.needed_bytes)
    yield figure_of("memory", "peak", *peak)
    sides = program.planned.memory_by_kind, memory_of(found)
    yield from _pairs("memory", *sides)
    rest = [whole - sum(kinds.values()) for whole, kinds in zip(peak, sides, strict=True)]
    if any(abs(left) > LEFT * whole for left, whole in zip(rest, peak, strict=True)):
        yield figure_of("memory", REST, *rest)


# Sentences ----------------------------------------------------------------------------------------


def memory_sentences(
    plan: TrainPlan | ServePlan, rows: Sequence[ComparedFigure], found: Sequence[BufferPlace]
) -> Iterator[str]:
    """What the compiler keeps that the plan does not, and the other way round, by kind."""
    memory = [row for row in rows if row.part == "memory"]
    least = WORTH * next(row.compiled or 0.0 for row in memory if row.what == "peak")
    kept = [p for p in found if p.gathered and p.layers > 1]
    if kept and isinstance(plan, TrainPlan) and plan.weight_gather == "per_pass":
        names = ", ".join(dict.fromkeys(name for p in kept for name in p.of))
        size = sum(p.buffer.bytes for p in kept)
        yield (
            f"XLA keeps the gathered {names} of {kept[0].layers} layers alive for the backward "
            f"pass: +{format_gib(size)}"
        )
    for row in memory:
        what = row.what
        if what in ("peak", REST) or abs(row.difference) < least:
            continue
        largest = max(
            (p.buffer for p in found if p.kind == what), key=lambda b: b.bytes, default=None
        )
        if row.difference > 0 and largest is not None:
            origin = short_op(largest.op) or largest.name
            source = f" ({short_source(largest.source)})" if largest.source else ""
            yield (
                f"the program assigns {format_gib(row.difference)} more {what} than planned; the "
                f"largest is {largest.shape} of {origin}{source}, {format_gib(largest.bytes)}"
            )
        elif row.difference < 0:
            yield f"the program assigns {format_gib(-row.difference)} less {what} than planned"


def difference_sentences(
    program: PlanProgram, rows: Sequence[ComparedFigure], part: str
) -> Iterator[str]:
    """The rows of a part that differ by more than a little of its total: by how much, and the
    operation of JAX that has most of what is more."""
    mine = {row.what: row for row in rows if row.part == part}
    sides = ([row.predicted or 0.0, row.compiled or 0.0] for row in mine.values())
    least = max(WORTH * max(map(sum, zip(*sides, strict=True)), default=0.0), 1.0)
    few, text = ("fewer", format_count) if part == "flops" else ("less", format_bytes)
    for row in sorted(mine.values(), key=lambda row: -abs(row.difference)):
        if abs(row.difference) < least:
            continue
        most = _largest(program, part, row.what) if row.difference > 0 else None
        yield (
            f"{text(abs(row.difference))} {'more' if row.difference > 0 else few} "
            f"{_named(row)} than planned{_remark(program, mine, row)}"
            + (f"; most is {_where(most)}" if most else "")
        )


def _named(row: ComparedFigure) -> str:
    kind, over, axes = row.what.partition(" over ")
    if over:
        return f"{kind.replace('_', '-')} over {axes}"
    return f"{'FLOPs' if row.part == 'flops' else 'HBM bytes'} in {row.what} ops"


def _remark(program: PlanProgram, rows: Mapping[str, ComparedFigure], row: ComparedFigure) -> str:
    """Of all-reduces that they stand for reduce-scatters, of matmuls what runs again."""
    twin = rows.get(row.what.replace("all_reduce", "reduce_scatter"), row)
    if row.difference > 0 > twin.difference:
        return ": planned reduce-scatters became an all-reduce and a slice"
    if (row.part, row.what) != ("flops", "matmul"):
        return ""
    ops = program.work.work.where(lambda op: op.op_class == "matmul" and op.phase == "recompute")
    again = float(ops.flops())
    return f"; {format_count(again)} come from recomputing the forward pass" if again else ""


MEANINGS = {**rules.RULES, **ADDED, **SERVED}


def rewrite_sentences(priced: Priced, program: PlanProgram, cfg: ModelConfig) -> Iterator[str]:
    """Which of the compiler's rewrites explain the differences, and what is left."""
    if program.phase == "prefill" or program.compiled.refusal:
        return  # the rules are of whole steps; loops of a refused program are not as they would run
    plan = priced.plan
    lists = planned_lines(priced, program.phase), read_lines(program.compiled.hlo, plan)
    found = rules.compare(plan, cfg, *lists)
    least = WORTH * sum(row.planned[1] for row in found.rows)
    for note in found.explained:
        if max(note.planned, note.compiled) > least:
            kinds, axes = "/".join(note.kinds).replace("_", "-"), "+".join(note.axes)
            yield (
                f"explained by '{note.rule}': {kinds} over {axes}, {format_bytes(note.planned)} "
                f"planned, {format_bytes(note.compiled)} compiled ({MEANINGS[note.rule]})"
            )
    if found.left > least:
        yield f"{format_bytes(found.left)} of collectives are not explained by any known rewrite"


def _largest(program: PlanProgram, part: str, what: str) -> HloOp | None:
    """The op of which a step has most of a part's row, None where none has any."""

    def size(item: HloOp) -> float:
        ((key, sums),) = Work((item.op,)).by_key().items()
        return float(sums[part]) if _doing(key) == what else 0.0

    largest = max(program.work.ops, key=size, default=None)
    return largest if largest is not None and size(largest) else None


def _where(item: HloOp) -> str:
    source = f" ({short_source(str(item.sources[0]))})" if item.sources else ""
    return f"{short_op(item.op_name) or item.name}{source}"


def exposed_sentences(program: PlanProgram) -> Iterator[str]:
    """Streams that the compute stream waits for."""
    t = program.timeline
    for stream, seconds in sorted((t.exposed if t else {}).items(), key=lambda pair: -pair[1]):
        if t is not None and seconds > WORTH * t.expected:
            yield (
                f"compute waits {format_seconds(seconds)} of {format_seconds(t.expected)} for "
                f"{stream.replace('net:', 'the network of ')}"
            )


def scope_sentences(made: Sums) -> Iterator[str]:
    """How much of the program is of no named scope: the compiler's own, or its scope was lost."""
    lost = []
    for part, name in zip(BY_KEY, ("FLOPs", "HBM bytes", "collective bytes"), strict=True):
        total = sum(float(sums[part]) for sums in made.values())
        none = sum(float(sums[part]) for key, sums in made.items() if not key.component)
        lost += [f"{none / total:.1%} of the {name}"] if total else []
    if lost:
        yield f"outside any named scope: {', '.join(lost)}"
