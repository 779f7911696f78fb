"""Types of options: words of a set, and numbers such as 12 or 4k. A range is checked by the
request."""

from math import inf
from typing import Any

import click

from shardwise.boundary.numbers import MOST_WHOLE, number, whole
from shardwise.errors import check_known


class Word(click.Choice):
    """One of a set of words."""

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """The word; raises BadRequest with the nearest ones, or the one that is meant."""
        check_known(f"value of {_flag(param)}", str(value), self.choices)
        return super().convert(value, param, ctx)


class Number(click.ParamType):
    """A number of at least `least` (or above `above`) and at most `most`."""

    name = "float"

    def __init__(self, *, least: float = -inf, most: float = 1e15, above: float = -inf) -> None:
        self.least, self.most, self.above = least, most, above

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """The number; raises BadRequest that names the option."""
        return number(
            value, _flag(param), least=self.least, most=self.most, above=self.above, suffix=True
        )


class Whole(click.ParamType):
    """A whole number in [least, most]."""

    name = "integer"

    def __init__(self, *, least: int = 0, most: int = MOST_WHOLE) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """The number; raises BadRequest that names the option."""
        return whole(value, _flag(param), least=self.least, most=self.most, suffix=True)


def _flag(param: click.Parameter | None) -> str:
    return param.opts[0] if param else "the number"


WHOLE = Whole(least=-MOST_WHOLE)
"""A whole number whose range the request checks."""
NUMBER = Number(most=inf)
"""A number whose range the request checks."""
SEED = Whole(most=2**32 - 1)
"""What both NumPy and JAX take."""
