"""Plans that were searched before, for a caller with many requests that have searches in common."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from shardwise.errors import NoFeasiblePlan
from shardwise.planner.training import TrainPlanning

MOST = 64
"""Searches that are kept, the newest (ours): a planning holds tens of kilobytes."""


@dataclass(frozen=True, slots=True)
class KeptPlans:
    """What searches gave by what they were asked: a planning, or why there is none."""

    found: dict[Hashable, TrainPlanning | NoFeasiblePlan] = field(default_factory=dict)

    def get(self, asked: Hashable, make: Callable[[], TrainPlanning]) -> TrainPlanning:
        """The planning, searched if it is not there. Raises NoFeasiblePlan."""
        if asked not in self.found:
            while len(self.found) >= MOST:
                del self.found[next(iter(self.found))]
            try:
                self.found[asked] = make()
            except NoFeasiblePlan as error:
                self.found[asked] = error
        known = self.found[asked]
        if isinstance(known, NoFeasiblePlan):
            raise known
        return known


_KEPT: ContextVar[KeptPlans | None] = ContextVar("kept_plans", default=None)


@contextmanager
def plans_kept(kept: KeptPlans) -> Iterator[None]:
    """Searches in here are looked up in these. Models and chips are known by their names: no file
    that they are of may change meanwhile."""
    before = _KEPT.set(kept)
    try:
        yield
    finally:
        _KEPT.reset(before)


def searched_once(asked: Hashable, make: Callable[[], TrainPlanning]) -> TrainPlanning:
    """What was searched before, where that is kept."""
    kept = _KEPT.get()
    return make() if kept is None else kept.get(asked, make)
