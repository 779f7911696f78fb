"""Work on a placed mesh -> Estimate: seconds lower, expected and upper, and what bounds them.

Lower: the largest, over resources (math, HBM, host link, each network), of that resource's total at
peak rates; of the HBM bytes only those that no implementation avoids (`Op.hbm_least`). Upper: no
overlap at all, every op's math, memory and network one after the other at derated rates, with tile
padding, ramps, latency and launches; with ideal constants that is the book's sum. Expected: derated
rates with the overlap that streams and order allow and that the software stack really reaches. What
a pipeline idles is the planner's matter (`planner/price/composition.py`). All arithmetic
broadcasts, so that one call prices one plan or a hundred thousand, or one plan at many constants.

Constants: the chip's (`Chip.efficiency`) and the stack's (`roofline.stacks`). `bodies.py` puts the
ops of a loop on its streams.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np

from shardwise.hardware.chip import Chip
from shardwise.hardware.placement import AxisLinks, Placement
from shardwise.roofline.attention_kernels import latent_rate
from shardwise.roofline.bodies import BodyTime, OpTime, body_time, stream_totals
from shardwise.roofline.collectives import CollectiveSeconds, collective_seconds
from shardwise.roofline.groups import KEPT, Same
from shardwise.roofline.matmul import padded_flops
from shardwise.roofline.stacks import IDEAL, Stack
from shardwise.units import dtype_bytes
from shardwise.work import (
    Collective,
    CollectiveKind,
    Op,
    Quantity,
    Work,
    changed,
    largest,
    present,
    total,
)

MATH, HBM, HOST, NETWORK = "math", "HBM", "host link", "net"
_KERNELS = frozenset({"matmul", "attention"})
"""Op classes whose kernels pay the ramp."""
UNFUSED = frozenset({"elementwise", "gather"})
"""Op classes whose memory traffic depends on how far the stack fuses."""
SUMS = frozenset({"reduce_scatter", "all_reduce"})
"""Collectives that add up."""
ROUTED = "routed_experts"
"""The component of what is done for routed experts."""
_STORED = frozenset({"parameters", "gradients", "optimizer"})
"""Components of transfers of what is stored, not of activations."""


Known = tuple[str, bytes]
"""An op's id, and which columns pay the ramp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds of one step: lower <= expected <= upper, the totals per resource and per stream, and
    every op."""

    lower: Quantity
    expected: Quantity
    upper: Quantity
    resources: Mapping[str, Quantity]
    streams: Mapping[str, Quantity]
    ops: tuple[OpTime, ...]

    def bound_by(self) -> str:
        """The resource with the largest total at peak rates; for one plan."""
        return max(self.resources, key=lambda name: float(self.resources[name]))

    def moved(self, times: float) -> "Estimate":
        """The same where all takes so many times as long as expected; ops as they are priced."""
        expected = self.expected * times
        return replace(
            self,
            lower=np.minimum(self.lower, expected),
            expected=expected,
            upper=np.maximum(self.upper, expected),
            streams={name: seconds * times for name, seconds in self.streams.items()},
        )

    def top(self, n: int) -> tuple[OpTime, ...]:
        """The n ops with the most seconds per step; for one plan."""
        return tuple(sorted(self.ops, key=lambda t: -float(t.total))[:n])


def price(work: Work, chip: Chip, placement: Placement, *, stack: Stack = IDEAL) -> Estimate:
    """Price one step of one device."""
    ops = price_ops(work.ops, chip, placement, stack)
    resources = _totals(ops)
    upper = total(t.serial * t.op.count for t in ops)
    lower = largest(resources.values())
    overlapped = total(body.expected for body in body_times(ops, stack).values())
    # A stream's own total can exceed a short body's timeline by rounding only; keep the order.
    expected = np.minimum(np.maximum(overlapped, lower), upper)
    return Estimate(
        lower=lower,
        expected=expected,
        upper=upper,
        resources=resources,
        streams=stream_totals(ops),
        ops=ops,
    )


def body_times(ops: Iterable[OpTime], stack: Stack = IDEAL) -> dict[str, BodyTime]:
    """Seconds of every body of priced ops."""
    bodies: dict[str, list[OpTime]] = {}
    for t in ops:
        bodies.setdefault(t.op.body, []).append(t)
    return {name: body_time(tuple(body), stack) for name, body in bodies.items()}


def price_ops(
    ops: Iterable[Op],
    chip: Chip,
    placement: Placement,
    stack: Stack = IDEAL,
    known: MutableMapping[Known, OpTime] | None = None,
) -> tuple[OpTime, ...]:
    """`price_op` of every op in program order. Products of one input
    that follow each other (queries, keys and values; gate and up) are one kernel: one ramp.

    `known` are times of ops that were priced before, by id and which columns have a ramp: ops of
    one id must then do the same work, also where they run again ("re."). They are taken from there,
    and new ones added.
    """
    found: list[OpTime] = []
    before: Op | None = None
    for op in ops:
        ramp = np.logical_not(_one_kernel(before, op))
        before = op
        if known is None:
            found.append(_op_time(op, chip, placement, stack, ramp=ramp))
            continue
        key = op.id.removeprefix("re."), ramp.tobytes()
        if key not in known:
            known[key] = _op_time(changed(op, id=key[0]), chip, placement, stack, ramp=ramp)
        found.append(changed(known[key], op=op))
    return tuple(found)


def _one_kernel(before: Op | None, op: Op) -> bool | np.ndarray:
    """Whether two products [m, k] x [k, n] share their left input, in each column."""
    if before is None or before.matmul is None or op.matmul is None:
        return False
    if (before.phase, before.component) != (op.phase, op.component):
        return False
    one, other = before.matmul, op.matmul
    return np.equal(one.m, other.m) & np.equal(one.k, other.k) & np.equal(one.batch, other.batch)


def price_op(op: Op, chip: Chip, placement: Placement, stack: Stack = IDEAL) -> OpTime:
    """Seconds of one run: the slowest of its math, its memory and its network, derated, and the
    launch on top.

    Padding: a matmul's dims are rounded up to the chip's tile, and so are those of heads. Its
    kernel's ramp comes on top of the math alone: a product bound by memory streams its weights
    during it (8 to 200 MB of weights for m <= 64 on an H100 take 1.0 to 1.2 times what `hbm` alone
    says). A collective pays its bytes at the derated link rate plus the latency of its hops. A
    device that is part of a chip has its share of the chip's rates. The stack multiplies the memory
    traffic of elementwise work, save that of the optimizer, which all stacks run as one fused
    kernel.
    """
    return _op_time(op, chip, placement, stack)


def _op_time(
    op: Op,
    chip: Chip,
    placement: Placement,
    stack: Stack,
    *,
    ramp: bool | np.ndarray = True,
) -> OpTime:
    rates, devices = chip.efficiency, chip.jax_devices_per_chip
    peak: dict[str, Quantity] = {}
    rated: dict[str, Quantity] = {}
    extra: Quantity = 0.0
    if op.flops:
        times = {dtype: f * devices / chip.peak(dtype) for dtype, f in op.flops.items()}
        peak[MATH] = total(times.values())
        derated = total(
            seconds / _math_rate(op, dtype, chip, stack) for dtype, seconds in times.items()
        )
        own = rates.matmul_ramp * np.greater(peak[MATH], 0)
        more = own * ramp if op.op_class in _KERNELS else 0.0
        rated[MATH] = derated * _padding(op, chip) + more
    if present(op.hbm_bytes):
        bandwidth = chip.require("hbm_bandwidth") / devices
        peak[HBM] = op.hbm_least / bandwidth
        passes = _passes(op, stack)
        rated[HBM] = op.hbm_bytes / bandwidth / (rates.hbm * _streams(op, stack)) * passes
    if present(op.host_bytes):
        rated[HOST] = peak[HOST] = op.host_bytes * devices / chip.require("host_link_oneway")
    if op.collective is not None:
        wire, links = op.collective, placement.links(op.collective.axes)
        peak[op.stream] = _collective(wire, links, mode="bound").bandwidth
        seconds = sum(
            _network_seconds(sent, chip, placement, stack)
            for sent in sent_as(wire, chip, placement, stack)
        )
        rated[NETWORK] = seconds * _longer(op, stack) + _signals(wire, seconds, op, stack)
    parts = list(rated.values())
    if op.stream == "compute" or (stack.grouped and op.collective is not None):
        extra = _shown(largest(parts), op, stack)
    return OpTime(
        op=op,
        derated=largest(parts) + extra,
        serial=total(parts) + extra,
        peak=peak,
        rated=rated,
        launch=extra,
        host=_host(op, stack) * np.greater(largest(parts), 0),
    )


def sent_as(
    wire: Collective, chip: Chip, placement: Placement, stack: Stack
) -> Iterator[Collective]:
    """The collectives that a stack's compiler makes of one. Where it scatters over one mesh axis
    after the other (`Stack.whole_sums`), each leaves the next a piece; over an axis of all the
    devices of a slice it sums whole on each of them and cuts then."""
    if stack.whole_sums is None or wire.kind != "reduce_scatter":
        yield wire
        return
    devices, size = np.multiply(placement.chips_used, chip.jax_devices_per_chip), wire.bytes
    least = stack.whole_sums.get(chip.generation, inf)
    for axis, links in zip(wire.axes, placement.links(wire.axes), strict=True):
        if not np.any(np.greater(links.size, 1)):
            continue
        whole = np.equal(links.size, devices) & np.greater_equal(devices, least)
        kinds: tuple[tuple[CollectiveKind, Any], ...] = (
            ("reduce_scatter", np.logical_not(whole)),
            ("all_reduce", whole),
        )
        for kind, meant in kinds:
            if np.any(meant):
                yield changed(wire, kind=kind, axes=(axis,), bytes=size * meant)
        size = size / links.size


def _network_seconds(wire: Collective, chip: Chip, placement: Placement, stack: Stack) -> Quantity:
    """Of a collective at the links' derated rates; none where it sends nothing."""
    rates = chip.efficiency.network, chip.efficiency.outer_network
    links = [_derated(Same(each, *rates)) for each in placement.links(wire.axes)]
    # The book's formulas have nothing measured on switches: ramp, SHARP's gain, ring steps.
    found = _collective(wire, links, measured=chip.constants != "book")
    return found.bandwidth + stack.hops * found.latency * np.greater(wire.bytes, 0)


