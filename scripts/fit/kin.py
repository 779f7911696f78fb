"""Which published runs are left out together, and how those of a configuration share its weight.

A fold is publisher and software (`PublishedRun.group`, "publisher/software"): no run of it has a
part in what is said of another. Two programs of one publisher share their kernels for mixtures of
experts, so that a routed run is left out with all routed runs of its publisher.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np

from shardwise.evidence.training.own import configuration
from shardwise.evidence.training.runs import PublishedRun


def publisher(group: str) -> str:
    """Who published a group's runs.

    >>> publisher("nvidia/nemo")
    'nvidia'
    """
    return group.partition("/")[0]


class Foldable(Protocol):
    """What says to which fold a run belongs: its group, and whether its model is routed."""

    @property
    def group(self) -> str: ...
    @property
    def moe(self) -> bool: ...


def left_with(run: Foldable, other: Foldable) -> bool:
    """Whether `other` is left out where `run` is predicted."""
    kin = run.moe and other.moe and publisher(run.group) == publisher(other.group)
    return run.group == other.group or kin


def shares(runs: Sequence[PublishedRun]) -> np.ndarray:
    """The weight of every run, those of a configuration sharing 1."""
    rows: dict[Hashable, list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        rows[configuration(run)].append(index)
    found = np.empty(len(runs))
    for some in rows.values():
        found[some] = 1 / len(some)
    return found
