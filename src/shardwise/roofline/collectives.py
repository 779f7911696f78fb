"""Seconds of collectives over the links that a placement gives to mesh axes.

Each answer is a bandwidth term and a latency term at the links' own rates; divide the first by an
efficiency to derate it. `bytes` is V as in `work.Collective`: the gathered array, the input of a
reduce-scatter, the buffer of an all-reduce, the total over the group of an all-to-all, the payload
per device of a permute.

A group has N = d g M devices: d in each chip, on g chips of one fast network, in M networks (d is 1
where a chip is one device). Three levels of links carry it: between networks the NICs of its g
chips, between chips the fast network, and within a chip R_d bytes/s per device. A group that holds
d of a chip's n devices shares that chip's links and NIC with n/d - 1 other groups, so it gets d/n
of their rates. A collective is pipelined through the levels: the slowest level gives its bandwidth
term, and the latencies of all levels add up.

Modes:

- "exact" counts the algorithm that the function names: bytes over the busiest link and hops of the
  longest route. `sharding.simulate` runs that algorithm on real blocks and tests hold both equal.
- "asymptotic" is its limit for large N, as the book prints it: (N-1)/N is 1.
- "bound" is what no algorithm beats. It is less than "exact" for an all-reduce over lines, and for
  a group whose members along one physical axis have gaps between them.

`both_ways=False` uses one direction of every ring. Formulas: How To Scale Your Model, ch. 3 (tori)
and 12 (switches).
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

from shardwise.errors import unknown
from shardwise.hardware.placement import AxisLinks, Part
from shardwise.roofline.exchanges import exchange_seconds
from shardwise.roofline.groups import KEPT, LinkGroup, Mode, group_of, over, product
from shardwise.work import CollectiveKind, Exchange, Quantity, Sends, largest, present

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
    exchange: Exchange | Sends | None = None,
    mode: Mode = "exact",
    both_ways: bool = True,
    measured: bool = False,
) -> CollectiveSeconds:
    """Seconds of one collective over one or several mesh axes, as (bandwidth, latency).

    `fan_out` belongs to the ragged all-to-all, `exchange` to a permute. `measured` adds what is
    measured on switches and belongs into "expected" alone: the ramp of small messages and the real
    gain of SHARP.
    """
    if kind in _PLAIN:
        return _PLAIN[kind](bytes, links, mode=mode, both_ways=both_ways, measured=measured)
    if kind == "ragged_all_to_all":
        assert fan_out is not None, "a ragged all-to-all needs fan_out"
        return ragged_all_to_all(bytes, links, fan_out=fan_out, mode=mode, measured=measured)
    if kind == "permute":
        return permute(bytes, links, exchange=exchange, mode=mode, measured=measured)
    raise unknown("collective", kind, CollectiveKind.__args__)


def all_gather(
    bytes: Quantity,
    links: Sequence[AxisLinks],
    *,
    idle: Sequence[AxisLinks] = (),
    mode: Mode = "exact",
    both_ways: bool = True,
    measured: bool = False,
) -> CollectiveSeconds:
    """Gather between networks, then between the chips of a network, then within chips; pipelined,
    so that the slowest of the three counts.

    Between networks V (M-1)/M / (g NIC) and within a chip V (d-1)/d / R_d, by Bruck's algorithm,
    which doubles what every member holds in each step. Between chips on a switch
    V (g-1)/g / R in ceil(log2 g) steps; on a full mesh the same with R = g-1 links, in one step; on
    a torus

        (V/g) max over sets S of its axes of (prod_S n - 1) / sum_S R

    where R of a ring is both directions of its link and R of a line is one. To reach it, every
    block is cut into parts that visit the axes in different orders, in shares that load all axes
    alike; on a ring of even size, half of every block makes the last hop either way. With S all
    axes the formula is V (g-1)/g / R: the bytes that a corner chip lacks, over all links that reach
    it. A smaller S counts where its axes are too slow to carry their share. Every S is also a cut
    through the torus, so no algorithm is faster.

    `idle` are axes over which the array is replicated: each of their m devices may gather 1/m of it
    and the group of N m share the rest, if that is faster (ch. 3, exercise 3.2).
    """
    alone = _gather(bytes, group_of(links, both_ways), mode, measured)
    if not idle:
        return alone
    helped = _gather(bytes, group_of([*links, *idle], both_ways), mode, measured)
    needed = group_of(links).members > 1
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
    both_ways: bool = True,
    measured: bool = False,
) -> CollectiveSeconds:
    """An all-gather run backwards: the same bytes over the opposite links."""
    return _gather(bytes, group_of(links, both_ways), mode, measured)


def all_reduce(
    bytes: Quantity,
    links: Sequence[AxisLinks],
    *,
    mode: Mode = "exact",
    both_ways: bool = True,
    measured: bool = False,
) -> CollectiveSeconds:
    """Reduce-scatter then all-gather: twice an all-gather. With SHARP V / R inside.

    A SHARP switch receives V from each chip and sends V back, without (N-1)/N. Small messages
    gain nothing: 1 KiB over 8 H100 takes 15.6 µs with it. The other levels have no SHARP. On rings
    nothing is faster. On a line the two load opposite ends: if the gather of one piece ran during
    the reduce-scatter of the next, a link would carry V each way instead of 2 V (N-1)/N, which is
    the "bound".
    """
    group = group_of(links, both_ways)
    one_way = _gather(bytes, group, mode, measured, tree=True)
    latency = 2 * _latency(group, measured)  # NCCL has trees for it, so no ring of all members
    if not group.sharp:
        bandwidth = 2 * one_way.bandwidth
        if mode == "bound" and group.kind == "torus":
            bandwidth = np.minimum(bandwidth, _reduce_bound(bytes, group))
        return _answer(bandwidth, latency)
    inside = over(bytes * (group.inner > 1), group.rate)
    if measured:
        ring = 2 * over(bytes * _share(group.inner, "exact"), group.rate)
        inside = np.maximum(inside, ring / SHARP_GAIN)
    else:
        steps = np.ceil(np.log2(group.inner)) - (group.inner > 1)
        latency = latency - 2 * steps * group.chip_hop
    outside = 2 * over(bytes * _leaving(group, mode, measured, tree=True), group.egress)
    within = 2 * _within(bytes * _share(group.devices, mode), group)
    ramp = _ramp(bytes, group, measured)
    return _answer(_slowest(inside, outside, within) * ramp, latency)


def all_to_all(
    bytes: Quantity,
    links: Sequence[AxisLinks],
    *,
    mode: Mode = "exact",
    both_ways: bool = True,
    measured: bool = False,
) -> CollectiveSeconds:
    """Every device sends V/N^2 to every other, so every chip V/(g M)^2 to every other chip.

    Torus, dimension by dimension, the shorter way round (half each way where both are as short):
    V floor(n^2/4) / (n g W) over the busiest link of a line of n, half of it for a ring and
    V (n-1)/2 / (g W) for a ring used one way; no schedule is faster, as those are the messages over
    the middle link of a line and the hops over the links of a ring. Asymptotically V n / (4 g W).
    Switched V (g-1) / (g^2 W); outside V (M-1) / (M^2 g NIC). Within a chip only what its own
    devices send each other, V (d-1) / (N^2 R_d): all else arrives where it is wanted. All messages
    leave at once, so the longest way is the latency.
    """
    group = group_of(links, both_ways)
    inside = _exchange_inside(bytes / group.outer**2, group, mode)
    outside = over(bytes * _share(group.outer, mode) / group.outer, group.egress)
    pairs = bytes * _share(group.devices, mode) * group.devices / group.members**2
    within = _within(pairs, group)
    ramp = _ramp(bytes / group.members, group, measured)
    latency = _latency(group, measured)
    if not measured or group.kind == "torus":
        outer = (group.outer > 1) * group.outer_hop
        latency = _slowest(outer, _direct_hops(group), (group.devices > 1) * group.device_hop)
    return _answer(_slowest(inside, outside, within) * ramp, latency)


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
    group = group_of(links)
    dense = all_to_all(bytes, links, mode=mode, measured=measured)
    hits = _hit(group.members, fan_out, mode)
    direct = dense.bandwidth * hits
    if group.kind == "torus":
        return _answer(direct, dense.latency)
    tokens = bytes / group.members
    copies = tokens * hits * group.devices
    inside = over(copies * _share(group.inner, mode), group.rate)
    within = _within(tokens * hits * _share(group.devices, mode) / group.inner, group)
    once = tokens * _hit(group.outer, fan_out, mode) * _share(group.outer, mode)
    outside = over(once, group.egress)
    relayed = _slowest(inside, outside, within) * _ramp(tokens, group, measured)
    across = np.logical_and(group.outer > 1, relayed < direct)
    return _answer(np.where(across, relayed, direct), dense.latency)


def permute(
    bytes: Quantity,
    links: Sequence[AxisLinks],
    *,
    exchange: Exchange | Sends | None = None,
    mode: Mode = "exact",
    measured: bool = False,
) -> CollectiveSeconds:
    """Every device sends V to the next of its group, the last to the first: V over the slowest
    link on the way. With an `exchange`, to the device that needs its block (`roofline.exchanges`).

    The order of the group is that of counting: the devices of a chip are neighbours, then the chips
    along the first torus axis, then those along the next, then networks. So only one message leaves
    each chip. The chips of a line follow each other as 0, 2, 4, ..., 5, 3, 1: the way back is
    folded into the way there, no message passes more than two links, and none shares a link with
    another. All messages run at once, so the longest route is the latency.
    """
    group = group_of(links)
    if exchange is not None:
        moved = exchange_seconds(exchange, links)
        seconds = bytes * (moved.bound if mode == "bound" else moved.exact)
        return _answer(seconds * _ramp(bytes, group, measured), moved.latency)
    if group.kind == "torus":
        inside, hops = _next_on_torus(bytes, group, mode)
    else:
        inside = over(bytes * (group.inner > 1), group.pair)
        hops = (group.inner > 1) * group.chip_hop
    within = _within(bytes * (group.devices > 1), group)
    outside = over(bytes * (group.outer > 1), group.nic)
    near, far = (group.devices > 1) * group.device_hop, (group.outer > 1) * group.outer_hop
    bandwidth = _slowest(inside, outside, within) * _ramp(bytes, group, measured)
    return _answer(bandwidth, _slowest(hops, far, near))


def _next_on_torus(bytes: Quantity, group: LinkGroup, mode: Mode) -> tuple[Quantity, Quantity]:
    """Seconds of V over the slowest torus link from each chip to the next, and of the longest
    route: a step along one axis, together with one along each axis before it, where it begins a new
    row."""
    bandwidth: Quantity = 0.0
    latency: Quantity = 0.0
    carried: Quantity = 0.0
    for axis in group.axes:
        loads, before = [], 1.0
        for part in axis.pieces:  # of the outer pieces only one in `before` lines is used
            loads.append(over(bytes * np.greater(part.size, 1), part.oneway * before))
            before = before * np.asarray(part.size)
        bandwidth = np.maximum(bandwidth, largest(loads) if mode == "bound" else sum(loads))
        for part in axis.pieces:
            used = np.greater(part.size, 1) * part.hop_seconds
            hops = np.where(part.ring, 1, np.minimum(np.subtract(part.size, 1), 2))
            latency = np.maximum(latency, (carried + hops * used) * np.greater(part.size, 1))
            carried = carried + used
    return bandwidth, latency


_PLAIN = {
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_reduce": all_reduce,
    "all_to_all": all_to_all,
}
"""Collectives that need nothing beside their bytes and links."""


def _gather(
    bytes: Quantity, group: LinkGroup, mode: Mode, measured: bool, *, tree: bool = False
) -> CollectiveSeconds:
    if group.kind == "torus":
        inside = bytes * _rotated(group, mode) / group.inner
    else:
        inside = over(bytes * _share(group.inner, mode), group.rate)
    outside = over(bytes * _leaving(group, mode, measured, tree=tree), group.egress)
    within = _within(bytes * _share(group.devices, mode), group)
    ramp = _ramp(bytes, group, measured)
    latency = _latency(group, measured)
    if measured and group.kind != "torus":
        latency = latency + _ring_steps(group) * group.outer_hop
    return _answer(_slowest(inside, outside, within) * ramp, latency)


def _leaving(group: LinkGroup, mode: Mode, measured: bool, *, tree: bool) -> Quantity:
    """The part of an array that crosses the NICs of each network.

    (M-1)/M where every network gets each byte once. NCCL (`measured`) gathers over one ring of all
    N members, whose every link carries (N-1)/N, those between networks included; so do its
    all-reduces, save over two networks, where its trees need half (S. Jeaugey, NVIDIA/nccl issue
    209). Over 4 nodes of 8 B200 an all-reduce of 16 GiB takes 0.95 of the NICs so (AWS P6-B200),
    1.23 of them by (M-1)/M.
    """
    if not measured or group.kind == "torus":
        return _share(group.outer, mode)
    ring = (group.outer > 1) * _share(group.members, mode)
    return np.where(group.outer == 2, _share(group.outer, mode), ring) if tree else ring


def _ring_steps(group: LinkGroup) -> Quantity:
    """Steps over the data centre that a ring takes beyond the log2 M of `_latency`.

    NCCL gathers and scatters over one ring of all N members (it has no tree for them): N - 1 steps,
    and in each some message goes over a NIC, so each lasts a hop of the data-centre network. In-job
    all-gathers of 256 MiB over 2 to 64 nodes of H100 (nanotron's playbook, EFA) take
    (N - 1) x (h + V/N / egress) with h of 10 to 12 us for 4 to 64 nodes at their fastest and 32 to
    48 us on average; NCCL's own model has 14 us.
    """
    return np.where(group.outer > 1, group.members - 1 - np.ceil(np.log2(group.outer)), 0)


@lru_cache(maxsize=KEPT)
def _rotated(group: LinkGroup, mode: Mode) -> Quantity:
    """Seconds per byte of a block: the largest (prod_S n - 1) / sum_S R over sets S of axes.

    A block that visits the axes in one order loads each of them with (product of the sizes visited
    before) x (n - 1). The loads of a set S therefore add up to at least prod_S n - 1, and to just
    that where S is visited first. So (prod_S n - 1) / sum_S R is a lower bound for every S. Mixing
    orders reaches the largest of them: prod_S n - 1 is a supermodular function of S, and every load
    that respects it is a mixture of orders (Edmonds 1970: the orders are the vertices of its base
    polytope).
    """
    left_out, axes = 0 if mode == "asymptotic" else 1, group.axes
    sizes, rates = [axis.size for axis in axes], [axis.rate(mode) for axis in axes]
    rates = [rate * np.greater(size, 1) for rate, size in zip(rates, sizes, strict=True)]
    slowest: Quantity = 0.0
    for number in range(1, len(axes) + 1):
        for some in combinations(range(len(axes)), number):
            size = product(sizes[i] for i in some)
            blocks = (size - left_out) * (size > 1)
            slowest = np.maximum(slowest, over(blocks, sum(rates[i] for i in some)))
    return _fixed(slowest)


def _fixed(value: Quantity) -> Quantity:
    """A value that is kept for others: nobody may change it in place."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    return value


def _reduce_bound(bytes: Quantity, group: LinkGroup) -> Quantity:
    """No all-reduce on a torus is faster, whatever it pipelines.

    V must enter every corner: the gather's sets without the -1. And N-1 partial sums must be joined
    and N-1 copies handed out: 2 V (g-1) over all links, of which a line of n has n-1 each way.
    """
    everywhere: Quantity = 0.0
    for axis in group.axes:
        outer = axis.pieces[-1]
        span = np.multiply(outer.size, outer.stride)
        line = 2 * axis.rate("bound") * (span - 1) / span
        ring = np.all([np.logical_or(p.ring, np.equal(p.size, 1)) for p in axis.pieces], axis=0)
        everywhere = everywhere + np.where(ring, axis.rate("bound"), line) * (axis.size > 1)
    entering = bytes * _rotated(group, "asymptotic") / group.inner
    joined = over(2 * bytes * _share(group.inner, "exact"), everywhere)
    outside = 2 * over(bytes * _share(group.outer, "exact"), group.egress)
    within = 2 * _within(bytes * _share(group.devices, "exact"), group)
    return _slowest(np.maximum(entering, joined), outside, within)


def _within(bytes: Quantity, group: LinkGroup) -> Quantity:
    """Seconds in which every device gets that much from the others of its chip."""
    return over(bytes, group.device_oneway) if present(group.devices > 1) else 0.0


def _exchange_inside(bytes: Quantity, group: LinkGroup, mode: Mode) -> Quantity:
    if group.kind != "torus":
        return over(bytes * _share(group.inner, mode) / group.inner, group.rate)
    slowest: Quantity = 0.0
    for axis in group.axes:
        loads = []
        for piece in axis.pieces:
            crossing = _crossing(piece, axis.both_ways, mode)
            load = bytes * crossing / group.inner * np.greater(piece.size, 1)
            loads.append(over(load, axis.directed(piece)))
        slowest = np.maximum(slowest, largest(loads) if mode == "bound" else sum(loads))
    return slowest


def _crossing(piece: Part, both_ways: bool, mode: Mode) -> Quantity:
    """Messages over the busiest link of a line, over n; over both directions of a ring's link."""
    size = np.asarray(piece.size)
    one_way = np.logical_and(piece.ring, not both_ways)
    if mode == "asymptotic":
        return np.where(one_way, size / 2, size / 4)
    return np.where(one_way, (size - 1) / 2, size**2 // 4 / size)


def _share(size: np.ndarray, mode: Mode) -> Quantity:
    """The part of an array that a member does not hold itself; the book takes it as all."""
    return (size > 1) * 1.0 if mode == "asymptotic" else (size - 1) / size


def _hit(size: np.ndarray, fan_out: Quantity, mode: Mode) -> Quantity:
    """The chance that one of `size` destinations is among `fan_out` random picks."""
    if mode == "asymptotic":
        return np.minimum(fan_out / size, 1.0)
    return 1 - ((size - 1) / size) ** fan_out


def _ramp(bytes: Quantity, group: LinkGroup, measured: bool) -> Quantity:
    """Time over time at full rate, for messages on a switch: 1 + ramp / (ramp + bytes).

    With the latency term, half of the rate is reached near bytes = ramp. Within 15 % of nccl-tests
    all-gather and all-to-all over 8 H100 from 1 MiB to 512 MiB (ai-dynamo/aiconfigurator@095f58a),
    where the message is the gathered array and a chip's own buffer.
    """
    if not measured or not group.ramp_bytes:
        return 1.0
    return 1 + group.ramp_bytes / (group.ramp_bytes + bytes)


@lru_cache(maxsize=KEPT)
def _latency(group: LinkGroup, measured: bool) -> Quantity:
    """Seconds before the last byte could arrive, however few bytes there are: the hops of each
    level, one level after the other.

    Networks: ceil(log2 M) hops. Torus: to the farthest member of each axis in turn. Switch:
    ceil(log2 g) steps, full mesh one; and one hop between the devices of a chip. `measured` takes
    2 ceil(log2 n) + 1 steps for n = d g behind switches, which is 5 and 7 for 4 and 8 chips;
    nccl-tests of 1 KiB on A100, H100 and B200 give 4.8 to 5.0 and 7 (ai-dynamo/aiconfigurator).
    """
    outside = np.ceil(np.log2(group.outer)) * group.outer_hop
    if measured and group.kind != "torus":
        joined = group.devices * group.inner
        steps = (joined > 1) * (2 * np.ceil(np.log2(joined)) + 1)
        return _fixed(outside + steps * group.chip_hop)
    outside = outside + (group.devices > 1) * group.device_hop
    if group.kind == "switched":
        return _fixed(outside + np.ceil(np.log2(group.inner)) * group.chip_hop)
    return _fixed(outside + _direct_hops(group))


def _direct_hops(group: LinkGroup) -> Quantity:
    """Seconds of the way to the farthest chip of one network."""
    if group.kind == "torus":
        return sum((axis.hops_seconds() for axis in group.axes), 0.0)
    return (group.inner > 1) * group.chip_hop


def _slowest(inside: Quantity, outside: Quantity, within: Quantity) -> Quantity:
    return np.maximum(np.maximum(inside, outside), within)


def _answer(bandwidth: Quantity, latency: Quantity) -> CollectiveSeconds:
    return CollectiveSeconds(_plain(bandwidth), _plain(latency))


def _plain(value: Quantity) -> Quantity:
    return float(value) if np.ndim(value) == 0 else value
