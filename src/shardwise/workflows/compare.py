"""A plan beside its compiled program, and beside a capture of it: part by part, in one table.

FLOPs, bytes and seconds by op class, collectives by kind and axes, memory by kind; then sentences
that say what differs and where the compiled program does it. All figures are of one device and one
step. Seconds by class add up what each op takes alone, whatever hides it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig, load_model
from shardwise.plans import ServePlan, TrainPlan, load_plan
from shardwise.plans.named import plan_path
from shardwise.profiler.ahead import Limits
from shardwise.profiler.buffer_kinds import BufferPlace, memory_of, places
from shardwise.profiler.child import Watch
from shardwise.profiler.collectives import rules
from shardwise.profiler.collectives.added import ADDED
from shardwise.profiler.collectives.lines import lines_of, read_lines
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.work import HloOp
from shardwise.profiler.trace import Capture, MeasuredProgram, measure, read_trace
from shardwise.units import format_bytes, format_count, format_gib, format_seconds
from shardwise.work import Op
from shardwise.workflows.compile import Program, compile_plan, said_of, short_op, short_source
from shardwise.workflows.inputs import Hardware
from shardwise.workflows.plan_file import Priced

Unit = Literal["FLOPs", "bytes", "seconds", "runs"]
COLLECTIVE = ("collective_bytes", "collective_runs")
WORTH = 0.02
"""Share of a part's total from which a difference is said in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure by its three producers; None where one has none. `part` is flops, hbm_bytes,
    collective_bytes, collective_runs, memory or seconds."""

    part: str
    what: str
    unit: Unit
    predicted: float | None
    compiled: float | None
    measured: float | None = None

    @property
    def difference(self) -> float:
        """Compiled less predicted."""
        return (self.compiled or 0.0) - (self.predicted or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The rows of one program, and what differs, in sentences, the largest first."""

    phase: str
    slice: str
    fits: bool
    rows: tuple[Row, ...]
    sentences: tuple[str, ...]

    def of(self, part: str) -> tuple[Row, ...]:
        """The rows of one part."""
        return tuple(row for row in self.rows if row.part == part)


def compare(
    what: TrainPlan | ServePlan | Path | str,
    *,
    on: str | None = None,
    phases: Sequence[str] = (),
    trace: Path | str | None = None,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    watch: Watch | None = None,
) -> tuple[Compared, ...]:
    """A plan, or a plan's file, beside its programs, compiled for its own slice or for `on`.

    `phases` are train, or decode and prefill; `trace` is a capture of the one phase named. Raises
    as `compile_plan`, and BadRequest for a capture of another program.
    """
    plan = what if isinstance(what, TrainPlan | ServePlan) else load_plan(plan_path(str(what)))
    hardware = Hardware()
    captured = None if trace is None else read_trace(Path(trace))
    done = compile_plan(
        plan, hardware, on=on, phases=phases, options=options, limits=limits, watch=watch
    )
    if trace is not None and len(done.programs) > 1:
        raise BadRequest("a capture is of one program; say which with phases=('decode',)")
    return tuple(compare_program(done.priced, program, captured) for program in done.programs)


def compare_program(priced: Priced, program: Program, captured: Capture | None = None) -> Compared:
    """One compiled program of a plan beside what the planner says of it.

    `captured` is a capture of that program. Raises BadRequest for one that has none of its ops.
    """
    measured = None
    if captured is not None:
        module = read_module(program.compiled.hlo)
        measured = measure(captured, program.work, module)
    cfg = load_model(priced.plan.model)
    found = places(program.compiled.buffers, priced.plan, cfg)
    rows = (
        *_step(program, measured),
        *_by_class(priced, program, measured),
        *_collectives(program),
        *_memory(program, found),
    )
    said = [
        *memory_sentences(priced.plan, program, rows, found),
        *collective_sentences(program, rows),
        *rewrite_sentences(priced, program, cfg),
        *class_sentences(program, rows),
        *exposed_sentences(program),
    ]
    return Compared(
        phase=program.phase,
        slice=program.compiled.slice,
        fits=program.compiled.fits,
        rows=rows,
        sentences=tuple(said),
    )


# Rows ---------------------------------------------------------------------------------------------


def _step(program: Program, measured: MeasuredProgram | None) -> Iterator[Row]:
    t, said = program.timeline, program.predicted["seconds"]
    for bound in ("lower", "expected", "upper"):
        spent = measured.step_seconds if measured is not None and bound == "expected" else None
        yield Row(
            part="step",
            what=bound,
            unit="seconds",
            predicted=said[bound],
            compiled=t and getattr(t, bound),
            measured=spent,
        )


