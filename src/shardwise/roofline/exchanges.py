"""Seconds of an exchange of blocks over the links of a placed mesh, per byte of a block.

In a permute that turns one layout into another (`work.Exchange`) every device sends at most one
block, to any other device of its group. The route is fixed: on a torus a block travels along one
axis after the other, each time the shorter way round, and half of it each way where both are
equally short (as in an all-to-all); between networks it goes from NIC to NIC, inside a chip
directly. All groups of the mesh run at once. `sharding.simulate` moves real blocks along the same
routes.

Two times come out:

- `exact`, of this route: the bytes over the busiest link of each axis, the slowest axis counts;
- `bound`, which no route can beat: the blocks' distances along an axis, added up, over all links of
  that axis; and the bytes that a chip must receive over all its links together.

Where several devices hold copies of a block, which copy goes where is not fixed, so its distance is
not known: the bound then counts only what each chip must receive.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from shardwise.hardware.placement import AxisLinks, Part, taken
from shardwise.roofline.groups import LinkGroup, group_of, over
from shardwise.sharding.exchange import exchanged, places
from shardwise.work import Exchange, Quantity, Sends


class ExchangeSeconds(NamedTuple):
    """Seconds per byte of a device's block, exact and of the bound, and of the longest way."""

    exact: Quantity
    bound: Quantity
    latency: Quantity


def exchange_seconds(exchange: Exchange | Sends, links: Sequence[AxisLinks]) -> ExchangeSeconds:
    """One exchange over the links of its axes; over several placements one by one."""
    shape = np.broadcast_shapes(*(np.shape(axis.size) for axis in links))
    if not shape:
        return _seconds(exchange, links)
    each = [
        exchange_seconds(exchange, [taken(axis, place) for axis in links])
        for place in np.ndindex(shape)
    ]
    columns = (np.reshape(column, shape) for column in zip(*each, strict=True))
    return ExchangeSeconds(*columns)


class _AxisPart(NamedTuple):
    """`size` members of a group along a physical axis, `stride` chips apart; `ring` where the axis
    closes. See `groups.Axis.pieces`."""

    size: int
    stride: int
    ring: bool


class _Loads(NamedTuple):
    """How many blocks the busiest link of each kind carries.

    pieces: per torus axis and piece of it, blocks over the busiest link between its members.
    means: per torus axis, blocks per link if all its links carried equally many.
    links: torus links on the longest route of a block.
    port: blocks that one chip sends, or receives, inside its network; pair: between two chips.
    nic: blocks that one chip sends to, or receives from, other networks.
    inside: 1 if blocks move between devices of one chip, else 0.
    into_chip, into_network: different blocks that one chip, or one network, lacks and must receive.
    """

    pieces: tuple[tuple[float, ...], ...]
    means: tuple[float, ...]
    links: int
    port: int
    pair: int
    nic: int
    inside: int
    into_chip: int
    into_network: int


def _seconds(exchange: Exchange | Sends, links: Sequence[AxisLinks]) -> ExchangeSeconds:
    group = group_of(links)
    digits = tuple(_digits(axis) for axis in links)
    pieces = tuple(
        tuple(_AxisPart(int(p.size), int(p.stride), bool(p.ring)) for p in axis.pieces)
        for axis in group.axes
    )
    loads = _loads(exchange, digits, pieces)
    exact, bound, latency = _fast_network(loads, group, links)
    within = over(loads.inside, group.device_oneway) if loads.inside else 0.0
    exact = np.maximum(np.maximum(exact, within), over(loads.nic, group.nic))
    bound = np.maximum(bound, over(loads.into_network, group.egress))
    hops = ((loads.inside, group.device_hop), (loads.nic, group.outer_hop))
    for used, seconds in hops:
        latency = np.maximum(latency, (used > 0) * seconds)
    return ExchangeSeconds(exact, bound, latency)


def _fast_network(
    loads: _Loads, group: LinkGroup, links: Sequence[AxisLinks]
) -> tuple[Quantity, Quantity, Quantity]:
    """Seconds per byte, exact and bound, and of the longest way from chip to chip."""
    if group.kind != "torus":
        hop = (loads.port > 0) * group.chip_hop
        busiest = loads.port if group.kind == "switched" else loads.pair
        return over(busiest, group.pair), over(loads.into_chip, group.rate), hop
    exact: Quantity = 0.0
    bound: Quantity = over(loads.into_chip, _all_links(links, group))
    hop: Quantity = 0.0
    for axis, busiest, mean in zip(group.axes, loads.pieces, loads.means, strict=True):
        taken_up = (over(b, p.oneway) for p, b in zip(axis.pieces, busiest, strict=True))
        exact = np.maximum(exact, sum(taken_up))
        first = axis.pieces[0]
        bound = np.maximum(bound, over(mean, first.oneway * first.stride))
        hop = first.hop_seconds / first.stride
    return exact, bound, loads.links * hop


