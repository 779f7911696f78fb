"""Ranges of the time to the first token, by class: measured over predicted, of models left out.

A class is one or two pools, few or many requests in flight at a server, and the engine's family
where one pool has few of them (`roofline/engines.py`, `first_token_class`). Every model weighs the
same. A range is as wide as ranges made without one of its models must be to hold 80 % of the runs.
A class of fewer than 30 runs or four models takes the same pools and load of all engines, then the
same pools.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.evidence.serving.runs import ServingRun
from shardwise.roofline.engines import OTHER_FAMILIES, FirstTokenClass, first_token_class

LEAST_RUNS, LEAST_MODELS, SHARE = 30, 4, 0.8
TAILS = tuple(round(0.35 - 0.0025 * i, 4) for i in range(139))
"""Tails that a range may leave out on either side, the widest first."""
OTHER_CLASS = FirstTokenClass(OTHER_FAMILIES, False, False)
"""Software of no known family: where no run is of it, ranges are those of all engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """Measured over predicted times of runs, the folds and models that these are of."""

    runs: Sequence[ServingRun]
    ratios: np.ndarray
    folds: np.ndarray

    @property
    def classes(self) -> list[FirstTokenClass]:
        return [class_of(run) for run in self.runs]

    def without(self, fold: str, key: FirstTokenClass) -> tuple[float, float]:
        """The range of a class from all folds but one."""
        return self._range(key, self.folds != fold)

    def whole(self, key: FirstTokenClass) -> tuple[float, float]:
        """The range of a class from all runs."""
        return self._range(key, np.full(len(self.runs), True))

    def left_out(self) -> np.ndarray:
        """The range of every run from the other folds."""
        pairs = list(zip(self.folds.tolist(), self.classes, strict=True))
        found = {pair: self.without(*pair) for pair in set(pairs)}
        return np.array([found[pair] for pair in pairs])

    def _range(self, key: FirstTokenClass, kept: np.ndarray) -> tuple[float, float]:
        for wider in (key, key.any_engine(), key.any_load()):
            used = kept & np.array([wider.holds(mine) for mine in self.classes])
            models = np.array([run.model for run in self.runs])[used]
            if used.sum() >= LEAST_RUNS and len(set(models)) >= LEAST_MODELS:
                break
        return conformal(self.ratios[used], models)


def class_of(run: ServingRun) -> FirstTokenClass:
    """That of a run."""
    each = run.concurrency / run.workers
    return first_token_class(run.family, pools=run.prefill is not None, in_flight=each)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundClass:
    """A class of first tokens: its runs, the share of them in the range of the others, its own."""

    name: str
    runs: int
    inside: float
    low: float
    high: float


def found_classes(first: FirstTokens) -> list[FoundClass]:
    """All classes of some runs, by name."""
    low, high = first.left_out().T
    inside = (low <= first.ratios) & (first.ratios <= high)
    names = np.array([kind.name for kind in first.classes])
    found = []
    for kind in sorted(set(first.classes), key=lambda kind: kind.name):
        mine, (least, most) = names == kind.name, first.whole(kind)
        held = float(inside[mine].mean())
        found.append(
            FoundClass(name=kind.name, runs=int(mine.sum()), inside=held, low=least, high=most)
        )
    return found


CLASS_HEADS = ["class, in flight at a server", "runs", "inside", "measured over predicted"]


def class_lines(first: FirstTokens) -> list[list[str]]:
    """A line of a table for each class."""
    return [
        [one.name, str(one.runs), f"{one.inside:.1%}", f"{one.low:.2f} to {one.high:.2f}"]
        for one in found_classes(first)
    ]


def conformal(ratios: np.ndarray, models: np.ndarray) -> tuple[float, float]:
    """A range that holds 80 % of the runs of a model that is not among these."""
    whole = quantiles(ratios, models, TAILS[0])
    for tail in TAILS:
        inside = 0
        for model in set(models):
            mine = models == model
            low, high = quantiles(ratios[~mine], models[~mine], tail)
            inside += int(((low <= ratios[mine]) & (ratios[mine] <= high)).sum())
        whole = quantiles(ratios, models, tail)
        if inside >= SHARE * len(ratios):
            break
    return whole


def quantiles(ratios: np.ndarray, models: np.ndarray, tail: float) -> tuple[float, float]:
    """The ends that leave out a tail on either side, with the same weight for each model."""
    if not len(ratios):
        return 1.0, 1.0
    _, index, count = np.unique(models, return_inverse=True, return_counts=True)
    order = np.argsort(ratios, kind="stable")
    weight = (1 / count[index])[order]
    below = (np.cumsum(weight) - weight / 2) / weight.sum()
    low, high = np.interp((tail, 1 - tail), below, ratios[order])
    return float(low), float(high)