def _longer(op: Op, stack: Stack) -> Quantity:
    """Times its own seconds that a collective takes under a stack."""
    assert op.collective is not None
    if op.collective.kind not in SUMS:
        return 1.0
    return stack.exchanges if over_tensor(op) else stack.sums if op.component in _STORED else 1.0


def _signals(wire: Collective, seconds: Quantity, op: Op, stack: Stack) -> Quantity:
    """Seconds that an exchange of tokens with experts takes beside its bytes."""
    if op.component != ROUTED or wire.kind not in ("all_to_all", "ragged_all_to_all"):
        return 0.0
    return stack.dispatch_seconds * np.greater(seconds, 0)


def over_tensor(op: Op) -> bool:
    """Whether a collective sends activations over tensor."""
    axes = op.collective.axes if op.collective else ()
    return op.component not in _STORED and "tensor" in axes


def _streams(op: Op, stack: Stack) -> Quantity:
    """The share of the memory's rate at which a product reads its operands."""
    if op.matmul is None:
        return 1.0
    size = op.matmul.weight_bytes
    bytes_alone = stack.byte_reads if size == 1 else 1.0
    return stack.streams * (stack.narrow if size < 2 else 1.0) * bytes_alone


def _math_rate(op: Op, dtype: str, chip: Chip, stack: Stack) -> Quantity:
    """The share of the dense peak that the op's kernel reaches for long."""
    rates = chip.efficiency
    kept = rates.sustained * rates.clock
    if op.op_class == "attention":
        wide = min(op.head_dims, default=0) > WIDE and stack.grouped  # only engines decode
        latent = latent_rate(dtype, chip.generation) if wide else None
        if latent is not None:
            return latent * stack.attention
        loop = stack.tiles if op.tiled else 1.0
        return rates.attention * stack.attention * loop * _narrow_heads(op, chip) * kept
    if op.op_class == "scan":
        vector = chip.vector_flops or chip.peak(dtype)
        return np.minimum(SCAN * vector / chip.peak(dtype), rates.matmul_rate(dtype)) * kept
    experts = stack.experts if op.component == ROUTED else 1.0
    aligned = _unaligned(op, chip, stack)
    return rates.matmul_rate(dtype) * stack.products * experts * aligned * kept


