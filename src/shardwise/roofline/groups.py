"""The links of one group of devices: what the axes of a collective have together.

Mesh axes that continue each other on a physical axis become one piece, a group that holds a part of
each chip has its share of the chip's rates. `collectives.py` turns these into seconds.

The many collectives of a step have few groups of links, and a group costs more to join than its
seconds to work out: the latest groups are kept.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import is_
from typing import Any, Literal

import numpy as np

from shardwise.hardware.placement import AxisLinks, Kind, Part
from shardwise.work import Quantity, largest, present

Mode = Literal["exact", "asymptotic", "bound"]
KEPT = 128
"""Groups, and what is made of one, that are kept for the next collective."""


class Same:
    """Objects as a key, which equals one of the same objects: arrays in them have no equality."""

    __slots__ = ("_hash", "objects")

    def __init__(self, *objects: Any) -> None:
        self.objects = objects
        self._hash = hash(tuple(map(id, objects)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        theirs = other.objects if isinstance(other, Same) else ()
        return len(self.objects) == len(theirs) and all(map(is_, self.objects, theirs))


@dataclass(frozen=True, slots=True)
class Axis:
    """The pieces that a group holds of one physical axis of a torus, inner (fast) ones first.

    Pieces that continue each other are one piece, so there are several only with gaps between
    them. They share links, so a collective uses them one after the other, slow ones first: the
    time per byte of a gather is that of one piece of `size` chips at `rate`.
    """

    pieces: tuple[Part, ...]
    both_ways: bool

    @property
    def size(self) -> np.ndarray:
        return product(p.size for p in self.pieces)

    def directed(self, piece: Part) -> Quantity:
        """Bytes/s that enter each chip: of both neighbours on a ring."""
        return piece.oneway * np.where(np.logical_and(piece.ring, self.both_ways), 2, 1)

    def rate(self, mode: Mode) -> Quantity:
        if len(self.pieces) == 1:
            return self.directed(self.pieces[0])
        if mode == "bound":
            return largest([self.directed(p) * np.greater(p.size, 1) for p in self.pieces])
        cost: Quantity = 0.0
        before: Quantity = 1.0
        for piece in reversed(self.pieces):
            cost = cost + before * over(np.subtract(piece.size, 1), self.directed(piece))
            before = before * np.asarray(piece.size)
        return np.where(np.greater(before, 1), over(before - 1, cost), 0.0)

    def farthest(self, piece: Part) -> Quantity:
        """Hops to the farthest member: floor(n/2) on a ring, n-1 on a line or one way round."""
        size = np.asarray(piece.size)
        return np.where(np.logical_and(piece.ring, self.both_ways), size // 2, size - 1)

    def hops_seconds(self) -> Quantity:
        return sum((self.farthest(p) * p.hop_seconds for p in self.pieces), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkGroup:
    """All links of one group: `devices` of each of `inner` chips of each of `outer` networks. A
    group equals itself alone, so what is made of it can be kept.

    Rates are the group's share of a chip's, `device_oneway` is what each device has of its own.
    `axes` are those of a torus; elsewhere `rate` is R and `pair` what a chip sends to one other.
    """

    kind: Kind
    axes: tuple[Axis, ...]
    rate: Quantity
    pair: Quantity
    chip_hop: Quantity
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


def group_of(links: Sequence[AxisLinks], both_ways: bool = True) -> LinkGroup:
    """Join the links of several mesh axes; pieces that continue each other become one piece."""
    return _joined(Same(*(links or (_NOTHING,))), both_ways)


@lru_cache(maxsize=KEPT)
def _joined(same: Same, both_ways: bool) -> LinkGroup:
    links: tuple[AxisLinks, ...] = same.objects
    first = links[0]
    nic = least(
        [np.where(np.greater(axis.outer.size, 1), axis.outer.oneway, np.inf) for axis in links]
    )
    devices = product(axis.within.size for axis in links)
    share: Quantity = 1.0
    if first.devices_per_chip > 1:
        share = devices / first.devices_per_chip
        nic = nic * share
    inner = product(p.size for axis in links for p in axis.parts)
    pair = first.parts[0].oneway * share
    torus = first.kind == "torus"
    return LinkGroup(
        kind=first.kind,
        axes=_axes(links, share, both_ways) if torus else (),
        rate=pair * np.maximum(inner - 1, 1) if first.kind == "full_mesh" else pair,
        pair=pair,
        chip_hop=first.parts[0].hop_seconds,
        devices=devices,
        inner=inner,
        outer=product(axis.outer.size for axis in links),
        device_oneway=first.within.oneway,
        device_hop=first.within.hop_seconds,
        nic=nic,
        outer_hop=largest([axis.outer.hop_seconds for axis in links]),
        sharp=first.sharp and first.kind == "switched",
        ramp_bytes=first.ramp_bytes,
    )


def _axes(links: Sequence[AxisLinks], share: Quantity, both_ways: bool) -> tuple[Axis, ...]:
    """The physical axes in use, each with its pieces in the order of their strides."""
    axes = []
    for column in zip(*(axis.parts for axis in links), strict=True):
        pieces: list[Part] = []
        for piece in column:
            if present(np.greater(piece.size, 1)):
                pieces.append(replace(piece, oneway=piece.oneway * share))
        for end in range(
            len(pieces) - 1, 0, -1
        ):  # bubble sort: the k-th pass settles the k-th last
            for i in range(end):
                pieces[i], pieces[i + 1] = _order(pieces[i], pieces[i + 1])
        for _ in pieces[1:]:
            for i in range(len(pieces) - 1):
                pieces[i], pieces[i + 1] = _join(pieces[i], pieces[i + 1])
        kept = [p for i, p in enumerate(pieces) if i == 0 or present(np.greater(p.size, 1))]
        if kept:
            axes.append(Axis(tuple(kept), both_ways))
    return tuple(axes)


def _order(one: Part, other: Part) -> tuple[Part, Part]:
    """The piece of smaller stride first; unused ones last."""
    swap = np.logical_or(
        np.equal(one.size, 1),
        np.logical_and(np.greater(one.stride, other.stride), np.greater(other.size, 1)),
    )
    low = Part(**{n: np.where(swap, getattr(other, n), getattr(one, n)) for n in Part.__slots__})
    high = Part(**{n: np.where(swap, getattr(one, n), getattr(other, n)) for n in Part.__slots__})
    return low, high


def _join(one: Part, other: Part) -> tuple[Part, Part]:
    """Two pieces of one physical axis as one where the outer starts where the inner ends.

    Elsewhere the pieces stay apart; the second result is then the outer one, else unused.
    """
    low, high = _order(one, other)
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


def over(amount: Quantity, rate: Quantity) -> Quantity:
    """amount / rate; nothing takes no time, and something over no link takes for ever."""
    linked = np.greater(rate, 0)
    seconds = np.divide(amount, np.where(linked, rate, 1.0))
    return np.where(linked, seconds, np.where(np.greater(amount, 0), np.inf, 0.0))


def product(sizes: Iterable) -> np.ndarray:
    total = np.asarray(1)
    for size in sizes:
        total = total * np.asarray(size)
    return total


def least(values: Sequence[Quantity]) -> Quantity:
    least: Quantity = np.inf
    for value in values:
        least = np.minimum(least, value)
    return least
