"""What no algorithm can beat: bytes that must cross a cut, over all the links that cross it.

Written without the schedules and the closed forms, from the meaning of each collective alone. A cut
is a box of places; so single devices (what must enter one), bisections and corners are all in.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product

from shardwise.sharding.simulate.collectives import SimulatedKind
from shardwise.sharding.simulate.fabric import TORUS, Device, Fabric

Box = tuple[range, ...]


def lower_bound(
    kind: SimulatedKind,
    fabric: Fabric,
    size: float,
    targets: Mapping[Device, Device] | None = None,
) -> float:
    """Seconds below which no algorithm of this fabric gets; `size` is V of one group in bytes, and
    `targets` say where the blocks of a permute go that is no ring.

    For every box of devices and all that is outside it: bytes that must enter / bytes/s of the
    links into it. An all-reduce also takes 2 (N-1) V of transmissions (N-1 partial sums to join,
    N-1 copies to hand out) over all links there are, unless switches reduce.
    """
    worst = 0.0
    for box in boxes(fabric):
        inside = {d for d in fabric.devices if all(p in r for p, r in zip(d, box, strict=True))}
        for cut in (inside, set(fabric.devices) - inside):
            if targets is None:
                needed = sum(_entering(kind, group, cut, size) for group in fabric.groups)
            else:
                needed = size * sum(d in cut and s not in cut for s, d in targets.items())
            if needed:
                worst = max(worst, needed / ingress(fabric, cut))
    reduces = any(axis.reduces for axis in fabric.axes)
    if kind == "all_reduce" and fabric.size > 1 and not reduces:
        moved = 2 * (fabric.size - 1) * size * len(fabric.groups)
        worst = max(worst, moved / sum(ingress(fabric, {d}) for d in fabric.devices))
    return worst


def boxes(fabric: Fabric) -> Iterator[Box]:
    """Boxes of the first, the last, the lower or the upper half of the places, or all, per axis."""
    choices = []
    for axis in fabric.axes:
        n, half = axis.size, axis.size // 2
        spans = {(0, n), (0, 1), (n - 1, n), (0, half), (half, n)}
        for dim in fabric.dims:
            if fabric.axes[dim.axis] is axis and dim.kind in TORUS:
                spans |= {(0, dim.stride), (n - dim.stride, n)}
        choices.append([range(a, b) for a, b in sorted(spans) if a < b])
    return product(*choices)


def ingress(fabric: Fabric, inside: set[Device]) -> float:
    """Bytes/s into a set of devices, over every link that may carry something into it."""
    outside = set(fabric.devices) - inside
    into = {fabric.chip(d) for d in inside}
    rest = {fabric.chip(d) for d in outside}
    tree = sum(axis.kind == "tree" for axis in fabric.axes)
    total = 0.0
    for i, axis in enumerate(fabric.axes):
        if axis.kind in TORUS:
            total += axis.rate * _torus_links(fabric, i, into, rest)
        elif axis.kind == "chip":
            total += axis.rate * sum(fabric.chip(d) in rest for d in inside)
        elif axis.kind == "tree":
            total += axis.rate * _ports(into, rest, lambda a, b: a[:tree] != b[:tree])
        elif axis.kind == "switch":
            total += axis.rate * sum(
                _ports({c for c in into if c[:tree] == net}, rest, partial(_peers, tree))
                for net in {c[:tree] for c in into}
            )
        else:
            total += axis.rate * sum(_peers(tree, a, b) for a in into for b in rest)
    return total


def _ports(into: set[Device], rest: set[Device], linked: Callable[[Device, Device], bool]) -> int:
    """Ports that something can enter by: no more than can take it nor than can send it."""
    taking = sum(any(linked(a, b) for b in rest) for a in into)
    return min(taking, sum(any(linked(a, b) for a in into) for b in rest))


def _peers(tree: int, chip: Device, other: Device) -> bool:
    """Two chips of one network."""
    return chip != other and chip[:tree] == other[:tree]


def _torus_links(fabric: Fabric, i: int, into: set[Device], rest: set[Device]) -> int:
    axis, count = fabric.axes[i], 0
    for chip in into:
        for way in (1, -1) if axis.kind != "one_way" else (-1,):
            at = chip[i] + way
            if axis.kind == "line" and not 0 <= at < axis.size:
                continue
            neighbour = (*chip[:i], at % axis.size, *chip[i + 1 :])
            count += neighbour in rest
    return count


def _entering(kind: str, group: tuple[Device, ...], inside: set[Device], size: float) -> float:
    """Bytes that one group must bring into the set."""
    n = len(group)
    here = sum(device in inside for device in group)
    if here in (0, n):
        return 0.0
    if kind == "all_gather":
        return size * (n - here) / n
    if kind == "reduce_scatter":
        return size * here / n
    if kind == "all_reduce":
        return size
    if kind == "all_to_all":
        return size * here * (n - here) / n**2
    return size  # a permute goes round all of the group, so it enters at least once