ALIGNED, UNALIGNED = 8, 0.55
"""The multiple that rows of 16-bit numbers must be for whole loads of 16 bytes (NVIDIA, "Matrix
multiplication background", dimensions), and the rate of a product of others over that of these.
GPT-2's steps took 25 % longer with 50,257 words than with 50,304 (nanoGPT, 2023-02-03); its head is
31 % of the step's products, and 0.31 / (0.31 + 0.25) = 0.55."""


def _unaligned(op: Op, chip: Chip, stack: Stack) -> Quantity:
    """The rate of a product whose rows PyTorch leaves as long as they are; XLA pads them."""
    if op.matmul is None or chip.core_kind != "SM" or not stack.host_seconds:
        return 1.0
    odd = np.mod(op.matmul.k, ALIGNED) + np.mod(op.matmul.n, ALIGNED)
    return np.where(odd, UNALIGNED, 1.0)


WIDE = 256
"""Width of heads beyond which only a latent cache has some: queries and answers of decode are as
wide as its entries."""
SCAN = 1.25
"""FLOPs of a recurrence that its kernels reach over those of the vector units, whose work they are
in the main: many small products, decays and sums over chunks. 66 TFLOP/s forward in a long run of
an H100, which has 67 of vectors and sustains 0.8 (0.94 ms for 32,768 tokens of 64 heads,
tile-ai/TileOPs#1608; 369 us of Nemotron 3 Nano's layer, NVIDIA/Megatron-LM#5829)."""


