"""The text of an out-of-memory error: PyTorch's, or XLA's with its table of allocations.

PyTorch's sentence is of c10/cuda/CUDACachingAllocator.cpp (before 2.1 with the figures in
brackets), XLA's of its TPU compiler, whose G is GiB, and of its allocator on GPUs. The text may be
a whole log: the first such error in it is read, since later ones follow from it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.errors import BadRequest

_UNITS: Mapping[str, float] = {
    **dict.fromkeys(("B", "bytes", ""), 1.0),
    **dict.fromkeys(("KiB", "K", "KB"), 2.0**10),
    **dict.fromkeys(("MiB", "M", "MB"), 2.0**20),
    **dict.fromkeys(("GiB", "G", "GB"), 2.0**30),
    **dict.fromkeys(("TiB", "T", "TB"), 2.0**40),
}
_SIZE = r"([\d,]+(?:\.\d+)?) ?([KMGT]i?B?|bytes|B)"
_MOST_ROWS = 20
"""Rows of a table of allocations that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BigBuffer:
    """A row of XLA's table: its bytes, its shape as written, and the op that makes it."""

    size: float
    shape: str
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFailure:
    """What an error says, in bytes of one device; 0 where it says nothing.

    `wanted` could not be had: an allocation (PyTorch, XLA at run time), or what a program needs
    beyond the capacity (XLA's compiler). `held` is in use beside it, of the `capacity`; `idle` of
    it lies in the allocator's cache, in pieces.
    """

    source: str
    wanted: float
    held: float
    capacity: float
    idle: float
    buffers: tuple[BigBuffer, ...] = ()

    @property
    def compiled(self) -> bool:
        """Whether a compiler refused the program, before any of it ran."""
        return self.source == "XLA's compiler"

    @property
    def short(self) -> float:
        """Bytes that are lacking at least; 0 where nobody can say."""
        if self.compiled or not self.capacity:
            return self.wanted if self.compiled else 0.0
        return max(self.wanted + self.held - self.capacity, 0.0)


def read_failure(text: str) -> MemoryFailure:
    """The first out-of-memory error of a text; BadRequest where it has none."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    found = min(
        ((at.start(), read) for pattern, read in _KINDS if (at := pattern.search(plain))),
        key=lambda one: one[0],
        default=None,
    )
    if found is None:
        raise BadRequest(
            "the text holds no out-of-memory error that is known; give PyTorch's 'Tried to "
            "allocate ...', or XLA's RESOURCE_EXHAUSTED with its sizes"
        )
    at, read = found
    return read(plain[at:])


def _size(text: str, pattern: str) -> float:
    """The bytes that stand at `SIZE` of a pattern; 0 where there is no such text."""
    found = re.search(pattern.replace("SIZE", _SIZE), text)
    return float(found[1].replace(",", "")) * _UNITS[found[2]] if found else 0.0


_ASKED = "Tried to allocate"


def _of_pytorch(text: str) -> MemoryFailure:
    first = _ASKED + text.split(_ASKED)[1][:4000]  # what another rank says is another error
    text = " ".join(re.sub(r"(?m)^\[rank\d+\]:", "", first).split())
    capacity = _size(text, r"capac?i?ty of SIZE") or _size(text, r"SIZE total capacity")
    free = _size(text, r"of which SIZE is free") or _size(text, r"SIZE free")
    allocated = _size(text, r"SIZE is allocated by PyTorch")
    allocated = allocated or _size(text, r"SIZE already allocated")
    reserved = _size(text, r"SIZE reserved in total by PyTorch")
    idle = _size(text, r"SIZE is reserved by PyTorch but unallocated")
    return MemoryFailure(
        source="PyTorch",
        wanted=_size(text, r"Tried to allocate SIZE"),
        held=max(capacity - free, 0.0) or allocated,
        capacity=capacity,
        idle=idle or max(reserved - allocated, 0.0),
    )


def _of_compiler(text: str) -> MemoryFailure:
    used, capacity = _size(text, r"Used SIZE of"), _size(text, rf"Used {_ANY} of SIZE")
    return MemoryFailure(
        source="XLA's compiler",
        wanted=_size(text, r"Exceeded \w+ capacity by SIZE") or max(used - capacity, 0.0),
        held=used,
        capacity=capacity,
        idle=0.0,
        buffers=_buffers(text),
    )


_ANY = r"[\d.,]+ ?\w+"


def _of_allocator(text: str) -> MemoryFailure:
    return MemoryFailure(
        source="XLA's allocator",
        wanted=_size(text, r"(?:trying to )?allocate SIZE") or _size(text, r"allocating SIZE"),
        held=_size(text, r"(?:InUse|bytes_in_use):? +SIZE"),
        capacity=_size(text, r"(?:Limit|bytes_limit):? +SIZE"),
        idle=0.0,
        buffers=_buffers(text),
    )


def _buffers(text: str) -> tuple[BigBuffer, ...]:
    """The table of the largest allocations, or of buffers at the peak."""
    rows = re.split(r"\n\s*(?:\d+\.|Buffer \d+:)\s*(?=\n?\s*Size:)", text)[1 : _MOST_ROWS + 1]
    found = []
    for row in rows:
        shape, op = re.search(r"Shape: (\w+\[[\d,]*\])", row), re.search(r'op_name="([^"]*)"', row)
        label = re.search(r"XLA [Ll]abel: (\S+)", row)
        name = op[1] if op else label[1] if label else ""
        found.append(
            BigBuffer(size=_size(row, r"Size: SIZE"), shape=shape[1] if shape else "", op=name)
        )
    return tuple(found)


_KINDS = (
    (re.compile(_ASKED), _of_pytorch),
    (
        re.compile(r"Ran out of memory in memory space|Used [\d.]+[KMGT] of [\d.]+[KMGT]"),
        _of_compiler,
    ),
    (re.compile(r"(?:Out of memory|RESOURCE_EXHAUSTED)[^\n]*allocat"), _of_allocator),
)
