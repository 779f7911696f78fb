"""Shapes of HLO text: `bf16[8,128]{1,0:T(8,128)(2,1)S(1)}` and nested tuples of them.

A layout names the dims from minor to major, the tiles they are cut into (on TPUs), and the memory
space: 0 is the device's main memory, 1 a TPU's VMEM, 5 the host's, others are small on-chip ones.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from shardwise.errors import BadRequest, shown
from shardwise.profiler.hlo.numbers import MOST, integers

DTYPES = {
    "pred": ("bool", 1.0),
    "s4": ("int4", 0.5),
    "u4": ("uint4", 0.5),
    "s8": ("int8", 1.0),
    "u8": ("uint8", 1.0),
    "s16": ("int16", 2.0),
    "u16": ("uint16", 2.0),
    "s32": ("int32", 4.0),
    "u32": ("uint32", 4.0),
    "s64": ("int64", 8.0),
    "u64": ("uint64", 8.0),
    "f4e2m1fn": ("fp4", 0.5),
    "f8e4m3": ("fp8", 1.0),
    "f8e4m3fn": ("fp8", 1.0),
    "f8e4m3fnuz": ("fp8", 1.0),
    "f8e4m3b11fnuz": ("fp8", 1.0),
    "f8e5m2": ("fp8", 1.0),
    "f8e5m2fnuz": ("fp8", 1.0),
    "bf16": ("bf16", 2.0),
    "f16": ("f16", 2.0),
    "f32": ("f32", 4.0),
    "f64": ("f64", 8.0),
    "c64": ("c64", 8.0),
    "c128": ("c128", 16.0),
    "token": ("token", 0.0),
    "opaque": ("opaque", 0.0),
}
"""HLO's name of a dtype -> ours, and bytes per element."""

MAIN, VMEM, HOST = 0, 1, 5
"""Memory spaces, as in `S(1)`; nothing written is the main memory."""

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9,<= ]*)\](?:\{([^{}]*)\})?")
_COMMENT = re.compile(r"/\*[^*]*\*/")
_LAYOUT = re.compile(r"([A-Z]*)\(([^()]*)\)")
DEEPEST = 50
"""Levels of tuples in tuples; asynchronous calls have three."""
MOST_RANK = 64
MOST_TILE = 2**24
"""Elements of a tile; a TPU's are some thousands."""


class MemoryLayout(NamedTuple):
    """Dims from minor to major, tiles from the outer to the inner, and the memory space."""

    order: tuple[int, ...] = ()
    tiles: tuple[tuple[int, ...], ...] = ()
    space: int = MAIN


PLAIN = MemoryLayout()


