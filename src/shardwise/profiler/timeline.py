"""A compiled program on a slice: when each op runs on its stream, and how long a step takes.

`schedule` prices every op of an `HloWork` and lays them out as the compiler scheduled them. The
compute stream runs in order. What a start begins runs on its own stream (copies, the host link,
each axis of the network), one after the other where streams are shared, until the compute stream
waits for it. Links carry both ways at once: a permute takes one way of its axis. A loop's body runs
as often as its trip count says and is empty at both ends.

An op takes the larger of the compiler's cycles over the clock and its bytes over the bandwidth.
Where the compiler gives no cycles (collectives, copies, Pallas kernels, GPUs), or none to be
trusted (8-bit products on v6e, 1.7 to 2.8 x the roofline), `shardwise.roofline` prices it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardwise.errors import BadRequest
from shardwise.hardware.chip import Chip
from shardwise.hardware.placement import Placement, place
from shardwise.hardware.slices import Slice
from shardwise.hardware.totals import vector_ops
from shardwise.profiler.hlo.work import Block, HloOp, HloWork, Nested, Wait
from shardwise.roofline.bodies import OpTime
from shardwise.roofline.price import HBM, MATH, price_op
from shardwise.roofline.stacks import IDEAL, Stack
from shardwise.work import Op, tally

_SUBSTITUTES = {
    "f32": ("f32", "bf16"),
    "f64": ("f64", "f32", "bf16"),
    "f16": ("f16", "bf16"),
    "fp8": ("fp8", "bf16"),
    "int8": ("int8", "bf16"),
    "uint8": ("int8", "bf16"),
    "int4": ("int4", "int8", "bf16"),
    "uint4": ("int4", "int8", "bf16"),
}
"""The rates a product may run at, best first: hardware without a dtype multiplies a wider one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """One op on the timeline; seconds are of one run, `exposed` of all runs in a step.

    `lower` is its busiest resource at peak, `seconds` what the timeline takes, `upper` its parts
    one after the other. `start` is when its first run begins. `exposed` is how long the compute
    stream stands still for it. `bound_by` is "cycles" (the compiler's estimate), "math", "vector",
    "HBM", "host link", a network, or "latency".
    """

    op: HloOp
    lower: float
    seconds: float
    upper: float
    start: float
    exposed: float
    bound_by: str
    peak: Mapping[str, float]

    @property
    def count(self) -> float:
        """How often it runs per step."""
        return float(self.op.op.count)

    @property
    def per_step(self) -> float:
        """Seconds of all runs, one after the other."""
        return self.seconds * self.count

    @property
    def hbm_bytes(self) -> float:
        """HBM bytes of all runs."""
        return float(self.op.op.hbm_bytes) * self.count

    @property
    def flops(self) -> float:
        """FLOPs of its products, one run."""
        return float(sum(float(f) for f in self.op.op.flops.values()))

    @property
    def intensity(self) -> float:
        """FLOPs per HBM byte; infinite without HBM traffic."""
        moved = float(self.op.op.hbm_bytes)
        return self.flops / moved if moved else float("inf") if self.flops else 0.0

    @property
    def of_roofline(self) -> float:
        """The share of the roofline that it reaches: `lower` over `seconds`."""
        return self.lower / self.seconds if self.seconds else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One run of one op, or `times` rounds of a loop: the first, from which the others follow."""

    name: str
    stream: str
    start: float
    seconds: float
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HloTimeline:
    """One step of a compiled program on a slice.

    `lower` is the busiest resource at peak rates, `expected` the timeline, `upper` no overlap at
    all. `streams` are the busy seconds of each stream per step, `exposed` the seconds in which the
    compute stream waits, by stream, `uncounted` the loops whose trip count is not in the text, each
    of which counts one round. `spans` are in the order of their start.
    """

    slice: Slice
    lower: float
    expected: float
    upper: float
    streams: Mapping[str, float]
    exposed: Mapping[str, float]
    rows: tuple[OpRow, ...]
    spans: tuple[Span, ...]
    uncounted: tuple[str, ...]
    unknown: tuple[HloOp, ...]

    @property
    def exposed_communication(self) -> float:
        """Seconds per step in which the compute stream waits for a network."""
        return sum(s for name, s in self.exposed.items() if name.startswith("net:"))

    @property
    def idle(self) -> float:
        """Seconds per step in which the compute stream stands still, whatever it waits for."""
        return max(self.expected - self.streams.get("compute", 0.0), 0.0)

    @property
    def flops(self) -> float:
        """FLOPs of all products of one device per step, recomputation included."""
        return sum(row.flops * row.count for row in self.rows)

    @property
    def hfu(self) -> float:
        """Seconds that the products take at the peak of their dtypes, over the step."""
        math = sum(row.peak.get(MATH, 0.0) * row.count for row in self.rows)
        return math / self.expected if self.expected else 0.0

    def mfu(self, model_flops: float) -> float:
        """Share of the slice's bf16 peak that `model_flops` of a step are."""
        return model_flops / (self.expected * self.slice.chip.peak("bf16") * self.slice.chips)

    def top(self, n: int) -> tuple[OpRow, ...]:
        """The n ops of most seconds per step, on any stream."""
        return tuple(sorted(self.rows, key=lambda row: -row.per_step)[:n])


