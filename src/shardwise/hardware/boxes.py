"""Boxes: the parts of a slice that a mesh may use, one size per physical axis."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

from shardwise.hardware.slices import Slice


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


def parts(piece: Slice) -> tuple[tuple[Slice, tuple[int, ...]], ...]:
    """The slice and what rounds it down: (as many of its slices, a box of each), most chips first.

    Every axis, and the number of slices, is taken whole or rounded down to a multiple of 2, 4, 8
    and so on (28, 24, 16): what a batch that no odd factor divides can still use.
    """
    counts = _rounded_down(piece.count)
    sizes = [_rounded_down(n) for n in piece.shape]
    found = [(replace(piece, count=c), box) for c in counts for box in product(*sizes)]
    return tuple(sorted(found, key=lambda part: (-part[0].count * math.prod(part[1]), part[1])))


def _rounded_down(n: int) -> set[int]:
    return {n >> k << k for k in range(n.bit_length())}


def every_part(piece: Slice) -> tuple[tuple[Slice, tuple[int, ...]], ...]:
    """All parts: every divisor of the number of slices with every box, most chips first."""
    counts = [c for c in range(1, piece.count + 1) if piece.count % c == 0]
    found = [(replace(piece, count=c), box) for c in counts for box in boxes(piece)]
    return tuple(sorted(found, key=lambda part: -part[0].count * math.prod(part[1])))


def _box_rank(piece: Slice, box: tuple[int, ...]) -> tuple[Any, ...]:
    closed = sum(w and b == n for w, b, n in zip(piece.wraps, box, piece.shape, strict=True))
    return (-math.prod(box), -closed, sum(box), box)


def box_of(piece: Slice, chips: int) -> tuple[int, ...] | None:
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
