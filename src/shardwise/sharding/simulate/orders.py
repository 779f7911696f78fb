"""In which order a block visits the axes of a torus, and which share of every block takes which.

A block that goes round axis a after the axes b, c makes n_b n_c times the load that it makes first.
The shares are those that make the slowest axis as fast as possible: a linear program with a handful
of variables, solved in fractions by trying every vertex, so that counts come out exact.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, permutations
from math import prod

Order = tuple[int, ...]


@lru_cache(maxsize=4096)
def best_shares(
    sizes: tuple[int, ...], costs: tuple[Fraction, ...]
) -> tuple[tuple[Order, Fraction], ...]:
    """Orders of axes and the share of every block that takes each; shares add up to 1.

    `sizes[a]` members lie along axis a, and `costs[a]` seconds pass there for a block per device.

    >>> [(order, str(share)) for order, share in best_shares((4, 4), (Fraction(3), Fraction(3)))]
    [((0, 1), '1/2'), ((1, 0), '1/2')]
    """
    count = len(sizes)
    if count == 0:
        return (((), Fraction(1)),)
    loads = {order: _loads(order, sizes, costs) for order in permutations(range(count))}
    best: tuple[Fraction, tuple[tuple[Order, Fraction], ...]] | None = None
    for number in range(1, count + 1):
        for some in combinations(loads, number):
            for tight in combinations(range(count), number):
                shares = _balance([loads[order] for order in some], tight)
                if shares is None or min(shares) < 0:
                    continue
                slowest = max(
                    sum((s * loads[o][a] for s, o in zip(shares, some, strict=True)), Fraction(0))
                    for a in range(count)
                )
                if best is None or slowest < best[0]:
                    used = zip(some, shares, strict=True)
                    best = (slowest, tuple((o, s) for o, s in used if s))
    assert best is not None, "one order alone is always possible"
    return best[1]


def _loads(order: Order, sizes: tuple[int, ...], costs: tuple[Fraction, ...]) -> list[Fraction]:
    return [
        costs[axis] * prod(sizes[b] for b in order[: order.index(axis)])
        for axis in range(len(sizes))
    ]


def _balance(loads: Sequence[Sequence[Fraction]], tight: Sequence[int]) -> list[Fraction] | None:
    """Shares of the orders with equal load on the tight axes; None where there are none."""
    number = len(loads)
    rows = [[*(load[a] for load in loads), Fraction(-1), Fraction(0)] for a in tight]
    rows.append([*(Fraction(1) for _ in loads), Fraction(0), Fraction(1)])
    for column in range(number + 1):
        pivot = next((r for r in range(column, number + 1) if rows[r][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [x / rows[column][column] for x in rows[column]]
        for r in range(number + 1):
            if r != column and rows[r][column]:
                factor = rows[r][column]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[column], strict=True)]
    return [row[-1] for row in rows[:number]]
