"""Who sends which part of a block where, and in which round: the algorithms themselves.

A gather is written once, as a tree per block along which it spreads; run backwards it is a
reduce-scatter, in which partial sums come together. Chapter 3's transpose rule, as code.

In which order a block visits the axes of a torus, and which share of every block takes which.

A block that goes round axis a after the axes b, c makes n_b n_c times the load that it makes first.
The shares are those that make the slowest axis as fast as possible: a linear program with a handful
of variables, solved in fractions by trying every vertex, so that counts come out exact.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, permutations, product
from math import ceil, lcm, log2, prod
from typing import NamedTuple

from shardwise.sharding.simulate.fabric import TORUS, Device, Fabric, GroupDim, Hop

Order = tuple[int, ...]


@lru_cache(maxsize=4096)
def best_shares(
    sizes: tuple[int, ...], costs: tuple[Fraction, ...]
) -> tuple[tuple[Order, Fraction], ...]:
    """Orders of axes and the share of every block that takes each; shares add up to 1.

    `sizes[a]` members lie along axis a, and `costs[a]` seconds pass there for a block per device.

    >>> [(order, str(share)) for order, share in best_shares((4, 4), (Fraction(3), Fraction(3)))]
    [((0, 1), '1/2'), ((1, 0), '1/2')]
    """
    count = len(sizes)
    if count == 0:
        return (((), Fraction(1)),)
    loads = {order: _loads(order, sizes, costs) for order in permutations(range(count))}
    best: tuple[Fraction, tuple[tuple[Order, Fraction], ...]] | None = None
    for number in range(1, count + 1):
        for some in combinations(loads, number):
            for tight in combinations(range(count), number):
                shares = _balance([loads[order] for order in some], tight)
                if shares is None or min(shares) < 0:
                    continue
                slowest = max(
                    sum((s * loads[o][a] for s, o in zip(shares, some, strict=True)), Fraction(0))
                    for a in range(count)
                )
                if best is None or slowest < best[0]:
                    used = zip(some, shares, strict=True)
                    best = (slowest, tuple((o, s) for o, s in used if s))
    assert best is not None, "one order alone is always possible"
    return best[1]


def _loads(order: Order, sizes: tuple[int, ...], costs: tuple[Fraction, ...]) -> list[Fraction]:
    return [
        costs[axis] * prod(sizes[b] for b in order[: order.index(axis)])
        for axis in range(len(sizes))
    ]


def _balance(loads: Sequence[Sequence[Fraction]], tight: Sequence[int]) -> list[Fraction] | None:
    """Shares of the orders with equal load on the tight axes; None where there are none."""
    number = len(loads)
    rows = [[*(load[a] for load in loads), Fraction(-1), Fraction(0)] for a in tight]
    rows.append([*(Fraction(1) for _ in loads), Fraction(0), Fraction(1)])
    for column in range(number + 1):
        pivot = next((r for r in range(column, number + 1) if rows[r][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [x / rows[column][column] for x in rows[column]]
        for r in range(number + 1):
            if r != column and rows[r][column]:
                factor = rows[r][column]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[column], strict=True)]
    return [row[-1] for row in rows[:number]]


@dataclass(frozen=True, slots=True)
class BlockPart:
    """A part of every block, from the fraction `start` of it to `stop`.

    It visits the dims numbered in `order`; `half` says which way is longer on rings.
    """

    order: tuple[int, ...]
    half: int
    start: Fraction
    stop: Fraction

    def cut(self, length: int) -> slice:
        """The elements of a block of that length, rounded to whole ones."""
        return slice(round(self.start * length), round(self.stop * length))


class Send(NamedTuple):
    """A part of a block on its way over some hops, the first of them in round `start`."""

    block: Hashable
    start: int
    hops: tuple[Hop, ...]
    stage: int

    @property
    def end(self) -> int:
        return self.start + len(self.hops)


class Edge(NamedTuple):
    """Member `src` of a dimension hands on to `dst`, from round `at` of the phase.

    On a torus over `steps` links in direction `way`; elsewhere steps is 0 and it is one jump.
    """

    src: int
    dst: int
    at: int
    steps: int
    way: int


def parts(fabric: Fabric) -> tuple[BlockPart, ...]:
    """How every block is cut: orders of the torus axes in the best shares, each in two halves if a
    ring has an even size. Networks come first and the devices of a chip last.
    """
    before = [i for i, dim in enumerate(fabric.dims) if dim.kind == "tree"]
    after = [i for i, dim in enumerate(fabric.dims) if dim.kind == "chip"]
    axes: dict[int, list[int]] = {}
    for i, dim in enumerate(fabric.dims):
        if dim.kind not in ("tree", "chip"):
            axes.setdefault(dim.axis, []).append(i)
    chains = list(axes.values())
    dims = [[fabric.dims[i] for i in chain] for chain in chains]
    sizes = tuple(prod(dim.size for dim in chain) for chain in dims)
    shares = best_shares(sizes, tuple(_cost(fabric, chain) for chain in dims))
    even = any(d.kind == "ring" and d.size % 2 == 0 for d in fabric.dims)
    halves = (0, 1) if even else (0,)
    found, start = [], Fraction(0)
    for order, share in shares:
        chain = tuple(stage for i in order for stage in chains[i])
        for half in halves:
            stop = start + share / len(halves)
            found.append(BlockPart((*before, *chain, *after), half, start, stop))
            start = stop
    return tuple(found)


def grain(fabric: Fabric) -> int:
    """The fewest elements per block for which every part is a whole number of them."""
    return lcm(2, *(part.stop.denominator for part in parts(fabric)))


def gather_sends(fabric: Fabric, *, mirrored: bool = False) -> Iterator[Send]:
    """The trees of an all-gather: part p of the block of `device` is called (device, p).

    `mirrored` goes round one-way rings the other way, so that running it backwards goes forward.
    """
    for number, part in enumerate(parts(fabric)):
        for members in fabric.groups:
            for device in members:
                yield from _spread(fabric, device, number, part, mirrored)


def exchange_sends(fabric: Fabric, *, split_ties: bool = True) -> Iterator[Send]:
    """The messages of an all-to-all: half h of what src sends dst is called (src, dst, h).

    Between networks and inside a chip directly; on a torus dimension by dimension, the shorter way
    round, half each way where both are as short (unless not `split_ties`).
    """
    stages = list(range(len(fabric.dims)))
    for members in fabric.groups:
        for src, dst in product(members, members):
            if src != dst:
                for half in (0, 1):
                    clock = 0
                    for stage, hops in _route(fabric, src, dst, half * split_ties, stages):
                        yield Send((src, dst, half), clock, tuple(hops), stage)
                        clock += len(hops)


def permute_sends(fabric: Fabric, targets: Mapping[Device, Device] | None = None) -> Iterator[Send]:
    """Every device sends its block to its target; half h of the block of src is called (src, h).

    Each half goes its way as in an all-to-all; a block whose target is its own device stays.
    Without `targets` every device sends to the next of its group, one way round: the devices of a
    chip come first, then the torus axes, then networks, as in counting.
    """
    one_way = targets is None
    stages = _counting(fabric) if one_way else list(range(len(fabric.dims)))
    for src, dst in (following(fabric) if targets is None else targets).items():
        for half in (0, 1):
            clock = 0
            for stage, hops in _route(fabric, src, dst, half, stages, one_way=one_way):
                yield Send((src, half), clock, tuple(hops), stage)
                clock += len(hops)


def following(fabric: Fabric) -> dict[Device, Device]:
    """The device after each one in its group, the first after the last."""
    slow_first = list(reversed(_counting(fabric)))
    numbers = list(product(*(_cycle(fabric.dims[i]) for i in slow_first)))
    found: dict[Device, Device] = {}
    for members in fabric.groups:
        devices = {fabric.members[device]: device for device in members}
        ranks = [devices[_sorted_by(slow_first, number)] for number in numbers]
        found |= dict(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    return found


def backwards(sends: list[Send]) -> list[Send]:
    """The same trees from the leaves to the root."""
    rounds = max((send.end for send in sends), default=0)
    return [
        Send(s.block, rounds - s.end, tuple(hop.back for hop in reversed(s.hops)), s.stage)
        for s in sends
    ]


def _cost(fabric: Fabric, chain: list[GroupDim]) -> Fraction:
    """Seconds per block, in units of the first torus axis' link; the slow pieces come first."""
    cost, before = Fraction(0), 1
    unit = fabric.axes[fabric.torus[0]].rate if fabric.torus else 1.0
    for dim in chain:
        rate = Fraction(fabric.axes[dim.axis].rate / unit).limit_denominator(1000)
        ways = 2 if dim.kind == "ring" else 1
        cost += before * Fraction((dim.size - 1) * dim.stride, ways) / rate
        before *= dim.size
    return cost


