"""Why a step takes longer than its ops must: seconds above the roofline, by cause and line.

The floor of an op is its busiest resource at the chip's peak. What it takes above that is handed
out in the order of `_parts`: rates that the chip really reaches, tiles that are filled up, work of
the vector units, resources one after the other, starts. What is left of an op goes by what it does
(`_kind`); of one that none of these fits, it is unknown. Floor, causes and unknown are the step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from shardwise.boundary.records import Record
from shardwise.profiler.explain.evidence import Evidence
from shardwise.profiler.explain.tables import spent, users_place
from shardwise.profiler.hlo.rules import rule
from shardwise.profiler.timeline import OpRow, vector_seconds
from shardwise.roofline.price import HBM, MATH
from shardwise.work import Matmul, grouped

START_CYCLES = 1826
"""Of an op that does next to nothing, as libtpu 0.0.42 estimates it."""
FUNCTIONS = frozenset(
    (
        *("exponential", "exponential-minus-one", "log", "log-plus-one", "tanh", "logistic", "erf"),
        *("sine", "cosine", "power", "rsqrt", "sqrt", "cbrt", "divide", "atan2", "tan"),
    )
)
"""Opcodes that are many instructions of the vector units."""
ROWS = frozenset({"gather", "scatter", "dynamic-slice", "dynamic-update-slice", "sort"})
RATES = "rates: kernels below peak"
TILES = "tiles: padding to whole tiles"
VECTOR = "vector units: compute takes longer than memory"
SERIAL = "no overlap: memory, matrix and vector units one after the other"
STARTS = "starts of ops"
RAMP = "kernel starts: small matmuls"
SHARED = "memory bandwidth shared by kernels and copies"
ORDER = "layout: copies that reorder dims or tiles"
TAKEN = "gather and scatter: rows one by one"
FUSED = "vector units: ops fused into matmuls"
CALLED = "vector units: exp, tanh, division and similar"
REDUCED = "vector units: reductions"
NARROW = "vector units: conversions from and to bf16"
PLAIN = "vector units: several instructions per number"
KINDS = frozenset({ORDER, TAKEN, FUSED, CALLED, REDUCED, NARROW, PLAIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause(Record):
    """Seconds of a step above the roofline that have one cause."""

    name: str
    """What it is."""
    seconds: float
    """Seconds per step."""
    share: float
    """Share of the step."""
    where: str
    """file:line of most of it."""
    most: float
    """Seconds of it there."""
    op: str
    """The op that has most of it there."""
    counted: bool
    """Whether it follows from the ops' numbers; else it is what these leave, of ops of one kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownTime(Record):
    """Seconds of an op above the roofline that no cause explains."""

    name: str
    """The op."""
    seconds: float
    """Seconds per step."""
    share: float
    """Share of the step."""
    where: str
    """file:line, or its operation's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCauses:
    """A step as floor, causes and unknown ops, the most seconds first; they add up to the step."""

    floor: float
    causes: tuple[Cause, ...]
    unknown: tuple[UnknownTime, ...]


def step_parts(e: Evidence) -> StepCauses:
    """Where the seconds of a step above its ops' roofline come from."""
    step = e.timeline.expected
    rows = e.timeline.rows
    floor = sum(row.lower * row.count for row in rows if row.op.op.stream == "compute")
    parts = [(name, row, seconds) for row in rows for name, seconds in _placed(e, row)]
    causes = [
        _cause(e, name, [(row, s) for _, row, s in same], step)
        for name, same in grouped(parts, lambda part: part[0]).items()
        if name
    ]
    if (rest := step - sum(map(spent, rows))) > 0 and rows:
        causes.append(_shared(e, rest, step))
    unknown = [
        UnknownTime(
            name=row.op.name, seconds=s, share=s / step, where=users_place(e, e.where(row.op))
        )
        for name, row, s in parts
        if not name
    ]
    return StepCauses(
        floor=floor,
        causes=tuple(sorted(causes, key=lambda c: -c.seconds)),
        unknown=tuple(sorted(unknown, key=lambda u: -u.seconds)),
    )