def _narrow_heads(op: Op, chip: Chip) -> Quantity:
    """The rate of attention with narrow heads over that of usual ones, on a GPU. Per score it
    makes a product of the head's width and one exponential, which takes as long as 64 of the
    width: an H100 multiplies 256 times as fast (FlashAttention-3, section 3.1; its figure 5 has
    0.66 to 0.8 of the rate at a width of 64). Wider heads gain nothing."""
    if not op.head_dims or chip.core_kind != "SM":
        return 1.0
    width = sum(op.head_dims) / len(op.head_dims)
    return min((1 + 64 / USUAL_HEAD) / (1 + 64 / width), 1.0)


def _shown(seconds: Quantity, op: Op, stack: Stack) -> Quantity:
    """Seconds of the host beyond those of an op's kernels. The first kernel waits for its start;
    while it runs the host starts the further ones, of whose time and the kernels' the longer is
    waited for, and half of the shorter."""
    launch, kernels = _launch(op, stack), _kernels(op, stack)
    further = launch * (kernels - 1.0)
    beyond = np.maximum(further - (1 - BOTH) * seconds, BOTH * further)
    return (launch + beyond) * np.greater(seconds, 0)


BOTH = 0.5
"""Share of the shorter of the host's time and the kernels' that is waited for beside the longer:
of 0, a half and 1 the one that misses least of runs that were left out (docs/lab/log.md)."""
GRAPH_SECONDS = 1.3e-6
"""Seconds between two kernels that a CUDA graph starts; assumed, as it explains NVIDIA's runs with
graphs of the whole step (docs/lab/log.md)."""
WHOLE_STEP = "full"


def _launch(op: Op, stack: Stack) -> Quantity:
    """Seconds of the host that a kernel of an op takes."""
    if WHOLE_STEP in stack.captured or op.component in stack.captured:
        return np.minimum(stack.launch_seconds, GRAPH_SECONDS)
    return stack.launch_seconds


