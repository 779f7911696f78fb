"""Shapes of HLO text: `bf16[8,128]{1,0:T(8,128)}` and nested tuples of them."""

import re
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from shardwise.errors import ShardwiseError

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

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9,<= ]*)\]")


class Array(NamedTuple):
    """One array of a shape: our dtype name, dims, bytes without padding."""

    dtype: str
    dims: tuple[int, ...]
    bytes: float


Shape = Array | tuple["Shape", ...]


def read_shape(text: str) -> Shape:
    """The shape as an Array, or as nested tuples of them; layouts, tiles and comments are skipped.

    >>> read_shape("(f32[4,2]{1,0:T(8,128)}, /*index=1*/ u32[])")[0]
    Array(dtype='f32', dims=(4, 2), bytes=32.0)
    """
    plain = re.sub(r"/\*.*?\*/|\{[^{}]*\}", "", text)
    shape, end = _read(plain, 0)
    if plain[end:].strip():
        raise ShardwiseError(f"HLO shape '{text}' cannot be read after '{plain[:end]}'")
    return shape


def arrays(shape: Shape) -> Iterator[Array]:
    """All arrays of a shape, in order."""
    if isinstance(shape, Array):
        yield shape
    else:
        for part in shape:
            yield from arrays(part)


def _read(text: str, at: int) -> tuple[Shape, int]:
    while text[at : at + 1].isspace():
        at += 1
    if text[at : at + 1] == "(":
        return _tuple(text, at + 1)
    found = _ARRAY.match(text, at)
    if found is None or found[1] not in DTYPES:
        raise ShardwiseError(f"HLO shape '{text}' cannot be read at '{text[at : at + 20]}'")
    name, width = DTYPES[found[1]]
    # A dynamic dim is written `<=8`: its bound is what is allocated.
    dims = tuple(int(n.strip().removeprefix("<=")) for n in found[2].split(",") if n.strip())
    return Array(name, dims, prod(dims) * width), found.end()


def _tuple(text: str, at: int) -> tuple[Shape, int]:
    parts: list[Shape] = []
    while True:
        while text[at : at + 1] in (" ", ","):
            at += 1
        if text[at : at + 1] == ")":
            return tuple(parts), at + 1
        part, at = _read(text, at)
        parts.append(part)