class Array(NamedTuple):
    """One array of a shape: our dtype name, dims, bytes without padding, and its layout."""

    dtype: str
    dims: tuple[int, ...]
    bytes: float
    layout: MemoryLayout = PLAIN

    @property
    def space(self) -> int:
        """The memory space it lives in."""
        return self.layout.space

    @property
    def padded_bytes(self) -> float:
        """Bytes with every tile filled up: what is stored, and moved.

        >>> read_shape("bf16[100,200]{1,0:T(8,128)(2,1)}").padded_bytes == 104 * 256 * 2
        True
        """
        if not self.layout.tiles or not self.bytes:
            return self.bytes
        order = self.layout.order or tuple(reversed(range(len(self.dims))))
        shape = [self.dims[d] for d in reversed(order)]
        for tile in self.layout.tiles:
            shape = [1] * (len(tile) - len(shape)) + shape
            inner = shape[len(shape) - len(tile) :]
            outer = [-(-n // t) for n, t in zip(inner, tile, strict=True)]
            shape = [*shape[: len(shape) - len(tile)], *outer, *tile]
        return prod(shape) * (self.bytes / prod(self.dims))

    def offset(self, index: Sequence[int]) -> int:
        """How many elements lie before the one at `index`, those that fill up tiles included.

        >>> read_shape("bf16[4,8]{1,0:T(2,4)(2,1)}").offset((2, 1))
        18
        """
        order = self.layout.order or tuple(reversed(range(len(self.dims))))
        shape = [self.dims[d] for d in reversed(order)]
        at = [index[d] for d in reversed(order)]
        for tile in self.layout.tiles:
            missing = [0] * (len(tile) - len(shape))
            shape, at = [1 for _ in missing] + shape, missing + at
            kept = len(shape) - len(tile)
            outer = [-(-n // t) for n, t in zip(shape[kept:], tile, strict=True)]
            places = [divmod(i, t) for i, t in zip(at[kept:], tile, strict=True)]
            shape = [*shape[:kept], *outer, *tile]
            at = [*at[:kept], *(p[0] for p in places), *(p[1] for p in places)]
        found = 0
        for n, i in zip(shape, at, strict=True):
            found = found * n + i
        return found


Shape = Array | tuple["Shape", ...]


def read_shape(text: str) -> Shape:
    """The shape as an Array, or as nested tuples of them; comments are skipped.

    >>> read_shape("(f32[4,2]{1,0:T(8,128)}, /*index=1*/ u32[])")[0].bytes
    32.0
    """
    plain = _COMMENT.sub("", text)
    shape, end = _read(plain, 0, 0)
    if plain[end:].strip():
        raise BadRequest(f"HLO shape {shown(text)} cannot be read after {shown(plain[:end])}")
    return shape


@lru_cache(maxsize=4096)
def read_layout(text: str) -> MemoryLayout:
    """What stands in the braces: `1,0:T(8,128)(2,1)S(1)`; marks without a meaning here are skipped.

    >>> read_layout("1,0:T(8,128)(2,1)S(1)")
    MemoryLayout(order=(1, 0), tiles=((8, 128), (2, 1)), space=1)
    """
    dims, _, marks = text.partition(":")
    tiles: list[tuple[int, ...]] = []
    space, last = MAIN, ""
    for letters, inside in _LAYOUT.findall(marks):
        last = letters or last
        if last == "T" and "*" not in inside:
            tiles.append(integers(inside, f"a tile of layout {shown(text)}", least=1))
        elif last == "S":
            space = (*integers(inside, f"the memory space of layout {shown(text)}", most=255), 0)[0]
    if len(tiles) > 8 or any(len(tile) > MOST_RANK or prod(tile) > MOST_TILE for tile in tiles):
        raise BadRequest(f"layout {shown(text)} has tiles of over {MOST_TILE} elements, or over 8")
    order = integers(dims, f"a dim of layout {shown(text)}")
    return MemoryLayout(order, tuple(tile for tile in tiles if tile), space)


def arrays(shape: Shape) -> Iterator[Array]:
    """All arrays of a shape, in order."""
    if isinstance(shape, Array):
        yield shape
    else:
        for part in shape:
            yield from arrays(part)


def _read(text: str, at: int, depth: int) -> tuple[Shape, int]:
    while text[at : at + 1].isspace():
        at += 1
    if text[at : at + 1] == "(":
        if depth >= DEEPEST:
            raise BadRequest(f"an HLO shape nests tuples deeper than {DEEPEST} levels")
        return _tuple(text, at + 1, depth + 1)
    found = _ARRAY.match(text, at)
    if found is None or found[1] not in DTYPES:
        raise BadRequest(f"HLO shape {shown(text)} cannot be read at {shown(text[at : at + 20])}")
    return _array(found[1], found[2], found[3] or ""), found.end()


@lru_cache(maxsize=4096)
def _array(dtype: str, sizes: str, layout: str) -> Array:
    """One array of a dtype's name, the text of its dims and that of its layout."""
    name, width = DTYPES[dtype]
    # A dynamic dim is written `<=8`: its bound is what is allocated.
    dims = integers(sizes.replace("<=", ""), f"a dim of '{dtype}[{shown(sizes)}]'")
    if len(dims) > MOST_RANK or prod(dims) > MOST:
        raise BadRequest(
            f"'{dtype}' of dims {shown(sizes)} has more than {MOST_RANK} dims or {MOST} elements"
        )
    found = read_layout(layout) if layout else PLAIN
    if found.order and sorted(found.order) != list(range(len(dims))):
        raise BadRequest(
            f"layout {shown(layout)} of '{dtype}' of dims {shown(sizes)} must name each of its "
            f"{len(dims)} dims once"
        )
    return Array(name, dims, prod(dims) * width, found)


def _tuple(text: str, at: int, depth: int) -> tuple[Shape, int]:
    parts: list[Shape] = []
    while True:
        while text[at : at + 1] in (" ", ","):
            at += 1
        if text[at : at + 1] == ")":
            return tuple(parts), at + 1
        part, at = _read(text, at, depth)
        parts.append(part)