def _host(op: Op, stack: Stack) -> Quantity:
    """Seconds that the host works for an op, whatever the device does meanwhile: for all kernels
    that it stands for, and for further ones that experts need."""
    if WHOLE_STEP in stack.captured or op.component in stack.captured:
        return np.minimum(stack.host_seconds, GRAPH_SECONDS)
    if not stack.host_seconds:
        return 0.0
    return stack.host_seconds + stack.launch_seconds * (_kernels(op, stack) - 1.0)


CASTS = 2
"""Kernels that an expert's product in a dtype of a byte or less is: its own, and the one that
quantises its input (Transformer Engine casts and transposes in one)."""


def _kernels(op: Op, stack: Stack) -> Quantity:
    """Kernels that the host launches for an op, one after the other: one per product, so one per
    expert of a group, on however many streams they then run, and those that quantise its inputs; or
    one for the whole group."""
    if op.matmul is None or stack.grouped or (stack.fused_experts and op.component == ROUTED):
        return 1.0
    narrow = op.component == ROUTED and any(dtype_bytes(dtype) < 2 for dtype in op.flops)
    several = np.maximum(op.matmul.batch, 1.0)
    return np.where(several > 1, several * CASTS, several) if narrow else several


def _passes(op: Op, stack: Stack) -> Quantity:
    """Times its counted memory traffic that an op moves."""
    if op.op_class not in UNFUSED or op.component == "optimizer":
        return 1.0
    return stack.passes * (stack.dispatch if op.component == ROUTED else 1.0)


def _collective(wire: Collective, links: Sequence[AxisLinks], **mode) -> CollectiveSeconds:
    """Its share of the message that it travels in."""
    size, to = wire.bytes * wire.merged, wire.exchange
    found = collective_seconds(wire.kind, size, links, fan_out=wire.fan_out, exchange=to, **mode)
    return CollectiveSeconds(found.bandwidth / wire.merged, found.latency / wire.merged)


@lru_cache(maxsize=KEPT)
def _derated(same: Same) -> AxisLinks:
    """Links at the rates that large messages reach: inside by `network`, outside by
    `outer_network`."""
    links, inside, outside = same.objects
    return replace(
        links,
        within=replace(links.within, oneway=links.within.oneway * inside),
        parts=tuple(replace(part, oneway=part.oneway * inside) for part in links.parts),
        outer=replace(links.outer, oneway=links.outer.oneway * outside),
    )


USUAL_HEAD = 128
"""The width of heads at which rates of attention were measured (docs/lab/rates.md)."""


def _padding(op: Op, chip: Chip) -> Quantity:
    """FLOPs after rounding the matmul's dims up to the chip's tile, over FLOPs before; of attention
    and of weights laid out by head also that of the heads, over that of usual ones: libtpu
    schedules as many bundles for heads of 64 dims as for 128 (docs/lab/rates.md). Wider heads than
    usual gain nothing."""
    heads = 1.0
    if op.head_dims:
        heads = max(_filled(op.head_dims, chip) / _filled((USUAL_HEAD,), chip), 1.0)
    if op.matmul is None:
        return heads
    # Rounded, as a mean number of tokens a rounding error above a tile would pay for two.
    dims = [np.round(d, 6) for d in (op.matmul.m, op.matmul.k, op.matmul.n)]
    useful = 2.0 * dims[0] * dims[1] * dims[2]
    padded = padded_flops(*dims, tile=chip.matmul_tile)
    return np.maximum(padded / np.maximum(useful, 1e-300), 1.0) * heads


def _filled(head_dims: Sequence[int], chip: Chip) -> float:
    """The dims of a head after rounding up to the chip's tile, over those before."""
    _, tile, _ = chip.matmul_tile
    return sum(-(-dim // tile) * tile for dim in head_dims) / sum(head_dims)


def _totals(ops: tuple[OpTime, ...]) -> dict[str, Quantity]:
    totals: dict[str, Quantity] = {}
    for t in ops:
        for resource, seconds in t.peak.items():
            totals[resource] = totals.get(resource, 0.0) + seconds * t.op.count
    return totals
