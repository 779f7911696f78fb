"""Seconds of collectives over the links that a placement gives to mesh axes.

Each answer is a bandwidth term and a latency term at the links' own rates: divide the first by an
efficiency to derate it. `bytes` is V as in `work.Collective`: the gathered array, the input of a
reduce-scatter, the buffer of an all-reduce, the total over the group of an all-to-all, the payload
per device of a permute.

A group of N devices has d in a chip, on g chips of one fast network, in M networks: N = d g M, and
d is 1 where a chip is one device. Torus parts, and in each of them both directions of a ring, are
used at once, so their rates add up to R; R of a switched chip is what it injects, of a full mesh
(g-1) pairs. The data-centre network carries a group on the NICs of its g chips. A group that holds
only d of a chip's n devices shares that chip's links and NIC with n/d - 1 others, so its R and NIC
are d/n of the chip's. Between its devices a chip moves R_d per device. The three levels are
pipelined: the slowest one counts.

Modes: "exact" counts the bytes that must move; "asymptotic" is the book's large-N form, in which
(N-1)/N is 1. Formulas: How To Scale Your Model, ch. 3 (tori) and 12 (switches).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from shardwise.errors import unknown
from shardwise.hardware.placement import AxisLinks, Kind, Part
from shardwise.work import CollectiveKind, Quantity

Mode = Literal["exact", "asymptotic"]

SHARP_GAIN = 1.3
"""All-reduce with SHARP over all-reduce without, measured on 8xH100 (the formula says 1.75).

