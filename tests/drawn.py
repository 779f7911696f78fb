"""Properties on drawn examples: an eighth of them by default, all of them in the slow run."""

from collections.abc import Callable
from inspect import Parameter, Signature, signature

import pytest
from hypothesis import given, settings


def on_drawn(most: int, *strategies, **named):
    """Hypothesis' `given` with at most this many examples in the slow run.

    Arguments of the check that no strategy draws are left to pytest.
    """
    counts = [max(most // 8, 10), pytest.param(most, marks=pytest.mark.slow)]

    def as_test(check: Callable[..., None]) -> Callable[..., None]:
        free = [n for n in signature(check).parameters if n not in named]
        free = free[: len(free) - len(strategies)]

        def test(examples: int, **others: object) -> None:
            drawn = given(*strategies, **named)(check)
            settings(max_examples=examples)(drawn)(**others)

        names = ("examples", *free)
        test.__signature__ = Signature([Parameter(n, Parameter.KEYWORD_ONLY) for n in names])
        test.__name__, test.__module__ = check.__name__, check.__module__
        test.__doc__ = check.__doc__
        return pytest.mark.parametrize("examples", counts)(test)

    return as_test
