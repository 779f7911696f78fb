"""Candidates as columns of arrays, and the few distinct rows that a figure depends on.

Most of what a plan costs depends on few of its columns: a layer's products on the tokens of a
microbatch and the inner degrees, a gather on the degrees that store parameters. `Keys` finds the
distinct rows of such columns; a figure is computed for these alone and gathered back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np

from shardwise.hardware.placement import AxisLinks, Part, Placement, taken

Degrees = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Keys:
    """Distinct rows: `first` is where each stands, `inverse` which of them every row is."""

    first: np.ndarray
    inverse: np.ndarray

    def __len__(self) -> int:
        return len(self.first)


def keys_of(columns: Iterable[np.ndarray]) -> Keys:
    """The distinct rows of some columns of one length."""
    code: np.ndarray | None = None
    kinds = 1
    for column in columns:
        mine, many = _numbered(column)
        if code is None:
            code, kinds = mine, many
        elif many > 1:
            # Renumbered at every step, so that the product of counts never overflows.
            code, kinds = _numbered(code * many + mine)
    assert code is not None, "rows without columns are all alike: there is nothing to look for"
    first = np.empty(kinds, np.int64)
    first[code[::-1]] = np.arange(len(code))[::-1]  # of equal rows the first is written last
    return Keys(first, code)


def _numbered(column: np.ndarray) -> tuple[np.ndarray, int]:
    """Every value's number among the distinct ones, in order, and how many there are."""
    if column.dtype.kind in "bi" and len(column):
        top = int(column.max())
        if column.min() >= 0 and top < _TABLE * len(column):  # looked up, which sorts nothing
            column = column.astype(np.int64, copy=False)
            seen = np.zeros(top + 1, bool)
            seen[column] = True
            number = np.cumsum(seen) - 1
            return number[column], int(number[-1]) + 1
    values, inverse = np.unique(column, return_inverse=True)
    return inverse, len(values)


_TABLE = 16  # a table of so many entries per row is faster than sorting the rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """Distinct meshes, laid on the slice in one way. `links[axis]` numbers what the axis lies on:
    equal numbers mean equal links, so that figures of one serve for the other."""

    degrees: Degrees
    placement: Placement
    links: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.degrees.values())))

    def take(self, index: np.ndarray) -> "Meshes":
        """The meshes at an index or mask."""
        return Meshes(
            degrees={axis: d[index] for axis, d in self.degrees.items()},
            placement=taken(self.placement, index),
            links={axis: ids[index] for axis, ids in self.links.items()},
        )


def laid_out(degrees: Degrees, placement: Placement) -> Meshes:
    """Meshes with their links numbered."""
    n = len(next(iter(degrees.values())))
    links = {axis: keys_of(link_columns(placement.axes[axis], n)).inverse for axis in degrees}
    return Meshes(degrees=degrees, placement=placement, links=links)


def link_columns(links: AxisLinks, n: int) -> list[np.ndarray]:
    """Every number that says what a mesh axis lies on, as columns of n rows."""
    pieces: Sequence[Part] = (links.within, *links.parts, links.outer)
    values = [links.size, *(getattr(p, name) for p in pieces for name in Part.__slots__)]
    return [np.broadcast_to(v, (n,)) for v in values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Candidates: which mesh each has, its degrees, and its microbatches."""

    mesh: np.ndarray
    degrees: Degrees
    microbatches: np.ndarray

    def __len__(self) -> int:
        return len(self.microbatches)

    def take(self, index: np.ndarray) -> "Columns":
        """The columns at an index or mask."""
        return Columns(
            mesh=self.mesh[index],
            degrees={axis: d[index] for axis, d in self.degrees.items()},
            microbatches=self.microbatches[index],
        )


def with_microbatches(degrees: Degrees, counts: Sequence[int], per_step: np.ndarray) -> Columns:
    """Every mesh with every count of microbatches that divides its `per_step` sequences."""
    mesh, which = np.nonzero(per_step[:, None] % np.asarray(counts, np.int64)[None, :] == 0)
    return Columns(
        mesh=mesh,
        degrees={axis: d[mesh] for axis, d in degrees.items()},
        microbatches=np.asarray(counts, np.int64)[which],
    )


def factorisations(
    n: int, axes: Sequence[str], keep: Callable[[dict[str, np.ndarray]], np.ndarray]
) -> tuple[int, dict[str, np.ndarray]]:
    """Every way to write n as one factor per axis: how many there are, and those that `keep` keeps.

    Built prime by prime, so `keep` must hold for every divisor of what it keeps ("divides 128",
    "is at most 64"): then what it drops early could not come back.
    """
    found = {axis: np.ones(1, np.int64) for axis in axes}
    total = 1
    for prime, power in prime_powers(n).items():
        parts = _compositions(power, len(axes))
        total *= len(parts)
        grown = {
            axis: (found[axis][:, None] * prime ** parts[:, i][None, :]).ravel()
            for i, axis in enumerate(axes)
        }
        kept = keep(grown)
        found = {axis: d[kept] for axis, d in grown.items()}
    return total, found


def prime_powers(n: int) -> dict[int, int]:
    """The primes of n with their powers.

    >>> prime_powers(360)
    {2: 3, 3: 2, 5: 1}
    """
    powers: dict[int, int] = {}
    prime = 2
    while n > 1:
        if prime * prime > n:
            prime = n
        while n % prime == 0:
            powers[prime] = powers.get(prime, 0) + 1
            n //= prime
        prime += 1
    return powers


def divisors(n: int) -> list[int]:
    """Divisors in order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    choices = [[p**k for k in range(power + 1)] for p, power in prime_powers(n).items()]
    return sorted(reduce(lambda a, b: a * b, some, 1) for some in product(*choices))


def _compositions(total: int, parts: int) -> np.ndarray:
    """Every way to write a number as an ordered sum of so many whole numbers, one per row."""
    rows = np.zeros((1, 1), np.int64) + total  # the last column is what is left
    for _ in range(parts - 1):
        left = rows[:, -1]
        copies = np.repeat(rows, left + 1, axis=0)
        starts = np.repeat(np.cumsum(left + 1) - (left + 1), left + 1)
        taken_now = np.arange(len(copies)) - starts
        copies = np.column_stack([copies[:, :-1], taken_now, copies[:, -1] - taken_now])
        rows = copies
    return rows
