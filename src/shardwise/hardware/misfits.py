"""Place one mesh, or say which of its axes does not fit, what was left for it and what would."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardwise.errors import BadRequest
from shardwise.hardware.boxes import box_of, boxes
from shardwise.hardware.network import Torus
from shardwise.hardware.placement import Placement, physical_axes, place
from shardwise.hardware.slices import Slice


def place_or_refuse(piece: Slice, degrees: Mapping[str, int]) -> Placement:
    """Place one mesh of plain numbers, on fewer chips than the slice has if it must.

    Takes the fewest slices, then the box that keeps most rings. Raises BadRequest naming the axis
    that does not fit, the physical axes left for it and the nearest degrees that do.
    """
    for name, degree in degrees.items():
        if degree < 1:
            raise BadRequest(f"mesh axis '{name}' is {degree}; a degree is 1 or more")
    devices, per_chip = math.prod(degrees.values()), piece.chip.jax_devices_per_chip
    for count in range(1, min(piece.count, devices) + 1):
        chips, rest = divmod(devices, count * per_chip)
        box = box_of(piece, chips) if rest == 0 else None
        if box is not None:
            placed = place(replace(piece, count=count), degrees, box=box)
            return replace(placed, slice=piece)
    raise _refusal(piece, degrees)


def _refusal(piece: Slice, degrees: Mapping[str, int]) -> BadRequest:
    """Names the innermost axis that does not fit, what the axes inside it leave, and remedies."""
    needed, per_chip = math.prod(degrees.values()), piece.chip.jax_devices_per_chip
    name, left = _first_misfit(piece, degrees)
    near = _nearest_degrees(piece, degrees, name)
    unit = "chips" if per_chip == 1 else "devices"
    have = f"has {piece.devices} {unit}" if needed > piece.devices else "has no such box"
    return BadRequest(
        f"mesh axis '{name}' of {degrees[name]} cannot be placed on {piece}: the axes inside it "
        f"leave {left or 'no chip'}; the mesh needs {needed} {unit} and {piece} {have}; "
        f"nearest '{name}': {', '.join(map(str, near)) or 'none, make another axis smaller'}"
    )


def _first_misfit(piece: Slice, degrees: Mapping[str, int]) -> tuple[str, str]:
    """The innermost axis that leaves a remainder on the whole slice, and what was left for it."""
    free = _Free(piece.chip.jax_devices_per_chip, piece.shape, (1,) * len(piece.shape), piece.count)
    misfit = ("", "")
    for name, degree in list(degrees.items())[::-1]:
        misfit = (name, _free_text(piece, free))
        free, rest = _after(free, degree)
        if rest > 1:
            break
    return misfit


@dataclass(frozen=True, slots=True)
class _Free:
    """What inner axes leave: devices of a chip, members and strides of each axis, slices."""

    chip: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    slices: int


def _after(free: _Free, degree: int) -> tuple[_Free, int]:
    """What an axis leaves, and the factor of it that found no place."""
    taken, rest = [], degree
    for n in (free.chip, *free.sizes, free.slices):
        taken.append(math.gcd(rest, n))
        rest //= taken[-1]
    chip, *parts, slices = taken
    left = _Free(
        chip=free.chip // chip,
        sizes=tuple(n // t for n, t in zip(free.sizes, parts, strict=True)),
        strides=tuple(s * t for s, t in zip(free.strides, parts, strict=True)),
        slices=free.slices // slices,
    )
    return left, rest


def _free_text(piece: Slice, free: _Free) -> str:
    words = [f"chip[{free.chip}]"] if free.chip > 1 else []
    for axis, n, s in zip(physical_axes(piece), free.sizes, free.strides, strict=True):
        if n > 1:
            words.append(f"{axis}[{n}]" if s == 1 else f"{axis}[{n}, stride {s}]")
    if free.slices > 1:
        outer = "slices" if isinstance(piece.chip.network, Torus) else "domains"
        words.append(f"{outer}[{free.slices}]")
    return " ".join(words)


def _nearest_degrees(piece: Slice, degrees: Mapping[str, int], name: str) -> list[int]:
    """Degrees of one axis, the others kept, that fill some box of some of the slices."""
    others = math.prod(d for axis, d in degrees.items() if axis != name)
    sizes = {math.prod(box) * piece.chip.jax_devices_per_chip for box in boxes(piece)}
    fitting = {
        size * count // others
        for size in sizes
        for count in range(1, piece.count + 1)
        if size * count % others == 0
    }
    return sorted(fitting, key=lambda d: (abs(math.log(d / degrees[name])), d))[:3]
