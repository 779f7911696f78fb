"""Work on a placed mesh -> Estimate: seconds lower, expected and upper, and what bounds them.

Lower: the largest, over resources (math, HBM, host link, each network), of that resource's total at
peak rates. Upper: no overlap at all, every op's math, memory and network one after the other at
derated rates, with tile padding and latency; with ideal constants that is the book's sum.
Expected: derated rates with the overlap that streams and order allow. Each is multiplied by what
the structure itself idles (`stretch`, the pipeline bubble). All arithmetic broadcasts, so that one
call prices one plan or a hundred thousand.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardwise.hardware.chip import Chip
from shardwise.hardware.placement import Placement
from shardwise.roofline.collectives import collective_seconds
from shardwise.roofline.matmul import padded_flops
from shardwise.work import Op, Quantity, Work

MATH, HBM, HOST = "math", "HBM", "host link"
_ROUNDS = 3  # the third round of a body no longer feels how the pipeline of streams was filled


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """Seconds of one run of one op.

    `derated` is the slowest of its math, memory and network at derated rates, `serial` their sum,
    `peak` what it takes of each resource at peak rates.
    """

    op: Op
    derated: Quantity
    serial: Quantity
    peak: Mapping[str, Quantity]

    @property
    def total(self) -> Quantity:
        """Derated seconds per step: all runs of the op, one after the other."""
        return self.derated * self.op.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds of one step: lower <= expected <= upper, the totals per resource, and every op."""

    lower: Quantity
    expected: Quantity
    upper: Quantity
    resources: Mapping[str, Quantity]
    streams: Mapping[str, Quantity]
    ops: tuple[OpTime, ...]

    def bound_by(self) -> str:
        """The resource with the largest total at peak rates; for one plan."""
        return max(self.resources, key=lambda name: float(self.resources[name]))

    def top(self, n: int) -> tuple[OpTime, ...]:
        """The n ops with the most seconds per step; for one plan."""
        return tuple(sorted(self.ops, key=lambda t: -float(t.total))[:n])


def price(
    work: Work, chip: Chip, placement: Placement, *, stretch: Mapping[str, Quantity] | None = None
) -> Estimate:
    """Price one step of one device. `stretch[body]` multiplies the time of that body (bubbles)."""
    ops = tuple(price_op(op, chip, placement) for op in work.ops)
    factors = stretch or {}
    resources = _totals(ops, factors)
    upper = _add(t.serial * t.op.count * factors.get(t.op.body, 1.0) for t in ops)
    lower = _largest(resources.values())
    overlapped = _add(overlap(body) * factors.get(name, 1.0) for name, body in _bodies(ops).items())
    # A stream's own total can exceed a short body's timeline by rounding only; keep the order.
    expected = np.minimum(np.maximum(overlapped, lower), upper)
    return Estimate(
        lower=lower,
        expected=expected,
        upper=upper,
        resources=resources,
        streams=_stream_totals(ops, factors),
        ops=ops,
    )


def price_op(op: Op, chip: Chip, placement: Placement) -> OpTime:
    """Seconds of one run: the slowest of its math, its memory and its network, derated.

    Padding: a matmul's dims are rounded up to the chip's tile. A collective pays its bytes at the
    derated link rate plus the latency of its hops. A device that is part of a chip has its share of
    the chip's rates.
    """
    rates, devices = chip.efficiency, chip.jax_devices_per_chip
    peak: dict[str, Quantity] = {}
    parts: list[Quantity] = []
    if op.flops:
        times = {dtype: f * devices / chip.peak(dtype) for dtype, f in op.flops.items()}
        peak[MATH] = _add(times.values())
        derated = _add(seconds / rates.matmul_rate(dtype) for dtype, seconds in times.items())
        parts.append(derated * _padding(op, chip))
    if np.any(op.hbm_bytes):
        peak[HBM] = op.hbm_bytes * devices / chip.require("hbm_bandwidth")
        parts.append(peak[HBM] / rates.hbm)
    if np.any(op.host_bytes):
        peak[HOST] = op.host_bytes * devices / chip.require("host_link_oneway")
        parts.append(peak[HOST])
    if op.collective is not None:
        links = [placement.axes[a] for a in op.collective.axes]
        call = partial(
            collective_seconds,
            op.collective.kind,
            op.collective.bytes,
            links,
            fan_out=op.collective.fan_out,
        )
        peak[op.stream] = call(mode="bound").bandwidth
        measured = call(measured=True)
        parts.append(measured.bandwidth / rates.network + measured.latency)
    return OpTime(op=op, derated=_largest(parts), serial=_add(parts), peak=peak)


