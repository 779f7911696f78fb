"""Boxes: the parts of a slice that a mesh may use, one size per physical axis."""

import math
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
