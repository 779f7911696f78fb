"""How far chips of a torus are from each other, with and without a twist (ch. 2.2)."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from shardwise.errors import BadRequest

MOST_CHIPS = 65_536
Place = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorusSpread:
    """Hops between two chips of a torus: the mean over all others and the most; and the hops per
    message over the links of the busiest axis where every chip sends to every other."""

    chips: int
    mean_hops: float
    diameter: int
    busiest_axis_hops: float


def torus_spread(shape: Sequence[int], twisted: bool = False) -> TorusSpread:
    """A torus of a shape whose axes all wrap.

    A twisted torus of sides a and 2a steps a places along its long axes where it wraps along a
    short one, as the slices of 4x4x8 or 4x8x8 of TPU v4 and later can: all chips come closer, and
    an all-to-all loads all axes alike (its busiest axis has the mean over them, at the least).
    Without a twist a ring of n has n/4 hops on average. Raises BadRequest for other sides.
    """
    sides = tuple(int(side) for side in shape)
    if not sides or min(sides) < 1 or prod(sides) > MOST_CHIPS:
        raise BadRequest(
            f"shape {'x'.join(map(str, sides))}: sides are 1 or more, {MOST_CHIPS:,} chips at most"
        )
    if twisted and set(sides) != {min(sides), 2 * min(sides)}:
        raise BadRequest(
            f"shape {'x'.join(map(str, sides))} has no twist; sides a and 2a have, such as 4x4x8"
        )
    hops = _hops(sides, twisted)
    others = max(len(hops) - 1, 1)
    mean = sum(hops.values()) / others
    axes = [sum(_ring_hops(place[i], n) for place in hops) / others for i, n in enumerate(sides)]
    return TorusSpread(
        chips=len(hops),
        mean_hops=mean,
        diameter=max(hops.values()),
        busiest_axis_hops=mean / len(sides) if twisted else max(axes),
    )


def _ring_hops(at: int, size: int) -> int:
    return min(at, size - at)


def _hops(sides: Place, twisted: bool) -> dict[Place, int]:
    """Hops from the first chip to each, by breadth: all chips of a torus see the same."""
    start: Place = tuple(0 for _ in sides)
    found: dict[Place, int] = {start: 0}
    queue = deque([start])
    while queue:
        place = queue.popleft()
        for near in _neighbours(place, sides, twisted):
            if near not in found:
                found[near] = found[place] + 1
                queue.append(near)
    return found


def _neighbours(place: Place, sides: Place, twisted: bool) -> Iterator[Place]:
    short = min(sides)
    for axis, size in enumerate(sides):
        for way in (1, -1):
            near = list(place)
            wraps, near[axis] = divmod(place[axis] + way, size)
            if wraps and twisted and size == short:
                for other, length in enumerate(sides):
                    if length != short:
                        near[other] = (near[other] + wraps * short) % length
            yield tuple(near)
