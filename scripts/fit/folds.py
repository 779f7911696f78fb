"""The error of runs that nobody fitted: every fold is predicted by a fit without it.

A fold is a group's dense runs or its routed ones; what is left out with it says
`kin.py`. Nested: the sigmas of the hierarchy are chosen anew for each fold, by
the left-out error of the other groups among themselves; what is left out has no part in them, nor
in the constants. Runs that no constant is fitted on are predicted likewise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fit.cases import Case, logs_at
from fit.hierarchy import CHOICES, Hierarchy, Levels, bounds_of
from fit.kin import left_with
from fit.solve import Fit, Linear, linear_at, solved, values_of

CAP = 0.5
"""Log errors beyond this count as this where sigmas are chosen: one absurd run decides nothing."""
SWEEPS = 2
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Runs predicted without their group: by number, log(predicted / measured) of each, and the
    sigmas and constants that the other runs gave. `left` of the runs that were fitted on were left
    out."""

    group: str
    routed: bool
    left: int
    rows: np.ndarray
    logs: np.ndarray
    levels: Levels
    values: Mapping[str, float]


def folds(
    fit: Fit,
    fitted: Sequence[Case],
    cases: Sequence[Case],
    hierarchy: Hierarchy,
    levels: Levels,
    say: Progress = lambda text: None,
) -> tuple[Fold, ...]:
    """Every fold of `cases` left out in turn of the `fitted` ones. `fit` is that of all of these,
    at `levels`: what is differentiated there is where each fold starts; it is priced once more at
    what that gives. Folds without which the same runs remain are one fit."""
    found, fits = [], dict[bytes, tuple[Levels, Mapping[str, float]]]()
    for rows in alike(cases):
        run = cases[rows[0]].run
        left = np.array([left_with(run, c.run) for c in fitted])
        if left.tobytes() not in fits:
            fits[left.tobytes()] = _without(left, fit, fitted, hierarchy, levels)
        chosen, values = fits[left.tobytes()]
        fold = Fold(
            group=run.group,
            routed=run.moe,
            left=int(left.sum()),
            rows=rows,
            logs=logs_at([cases[i] for i in rows], values),
            levels=chosen,
            values=values,
        )
        found.append(fold)
        kind = "routed" if run.moe else "dense"
        median = np.median(np.abs(np.expm1(fold.logs)))
        say(f"{run.group}, {kind}: {median:.1%} of {len(rows)}, {fold.left} left out")
    return tuple(found)


def alike(cases: Sequence[Case]) -> list[np.ndarray]:
    """The runs by number, those together that are left out with the same others."""
    names = [(c.run.group, c.run.moe) for c in cases]
    return [
        np.array([i for i, other in enumerate(names) if other == name])
        for name in dict.fromkeys(names)
    ]


def _without(
    left: np.ndarray, fit: Fit, cases: Sequence[Case], hierarchy: Hierarchy, levels: Levels
) -> tuple[Levels, Mapping[str, float]]:
    """Sigmas and constants of the runs that are not left out."""
    if not left.any():
        return levels, fit.values
    near = fit.linear.rows(~left)
    levels = chosen_levels(near, hierarchy)
    penalty, bounds = hierarchy.penalty(levels), bounds_of(near.names)
    first = values_of(near, solved(near, penalty, levels, bounds).values)
    others = [c for c, out in zip(cases, left, strict=True) if not out]
    again = linear_at(others, first)
    return levels, values_of(again, solved(again, penalty, levels, bounds).values)


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
    return score(left_out_logs(linear, hierarchy, levels), linear)


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


def score(logs: np.ndarray, linear: Linear) -> float:
    """Mean log error up to `CAP`, a group of n configurations counting as the root of n."""
    _, group = np.unique(linear.groups, return_inverse=True)
    sizes = np.bincount(group, linear.shares)
    weights = linear.shares * sizes[group] ** -0.5
    return float(np.average(np.minimum(np.abs(logs), CAP), weights=weights))


def together(found: Sequence[Fold]) -> np.ndarray:
    """The left-out logs of all folds in the order of the runs."""
    logs = np.empty(sum(len(f.rows) for f in found))
    for fold in found:
        logs[fold.rows] = fold.logs
    return logs
