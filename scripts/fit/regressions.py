"""Configurations that a later release of their software runs slower."""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from shardwise.evidence.training.own import configuration
from shardwise.evidence.training.runs import PublishedRun

SLOWER = 1.1
"""Times the seconds of an earlier release from which a later one is a regression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A configuration on a mesh that the software ran `times` as long in a later release."""

    before: PublishedRun
    after: PublishedRun

    @property
    def times(self) -> float:
        return self.after.measured_seconds / self.before.measured_seconds


def regressions(runs: Iterable[PublishedRun]) -> list[Regression]:
    """Configurations, each on a mesh and in so many microbatches, that a later release of the same
    software ran more than `SLOWER` times as long, each release against the fastest before it."""
    plans: dict[Hashable, list[PublishedRun]] = defaultdict(list)
    for run in runs:
        if run.release:
            cut = (*run.plan.mesh.items(), run.plan.microbatches)
            plans[configuration(run), cut].append(run)
    found = []
    for some in plans.values():
        some.sort(key=lambda run: run.release)
        for after in some[1:]:
            earlier = [run for run in some if run.release < after.release]
            if earlier:
                before = min(earlier, key=lambda run: run.measured_seconds)
                one = Regression(before=before, after=after)
                found += [one] if one.times > SLOWER else []
    return found