def _cause(e: Evidence, name: str, parts: Sequence[tuple[OpRow, float]], step: float) -> Cause:
    lines = grouped(parts, lambda part: e.where(part[0].op))
    totals = {where: sum(s for _, s in same) for where, same in lines.items()}
    where = max(totals, key=lambda at: totals[at])
    seconds = sum(totals.values())
    return Cause(
        name=name,
        seconds=seconds,
        share=seconds / step,
        where=users_place(e, where),
        most=totals[where],
        op=max(lines[where], key=lambda part: part[1])[0].op.name,
        counted=name not in KINDS,
    )


def _shared(e: Evidence, seconds: float, step: float) -> Cause:
    """What the memory takes beyond the timeline, as kernels and copies share it."""
    row = max(e.timeline.rows, key=lambda row: row.hbm_bytes)
    return Cause(
        name=SHARED,
        seconds=seconds,
        share=seconds / step,
        where=users_place(e, e.where(row.op)),
        most=seconds,
        op=row.op.name,
        counted=True,
    )


def _placed(e: Evidence, row: OpRow) -> Iterator[tuple[str, float]]:
    """The causes of an op's seconds per step above its floor; "" of what none explains, or of what
    has no place in the program."""
    known = ".py:" in e.where(row.op) or e.where(row.op) in e.names
    for name, seconds in _parts(e, row):
        if seconds > 0:
            yield (name if known else ""), seconds


def _parts(e: Evidence, row: OpRow) -> Iterator[tuple[str, float]]:
    if row.op.op.stream != "compute":
        yield _wait(row), row.exposed
        return
    left = (row.seconds - row.lower) * row.count
    for name, seconds in _amounts(e, row):
        part = max(min(left, seconds * row.count), 0.0)
        left -= part
        yield name, part
    yield _kind(e, row), left


def _wait(row: OpRow) -> str:
    wire = row.op.op.collective
    if wire is not None:
        short = ": latency" if row.bound_by == "latency" else ""
        return f"waits for collectives over {' and '.join(wire.axes) or 'one device'}{short}"
    host = row.op.op.stream == "host"
    return "waits for the host" if host else "waits for copies between HBM and the chip's memory"


def _amounts(e: Evidence, row: OpRow) -> Iterator[tuple[str, float]]:
    """Seconds of one run above the floor that are known beforehand, by cause."""
    chip = e.piece.chip
    math = row.peak.get(MATH, 0.0) / chip.efficiency.matmul
    moved = row.peak.get(HBM, 0.0) / chip.efficiency.hbm
    vector = vector_seconds(row.op, chip)
    busiest = max(math, moved)
    yield RATES, busiest - row.lower
    product = row.op.op.matmul
    whole = math * filled(product, chip.matmul_tile) if product is not None else math
    yield TILES, max(whole, moved) - busiest
    yield VECTOR, vector - max(whole, moved)
    yield SERIAL, whole + moved + vector - max(whole, moved, vector)
    if chip.compiler is not None and row.op.cycles is not None:
        start = START_CYCLES / chip.require("compiler_clock_hz")
        yield STARTS, start
        if product is not None:
            batch = float(product.batch) if product.batch else 1.0
            yield RAMP, chip.efficiency.matmul_ramp + start * (batch - 1)


def filled(product: Matmul, tile: Sequence[int]) -> float:
    """How much more is multiplied with every dim filled up to its tile."""
    more = 1.0
    for size, unit in zip((product.m, product.k, product.n), tile, strict=True):
        more *= ceil(float(size) / unit) * unit / float(size)
    return more


def _kind(e: Evidence, row: OpRow) -> str:
    """Why an op takes what is left, by what it does; "" where that says nothing."""
    if row.bound_by != "cycles":
        return ""
    _, found = e.located(row.op)
    if found is None:
        return ""
    inside = [found]
    for i in inside:
        called = i.called if i.opcode == "fusion" else ()
        inside += [j for name in called for j in e.module.computation(name).instructions]
    codes = {i.opcode for i in inside} - {"fusion", "parameter", "constant", "bitcast", "iota"}
    computes = {code for code in codes if rule(code) in ("elementwise", "reduction")} - {"convert"}
    if row.flops:
        return FUSED if computes or "convert" in codes else ""
    if not computes and not codes & ROWS and "convert" not in codes:
        return ORDER if codes else ""
    if not computes and codes & ROWS:
        return TAKEN
    if codes & FUNCTIONS:
        return CALLED
    if any(rule(code) == "reduction" for code in codes):
        return REDUCED
    return NARROW if any("bf16" in str(i.shape) for i in inside) else PLAIN