def schedule(work: HloWork, piece: Slice, stack: Stack = IDEAL) -> HloTimeline:
    """Lay a compiled program out on the slice that it was compiled for.

    `stack` prices ops without cycles: on GPUs it adds what launching a kernel takes. What is fused
    is in the text, so its `passes` count for nothing.
    Raises BadRequest where the slice has another number of devices, or the catalogue lacks a number
    that an op needs.
    """
    if work.mesh.size != piece.devices:
        raise BadRequest(
            f"the program runs on {work.mesh.size} devices and '{piece}' has {piece.devices}; name "
            "the slice that it was compiled for"
        )
    placement, stack = place(piece, dict(work.mesh)), replace(stack, passes=1.0)
    rows = {item.op.id: _row(item, piece.chip, placement, stack) for item in work.ops}
    run = _Streams(rows)
    end = run.block(work.block, 0.0, 1.0)
    priced = tuple(
        # What a loop of no rounds holds never starts.
        replace(row, start=run.starts.get(id, 0.0), exposed=run.exposed.get(id, 0.0))
        for id, row in rows.items()
    )
    resources = _totals(priced)
    # Copies and kernels share one memory: together they cannot beat its bandwidth.
    shared = resources.get(HBM, 0.0) / piece.chip.efficiency.hbm
    lower = max(resources.values(), default=0.0)
    expected = max(end, shared, lower)
    exposed = tally((row.op.op.stream, row.exposed) for row in priced)
    return HloTimeline(
        slice=piece,
        lower=lower,
        expected=expected,
        upper=max(sum(row.upper * row.count for row in priced), expected),
        streams=tally((row.op.op.stream, row.per_step) for row in priced),
        exposed={stream: seconds for stream, seconds in exposed.items() if seconds > 0},
        rows=priced,
        spans=tuple(sorted(run.spans, key=lambda span: span.start)),
        uncounted=tuple(dict.fromkeys(_uncounted(work.block))),
        unknown=work.unknown(),
    )


def _totals(rows: tuple[OpRow, ...]) -> dict[str, float]:
    return tally(
        (lane, seconds * row.count)
        for row in rows
        for resource, seconds in row.peak.items()
        for lane in (_lanes(row.op) if resource == row.op.op.stream else (resource,))
    )


def _uncounted(block: Block) -> list[str]:
    found: list[str] = []
    for item in block:
        if isinstance(item, Nested):
            found += [] if item.counted else [item.name]
            found += _uncounted(item.block)
    return found


# ---- one op ------------------------------------------------------------------------------------


def _row(item: HloOp, chip: Chip, placement: Placement, stack: Stack) -> OpRow:
    priced = price_op(_payable(item, chip), chip, placement, stack)
    peak = {name: float(seconds) for name, seconds in priced.peak.items()}
    lower = max(peak.values(), default=0.0)
    seconds, bound_by = _seconds(item, chip, priced, peak)
    seconds = max(seconds, lower)
    return OpRow(
        op=item,
        lower=lower,
        seconds=seconds,
        upper=max(float(priced.serial), seconds),
        start=0.0,
        exposed=0.0,
        bound_by=bound_by,
        peak=peak,
    )


def _seconds(
    item: HloOp, chip: Chip, priced: OpTime, peak: Mapping[str, float]
) -> tuple[float, str]:
    """Seconds of one run and what bounds them."""
    op = item.op
    if trusted(item, chip):
        cycles = float(item.cycles or 0) / chip.require("compiler_clock_hz")
        moved = peak.get(HBM, 0.0) / chip.efficiency.hbm
        return (cycles, "cycles") if cycles >= moved else (moved, HBM)
    total = float(priced.derated)
    if op.collective is not None:
        wire = peak.get(op.stream, 0.0)
        return total, op.stream if wire >= total / 2 else "latency"
    if not peak:
        return vector_seconds(item, chip), "vector"
    bound = max(peak, key=lambda name: peak[name])
    return max(total, vector_seconds(item, chip)), bound