def _all_links(links: Sequence[AxisLinks], group: LinkGroup) -> Quantity:
    """Bytes/s into a chip over both directions of every physical axis, as the group's share."""
    share = group.devices / links[0].devices_per_chip
    return sum(2 * part.oneway * part.stride * share for part in links[0].parts)


def _digits(axis: AxisLinks) -> tuple[tuple[int, int], ...]:
    """(size, stride) of the digits of a place along a mesh axis, the most significant first, as
    `hardware.device_order` has them: network, physical axes, device of the chip."""
    parts: tuple[Part, ...] = (axis.outer, *axis.parts, axis.within)
    return tuple((int(part.size), int(part.stride)) for part in parts)


@lru_cache(maxsize=16384)
def _loads(
    exchange: Exchange | Sends,
    digits: tuple[tuple[tuple[int, int], ...], ...],
    pieces: tuple[tuple[_AxisPart, ...], ...],
) -> _Loads:
    """Count blocks over links. Every group of the mesh exchanges alike, so one is looked at."""
    sizes = [prod(size for size, _ in parts) for parts in digits]
    held, wanted, found = exchanged(exchange, sizes)
    at = _coordinates(digits, places(sizes))
    network, chip = _numbers(at[:, :1]), _numbers(at[:, :-1])
    (to,) = np.nonzero(found != np.arange(len(found)))
    of = found[to]
    across = network[of] != network[to]
    inside = chip[of] == chip[to]
    moving = ~across & ~inside
    src, dst = of[moving], to[moving]
    columns = [c for c in range(1, at.shape[1] - 1) if any(parts[c][0] > 1 for parts in digits)]
    ways = at[src][:, columns], at[dst][:, columns]
    chips = len(found) // prod(parts[-1][0] for parts in digits)
    once = len(np.unique(held)) == len(held)
    means = (_mean(s, d, p, chips) for s, d, p in zip(ways[0].T, ways[1].T, pieces, strict=False))
    busiest, farthest = _routed(network[src], *ways, pieces)
    return _Loads(
        pieces=busiest,
        means=tuple(means) if once else (0.0,) * len(pieces),
        links=farthest,
        port=max(_most(chip[src]), _most(chip[dst])),
        pair=_most(chip[src] * (chip.max() + 1) + chip[dst]),
        nic=max(_most(chip[of[across]]), _most(chip[to[across]])),
        inside=int(inside.any()),
        into_chip=_lacking(chip, held, wanted, network),
        into_network=_lacking(network, held, wanted),
    )


def _coordinates(
    digits: tuple[tuple[tuple[int, int], ...], ...], along: Sequence[np.ndarray]
) -> np.ndarray:
    """Network, place on each physical axis, and device in the chip, of every device of a group."""
    found = np.zeros((len(along[0]), len(digits[0])), np.int64)
    for index, parts in zip(along, digits, strict=True):
        left = index
        for column, (size, stride) in reversed(list(enumerate(parts))):
            found[:, column] += left % size * stride
            left = left // size
    return found


def _mean(src: np.ndarray, dst: np.ndarray, pieces: tuple[_AxisPart, ...], chips: int) -> float:
    """Blocks per link of a torus axis if all its links carried equally many.

    On a ring: (sum over messages of the shorter distance) / (2 links per chip x chips). A line of
    `span` chips has only span - 1 links each way, so there every chip counts for (span - 1) / span
    of two links.
    """
    outer = pieces[-1]
    span = outer.size * outer.stride
    apart = np.abs(src - dst)
    if outer.ring:
        return float(np.minimum(apart, span - apart).sum()) / (2 * chips)
    return float(apart.sum()) * span / (2 * chips * (span - 1))


