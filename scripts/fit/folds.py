"""The error of runs that nobody fitted: every group of runs is predicted by a fit without it.

Nested: the sigmas of the hierarchy are chosen anew for each group, by the left-out error of the
other groups among themselves; the group itself has no part in them, nor in the constants.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fit.cases import Case, logs_at
from fit.hierarchy import CHOICES, Hierarchy, Levels, bounds_of
from fit.solve import Fit, Linear, linear_at, solved, values_of

CAP = 0.5
"""Log errors beyond this count as this where sigmas are chosen: one absurd run decides nothing."""
SWEEPS = 2
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A group predicted without it: its runs by number, log(predicted / measured) of each, and the
    sigmas and constants that the other groups gave."""

    group: str
    rows: np.ndarray
    logs: np.ndarray
    levels: Levels
    values: Mapping[str, float]


def folds(
    fit: Fit, cases: Sequence[Case], hierarchy: Hierarchy, say: Progress = lambda text: None
) -> tuple[Fold, ...]:
    """Every group left out in turn. `fit` is that of all groups: what is differentiated there is
    where each fold starts; it is priced once more at what that gives."""
    found = []
    groups = np.array([c.run.group for c in cases])
    for group in dict.fromkeys(groups):
        fold = _fold(group, groups == group, fit, cases, hierarchy)
        found.append(fold)
        say(f"{group}: {np.median(np.abs(np.expm1(fold.logs))):.1%} of {len(fold.logs)} left out")
    return tuple(found)


def _fold(
    group: str, mine: np.ndarray, fit: Fit, cases: Sequence[Case], hierarchy: Hierarchy
) -> Fold:
    near = fit.linear.rows(~mine)
    levels = chosen_levels(near, hierarchy)
    penalty, bounds = hierarchy.penalty(levels), bounds_of(near.names)
    first = values_of(near, solved(near, penalty, levels, bounds).values)
    others = [c for c, left in zip(cases, mine, strict=True) if not left]
    again = linear_at(others, first)
    values = values_of(again, solved(again, penalty, levels, bounds).values)
    logs = logs_at([c for c, left in zip(cases, mine, strict=True) if left], values)
    return Fold(group=group, rows=np.flatnonzero(mine), logs=logs, levels=levels, values=values)


def chosen_levels(linear: Linear, hierarchy: Hierarchy) -> Levels:
    """The sigmas of the least left-out error of these groups, one level tried after the other."""
    best = Levels()
    least = inner_error(linear, hierarchy, best)
    for _ in range(SWEEPS):
        before = best
        for level, values in CHOICES.items():
            for value in values:
                trial = replace(best, **{level: value})
                error = inner_error(linear, hierarchy, trial) if trial != best else least
                if error < least:
                    best, least = trial, error
        if best == before:
            break
    return best


def inner_error(linear: Linear, hierarchy: Hierarchy, levels: Levels) -> float:
    """`score` of the groups, each left out of a fit around the same point."""
    return score(left_out_logs(linear, hierarchy, levels), linear.groups)


def left_out_logs(
    linear: Linear,
    hierarchy: Hierarchy,
    levels: Levels,
    bounds: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """log(predicted / measured) of every run by a fit without its group, to first order."""
    penalty = hierarchy.penalty(levels)
    bounds = bounds or bounds_of(linear.names)
    logs = np.empty_like(linear.residuals)
    for group in np.unique(linear.groups):
        mine = linear.groups == group
        found = solved(linear.rows(~mine), penalty, levels, bounds)
        logs[mine] = linear.rows(mine).at(found.values)
    return logs


def score(logs: np.ndarray, groups: np.ndarray) -> float:
    """Mean log error up to `CAP`, a group of n runs counting as the root of n."""
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    weights = sizes[group] ** -0.5
    return float(np.average(np.minimum(np.abs(logs), CAP), weights=weights))


def together(found: Sequence[Fold]) -> np.ndarray:
    """The left-out logs of all folds in the order of the runs."""
    logs = np.empty(sum(len(f.rows) for f in found))
    for fold in found:
        logs[fold.rows] = fold.logs
    return logs
