"""The arithmetic between the book's rules, by name, so that an answer is a list of steps.

Every argument may be an array; units are those of the arguments.
"""

from collections.abc import Sequence
from math import floor, log10

import numpy as np

from shardwise.errors import BadRequest
from shardwise.units import dtype_bytes
from shardwise.work import Quantity


def total(parts: Sequence[Quantity]) -> Quantity:
    """The sum of all parts."""
    found: Quantity = 0
    for part in parts:
        found = found + part
    return found


def product(factors: Sequence[Quantity]) -> Quantity:
    """The product of all factors."""
    found: Quantity = 1
    for factor in factors:
        found = found * factor
    return found


def ratio(part: Quantity, whole: Quantity) -> Quantity:
    """part / whole. Raises BadRequest for a whole of 0."""
    if np.any(np.equal(whole, 0)):
        raise BadRequest("whole is 0; ratio divides by it, so give another number")
    return part / whole


def difference(whole: Quantity, part: Quantity) -> Quantity:
    """whole - part."""
    return whole - part


def larger(values: Sequence[Quantity]) -> Quantity:
    """The largest of some values."""
    return _reduced(np.maximum, values)


def smaller(values: Sequence[Quantity]) -> Quantity:
    """The smallest of some values."""
    return _reduced(np.minimum, values)


def _reduced(pick: np.ufunc, values: Sequence[Quantity]) -> Quantity:
    found = values[0]
    for value in values[1:]:
        found = pick(found, value)
    return found


def rounded(value: float, digits: int = 2) -> float:
    """A number in so many significant digits, as the book's tables print it."""
    return round(value, digits - 1 - floor(log10(abs(value)))) if value else 0.0


def whole(value: Quantity) -> Quantity:
    """The largest whole number up to a value."""
    return np.floor(value)


def stored_bytes(elements: Quantity, dtype: str = "bf16") -> Quantity:
    """Bytes of so many elements of a dtype."""
    return elements * dtype_bytes(dtype)


def count(members: Sequence[float]) -> int:
    """How many members a list has, such as the devices of a replica group."""
    return len(members)
