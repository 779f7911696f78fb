"""One test over many values, where an item for each would cost more to schedule than to run."""

from collections.abc import Callable, Iterable
from typing import Any


def over_every(values: Iterable[Any], name: Callable[[Any], str] = str):
    """The check of one value becomes a test of all; those that fail are told by name."""
    values = tuple(values)

    def as_test(check: Callable[[Any], None]) -> Callable[[], None]:
        def test() -> None:
            failed = {}
            for value in values:
                try:
                    check(value)
                except Exception as error:
                    failed[name(value)] = error
            assert values
            if failed:
                first = next(iter(failed.values()))
                raise AssertionError(
                    f"{len(failed)} of {len(values)}: {', '.join(failed)}"
                ) from first

        # `functools.wraps` would show pytest the check's argument, as a fixture.
        test.__name__, test.__module__, test.__doc__ = (
            check.__name__,
            check.__module__,
            check.__doc__,
        )
        return test

    return as_test
