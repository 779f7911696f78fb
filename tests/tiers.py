"""The cases of one test over the three runs: `pytest`, `pytest -m slow`, `scripts/long_tests`."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def spread(
    cases: Iterable[Any],
    quick: int | Sequence[int] = 1,
    slow: int | Sequence[int] = 0,
    *,
    rows: bool = False,
) -> list[Any]:
    """The cases as parameters: those at the places `quick` run by default, those at `slow` with
    `-m slow`, and the others are `long`.

    A number means so many of those that are left, from the first on. `rows`: a case is a tuple of
    a value for each argument.
    """
    cases = list(cases)
    by_default = _places(quick, range(len(cases)))
    left = [place for place in range(len(cases)) if place not in by_default]
    when_slow = _places(slow, left)
    assert {*when_slow} <= {*left}, "a case is quick or slow, and is one of those given"
    marks = dict.fromkeys(left, pytest.mark.long) | dict.fromkeys(when_slow, pytest.mark.slow)
    return [
        pytest.param(*(case if rows else (case,)), marks=marks.get(place, ()))
        for place, case in enumerate(cases)
    ]


def _places(wanted: int | Sequence[int], left: Sequence[int]) -> Sequence[int]:
    return left[:wanted] if isinstance(wanted, int) else wanted