def _by_class(priced: Priced, program: Program, measured: MeasuredProgram | None) -> Iterator[Row]:
    """FLOPs, HBM bytes and seconds by op class."""
    work, estimate = said_of(priced, program.phase)
    made = program.work.work.ops
    for part, amount in (("flops", _flops), ("hbm_bytes", _moved)):
        unit: Unit = "FLOPs" if part == "flops" else "bytes"
        said, got = _sums(work.ops, amount), _sums(made, amount)
        for what in dict.fromkeys((*said, *got)):
            pair = (said.get(what, 0.0), got.get(what, 0.0))
            if any(pair):
                yield Row(part=part, what=what, unit=unit, predicted=pair[0], compiled=pair[1])
    times: dict[str, list[float | None]] = {}

    def add(at: int, what: str, seconds: float) -> None:
        held = times.setdefault(what, [None, None, None])
        held[at] = (held[at] or 0.0) + seconds

    for time in estimate.ops:
        add(0, time.op.op_class, float(time.total))
    for row in program.timeline.rows if program.timeline else ():
        add(1, row.op.op.op_class, row.per_step)
    for one in measured.ops if measured is not None else ():
        add(2, one.op.op.op_class, one.seconds)
    for what, (said, got, spent) in times.items():
        if said or got or spent:
            yield Row(
                part="seconds",
                what=what,
                unit="seconds",
                predicted=said,
                compiled=got,
                measured=spent,
            )


