"""Fabric: devices, the links between them, and the group that a collective runs over.

A device is a tuple of places, one per physical axis. All groups of a mesh run at once, so a link
that interleaved groups share carries the bytes of all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Literal, NamedTuple

from shardwise.errors import BadRequest

Device = tuple[int, ...]
AxisKind = Literal["line", "ring", "one_way", "switch", "full_mesh", "chip", "tree"]
TORUS: frozenset[AxisKind] = frozenset({"line", "ring", "one_way"})


class Link(NamedTuple):
    """One directed link of class `name`.

    `way` round a torus axis tells the two links of a ring of two apart; it is 0 elsewhere.
    """

    name: str
    src: Device | str
    dst: Device | str
    way: int

    @property
    def back(self) -> "Link":
        """The same cable, the other direction."""
        return Link(self.name, self.dst, self.src, -self.way)


class Hop(NamedTuple):
    """A step from one device to the next: one torus link, or a way through switches.

    An end is a name where a switch keeps the block (SHARP).
    """

    src: Device | str
    dst: Device | str
    links: tuple[Link, ...]

    @property
    def back(self) -> "Hop":
        return Hop(self.dst, self.src, tuple(link.back for link in reversed(self.links)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A switch level above the networks: one switch (or group of them) over `networks` networks.

    `rate` is the one-way bytes/s with which the whole unit reaches the level above.
    """

    name: str
    networks: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Physical:
    """One physical axis of `size` places.

    line, ring, one_way: neighbours are linked (a torus axis; one_way uses one direction of a ring).
    switch: every chip has a port. full_mesh: every pair has a link. chip: the devices of one chip.
    tree: networks, each chip with a NIC; `units` are the switch levels above, inner ones first.
    `rate` is bytes/s of one link, port or NIC and direction, `hop_seconds` the latency of one hop;
    a switch that `reduces` adds up what it is sent (SHARP).
    """

    name: str
    kind: AxisKind
    size: int
    rate: float = 1.0
    hop_seconds: float = 1.0
    units: tuple[Unit, ...] = ()
    reduces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisPiece:
    """`size` members of the group along a physical axis, `stride` places apart."""

    axis: str
    size: int
    stride: int = 1


