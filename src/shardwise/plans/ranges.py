"""The least and the most that each number of a plan can be, as rows beside the fields."""

from collections.abc import Mapping
from math import inf
from typing import Any

from shardwise.errors import BadRequest, shown

Ranges = Mapping[str, tuple[float, float]]


def check_ranges(values: Any, ranges: Ranges) -> None:
    """Raise BadRequest for the first field out of its range; of a list, each number."""
    for name, (least, most) in ranges.items():
        value = getattr(values, name)
        for number in value if isinstance(value, list | tuple) else [value]:
            check_range(name, number, least, most)


def check_range(name: str, value: float, least: float, most: float) -> None:
    """Raise BadRequest for a number out of its range (nan is)."""
    if not least <= value <= most or abs(value) == inf:
        raise BadRequest(
            f"{name} is {shown(value)}; it must be at least {least:g} and at most {most:,.0f}"
        )
