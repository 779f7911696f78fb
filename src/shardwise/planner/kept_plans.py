"""What was searched or simulated before, for a caller whose requests have much of it in common."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shardwise.errors import NoFeasiblePlan

T = TypeVar("T")
MOST = 256
"""Findings that are kept, the newest (ours): one holds tens of kilobytes, and an answer that serves
has about a hundred runs."""


@dataclass(frozen=True, slots=True)
class KeptPlans:
    """What was found by what was asked for, compared field by field: a plan, a run, or why there is
    no plan."""

    found: deque[tuple[Any, Any]] = field(default_factory=lambda: deque(maxlen=MOST))

    def get(self, asked: Any, make: Callable[[], T]) -> T:
        """What was found, made if it is not there. Raises NoFeasiblePlan: a copy of the one that is
        kept, as an error that is raised holds its frames, and with them all columns of a search."""
        found = (both for both in self.found if both[0] == asked)
        kept: tuple[Any, Any] | None = next(found, None)
        if kept is None:
            try:
                kept = (asked, make())
            except NoFeasiblePlan as error:
                kept = (asked, copy(error))
            self.found.append(kept)
        if isinstance(kept[1], NoFeasiblePlan):
            raise copy(kept[1])
        return kept[1]


_KEPT: ContextVar[KeptPlans | None] = ContextVar("kept_plans", default=None)


@contextmanager
def plans_kept(kept: KeptPlans) -> Iterator[None]:
    """Searches and runs in here are looked up in these. Models and chips of a search are known by
    their names: no file that they are of may change meanwhile."""
    before = _KEPT.set(kept)
    try:
        yield
    finally:
        _KEPT.reset(before)


def searched_once(asked: Any, make: Callable[[], T]) -> T:
    """What was found before, where that is kept."""
    kept = _KEPT.get()
    return make() if kept is None else kept.get(asked, make)