def _routed(
    network: np.ndarray, src: np.ndarray, dst: np.ndarray, pieces: tuple[tuple[_AxisPart, ...], ...]
) -> tuple[tuple[tuple[float, ...], ...], int]:
    """Blocks over the busiest link of each piece, and the number of links on the longest route.

    Messages travel axis by axis; on an axis with several pieces, the piece of the largest stride
    first. `here` is where each message is after the stages so far.
    """
    stages = [(a, p) for a, axis in enumerate(pieces) for p in reversed(axis)]
    here, there = (
        np.stack([ends[:, a] // p.stride % p.size for a, p in stages], axis=1)
        if stages
        else np.zeros((len(ends), 0), np.int64)
        for ends in (src, dst)
    )
    busiest: dict[tuple[int, _AxisPart], float] = {}
    links = np.zeros(len(src), np.int64)
    for stage, (axis, piece) in enumerate(stages):
        inner = [i for i, (a, p) in enumerate(stages) if a == axis and p.stride < piece.stride]
        others = np.delete(here, [stage, *inner], axis=1)
        line = _numbers(np.column_stack([network, others]))
        between = [stages[i][1] for i in inner]
        lane = np.zeros(len(src), np.int64)
        for i, p in zip(inner, between, strict=True):
            lane = lane * p.size + here[:, i]
        start, stop = here[:, stage], there[:, stage]
        up, down = (stop - start) % piece.size, (start - stop) % piece.size
        share = _upwards(start, stop, up, down, piece.ring)
        ways = ((start, up, share), (stop, down, 1 - share))
        busiest[axis, piece] = max(_busiest(line, lane, between, *way, piece) for way in ways)
        links += np.where(share > 0, up, down) * piece.stride
        here[:, stage] = stop
    found = tuple(tuple(busiest[a, p] for p in axis) for a, axis in enumerate(pieces))
    return found, int(links.max(initial=0))


def _upwards(
    start: np.ndarray, stop: np.ndarray, up: np.ndarray, down: np.ndarray, ring: bool
) -> np.ndarray:
    """The share of each message that travels towards higher places: all, none, or half of it where
    both ways round a ring are equally long."""
    if not ring:
        return (stop > start) * 1.0
    return np.where(up == down, 0.5, (up < down) * 1.0)


def _busiest(
    line: np.ndarray,
    lane: np.ndarray,
    between: Sequence[_AxisPart],
    start: np.ndarray,
    steps: np.ndarray,
    weight: np.ndarray,
    piece: _AxisPart,
) -> float:
    """Blocks over the busiest link of one direction of a piece.

    Each message puts `weight` on the links from member `start` to `start + steps`. Adding it where
    the message begins and taking it off where it ends, the running sum along a line of members is
    the load between each two neighbours.

    Members of a piece of stride s are s chips apart, so s interleaved lines share every link; line
    q (q = 0 .. s-1) has its members at the chips k s + q. Lines of other groups carry the same as
    those of this group, its lanes: `lane_at` says by the place of q on the pieces in `between`
    which lane line q resembles. The link after chip k s + p carries, of every line q <= p, the load
    between its members k and k + 1, and of every line q > p, that between k - 1 and k. The sum is
    divided by s, as the price gives a piece 1/s of a link's rate.
    """
    used = weight * (steps > 0)
    if not used.any():
        return 0.0
    size, width = piece.size, 2 * piece.size  # a way round passes the end once at most
    lanes = prod(p.size for p in between)
    count = (int(line.max()) + 1) * lanes
    first = (line * lanes + lane) * width + start
    change = np.bincount(first, used, count * width)
    change = change - np.bincount(first + steps, used, count * width)
    loads = change.reshape(-1, lanes, width).cumsum(axis=2)
    loads = loads[..., :size] + loads[..., size:]
    if lanes == 1:
        return float(loads.max())
    at, lane_at = np.arange(piece.stride), np.zeros(piece.stride, np.int64)
    for p in between:
        lane_at = lane_at * p.size + at // p.stride % p.size
    of_place = loads[:, lane_at]
    upto = of_place.cumsum(axis=1)
    after = upto[:, -1:] - upto
    before = np.roll(after, 1, axis=2)
    if not piece.ring:
        before[..., 0] = 0.0
    return float((upto + before).max()) / piece.stride


def _lacking(
    unit: np.ndarray, held: np.ndarray, wanted: np.ndarray, within: np.ndarray | None = None
) -> int:
    """The most different blocks that one unit (a chip, a network) must receive because none of its
    devices holds them; with `within`, only those that a device of the same network holds."""
    blocks = int(max(held.max(), wanted.max())) + 1
    needs = unit * blocks + wanted
    if within is not None:
        needs = needs[np.isin(within * blocks + wanted, within * blocks + held)]
    return _most(np.setdiff1d(needs, unit * blocks + held) // blocks)


def _most(values: np.ndarray) -> int:
    """How often the most frequent number occurs."""
    return int(np.unique(values, return_counts=True)[1].max(initial=0))


def _numbers(rows: np.ndarray) -> np.ndarray:
    """One number for each row, equal for equal rows: its columns read as digits."""
    number = np.zeros(len(rows), np.int64)
    for column in rows.T:
        number = number * (column.max(initial=0) + 1) + column
    return number