How To Scale Your Model, ch. 12, "In-network reductions".
"""


class CollectiveSeconds(NamedTuple):
    """Seconds of one collective; unpacks into (bandwidth, latency)."""

    bandwidth: Quantity
    latency: Quantity

    @property
    def total(self) -> Quantity:
        """Both terms, one after the other."""
        return self.bandwidth + self.latency

    @property
    def book(self) -> Quantity:
        """The larger term, as in ch. 3: max(hops x hop time, V / W)."""
        return np.maximum(self.bandwidth, self.latency)


def collective_seconds(
    kind: CollectiveKind,
    bytes: Quantity,
    links: Sequence[AxisLinks],
    *,
    fan_out: Quantity | None = None,
    mode: Mode = "exact",
    measured: bool = False,
) -> CollectiveSeconds:
    """Seconds of one collective over one or several mesh axes, as (bandwidth, latency).

    `fan_out` belongs to the ragged all-to-all. `measured` adds what is measured on switches and
    belongs into "expected" alone: the ramp of small messages and the real gain of SHARP.
    """
    if kind == "all_gather":
        return all_gather(bytes, links, mode=mode, measured=measured)
    if kind == "reduce_scatter":
        return reduce_scatter(bytes, links, mode=mode, measured=measured)
    if kind == "all_reduce":
        return all_reduce(bytes, links, mode=mode, measured=measured)
    if kind == "all_to_all":
        return all_to_all(bytes, links, mode=mode, measured=measured)
    if kind == "ragged_all_to_all":
        assert fan_out is not None, "a ragged all-to-all needs fan_out"
        return ragged_all_to_all(bytes, links, fan_out=fan_out, mode=mode, measured=measured)
    if kind == "permute":
        return permute(bytes, links, measured=measured)
    raise unknown("collective", kind, CollectiveKind.__args__)


def all_gather(
    bytes: Quantity,
    links: Sequence[AxisLinks],
    *,
    idle: Sequence[AxisLinks] = (),
    mode: Mode = "exact",
    measured: bool = False,
) -> CollectiveSeconds:
    """V (g-1)/g / R inside, V (M-1)/M / (g NIC) outside, V (d-1)/d / R_d within a chip.

    The slowest of the three. The links bring every byte to a chip once: a d-th of them to each
    device, which gets the rest from the chip's others.

    `idle` are axes over which the array is replicated: each of their m devices may gather 1/m of it
    and the group of N m share the rest, if that is faster (ch. 3, exercise 3.2).
    """
    alone = _gather(bytes, _group(links), mode, measured)
    if not idle:
        return alone
    helped = _gather(bytes, _group([*links, *idle]), mode, measured)
    needed = _group(links).members > 1
    better = np.logical_and(needed, np.less(helped.total, alone.total))
    return _answer(
        np.where(better, helped.bandwidth, alone.bandwidth),
        np.where(better, helped.latency, alone.latency),
    )


def reduce_scatter(
    bytes: Quantity,
    links: Sequence[AxisLinks],
    *,
    mode: Mode = "exact",
    measured: bool = False,
) -> CollectiveSeconds:
    """An all-gather run backwards: the same bytes over the same links."""
    return _gather(bytes, _group(links), mode, measured)


def all_reduce(
    bytes: Quantity,
    links: Sequence[AxisLinks],
    *,
    mode: Mode = "exact",
    measured: bool = False,
) -> CollectiveSeconds:
    """Reduce-scatter then all-gather: twice an all-gather. With SHARP V / R inside.

    A SHARP switch receives V from each chip and sends V back, without (N-1)/N. Small messages
    gain nothing: 1 KiB over 8 H100 takes 15.6 µs with it. The other levels have no SHARP.
    """
    group = _group(links)
    if not group.sharp:
        one_way = _gather(bytes, group, mode, measured)
        return CollectiveSeconds(2 * one_way.bandwidth, 2 * one_way.latency)
    inside = _over(bytes * (group.inner > 1), _inner_rate(group))
    if measured:
        ring = 2 * _over(bytes * _share(group.inner, "exact"), _inner_rate(group))
        inside = np.maximum(inside, ring / SHARP_GAIN)
    outside = 2 * _over(bytes * _share(group.outer, mode), group.egress)
    within = 2 * _within(bytes * _share(group.devices, mode), group)
    ramp = _ramp(bytes, group, measured)
    return _answer(_slowest(inside, outside, within) * ramp, 2 * _latency(group))


def all_to_all(
    bytes: Quantity,
    links: Sequence[AxisLinks],
    *,
    mode: Mode = "exact",
    measured: bool = False,
) -> CollectiveSeconds:
    """Every device sends V/N^2 to every other, so every chip V/(g M)^2 to every other chip.

    Torus: V floor(n^2/4) / (n g W) for the busiest link of a line of n, half of it for a ring;
    each is the count of messages over the middle link under dimension-ordered shortest routes
    (uniform by symmetry on a ring), so no schedule is faster; asymptotically V n / (4 g W).
    Switched V (g-1) / (g^2 W); outside V (M-1) / (M^2 g NIC). Within a chip only what its own
    devices send each other, V (d-1) / (N^2 R_d): all else arrives where it is wanted.
    """
    group = _group(links)
    inside = _exchange_inside(bytes / group.outer**2, group, mode)
    outside = _over(bytes * _share(group.outer, mode) / group.outer, group.egress)
    pairs = bytes * _share(group.devices, mode) * group.devices / group.members**2
    within = _within(pairs, group)
    ramp = _ramp(bytes / group.members, group, measured)
    return _answer(_slowest(inside, outside, within) * ramp, _latency(group))


def ragged_all_to_all(
    bytes: Quantity,
    links: Sequence[AxisLinks],
    *,
    fan_out: Quantity,
    mode: Mode = "exact",
    measured: bool = False,
) -> CollectiveSeconds:
    """An all-to-all in which a token goes to K = `fan_out` random picks among the N devices.

    V is what the dense all-to-all would move: a copy of every token for every device, so N times
    the tokens' bytes. A device is hit with probability 1 - ((N-1)/N)^K (asymptotically
    min(K/N, 1)). Across switched domains a token may instead be sent once to every domain it is
    needed in, over the NIC, and copied inside; the faster way counts (ch. 12, appendix on ragged
    all-to-alls).
    """
    group = _group(links)
    dense = all_to_all(bytes, links, mode=mode, measured=measured)
    hits = _hit(group.members, fan_out, mode)
    direct = dense.bandwidth * hits
    if group.kind == "torus":
        return _answer(direct, dense.latency)
    tokens = bytes / group.members
    copies = tokens * hits * group.devices
    inside = _over(copies * _share(group.inner, mode), _inner_rate(group))
    within = _within(tokens * hits * _share(group.devices, mode) / group.inner, group)
    once = tokens * _hit(group.outer, fan_out, mode) * _share(group.outer, mode)
    outside = _over(once, group.egress)
    relayed = _slowest(inside, outside, within) * _ramp(tokens, group, measured)
    across = np.logical_and(group.outer > 1, relayed < direct)
    return _answer(np.where(across, relayed, direct), dense.latency)


def permute(
    bytes: Quantity, links: Sequence[AxisLinks], *, measured: bool = False
) -> CollectiveSeconds:
    """Every device sends V to the next of its group, one way round: V over the slowest link.

    The devices of a chip follow each other, so a group sends one message from chip to chip.
    On a line the ring is folded (0, 2, 4, ..., 5, 3, 1), so that no message goes over two links
    more; with one message per link and direction that costs latency only.
    """
    group = _group(links)
    inside = _within(bytes * (group.devices > 1), group)
    latency: Quantity = (group.devices > 1) * group.device_hop
    for part in group.parts:
        used = np.greater(part.size, 1)
        inside = np.maximum(inside, _over(bytes * used, part.oneway))
        hops = 1
        if group.kind == "torus":
            hops = np.where(part.ring, 1, np.minimum(np.subtract(part.size, 1), 2))
        latency = np.maximum(latency, used * hops * part.hop_seconds)
    outside = _over(bytes * (group.outer > 1), group.nic)
    latency = np.maximum(latency, (group.outer > 1) * group.outer_hop)
    return _answer(np.maximum(inside, outside) * _ramp(bytes, group, measured), latency)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """All links of one group: `devices` of each of `inner` chips of each of `outer` networks.

    Rates are the group's share of a chip's, `device_oneway` is what each device has of its own.
    """

    kind: Kind
    parts: tuple[Part, ...]
    devices: np.ndarray
    inner: np.ndarray
    outer: np.ndarray
    device_oneway: Quantity
    device_hop: Quantity
    nic: Quantity
    outer_hop: Quantity
    sharp: bool
    ramp_bytes: float

    @property
    def members(self) -> np.ndarray:
        return self.devices * self.inner * self.outer

    @property
    def egress(self) -> Quantity:
        """One-way bytes/s with which the group leaves one fast network: a NIC per chip."""
        return self.inner * self.nic


_UNUSED = Part(size=1, oneway=0.0, ring=False, hop_seconds=0.0, stride=1)
_NOTHING = AxisLinks(
    size=1,
    within=_UNUSED,
    devices_per_chip=1,
    parts=(_UNUSED,),
    outer=_UNUSED,
    kind="switched",
    sharp=False,
    ramp_bytes=0.0,
)


def _group(links: Sequence[AxisLinks]) -> _Group:
    """Join the links of several mesh axes; pieces that continue each other become one piece."""
    links = links or (_NOTHING,)
    first, *others = links
    joined = list(first.parts)
    spare: list[Part] = []
    for other in others:
        for i, part in enumerate(other.parts):
            joined[i], apart = _join(joined[i], part)
            spare.append(apart)
    parts = (*joined, *spare)
    nic = _least(
        [np.where(np.greater(axis.outer.size, 1), axis.outer.oneway, np.inf) for axis in links]
    )
    devices = _product(axis.within.size for axis in links)
    if first.devices_per_chip > 1:
        share = devices / first.devices_per_chip
        parts = tuple(replace(part, oneway=part.oneway * share) for part in parts)
        nic = nic * share
    return _Group(
        kind=first.kind,
        parts=parts,
        devices=devices,
        inner=_product(p.size for axis in links for p in axis.parts),
        outer=_product(axis.outer.size for axis in links),
        device_oneway=first.within.oneway,
        device_hop=first.within.hop_seconds,
        nic=nic,
        outer_hop=_most([axis.outer.hop_seconds for axis in links]),
        sharp=first.sharp,
        ramp_bytes=first.ramp_bytes,
    )


def _join(one: Part, other: Part) -> tuple[Part, Part]:
    """Two pieces of one physical axis as one where the outer starts where the inner ends.

    Elsewhere the pieces stay apart; the second result is then the outer one, else unused.
    """
    swap = np.logical_or(
        np.equal(one.size, 1),
        np.logical_and(np.greater(one.stride, other.stride), np.greater(other.size, 1)),
    )
    low = Part(**{n: np.where(swap, getattr(other, n), getattr(one, n)) for n in Part.__slots__})
    high = Part(**{n: np.where(swap, getattr(one, n), getattr(other, n)) for n in Part.__slots__})
    unused = np.equal(high.size, 1)
    chained = np.logical_or(unused, np.equal(high.stride, low.stride * low.size))
    whole = Part(
        size=np.where(chained, low.size * high.size, low.size),
        oneway=low.oneway,
        ring=np.where(np.logical_and(chained, ~unused), high.ring, low.ring),
        hop_seconds=low.hop_seconds,
        stride=low.stride,
    )
    apart = Part(
        size=np.where(chained, 1, high.size),
        oneway=high.oneway,
        ring=high.ring,
        hop_seconds=high.hop_seconds,
        stride=high.stride,
    )
    return whole, apart


def _gather(bytes: Quantity, group: _Group, mode: Mode, measured: bool) -> CollectiveSeconds:
    inside = _over(bytes * _share(group.inner, mode), _inner_rate(group))
    outside = _over(bytes * _share(group.outer, mode), group.egress)
    within = _within(bytes * _share(group.devices, mode), group)
    ramp = _ramp(bytes, group, measured)
    return _answer(_slowest(inside, outside, within) * ramp, _latency(group))


def _within(bytes: Quantity, group: _Group) -> Quantity:
    """Seconds in which every device gets that much from the others of its chip."""
    return _over(bytes, group.device_oneway) if np.any(group.devices > 1) else 0.0


def _inner_rate(group: _Group) -> Quantity:
    """R: bytes/s that every chip of the group, the worst placed one included, can receive."""
    if group.kind == "switched":
        return group.parts[0].oneway
    if group.kind == "full_mesh":
        return group.parts[0].oneway * np.maximum(group.inner - 1, 1)
    return sum((_directed(part) * np.greater(part.size, 1) for part in group.parts), 0.0)


def _directed(part: Part) -> Quantity:
    return part.oneway * np.where(part.ring, 2, 1)


def _exchange_inside(bytes: Quantity, group: _Group, mode: Mode) -> Quantity:
    if group.kind != "torus":
        return _over(bytes * _share(group.inner, mode) / group.inner, _inner_rate(group))
    slowest: Quantity = 0.0
    for part in group.parts:
        size = np.asarray(part.size)
        crossing = size**2 // 4 / size if mode == "exact" else size / 4
        load = bytes * crossing / group.inner * (size > 1)
        slowest = np.maximum(slowest, _over(load, _directed(part)))
    return slowest


def _share(size: np.ndarray, mode: Mode) -> Quantity:
    """The part of an array that a member does not hold itself; the book takes it as all."""
    return (size - 1) / size if mode == "exact" else (size > 1) * 1.0


def _hit(size: np.ndarray, fan_out: Quantity, mode: Mode) -> Quantity:
    """The chance that one of `size` destinations is among `fan_out` random picks."""
    if mode == "exact":
        return 1 - ((size - 1) / size) ** fan_out
    return np.minimum(fan_out / size, 1.0)


def _ramp(bytes: Quantity, group: _Group, measured: bool) -> Quantity:
    """Time over time at full rate, for messages on a switch: 1 + ramp / (ramp + bytes).

    With the latency term, half of the rate is reached near bytes = ramp. Within 15 % of nccl-tests
    all-gather and all-to-all over 8 H100 from 1 MiB to 512 MiB (ai-dynamo/aiconfigurator@095f58a),
    where the message is the gathered array and a chip's own buffer.
    """
    if not measured or not group.ramp_bytes:
        return 1.0
    return 1 + group.ramp_bytes / (group.ramp_bytes + bytes)


def _latency(group: _Group) -> Quantity:
    """Seconds before the last byte could arrive, however few bytes there are.

    Torus: the farthest member of each part, one part after the other, and one hop more where the
    group has several devices of a chip. Switch and full mesh: 2 log2(n) + 1 steps, which is 5 and
    7 for 4 and 8 chips; nccl-tests of 1 KiB on A100, H100 and B200 give 4.8 to 5.0 and 7 (same
    source). Data centre: log2(M) hops.
    """
    outside = np.ceil(np.log2(group.outer)) * group.outer_hop
    if group.kind == "torus":
        outside = outside + (group.devices > 1) * group.device_hop
        return outside + sum((_farthest(part) * part.hop_seconds for part in group.parts), 0.0)
    joined = group.devices * group.inner
    steps = 2 * np.ceil(np.log2(joined)) + 1
    return outside + (joined > 1) * steps * group.parts[0].hop_seconds


def _farthest(part: Part) -> Quantity:
    """Hops to the farthest member: floor(n/2) on a ring, n-1 on a line."""
    size = np.asarray(part.size)
    return np.where(part.ring, size // 2, size - 1)


def _over(amount: Quantity, rate: Quantity) -> Quantity:
    """amount / rate; nothing takes no time, and something over no link takes for ever."""
    linked = np.greater(rate, 0)
    seconds = np.divide(amount, np.where(linked, rate, 1.0))
    return np.where(linked, seconds, np.where(np.greater(amount, 0), np.inf, 0.0))


def _product(sizes) -> np.ndarray:
    total = np.asarray(1)
    for size in sizes:
        total = total * np.asarray(size)
    return total


def _least(values: Sequence[Quantity]) -> Quantity:
    least: Quantity = np.inf
    for value in values:
        least = np.minimum(least, value)
    return least


def _slowest(inside: Quantity, outside: Quantity, within: Quantity) -> Quantity:
    return np.maximum(np.maximum(inside, outside), within)


def _most(values: Sequence[Quantity]) -> Quantity:
    most: Quantity = 0.0
    for value in values:
        most = np.maximum(most, value)
    return most


def _answer(bandwidth: Quantity, latency: Quantity) -> CollectiveSeconds:
    return CollectiveSeconds(_plain(bandwidth), _plain(latency))


def _plain(value: Quantity) -> Quantity:
    return float(value) if np.ndim(value) == 0 else value
