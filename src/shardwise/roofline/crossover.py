"""Where one strategy overtakes another: the argument at which two costs are equal."""

from collections.abc import Callable
from math import exp, log

from shardwise.errors import BadRequest

_HALVINGS = 200
"""Bisection stops after so many steps, or before, when floats run out."""


def crossover(
    one: Callable[[float], float], other: Callable[[float], float], low: float, high: float
) -> float:
    """The x where one(x) = other(x), by bisection of log x between `low` and `high`, both positive.

    Raises BadRequest where the same one is larger at both ends.

    >>> round(crossover(lambda x: x * x, lambda x: 10 * x, 1, 100), 6)
    10.0
    """
    above = one(low) > other(low)
    if above == (one(high) > other(high)):
        larger = "first" if above else "second"
        raise BadRequest(
            f"no crossover between {low:g} and {high:g}: the {larger} is larger at both ends; "
            "widen the range"
        )
    left, right = log(low), log(high)
    for _ in range(_HALVINGS):
        middle = (left + right) / 2
        if not left < middle < right:
            break
        if (one(exp(middle)) > other(exp(middle))) == above:
            left = middle
        else:
            right = middle
    return exp((left + right) / 2)
