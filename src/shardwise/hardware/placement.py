"""Placement: which physical axes of a slice carry each axis of a mesh, and what links that gives.

Degrees are given outermost axis first, innermost last, and multiply to JAX devices. The
data-centre factor (`slice.count`) is filled from the outermost axes; the devices of a chip, where
there are several, and then the axes of the fast network from the innermost: whole physical axes
where they match exactly, then whole rings that divide the degree, then the largest common factor,
where it is fastest. A part that is not the first of its physical axis is strided: its members are
`stride` hops apart and `stride` interleaved groups share each link.

Every number may be a NumPy array over candidate meshes; nothing loops over candidates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np

from shardwise.errors import BadRequest
from shardwise.hardware.chip import Chip
from shardwise.hardware.network import Alone, FullMesh, Switched, Torus
from shardwise.hardware.slices import Slice
from shardwise.work import Quantity

Degree = int | np.ndarray
Box = tuple[Degree, ...]
Kind = Literal["torus", "switched", "full_mesh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of one physical axis: `size` members, `stride` hops apart; size 1 is unused.

    `oneway`: bytes/s in one direction after link sharing. On a torus of one link (a ring has two
    such directions, a line one); on a switch what a chip injects; on a full mesh of one pair; for
    the data centre of one chip's NIC; within a chip what a device gets from the chip's others.
    `hop_seconds` is the time from one member to the next.
    """

    size: Degree
    oneway: Quantity
    ring: bool | np.ndarray
    hop_seconds: Quantity
    stride: Degree


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisLinks:
    """What a mesh axis communicates over: parts of the fast network, used at once, and `outer`.

    `parts` has one entry per physical axis, in the same order for every mesh axis. `outer` is the
    data-centre piece. Both are of chips, at the rates of a whole chip; `within` is the piece inside
    a chip, of its `devices_per_chip` devices. Those of them that a group leaves out are in other
    groups, with which it shares the chip's rates. `sharp`: the inner switches reduce.
    `ramp_bytes`: the message size at which a switched network reaches half of its rate, 0 where
    there is no ramp.
    """

    size: Degree
    within: Part
    devices_per_chip: int
    parts: tuple[Part, ...]
    outer: Part
    kind: Kind
    sharp: bool
    ramp_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A mesh on a slice. `physical` names the entries of `AxisLinks.parts`."""

    slice: Slice
    physical: tuple[str, ...]
    axes: Mapping[str, AxisLinks]
    legal: bool | np.ndarray
    chips_used: Degree

    @property
    def chips_idle(self) -> Degree:
        return self.slice.chips - self.chips_used

    def links(self, axes: Sequence[str]) -> list[AxisLinks]:
        """The links of each axis. Raises BadRequest for an axis that is not placed."""
        missing = [axis for axis in axes if axis not in self.axes]
        if missing:
            raise BadRequest(
                f"axis '{missing[0]}' of the work is not placed ({', '.join(self.axes)} are); "
                "give its degree to `place`, 1 where it cuts nothing, as `plan.degrees` does"
            )
        return [self.axes[axis] for axis in axes]

    def at(self, index: int) -> "Placement":
        """One candidate of an array placement, as plain numbers."""
        return taken(self, index)

    def describe(self) -> tuple[str, ...]:
        """One line per axis in use, for a placement of plain numbers.

        For example 'fsdp=1024: x[4, stride 4] y[16] z[16], rings' or, with two devices per chip,
        'tensor=4: chip[2] x[2], line'.
        """
        return tuple(
            f"{name}={links.size}: {_describe(self, links)}"
            for name, links in self.axes.items()
            if links.size > 1
        )


def place(
    piece: Slice,
    degrees: Mapping[str, Degree],
    *,
    box: Box | None = None,
    order: Sequence[int] = (0, 1, 2),
    finish: bool = False,
) -> Placement:
    """Lay mesh axes on a slice. `legal` is false where the degrees do not multiply to the devices
    of the box.

    `box` is the part of each physical axis in use (the whole slice where not given); an axis used
    in part does not wrap. `order` breaks ties between equally good physical axes; `finish` fills up
    physical axes that inner axes began, which slows this axis and keeps rings whole for outer ones.
    Degrees and box may be arrays that broadcast. Raises BadRequest where an axis needs a link whose
    rate the catalogue lacks: between the devices of a chip, or between slices.
    """
    dims = piece.shape if box is None else box
    given = [np.asarray(d, np.int64) for d in (*degrees.values(), *dims)]
    shape = np.broadcast_shapes(*(a.shape for a in given))
    whole = [np.broadcast_to(a, shape) for a in given[len(degrees) :]]
    need = dict(zip(degrees, (np.broadcast_to(a, shape) for a in given), strict=False))
    outer, legal = _fill_outer(piece.count, need)
    rest = {name: wanted // outer[name].factor for name, wanted in need.items()}
    within, full = _fill_chip(piece.chip.jax_devices_per_chip, rest)
    legal = np.logical_and(legal, full)
    ranked = [p for p in order if p < len(whole)]
    rings = [w & (d == n) for w, d, n in zip(piece.wraps, whole, piece.shape, strict=True)]
    left = list(whole)
    inner: dict[str, list[_Take]] = {}
    for name in reversed(need):
        wanted = rest[name] // within[name].factor
        inner[name], over = _fill(wanted, left, whole, rings, ranked, finish)
        left = [n // take.factor for n, take in zip(left, inner[name], strict=True)]
        legal = np.logical_and(legal, over == 1)
    legal = np.logical_and(legal, math.prod(left) == 1)
    axes = {
        name: _links(piece, need[name], within[name], inner[name], outer[name]) for name in need
    }
    used = piece.count * math.prod(whole)
    return Placement(
        slice=piece,
        physical=physical_axes(piece),
        axes=axes,
        legal=_plain(np.asarray(legal)),
        chips_used=_plain(np.asarray(used)),
    )


@dataclass(frozen=True, slots=True)
class _Take:
    """`factor` of a physical axis, its members `stride` apart; `ring` if that closes."""

    factor: np.ndarray
    stride: np.ndarray
    ring: np.ndarray


def _fill_outer(count: int, need: Mapping[str, np.ndarray]) -> tuple[dict[str, _Take], np.ndarray]:
    """Hand out the slices, outermost axis first; false where some slices stay unused."""
    takes = {}
    left = np.full(np.shape(next(iter(need.values()), 1)), count)
    for name, wanted in need.items():
        factor = np.gcd(left, wanted) if count > 1 else left
        left = left // factor
        takes[name] = _Take(factor, left, np.zeros(left.shape, bool))
    return takes, np.equal(left, 1)


def _fill_chip(devices: int, need: dict[str, np.ndarray]) -> tuple[dict[str, _Take], np.ndarray]:
    """Hand out the devices of a chip, innermost axis first; false where some stay unused."""
    takes = {}
    left = np.asarray(devices)
    for name in reversed(need):
        factor = np.gcd(left, need[name]) if devices > 1 else left
        takes[name] = _Take(factor, devices // left, np.zeros(left.shape, bool))
        left = left // factor
    return takes, np.equal(left, 1)


def _fill(
    wanted: np.ndarray,
    left: list[np.ndarray],
    whole: list[np.ndarray],
    rings: list[np.ndarray],
    ranked: list[int],
    finish: bool,
) -> tuple[list[_Take], np.ndarray]:
    """Take `wanted` chips from what is left of each physical axis; also what could not be taken."""
    got = [np.ones_like(n) for n in left]
    if np.any(wanted > 1):
        fresh = [(n == w) & (n > 1) for n, w in zip(left, whole, strict=True)]
        wanted = _take_exact(wanted, got, left, fresh, ranked)
        wanted = _take_rings(wanted, got, left, fresh, rings, ranked)
        wanted = _take_common(wanted, got, left, whole, rings, ranked, finish)
    takes = []
    for p, factor in enumerate(got):
        stride = whole[p] // left[p]
        takes.append(_Take(factor, stride, rings[p] & (factor == left[p]) & (factor > 1)))
    return takes, wanted


def _take_exact(wanted, got, left, fresh, ranked) -> np.ndarray:
    """Untouched axes whose product is exactly what is wanted, the fewest axes first."""
    for number in range(1, len(ranked) + 1):
        for some in combinations(ranked, number):
            fits = wanted == math.prod(left[p] for p in some)
            for p in some:
                fits = fits & fresh[p]
            for p in some:
                got[p] = np.where(fits, left[p], got[p])
            wanted = np.where(fits, 1, wanted)
    return wanted


def _take_rings(wanted, got, left, fresh, rings, ranked) -> np.ndarray:
    """Untouched rings that divide what is wanted, the largest first."""
    for p in sorted(ranked, key=lambda p: -int(np.max(left[p], initial=1))):
        fits = fresh[p] & rings[p] & (got[p] == 1) & (wanted % left[p] == 0)
        got[p] = np.where(fits, left[p], got[p])
        wanted = np.where(fits, wanted // left[p], wanted)
    return wanted


def _take_common(wanted, got, left, whole, rings, ranked, finish) -> np.ndarray:
    """The largest common factor with what is left of an axis; among equals the fastest part.

    A part runs at 1/stride of a link, twice that as a ring. Among equally fast ones, and always
    with `finish`, an axis that is begun goes before one that is whole.
    """
    for _ in ranked:
        if not np.any(wanted > 1):
            break
        common, score = {}, []
        for i, p in enumerate(ranked):
            rest = left[p] // got[p]
            common[p] = np.gcd(wanted, rest)
            rate = (1 + (rings[p] & (common[p] == left[p]))) * left[p] / whole[p]
            begun = left[p] < whole[p]
            score.append(common[p] * 1e4 + rate * 1e2 + begun * (1e3 * finish + 10) - i)
        best = np.asarray(ranked)[np.argmax(np.stack(score), axis=0)]
        for p in ranked:
            factor = np.where(best == p, common[p], 1)
            got[p] = got[p] * factor
            wanted = wanted // factor
    return wanted


def _links(
    piece: Slice, degree: np.ndarray, within: _Take, inner: list[_Take], outer: _Take
) -> AxisLinks:
    network = piece.chip.network
    return AxisLinks(
        size=_plain(degree),
        within=_chip_part(piece.chip, within),
        devices_per_chip=piece.chip.jax_devices_per_chip,
        parts=tuple(_part(network, take) for take in inner),
        outer=_outer_part(piece, outer),
        kind=_kind(network),
        sharp=isinstance(network, Switched) and network.sharp,
        ramp_bytes=network.ramp_bytes if isinstance(network, Switched) else 0.0,
    )


def _part(network: Torus | Switched | FullMesh | Alone, take: _Take) -> Part:
    """On a torus `stride` groups share a link and a hop is `stride` links; on a switch neither."""
    oneway, hop = _rate(network, take.factor * take.stride), network.hop_seconds
    apart = take.stride if isinstance(network, Torus) else 1
    return Part(
        size=_plain(take.factor),
        oneway=_plain(np.asarray(oneway / apart)),
        ring=_plain(take.ring),
        hop_seconds=_plain(np.asarray(hop * apart)),
        stride=_plain(take.stride),
    )


def _chip_part(chip: Chip, take: _Take) -> Part:
    """Devices of one chip, each a hop from the others.

    No catalogue number says how long that hop is; it counts as one to the next chip.
    """
    if np.any(take.factor > 1):
        chip.require("device_link_oneway")
    return Part(
        size=_plain(take.factor),
        oneway=chip.device_link_oneway or 0.0,
        ring=False,
        hop_seconds=chip.network.hop_seconds,
        stride=_plain(take.stride),
    )


def _outer_part(piece: Slice, take: _Take) -> Part:
    """The NIC of a chip, or its share of the narrowest switch level that the axis crosses."""
    centre = piece.chip.data_centre
    if centre is None:
        if piece.count > 1:
            raise BadRequest(
                f"'{piece}' needs the data-centre network, whose bandwidth the catalogue lacks for "
                f"{piece.chip.id}; give it with --set chip.data_centre.chip_oneway=NUMBER --set "
                f"chip.data_centre.hop_seconds=NUMBER or --hw FILE, or use one domain"
            )
        return Part(size=_plain(take.factor), oneway=0.0, ring=False, hop_seconds=0.0, stride=1)
    oneway: Quantity = centre.chip_oneway
    if isinstance(piece.chip.network, Switched):
        domain = piece.chip.network.domain
        span = take.factor * take.stride * domain
        for level in piece.chip.network.levels:
            if level.chips > domain:
                share = level.unit_oneway / level.chips
                oneway = np.where(span > level.chips, np.minimum(oneway, share), oneway)
    return Part(
        size=_plain(take.factor),
        oneway=_plain(np.asarray(oneway)),
        ring=False,
        hop_seconds=centre.hop_seconds,
        stride=_plain(take.stride),
    )


def _rate(network: Torus | Switched | FullMesh | Alone, span: np.ndarray) -> Quantity:
    """Bytes/s of a link, of a pair, or of a chip in a group that lies within `span` chips."""
    if isinstance(network, Torus):
        return network.link_oneway
    if isinstance(network, Switched):
        return _card_rate(network, span) if network.cards else network.chip_oneway
    return network.pair_oneway if isinstance(network, FullMesh) else 0.0


def _card_rate(host: Switched, span: np.ndarray) -> Quantity:
    """Bytes/s that each card of a group sends: on one socket, or over several."""
    near = host.chip_oneway if host.peer_to_peer else host.staged_oneway or host.chip_oneway
    far = min(near, host.across_oneway or near)
    return np.where(span > math.ceil(host.domain / (host.sockets or 1)), far, near)


def _kind(network: Torus | Switched | FullMesh | Alone) -> Kind:
    kinds: dict[type, Kind] = {Torus: "torus", FullMesh: "full_mesh"}
    return kinds.get(type(network), "switched")


def physical_axes(piece: Slice) -> tuple[str, ...]:
    """The names of the entries of `AxisLinks.parts`."""
    if isinstance(piece.chip.network, Torus):
        return tuple("xyz"[: len(piece.shape)])
    return ("domain",)


def _describe(placement: Placement, links: AxisLinks) -> str:
    used = [
        (name, part)
        for name, part in zip(placement.physical, links.parts, strict=True)
        if part.size > 1
    ]
    torus = links.kind == "torus"
    alike = len({bool(part.ring) for _, part in used}) == 1
    words = [f"chip[{links.within.size}]"] if links.within.size > 1 else []
    for name, part in used:
        notes = [f"{part.size}"]
        if torus and part.stride > 1:
            notes.append(f"stride {part.stride}")
        if torus and not alike:
            notes.append("ring" if part.ring else "line")
        words.append(f"{name}[{', '.join(notes)}]")
    if links.outer.size > 1:
        words.append(f"{'slices' if torus else 'domains'}[{links.outer.size}]")
    if torus and used and alike:
        kind = "ring" if used[0][1].ring else "line"
        return f"{' '.join(words)}, {kind}{'s' * (len(used) > 1)}"
    return " ".join(words)


def _plain(value: np.ndarray) -> Any:
    """Plain Python numbers where there is one candidate."""
    return value.item() if value.ndim == 0 else value


def taken(value: Any, index: np.ndarray | tuple[int, ...] | int) -> Any:
    """The candidates of an array placement at an index or mask, as an array placement; at the place
    of one candidate that one, in plain numbers."""
    if isinstance(value, np.ndarray):
        return _plain(np.asarray(value[index]))
    if isinstance(value, Mapping):
        return {name: taken(links, index) for name, links in value.items()}
    if isinstance(value, Placement | AxisLinks):
        changed = {n: taken(getattr(value, n), index) for n in _ARRAYS_OF[type(value)]}
        return replace(value, **changed)
    if isinstance(value, tuple):
        return tuple(taken(part, index) for part in value)
    if isinstance(value, Part):
        return Part(**{name: taken(getattr(value, name), index) for name in Part.__slots__})
    return value


_ARRAYS_OF = {
    Placement: ("axes", "legal", "chips_used"),
    AxisLinks: ("size", "within", "parts", "outer"),
}