def _spread(
    fabric: Fabric, origin: Device, number: int, part: BlockPart, mirrored: bool
) -> Iterator[Send]:
    reached, clock = [origin], 0
    for stage in part.order:
        dim = fabric.dims[stage]
        root = fabric.members[origin][stage]
        edges = tree(dim, root, part.half, mirrored)
        fresh = []
        for holder in reached:
            for edge in edges:
                src, dst = (fabric.moved(holder, stage, i - root) for i in (edge.src, edge.dst))
                hops = _hops(fabric, dim, src, dst, edge)
                yield Send((origin, number), clock + edge.at, hops, stage)
                fresh.append(dst)
        reached += fresh
        clock += duration(dim)


def _hops(fabric: Fabric, dim: GroupDim, src: Device, dst: Device, edge: Edge) -> tuple[Hop, ...]:
    if dim.kind in TORUS:
        return tuple(fabric.walk(src, dim.axis, dim.stride, edge.way))
    return (fabric.jump(src, dst),)


@lru_cache(maxsize=65536)
def tree(dim: GroupDim, root: int, half: int, mirrored: bool = False) -> tuple[Edge, ...]:
    """How a block of member `root` reaches all members of one dimension.

    Torus: from neighbour to neighbour, both ways on a line or ring. Switch and tree: Bruck's
    doubling, ceil(log2 n) rounds. Full mesh and chip: to everyone at once.
    """
    n = dim.size
    if dim.kind in TORUS:
        return tuple(_chains(dim, root, half, mirrored))
    if dim.kind in ("full_mesh", "chip"):
        return tuple(Edge(root, other, 0, 0, 1) for other in range(n) if other != root)
    edges, reach, at = [], 1, 0
    while reach < n:
        for back in range(min(reach, n - reach)):
            edges.append(Edge((root - back) % n, (root - back - reach) % n, at, 0, 1))
        reach, at = 2 * reach, at + 1
    return tuple(edges)