@dataclass(frozen=True, slots=True)
class GroupDim:
    """A logical dimension of the group: places `offsets` along axis number `axis`.

    `closed` if the members go round a whole ring, `stride` places apart.
    """

    axis: int
    kind: AxisKind
    offsets: tuple[int, ...]
    stride: int
    closed: bool

    @property
    def size(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Physical axes, outermost first, and the pieces of them that one group spans.

    Networks come first, then torus axes or a domain, then a chip's devices. Raises BadRequest for
    pieces that do not fit.
    """

    axes: tuple[Physical, ...]
    group: tuple[AxisPiece, ...]

    def __post_init__(self) -> None:
        for piece in self.group:
            axis = self.axes[self.index(piece.axis)]
            if piece.size < 1 or piece.stride < 1 or axis.size % (piece.size * piece.stride):
                raise BadRequest(
                    f"{piece.size} members {piece.stride} apart do not fit axis '{axis.name}' of "
                    f"{axis.size}; size times stride must divide it"
                )
        if len({self.axes[i].name for i in self.torus}) > 3:
            raise BadRequest(f"a torus of {len(self.torus)} axes; the executor knows up to 3")

    def index(self, name: str) -> int:
        """The number of a physical axis; raises BadRequest if there is none of that name."""
        names = [axis.name for axis in self.axes]
        if name not in names:
            raise BadRequest(f"no physical axis '{name}'; the fabric has {', '.join(names)}")
        return names.index(name)

    @property
    def torus(self) -> list[int]:
        return [i for i, axis in enumerate(self.axes) if axis.kind in TORUS]

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """Every device, the last axis fastest."""
        return tuple(product(*(range(axis.size) for axis in self.axes)))

    @cached_property
    def dims(self) -> tuple[GroupDim, ...]:
        """The group's dimensions: pieces that continue each other joined, slow ones first.

        Behind switches all pieces are one dimension; a tree has one per level, outermost first,
        where every unit holds equally many members.
        """
        return tuple(d for i in range(len(self.axes)) for d in self._dims(i) if d.size > 1)

    def _dims(self, i: int) -> list[GroupDim]:
        axis = self.axes[i]
        pieces = sorted(
            ((p.stride, p.size) for p in self.group if p.axis == axis.name and p.size > 1),
        )
        if axis.kind in TORUS:
            return [_torus_dim(i, axis, *p) for p in reversed(_joined(pieces))]
        offsets = [0]
        for stride, size in reversed(pieces):
            offsets = [at + k * stride for at in offsets for k in range(size)]
        if axis.kind != "tree":
            return [GroupDim(i, axis.kind, tuple(offsets), 1, False)]
        return _tree_dims(i, offsets, [unit.networks for unit in axis.units])

    @property
    def size(self) -> int:
        """Devices of one group."""
        return prod(dim.size for dim in self.dims)

    @cached_property
    def groups(self) -> tuple[tuple[Device, ...], ...]:
        """The devices of every group, in the order of their places."""
        found: dict[Device, list[Device]] = {}
        for device, members in self.members.items():
            first = device
            for number in range(len(self.dims)):
                first = self.moved(first, number, -members[number])
            found.setdefault(first, []).append(device)
        return tuple(tuple(devices) for devices in found.values())

    @cached_property
    def members(self) -> dict[Device, tuple[int, ...]]:
        """Which member of each dimension of its group a device is."""
        found: dict[Device, tuple[int, ...]] = {}
        numbers = list(product(*(range(dim.size) for dim in self.dims)))
        for first in self.devices:
            if first in found:
                continue
            for number in numbers:
                place = list(first)
                for dim, member in zip(self.dims, number, strict=True):
                    place[dim.axis] += dim.offsets[member]
                found[tuple(place)] = number
        return found

    def moved(self, device: Device, number: int, steps: int) -> Device:
        """The member `steps` further along dimension `number` of the device's group."""
        dim, place = self.dims[number], list(device)
        here = self.members[device][number]
        place[dim.axis] += dim.offsets[here + steps] - dim.offsets[here]
        return tuple(place)

    def rate(self, link: Link) -> float:
        """Bytes/s of one link."""
        for axis in self.axes:
            if axis.name == link.name:
                return axis.rate
            for unit in axis.units:
                if unit.name == link.name:
                    return unit.rate
        raise KeyError(link.name)

    def seconds(self, link: Link) -> float:
        """Latency of one link; a hop through switches is shared by the way up and the way down."""
        for axis in self.axes:
            if axis.name == link.name:
                halves = axis.kind in ("switch", "chip", "tree")
                return axis.hop_seconds / 2 if halves else axis.hop_seconds
        return 0.0

    def chip(self, device: Device) -> Device:
        """The places of a device's chip."""
        return tuple(at for at, axis in zip(device, self.axes, strict=True) if axis.kind != "chip")

    def network(self, device: Device) -> Device:
        """The places of a device's network."""
        return tuple(at for at, axis in zip(device, self.axes, strict=True) if axis.kind == "tree")

    def landing(self, src: Device, dst: Device) -> Device:
        """The device of the chip of `src` that is numbered in its chip as `dst` is."""
        return tuple(
            d if axis.kind == "chip" else s for s, d, axis in zip(src, dst, self.axes, strict=True)
        )

    def walk(self, device: Device, axis: int, steps: int, way: int) -> Iterator[Hop]:
        """`steps` hops over the links of a torus axis."""
        size = self.axes[axis].size
        for _ in range(steps):
            place = list(device)
            place[axis] = (place[axis] + way) % size
            to = tuple(place)
            link = Link(self.axes[axis].name, self.chip(device), self.chip(to), way)
            yield Hop(device, to, (link,))
            device = to

    def jump(self, src: Device, dst: Device) -> Hop:
        """One hop that is no torus link: between networks, through a switch, or inside a chip."""
        differ = [a for a, s, d in zip(self.axes, src, dst, strict=True) if s != d]
        axis = differ[0]
        if axis.kind == "tree":
            return Hop(src, dst, tuple(self._climb(src, dst, axis)))
        here, there = self.chip(src), self.chip(dst)
        if axis.kind == "full_mesh":
            return Hop(src, dst, (Link(axis.name, here, there, 0),))
        ends: tuple[Device | str, Device | str] = (here, there)
        middle = f"switch {self.network(src)}"
        if axis.kind == "chip":
            ends, middle = (src, dst), f"inside {here}"
        up, down = Link(axis.name, ends[0], middle, 0), Link(axis.name, middle, ends[1], 0)
        return Hop(src, dst, (up, down))

    def _climb(self, src: Device, dst: Device, axis: Physical) -> Iterator[Link]:
        """From the NIC of one chip up to the first switch that both are under, and down."""
        at, to = self.network(src)[0], self.network(dst)[0]
        up = [*(f"{u.name} {at // u.networks}" for u in axis.units), "top"]
        down = [*(f"{u.name} {to // u.networks}" for u in axis.units), "top"]
        crossed = [u for u in axis.units if at // u.networks != to // u.networks]
        yield Link(axis.name, self.chip(src), up[0], 0)
        for i, unit in enumerate(crossed):
            yield Link(unit.name, up[i], up[i + 1], 0)
        for i, unit in reversed(list(enumerate(crossed))):
            yield Link(unit.name, down[i + 1], down[i], 0)
        yield Link(axis.name, down[0], self.chip(dst), 0)


def torus(
    sizes: Sequence[int],
    *,
    wraps: Sequence[bool] | bool = True,
    one_way: bool = False,
    group: Sequence[AxisPiece] | None = None,
) -> Fabric:
    """A ring, line, torus or mesh with axes x, y, z; the group is everything unless given.

    >>> torus([4, 8]).size
    32
    """
    closed = [wraps] * len(sizes) if isinstance(wraps, bool) else list(wraps)
    kinds: list[AxisKind] = [("one_way" if one_way else "ring") if c else "line" for c in closed]
    axes = tuple(
        Physical(name="xyz"[i], kind=kind, size=n)
        for i, (kind, n) in enumerate(zip(kinds, sizes, strict=True))
    )
    whole = [AxisPiece(axis=axis.name, size=axis.size) for axis in axes]
    return Fabric(axes=axes, group=tuple(whole if group is None else group))


def _joined(pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pieces (stride, size) in the order of strides, those that continue each other as one."""
    joined: list[tuple[int, int]] = []
    for stride, size in pieces:
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0], joined[-1][1] * size)
        else:
            joined.append((stride, size))
    return joined


def _torus_dim(i: int, axis: Physical, stride: int, size: int) -> GroupDim:
    closed = axis.kind != "line" and stride * size == axis.size
    kind: AxisKind = axis.kind if closed else "line"
    return GroupDim(i, kind, tuple(k * stride for k in range(size)), stride, closed)


def _tree_dims(i: int, offsets: list[int], spans: list[int]) -> list[GroupDim]:
    """One dimension per level: members of different units, then those of one unit."""
    for span in sorted(spans, reverse=True):
        heads = [at for at in offsets if at // span * span + offsets[0] % span == at]
        inside = [at for at in offsets if at // span == offsets[0] // span]
        if 1 < len(inside) < len(offsets) and sorted(
            h + at for h in heads for at in inside
        ) == sorted(offsets):
            lower = [s for s in spans if s < span]
            return [GroupDim(i, "tree", tuple(heads), 1, False), *_tree_dims(i, inside, lower)]
    return [GroupDim(i, "tree", tuple(offsets), 1, False)]