def overlap(body: tuple[OpTime, ...]) -> Quantity:
    """Seconds of a repeated body: each stream runs its ops in order, an op waits for its inputs.

    The body is laid out for a few rounds; the last round's length is the period of all further
    ones: first rounds + (count - rounds) x period. A stream that falls further behind in every
    round than its first ones show is caught by its own total.
    """
    count = _largest(t.op.count for t in body)
    ends = _schedule(body)
    period = ends[-1] - ends[-2]
    laid = np.stack([np.zeros_like(ends[0]), *ends])
    whole = np.clip(np.floor(count), 0, _ROUNDS).astype(int)
    start = np.take_along_axis(laid, np.broadcast_to(whole, laid.shape[1:])[None], axis=0)[0]
    busiest = _largest(_stream_totals(body, {}).values())
    return np.maximum(start + (count - whole) * period, busiest)


def _schedule(body: tuple[OpTime, ...]) -> list[np.ndarray]:
    """When each of the first rounds is finished."""
    shape = np.broadcast_shapes(*(np.shape(t.derated) for t in body))
    share = _largest(t.op.count for t in body)
    free: dict[str, Quantity] = {}
    done: dict[str, Quantity] = {}
    finished: Quantity = np.zeros(shape)
    ends = []
    for _ in range(_ROUNDS):
        for t in body:
            # An op that runs less often than its body (one in four layers) adds its average.
            seconds = t.derated * (t.op.count / np.maximum(share, 1e-300))
            waits = [done[i] for i in t.op.after if i in done]
            start = _largest([free.get(t.op.stream, 0.0), *waits])
            free[t.op.stream] = done[t.op.id] = start + seconds
            finished = np.maximum(finished, done[t.op.id])
        ends.append(np.broadcast_to(finished, np.broadcast_shapes(shape, np.shape(finished))))
    return ends


def _padding(op: Op, chip: Chip) -> Quantity:
    """FLOPs after rounding the matmul's dims up to the chip's tile, over FLOPs before."""
    if op.matmul is None:
        return 1.0
    # Rounded, as a mean number of tokens a rounding error above a tile would pay for two.
    dims = [np.round(d, 6) for d in (op.matmul.m, op.matmul.k, op.matmul.n)]
    useful = 2.0 * dims[0] * dims[1] * dims[2]
    padded = padded_flops(*dims, tile=chip.matmul_tile)
    return np.maximum(padded / np.maximum(useful, 1e-300), 1.0)


def _bodies(ops: tuple[OpTime, ...]) -> dict[str, tuple[OpTime, ...]]:
    bodies: dict[str, list[OpTime]] = {}
    for t in ops:
        bodies.setdefault(t.op.body, []).append(t)
    return {name: tuple(body) for name, body in bodies.items()}


def _totals(ops: tuple[OpTime, ...], factors: Mapping[str, Quantity]) -> dict[str, Quantity]:
    totals: dict[str, Quantity] = {}
    for t in ops:
        for resource, seconds in t.peak.items():
            share = seconds * t.op.count * factors.get(t.op.body, 1.0)
            totals[resource] = totals.get(resource, 0.0) + share
    return totals


def _stream_totals(ops: tuple[OpTime, ...], factors: Mapping[str, Quantity]) -> dict[str, Quantity]:
    totals: dict[str, Quantity] = {}
    for t in ops:
        seconds = t.total * factors.get(t.op.body, 1.0)
        totals[t.op.stream] = totals.get(t.op.stream, 0.0) + seconds
    return totals


def _add(values) -> Quantity:
    total: Quantity = 0.0
    for value in values:
        total = total + value
    return total


def _largest(values) -> Quantity:
    largest: Quantity = 0.0
    for value in values:
        largest = np.maximum(largest, value)
    return largest