def _chains(dim: GroupDim, root: int, half: int, mirrored: bool) -> Iterator[Edge]:
    n = dim.size
    if dim.kind == "one_way":
        up, down = (0, n - 1) if mirrored else (n - 1, 0)
    elif dim.kind == "ring":
        longer, shorter = n // 2, (n - 1) // 2
        up, down = (longer, shorter) if half == 0 else (shorter, longer)
    else:
        up, down = n - 1 - root, root
    for way, length in ((1, up), (-1, down)):
        for k in range(length):
            src, dst = (root + way * k) % n, (root + way * (k + 1)) % n
            yield Edge(src, dst, k * dim.stride, dim.stride, way)


@lru_cache(maxsize=4096)
def duration(dim: GroupDim) -> int:
    """Rounds of one phase."""
    if dim.kind == "ring":
        return dim.size // 2 * dim.stride
    if dim.kind in TORUS:
        return (dim.size - 1) * dim.stride
    return 1 if dim.kind in ("full_mesh", "chip") else ceil(log2(dim.size))


def _route(
    fabric: Fabric, src: Device, dst: Device, half: int, stages: list[int], one_way: bool = False
) -> Iterator[tuple[int, list[Hop]]]:
    """Per dimension, the hops from one device to another; between networks and in a chip one."""
    if src == dst:
        return
    jumps = fabric.network(src) != fabric.network(dst) or fabric.chip(src) == fabric.chip(dst)
    if jumps or not fabric.torus:
        yield 0, [fabric.jump(src, dst)]
        return
    at = start = fabric.landing(src, dst)
    for stage in stages:
        dim = fabric.dims[stage]
        ahead = fabric.members[dst][stage] - fabric.members[at][stage]
        if ahead:
            steps, way = _way(dim, ahead, half, one_way)
            hops = list(fabric.walk(at, dim.axis, steps * dim.stride, way))
            hops[0] = hops[0]._replace(src=src if at == start else at)
            yield stage, hops
            at = fabric.moved(at, stage, ahead)


def _way(dim: GroupDim, ahead: int, half: int, one_way: bool) -> tuple[int, int]:
    """Steps and direction of the shorter way to a member `ahead` places on."""
    if dim.kind == "line":
        return abs(ahead), 1 if ahead > 0 else -1
    up = ahead % dim.size
    down = dim.size - up
    if one_way or dim.kind == "one_way" or up < down or (up == down and half == 0):
        return up, 1
    return down, -1


def _counting(fabric: Fabric) -> list[int]:
    """Dimensions, fastest first: chip, torus axes (inner pieces first), networks."""

    def rank(stage: int) -> tuple[int, int, int]:
        dim = fabric.dims[stage]
        if dim.kind in ("chip", "tree"):
            return (0 if dim.kind == "chip" else 2, -stage, 0)
        return (1, dim.axis, dim.stride)

    return sorted(range(len(fabric.dims)), key=rank)


def _sorted_by(stages: list[int], number: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(member for _, member in sorted(zip(stages, number, strict=True)))


def _cycle(dim: GroupDim) -> list[int]:
    """The members in the order of a permute: round the ring, or a line folded in two."""
    members = list(range(dim.size))
    if dim.kind == "line":
        return members[::2] + members[1::2][::-1]
    return members