def _sums(ops: Iterable[Op], amount: Callable[[Op], float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for op in ops:
        found[op.op_class] = found.get(op.op_class, 0.0) + amount(op) * float(op.count)
    return found


def _flops(op: Op) -> float:
    return float(sum(map(float, op.flops.values())))


def _moved(op: Op) -> float:
    return float(op.hbm_bytes)


def _collectives(program: Program) -> Iterator[Row]:
    said, made = program.predicted["collectives"], program.collectives
    for kind, axes in sorted({*said, *made}):
        one, other = said.get((kind, axes), (0.0, 0.0)), made.get((kind, axes), (0.0, 0.0))
        what = f"{kind} over {'+'.join(axes) or '?'}"
        pairs = ((one[1], other[1]), (one[0], other[0]))
        for part, (planned, compiled) in zip(COLLECTIVE, pairs, strict=True):
            unit: Unit = "bytes" if part == "collective_bytes" else "runs"
            yield Row(part=part, what=what, unit=unit, predicted=planned, compiled=compiled)


def _memory(program: Program, found: Sequence[BufferPlace]) -> Iterator[Row]:
    said, made = program.predicted["memory_by_kind"], memory_of(found)
    peak = program.predicted["peak_bytes"], float(program.compiled.needed_bytes)
    yield Row(part="memory", what="peak", unit="bytes", predicted=peak[0], compiled=peak[1])
    for what in dict.fromkeys((*said, *made)):
        pair = (said.get(what, 0.0), made.get(what, 0.0))
        if any(pair):
            yield Row(part="memory", what=what, unit="bytes", predicted=pair[0], compiled=pair[1])


# Sentences ----------------------------------------------------------------------------------------


def memory_sentences(
    plan: TrainPlan | ServePlan, program: Program, rows: Sequence[Row], found: Sequence[BufferPlace]
) -> Iterator[str]:
    """What the compiler keeps that the plan does not, and the other way round, by kind."""
    at = {row.what: row for row in rows if row.part == "memory"}
    least = WORTH * (at["peak"].compiled or 0.0)
    kept = [p for p in found if p.gathered and p.layers > 1]
    if kept and isinstance(plan, TrainPlan) and plan.reshard_after_forward:
        names = ", ".join(dict.fromkeys(name for p in kept for name in p.of))
        size = sum(p.buffer.bytes for p in kept)
        yield (
            f"XLA keeps the gathered {names} of {kept[0].layers} layers alive for the backward "
            f"pass: +{format_gib(size)}"
        )
    for what, row in at.items():
        if what == "peak" or abs(row.difference) < least:
            continue
        largest = max(
            (p.buffer for p in found if p.kind == what), key=lambda b: b.bytes, default=None
        )
        if row.difference > 0 and largest is not None:
            origin = short_op(largest.op) or largest.name
            source = f" ({short_source(largest.source)})" if largest.source else ""
            yield (
                f"the program assigns {format_gib(row.difference)} more {what} than planned; its "
                f"largest is {largest.shape} of {origin}{source}, {format_gib(largest.bytes)}"
            )
        elif row.difference < 0:
            yield f"the program assigns {format_gib(-row.difference)} less {what} than planned"


def collective_sentences(program: Program, rows: Sequence[Row]) -> Iterator[str]:
    """Per kind and axes: by how much, and the operation of JAX that moves most of it."""
    mine = [row for row in rows if row.part == "collective_bytes"]
    least = WORTH * max(
        (sum(row.predicted or 0.0 for row in mine), sum(row.compiled or 0.0 for row in mine))
    )
    sums = {row.what: row for row in mine}
    for row in sorted(mine, key=lambda row: -abs(row.difference)):
        if abs(row.difference) < max(least, 1.0):
            continue
        kind, _, axes = row.what.partition(" over ")
        verb = kind.replace("_", "-")
        largest = _largest(program, kind, axes)
        if row.difference > 0 and largest is not None:
            twin = sums.get(f"reduce_scatter over {axes}") if kind == "all_reduce" else None
            whole = ""
            if twin is not None and twin.difference < 0:
                whole = ": sums that are planned as reduce-scatters are made whole, then cut"
            yield (
                f"{format_bytes(row.difference)} more {verb} over {axes} than planned{whole}; most "
                f"is {short_op(largest.op_name) or largest.name}{_source(largest)}"
            )
        elif row.difference < 0:
            yield f"{format_bytes(-row.difference)} less {verb} over {axes} than planned"


MEANINGS = {**rules.RULES, **ADDED}


def rewrite_sentences(priced: Priced, program: Program, cfg: ModelConfig) -> Iterator[str]:
    """Which of the compiler's rewrites explain the differences, and what is left."""
    if program.phase == "prefill" or program.compiled.refusal:
        return  # the rules are of whole steps; loops of a refused program are not as they would run
    plan = priced.plan
    work, _ = said_of(priced, program.phase)
    lists = lines_of(work, plan), read_lines(program.compiled.hlo, plan)
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
        yield f"{format_bytes(found.left)} of collectives are explained by no rewrite"


def _largest(program: Program, kind: str, axes: str) -> HloOp | None:
    def size(item: HloOp) -> float:
        wire = item.op.collective
        if wire is None or wire.kind != kind or "+".join(sorted(wire.axes)) != axes:
            return 0.0
        return float(wire.bytes) * float(item.op.count)

    largest = max(program.work.ops, key=size, default=None)
    return largest if largest is not None and size(largest) else None


def _source(item: HloOp) -> str:
    return f" ({short_source(str(item.sources[0]))})" if item.sources else ""


def class_sentences(program: Program, rows: Sequence[Row]) -> Iterator[str]:
    """FLOPs and HBM bytes by class, where they differ by more than a little of the total."""
    texts = {"flops": format_count, "hbm_bytes": format_bytes}
    for part, text in texts.items():
        mine = [row for row in rows if row.part == part]
        total = sum(row.predicted or 0.0 for row in mine)
        for row in sorted(mine, key=lambda row: -abs(row.difference)):
            if abs(row.difference) < max(WORTH * total, 1.0):
                continue
            more = "more" if row.difference > 0 else "fewer"
            unit = "FLOPs" if part == "flops" else "HBM bytes"
            yield (
                f"{text(abs(row.difference))} {more} {unit} in {row.what} ops than planned"
                + (_recomputed(program) if part == "flops" and row.what == "matmul" else "")
                + (_most_of(program, part, row.what) if row.difference > 0 else "")
            )


def _most_of(program: Program, part: str, op_class: str) -> str:
    """Where most of the FLOPs or bytes of a class of ops come from."""

    def size(item: HloOp) -> float:
        if item.op.op_class != op_class:
            return 0.0
        once = _flops(item.op) if part == "flops" else float(item.op.hbm_bytes)
        return once * float(item.op.count)

    most = max(program.work.ops, key=size, default=None)
    if most is None or not size(most):
        return ""
    return f"; most is {short_op(most.op_name) or most.name}{_source(most)}"


def _recomputed(program: Program) -> str:
    """What of the matmuls is a recomputed forward pass."""
    again = sum(
        _flops(item.op) * float(item.op.count)
        for item in program.work.ops
        if item.op.phase == "recompute" and item.op.op_class == "matmul"
    )
    return f"; {format_count(again)} are a forward pass run again" if again else ""


def exposed_sentences(program: Program) -> Iterator[str]:
    """Streams that the compute stream waits for."""
    t = program.timeline
    for stream, seconds in sorted((t.exposed if t else {}).items(), key=lambda pair: -pair[1]):
        if t is not None and seconds > WORTH * t.expected:
            yield (
                f"compute waits {format_seconds(seconds)} of {format_seconds(t.expected)} for "
                f"{stream.replace('net:', 'the network of ')}"
            )


def compared_result(found: Compared) -> Mapping[str, Any]:
    """Plain values for a document."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in found.rows:
        entry = {"what": row.what, "predicted": row.predicted, "compiled": row.compiled}
        if row.measured is not None:
            entry["measured"] = row.measured
        parts.setdefault(row.part, []).append(entry)
    return {
        "phase": found.phase,
        "slice": found.slice,
        "fits": found.fits,
        **parts,
        "differences": list(found.sentences),
    }
