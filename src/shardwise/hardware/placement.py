"""Placement: which physical axes of a slice carry each axis of a mesh, and what links that gives.

Degrees are given outermost axis first, innermost last, and multiply to chips. The data-centre
factor (`slice.count`) is filled from the outermost axes, the axes of the fast network from the
innermost: whole physical axes where they match exactly, then whole rings that divide the degree,
then the largest common factor, where it is fastest. A part that is not the first of its physical
axis is strided: its members are `stride` hops apart and `stride` interleaved groups share each
link.

Every number may be a NumPy array over candidate meshes; nothing loops over candidates.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any, Literal

import numpy as np

from shardwise.errors import BadRequest
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
    the data centre of one chip's NIC. `hop_seconds` is the time from one member to the next.
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
    data-centre piece. `sharp`: the inner switches reduce. `ramp_bytes`: the message size at which
    a switched network reaches half of its rate, 0 where there is no ramp.
    """

    size: Degree
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

    def at(self, index: int) -> "Placement":
        """One candidate of an array placement, as plain numbers."""
        return _pick(self, index)

    def describe(self) -> tuple[str, ...]:
        """One line per axis in use, for a placement of plain numbers.

        For example 'fsdp=1024: x[4, stride 4] y[16] z[16], rings'.
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
    """Lay mesh axes on a slice. `legal` is false where the degrees do not fill the box exactly.

    `box` is the part of each physical axis in use (the whole slice where not given); an axis used
    in part does not wrap. `order` breaks ties between equally good physical axes; `finish` fills up
    physical axes that inner axes began, which slows this axis and keeps rings whole for outer ones.
    Degrees and box may be arrays that broadcast.
    """
    dims = piece.shape if box is None else box
    given = [np.asarray(d, np.int64) for d in (*degrees.values(), *dims)]
    shape = np.broadcast_shapes(*(a.shape for a in given))
    whole = [np.broadcast_to(a, shape) for a in given[len(degrees) :]]
    need = dict(zip(degrees, (np.broadcast_to(a, shape) for a in given), strict=False))
    outer, legal = _fill_outer(piece.count, need)
    ranked = [p for p in order if p < len(whole)]
    rings = [w & (d == n) for w, d, n in zip(piece.wraps, whole, piece.shape, strict=True)]
    left = list(whole)
    inner: dict[str, list[_Take]] = {}
    for name in reversed(need):
        wanted = need[name] // outer[name].factor
        inner[name], rest = _fill(wanted, left, whole, rings, ranked, finish)
        left = [n // take.factor for n, take in zip(left, inner[name], strict=True)]
        legal = np.logical_and(legal, rest == 1)
    legal = np.logical_and(legal, math.prod(left) == 1)
    axes = {name: _links(piece, need[name], outer[name], inner[name]) for name in need}
    used = piece.count * math.prod(whole)
    return Placement(
        slice=piece,
        physical=_physical(piece),
        axes=axes,
        legal=_plain(np.asarray(legal)),
        chips_used=_plain(np.asarray(used)),
    )


def boxes(piece: Slice) -> tuple[tuple[int, ...], ...]:
    """Sub-boxes of the slice worth a look, most chips first: per axis its divisors and the largest
    power of two in it. Boxes that differ only by swapping equal axes appear once.
    """
    choices = [
        {d for d in range(1, n + 1) if n % d == 0} | {1 << (n.bit_length() - 1)}
        for n in piece.shape
    ]
    unique = {
        tuple(sorted(zip(piece.shape, box, strict=True), reverse=True)): box
        for box in product(*(sorted(c) for c in choices))
    }
    return tuple(sorted(unique.values(), key=lambda box: _box_rank(piece, box)))


def place_or_refuse(piece: Slice, degrees: Mapping[str, int]) -> Placement:
    """Place one mesh of plain numbers, on fewer chips than the slice has if it must.

    Takes the fewest slices, then the box that keeps most rings. Raises BadRequest naming the axis
    that does not fit, the physical axes left for it and the nearest degrees that do.
    """
    for name, degree in degrees.items():
        if degree < 1:
            raise BadRequest(f"mesh axis '{name}' is {degree}; a degree is 1 or more")
    chips = math.prod(degrees.values())
    for count in range(1, min(piece.count, chips) + 1):
        box = _box_of(piece, chips // count) if chips % count == 0 else None
        if box is not None:
            placed = place(replace(piece, count=count), degrees, box=box)
            return replace(placed, slice=piece)
    raise _refusal(piece, degrees)


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


def _links(piece: Slice, degree: np.ndarray, outer: _Take, inner: list[_Take]) -> AxisLinks:
    network = piece.chip.network
    return AxisLinks(
        size=_plain(degree),
        parts=tuple(_part(network, take) for take in inner),
        outer=_outer_part(piece, outer),
        kind=_kind(network),
        sharp=isinstance(network, Switched) and network.sharp,
        ramp_bytes=network.ramp_bytes if isinstance(network, Switched) else 0.0,
    )


def _part(network: Torus | Switched | FullMesh | Alone, take: _Take) -> Part:
    """On a torus `stride` groups share a link and a hop is `stride` links; on a switch neither."""
    oneway, hop = _rate(network), network.hop_seconds
    apart = take.stride if isinstance(network, Torus) else 1
    return Part(
        size=_plain(take.factor),
        oneway=_plain(np.asarray(oneway / apart)),
        ring=_plain(take.ring),
        hop_seconds=_plain(np.asarray(hop * apart)),
        stride=_plain(take.stride),
    )


def _outer_part(piece: Slice, take: _Take) -> Part:
    """The NIC of a chip, or its share of the narrowest switch level that the axis crosses."""
    centre = piece.chip.data_centre
    if centre is None:
        if piece.count > 1:
            raise BadRequest(
                f"'{piece}' needs the data-centre network, whose bandwidth the catalogue lacks for "
                f"{piece.chip.id}; give it with --set chip.data_centre.chip_oneway=NUMBER "
                f"or --hw FILE, or use one domain"
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


def _rate(network: Torus | Switched | FullMesh | Alone) -> float:
    if isinstance(network, Torus):
        return network.link_oneway
    if isinstance(network, Switched):
        return network.chip_oneway
    return network.pair_oneway if isinstance(network, FullMesh) else 0.0


def _kind(network: Torus | Switched | FullMesh | Alone) -> Kind:
    if isinstance(network, Torus):
        return "torus"
    return "full_mesh" if isinstance(network, FullMesh) else "switched"


def _physical(piece: Slice) -> tuple[str, ...]:
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
    words = []
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


def _box_rank(piece: Slice, box: tuple[int, ...]) -> tuple[Any, ...]:
    closed = sum(w and b == n for w, b, n in zip(piece.wraps, box, piece.shape, strict=True))
    return (-math.prod(box), -closed, sum(box), box)


def _box_of(piece: Slice, chips: int) -> tuple[int, ...] | None:
    """The box of that many chips that keeps most rings, if the slice has one."""
    partial: list[tuple[int, ...]] = [()]
    for n in piece.shape[:-1]:
        partial = [
            (*box, d)
            for box in partial
            for d in range(1, n + 1)
            if chips % (math.prod(box) * d) == 0
        ]
    whole = [(*box, chips // math.prod(box)) for box in partial]
    fitting = [box for box in whole if box[-1] <= piece.shape[-1]]
    return min(fitting, key=lambda box: _box_rank(piece, box), default=None)


def _refusal(piece: Slice, degrees: Mapping[str, int]) -> BadRequest:
    """Names the innermost axis that does not fit, what the axes inside it leave, and remedies."""
    chips = math.prod(degrees.values())
    name, left = _first_misfit(piece, degrees)
    near = _nearest_degrees(piece, degrees, name)
    have = f"{piece} has {piece.chips} chips" if chips > piece.chips else f"{piece} has no such box"
    return BadRequest(
        f"mesh axis '{name}' of {degrees[name]} cannot be placed on {piece}: the axes inside it "
        f"leave {left or 'no chip'}; the mesh needs {chips} chips and {have}; "
        f"nearest '{name}': {', '.join(map(str, near)) or 'none, make another axis smaller'}"
    )


def _first_misfit(piece: Slice, degrees: Mapping[str, int]) -> tuple[str, str]:
    """The innermost axis that leaves a remainder on the whole slice, and what was left for it."""
    left, strides, slices = list(piece.shape), [1] * len(piece.shape), piece.count
    misfit = ("", "")
    for name, degree in list(degrees.items())[::-1]:
        misfit = (name, _free_text(piece, left, strides, slices))
        rest, taken = degree, []
        for n in left:
            taken.append(math.gcd(rest, n))
            rest //= taken[-1]
        over = math.gcd(rest, slices)
        if rest > over:
            break
        slices //= over
        left = [n // t for n, t in zip(left, taken, strict=True)]
        strides = [s * t for s, t in zip(strides, taken, strict=True)]
    return misfit


def _free_text(piece: Slice, left: list[int], strides: list[int], slices: int) -> str:
    words = [
        f"{axis}[{n}]" if s == 1 else f"{axis}[{n}, stride {s}]"
        for axis, n, s in zip(_physical(piece), left, strides, strict=True)
        if n > 1
    ]
    outer = "slices" if isinstance(piece.chip.network, Torus) else "domains"
    return " ".join(words + [f"{outer}[{slices}]"] * (slices > 1))


def _nearest_degrees(piece: Slice, degrees: Mapping[str, int], name: str) -> list[int]:
    """Degrees of one axis, the others kept, that fill some box of some of the slices."""
    others = math.prod(d for axis, d in degrees.items() if axis != name)
    sizes = {math.prod(box) for box in boxes(piece)}
    fitting = {
        size * count // others
        for size in sizes
        for count in range(1, piece.count + 1)
        if size * count % others == 0
    }
    return sorted(fitting, key=lambda d: (abs(math.log(d / degrees[name])), d))[:3]


def _plain(value: np.ndarray) -> Any:
    """Plain Python numbers where there is one candidate."""
    return value.item() if value.ndim == 0 else value


def _pick(value: Any, index: int) -> Any:
    if isinstance(value, np.ndarray):
        return value[index].item()
    if isinstance(value, Placement):
        axes = {name: _pick(links, index) for name, links in value.axes.items()}
        return replace(
            value,
            axes=axes,
            legal=_pick(value.legal, index),
            chips_used=_pick(value.chips_used, index),
        )
    if isinstance(value, AxisLinks):
        return replace(
            value,
            size=_pick(value.size, index),
            parts=tuple(_pick(part, index) for part in value.parts),
            outer=_pick(value.outer, index),
        )
    if isinstance(value, Part):
        return Part(**{name: _pick(getattr(value, name), index) for name in Part.__slots__})
    return value
