"""The 80 % range of every left-out run, by a table that its fold had no part in, and what becomes
of ranges where nobody has run a value of a feature.

Ranges are judged by how many runs they hold (`BOUNDS`), over all and by feature, and by their
interval score: width, plus what a miss lies outside times 2 / (1 - `INSIDE`), beside that of one
80 % range for all runs.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fit.cases import Case
from fit.folds import alike
from fit.hierarchy import Hierarchy, Levels, bounds_of
from fit.kin import left_with, shares
from fit.residuals import INSIDE, Sample, Samples, weighted_quantile
from fit.solve import Linear, solved
from shardwise.planner.features import FEATURES
from shardwise.roofline.residuals import LogRange

BOUNDS = ((0.75, 0.88), (0.65, 0.95))
"""Share of the runs inside: of all, and of any value of a feature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The range of a run that its fold had no part in, and its log(measured / predicted)."""

    range_: LogRange
    log_ratio: float

    @property
    def inside(self) -> bool:
        """Whether the run was in it."""
        return self.range_.low <= self.log_ratio <= self.range_.high

    @property
    def width(self) -> float:
        return self.range_.high - self.range_.low

    @property
    def score(self) -> float:
        """The interval score in log: less is better."""
        outside = max(self.range_.low - self.log_ratio, self.log_ratio - self.range_.high, 0.0)
        return self.width + 2 / (1 - INSIDE) * outside


def samples_of(
    cases: Sequence[Case], left: np.ndarray, unlike: Mapping[str, np.ndarray]
) -> list[Sample]:
    """The runs with log(measured / predicted), from log(predicted / measured): `left` without their
    fold, `unlike` without all runs of the same value of a feature either."""
    share = shares([case.run for case in cases])
    return [
        Sample(
            features=case.features,
            group=case.run.group,
            moe=case.run.moe,
            share=float(share[i]),
            log_ratio=-float(left[i]),
            unlike={name: -float(unlike[name][i]) for name in FEATURES},
        )
        for i, case in enumerate(cases)
    ]


def unlike_logs(
    cases: Sequence[Case],
    linear: Linear,
    hierarchy: Hierarchy,
    levels: Levels,
    *,
    folds: bool = True,
) -> dict[str, np.ndarray]:
    """Of every feature, log(predicted / measured) of each run by constants without any run of its
    value, and with `folds` without its fold either; to first order around the fit of all."""
    penalty, bounds = hierarchy.penalty(levels), bounds_of(linear.names)
    fitted = np.array([case.run.fitted for case in cases])
    known: dict[bytes, np.ndarray] = {}

    def without(left: np.ndarray) -> np.ndarray:
        rows = fitted & ~left
        if rows.tobytes() not in known:
            found = solved(linear.rows(rows), penalty, levels, bounds)
            known[rows.tobytes()] = found.values
        return known[rows.tobytes()]

    logs = {name: np.empty(len(cases)) for name in FEATURES}
    for rows in alike(cases):
        run = cases[rows[0]].run
        fold = np.array([folds and left_with(run, case.run) for case in cases])
        for name, found in logs.items():
            values = np.array([case.features[name] for case in cases])
            for value in dict.fromkeys(values[rows].tolist()):
                mine = np.zeros(len(cases), bool)
                mine[rows] = values[rows] == value
                found[mine] = linear.rows(mine).at(without(fold | (values == value)))
    return logs


def ranges_by(samples: Sequence[Sample]) -> list[Held]:
    """Every run's range from a table without its fold."""
    arrays = Samples(samples)
    found: dict[int, Held] = {}
    for rows, others in arrays.folds(np.ones(len(samples), bool)):
        table = arrays.table(others)
        for i in np.flatnonzero(rows):
            s = samples[i]
            found[i] = Held(range_=table.range_of(s.features), log_ratio=s.log_ratio)
    return [found[i] for i in range(len(samples))]


def common_ranges(samples: Sequence[Sample]) -> list[Held]:
    """One 80 % range for all runs, from the runs that each had no part in."""
    arrays = Samples(samples)
    found: dict[int, Held] = {}
    for rows, others in arrays.folds(np.ones(len(samples), bool)):
        logs, weights = arrays.logs[others], np.ones(int(others.sum()))
        ends = [weighted_quantile(sign * logs, weights, (1 + INSIDE) / 2) for sign in (-1, 1)]
        range_ = LogRange(low=min(-ends[0], 0.0), high=max(ends[1], 0.0))
        for i in np.flatnonzero(rows):
            found[i] = Held(range_=range_, log_ratio=samples[i].log_ratio)
    return [found[i] for i in range(len(samples))]


def in_hindsight(
    held: Sequence[Held], keys: Sequence[Hashable], *, even: bool = False
) -> list[Held]:
    """The 80 % range that the runs of every key have by their own misses, which nobody knows before
    they ran: between quantiles, or as wide early as late (`even`)."""
    of_key: dict[Hashable, list[float]] = defaultdict(list)
    for key, one in zip(keys, held, strict=True):
        of_key[key].append(abs(one.log_ratio) if even else one.log_ratio)
    shares = [INSIDE] if even else [(1 - INSIDE) / 2, (1 + INSIDE) / 2]
    found = {}
    for key, logs in of_key.items():
        ends = np.quantile(logs, shares).tolist()
        low, high = -ends[-1] if even else ends[0], ends[-1]
        found[key] = LogRange(low=min(low, 0.0), high=max(high, 0.0))
    return [replace(one, range_=found[key]) for key, one in zip(keys, held, strict=True)]


def unseen_values(
    samples: Sequence[Sample], logs: Mapping[str, np.ndarray]
) -> dict[tuple[str, str], list[Held]]:
    """Of every value of a feature, its runs by constants (`logs`, of predicted over measured) and a
    table without any run of the value."""
    arrays = Samples(samples)
    found = {}
    for name, value in arrays.columns:
        mine = arrays.values[name] == value
        if not mine.all():
            table = arrays.table(~mine)
            found[name, value] = [
                Held(range_=table.range_of(samples[i].features), log_ratio=-float(logs[name][i]))
                for i in np.flatnonzero(mine)
            ]
    return found


def share_inside(found: Sequence[Held]) -> float:
    """Share of the runs in their ranges."""
    return float(np.mean([one.inside for one in found]))