def trusted(item: HloOp, chip: Chip) -> bool:
    """Whether the compiler gives cycles for an op that stand for its time on this chip."""
    if item.cycles is None or item.op.op_class == "collective":
        return False
    useless = chip.compiler.no_cycles if chip.compiler else ()
    return not set(useless) & set(item.op.flops)


def vector_seconds(item: HloOp, chip: Chip) -> float:
    """Of one run: elementwise operations over the vector units' rate; 0 where none is known."""
    if chip.vector_flops is None:
        return 0.0
    return item.vector_flops * chip.jax_devices_per_chip / vector_ops(chip)


def _payable(item: HloOp, chip: Chip) -> Op:
    """The op with its products at dtypes that the chip has a rate for.

    A TPU multiplies float32 in one, three or six bf16 passes, by the precision asked for.
    """

    def payable(dtype: str, amount: float) -> tuple[str, float]:
        names = _SUBSTITUTES.get(dtype, (dtype, "bf16"))
        rate = next((name for name in names if name in chip.peak_flops), "bf16")
        times = item.passes if dtype == "f32" and rate == "bf16" else 1
        return rate, amount * times

    flops = tally(payable(dtype, float(amount)) for dtype, amount in item.op.flops.items())
    return replace(item.op, flops=flops)


# ---- the streams -------------------------------------------------------------------------------


@dataclass
class _Streams:
    """The state of the simulation: what is under way, and what has been seen."""

    rows: Mapping[str, OpRow]
    starts: dict[str, float] = field(default_factory=dict)
    exposed: dict[str, float] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=dict)

    def block(self, block: Block, now: float, times: float) -> float:
        """Run a block that runs `times` times per step, from `now`; when its first round ends."""
        free: dict[str, float] = {}
        ends: dict[str, float] = {}
        for item in block:
            if isinstance(item, HloOp):
                now = self.op(item, now, times, free, ends)
            elif isinstance(item, Wait):
                now = self.wait(item.id, now, times, ends)
            else:
                now = self.nested(item, now, times, free, ends)
        for id in list(ends):  # an end that nothing waits for: the computation's own end does
            now = self.wait(id, now, times, ends)
        return now

    def op(
        self, item: HloOp, now: float, times: float, free: dict[str, float], ends: dict[str, float]
    ) -> float:
        row, stream = self.rows[item.op.id], item.op.stream
        lanes = _lanes(item)
        start = now
        if stream != "compute":
            start = max(now, *(free.get(lane, 0.0) for lane in lanes))
            free.update(dict.fromkeys(lanes, start + row.seconds))
        self.starts.setdefault(item.op.id, start)
        for lane in lanes:
            self.busy[lane] = self.busy.get(lane, 0.0) + row.seconds
        self.spans.append(Span(name=item.name, stream=stream, start=start, seconds=row.seconds))
        end = start + row.seconds
        if item.asynchronous:
            ends[item.op.id] = end
            return now
        if stream != "compute":
            self.expose(item.op.id, end - now, times)
        return end

    def wait(self, id: str, now: float, times: float, ends: dict[str, float]) -> float:
        end = ends.pop(id, now)
        if end > now:
            self.expose(id, end - now, times)
        return max(now, end)

    def expose(self, id: str, seconds: float, times: float) -> None:
        self.exposed[id] = self.exposed.get(id, 0.0) + seconds * times

    def nested(
        self,
        item: Nested,
        now: float,
        times: float,
        free: dict[str, float],
        ends: dict[str, float],
    ) -> float:
        """A loop: its first round laid out, the others the same. What is under way outside waits
        while the rounds use its stream."""
        before, self.busy = self.busy, {}
        first = self.block(item.block, now, times * item.times) - now if item.times else 0.0
        inside, self.busy = self.busy, before
        for lane, seconds in inside.items():
            total = seconds * item.times
            self.busy[lane] = self.busy.get(lane, 0.0) + total
            if free.get(lane, 0.0) > now:
                free[lane] += total
        for id, end in ends.items():
            if end > now:
                lanes = _lanes(self.rows[id].op)
                ends[id] = end + max(inside.get(lane, 0.0) for lane in lanes) * item.times
        seconds = first * item.times
        if item.times > 1:
            span = Span(
                name=item.name, stream="loops", start=now, seconds=seconds, times=item.times
            )
            self.spans.append(span)
        return now + seconds


def _lanes(item: HloOp) -> tuple[str, ...]:
    """What an op occupies: a permute by one step its axis one way, any other collective the links
    of each of its axes both ways."""
    stream = item.op.stream
    if not stream.startswith("net:"):
        return (stream,)
    ways = "+-" if not item.step else "+" if item.step > 0 else "-"
    return tuple(
        f"net:{axis}{way}" for axis in stream.removeprefix("net:").split(",") for way in ways
    )
