"""How far predictions miss, by the features of what ran: the table behind the 80 % ranges.

Of every run stands here log(measured / predicted) by constants that had not seen its fold, and once
more for each of its features by constants that had not seen any run of the same value either.

- `wider` and `later` of a value: the ends that have the least interval score (width, and ten times
  what a run lies outside), which is what ranges are judged by. Both ends are products over the
  features; logs of `wider` are drawn towards 0 as by `PULL` runs, those of `later` `LATER` times as
  much. A group counts as the root of its runs.
- `unseen` of a feature: the mean miss of runs whose value was left out, over that of runs whose own
  group alone was, a group counting once in its value and values by the root of their groups; drawn
  towards that of all features, as a feature has few values. A value of n groups keeps the 1 + n-th
  part of it, in log, so that one publisher's runs are half as good as none.
- `low`, `high`: conformal over groups. Each group's misses are put in the scales of a table without
  them, and the two ends hold 80 % of these and of one group more.

`scripts/fit_efficiency.py` writes the table (`roofline/residuals.py` reads it).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from fit.kin import left_with
from shardwise.boundary import write_text
from shardwise.planner.features import FEATURES
from shardwise.roofline.residuals import Effect, Feature, RangeTable, read_residuals

INSIDE = 0.8
"""Share of the runs that a range is to hold."""
PULL, LATER = 25.0, 4.0
"""By how many runs of a score of 1 a log of `wider` is held at 0, and how many times that one of
`later` is."""
SOFT = 0.01
"""What a run lies outside, in log, is rounded off by this, so that its slope does not jump."""
FAR = 7.0
"""No log of a scale or of a factor is larger."""
CAP = 0.7
"""A miss beyond this, in log, is as good a reason to widen a range as this."""
DRAWN = 3.0
"""Values by which `unseen` of a feature is drawn towards that of all."""
ROUNDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A run that the constants had not seen: its features, its fold (`folds.py`), its share of its
    configuration, log(measured / predicted), and the same by constants that have not seen its value
    of a feature either."""

    features: Mapping[str, str]
    group: str
    moe: bool
    share: float
    log_ratio: float
    unlike: Mapping[str, float]


class Samples:
    """Samples as arrays: `design` has a column for every value of every feature."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.values = {name: np.array([s.features[name] for s in samples]) for name in FEATURES}
        self.columns = [(n, v) for n in FEATURES for v in dict.fromkeys(self.values[n].tolist())]
        self.design = np.column_stack([self.values[n] == v for n, v in self.columns]).astype(float)
        self.groups = np.array([s.group for s in samples])
        first = {(s.group, s.moe): s for s in samples}
        order = {fold: i for i, fold in enumerate(first)}
        self.fold = np.array([order[s.group, s.moe] for s in samples])
        self.left = np.array([[left_with(a, b) for b in first.values()] for a in first.values()])
        self.share = np.array([s.share for s in samples])
        self.logs = np.array([s.log_ratio for s in samples])
        self.unlike = {name: np.array([s.unlike[name] for s in samples]) for name in FEATURES}
        self._start = np.concatenate([[np.log(0.1), 0.0], np.zeros(2 * len(self.columns))])
        self._start = self._fitted(np.ones(len(samples), bool))

    def folds(self, among: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """The runs that are left out together, and those that stay, both of some."""
        folds = np.unique(self.fold[among])
        return [(among & (self.fold == i), among & ~self.left[i][self.fold]) for i in folds]

    def table(self, among: np.ndarray) -> RangeTable:
        """The table of some of the runs."""
        unseen, fitted = self._unseen(among), self._fitted(among)
        scores = np.empty(len(self.logs))
        for rows, others in self.folds(among):
            scores[rows] = self._scores(rows, self._fitted(others), unseen, others)
        groups = len(set(self.groups[among].tolist()))
        share = min((1 + INSIDE * (1 + 1 / groups)) / 2, 1.0)
        some, weights = scores[among], self.share[among]
        low, high = (
            weighted_quantile(-some, weights, share),
            weighted_quantile(some, weights, share),
        )
        scale, lean = fitted[:2]
        return RangeTable(
            features=self._features(among, fitted, unseen),
            low=-low * float(np.exp(scale - lean)),
            high=high * float(np.exp(scale + lean)),
            runs=int(among.sum()),
            groups=groups,
        )

    def _fitted(self, among: np.ndarray) -> np.ndarray:
        """log scale, log lean, and of every column what it adds to them, of the least loss

        high - low + 2 / (1 - INSIDE) x (soft(low - log) + soft(log - high))

        with high = exp(scale + lean), low = -exp(scale - lean) and
        soft(x) = SOFT log(1 + exp(x / SOFT)).
        """
        design, logs, width = self.design[among], self.logs[among], len(self.columns)
        _, group, runs = np.unique(self.groups[among], return_inverse=True, return_counts=True)
        weights = runs[group] ** -0.5
        weights *= len(logs) / max(weights.sum(), 1.0)
        pull = PULL * np.repeat([1.0, LATER], width)

        def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
            scale, lean = x[0] + design @ x[2 : 2 + width], x[1] + design @ x[2 + width :]
            total, slopes = 0.0, []
            for sign in (1, -1):
                end = np.exp(scale + sign * lean)
                outside = (sign * logs - end) / SOFT
                beyond = np.logaddexp(0, outside) * SOFT
                total += weights @ (end + 2 / (1 - INSIDE) * beyond)
                slopes.append(weights * end * (1 - 2 / (1 - INSIDE) * expit(outside)))
            by_scale, by_lean = slopes[0] + slopes[1], slopes[0] - slopes[1]
            slope = [[by_scale.sum(), by_lean.sum()], design.T @ by_scale, design.T @ by_lean]
            drawn = pull * x[2:]
            found = np.concatenate(slope)
            found[2:] += 2 * drawn
            return float(total + drawn @ x[2:]), found

        bounds, options = [(-FAR, FAR)] * len(self._start), {"maxiter": ROUNDS}
        found = minimize(
            loss, self._start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
        )
        return found.x

    def _unseen(self, among: np.ndarray) -> dict[str, float]:
        """The log factor of an unseen value of every feature."""
        known = self._mean_miss(among, self.logs)
        ratios, counts = {}, {}
        for name in FEATURES:
            found, roots = [], []
            for value in dict.fromkeys(self.values[name][among].tolist()):
                some = among & (self.values[name] == value)
                if some.sum() < among.sum():
                    found.append(self._mean_miss(some, self.unlike[name]) / known)
                    roots.append(len(set(self.groups[some].tolist())) ** 0.5)
            ratios[name] = float(np.average(found, weights=roots)) if found else 1.0
            counts[name] = len(found)
        pooled = sum(counts[n] * ratios[n] for n in FEATURES) / max(sum(counts.values()), 1)
        drawn = {
            n: (counts[n] * ratios[n] + DRAWN * pooled) / (counts[n] + DRAWN) for n in FEATURES
        }
        return {name: max(float(np.log(ratio)), 0.0) for name, ratio in drawn.items()}

    def _mean_miss(self, among: np.ndarray, logs: np.ndarray) -> float:
        """The mean miss up to `CAP`, each group once."""
        _, group = np.unique(self.groups[among], return_inverse=True)
        share = self.share[among]
        weights = share / np.bincount(group, share)[group]
        return float(np.average(np.minimum(np.abs(logs[among]), CAP), weights=weights))

    def _widened(
        self, rows: np.ndarray, unseen: Mapping[str, float], others: np.ndarray
    ) -> np.ndarray:
        """What few publishers add to the log scale of some runs, where `others` are known."""
        found = np.zeros(int(rows.sum()))
        for name in FEATURES:
            values = self.values[name]
            groups = {
                v: len(set(self.groups[others & (values == v)].tolist()))
                for v in set(values[rows].tolist())
            }
            found += unseen[name] / (1 + np.array([groups[v] for v in values[rows].tolist()]))
        return found

    def _scores(
        self, rows: np.ndarray, fitted: np.ndarray, unseen: Mapping[str, float], others: np.ndarray
    ) -> np.ndarray:
        """log ratios of some runs in their scales, by a fit of others."""
        design, width = self.design[rows], len(self.columns)
        scale = fitted[0] + design @ fitted[2 : 2 + width] + self._widened(rows, unseen, others)
        lean = fitted[1] + design @ fitted[2 + width :]
        logs = self.logs[rows]
        return logs / np.exp(scale + np.sign(logs) * lean)

    def _features(
        self, among: np.ndarray, fitted: np.ndarray, unseen: Mapping[str, float]
    ) -> dict[str, Feature]:
        """Every value's effect."""
        width = len(self.columns)
        values: dict[str, dict[str, Effect]] = {name: {} for name in FEATURES}
        for i, (name, value) in enumerate(self.columns):
            some = among & (self.values[name] == value)
            groups = len(set(self.groups[some].tolist()))
            if groups:
                values[name][value] = Effect(
                    wider=float(np.exp(fitted[2 + i] + unseen[name] / (1 + groups))),
                    later=float(np.exp(fitted[2 + width + i])),
                    runs=int(some.sum()),
                    groups=groups,
                )
        return {
            name: Feature(about=about, unseen=float(np.exp(unseen[name])), values=values[name])
            for name, about in FEATURES.items()
        }


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The least value up to which at least this share of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.75)
    2.0
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / np.sum(weights)
    place = int(np.searchsorted(reached, share - 1e-9))
    return float(values[order][min(place, len(values) - 1)])


def write_residuals(path: Path, table: RangeTable, source: str) -> None:
    """Write a table; `source` says of which runs and constants it is."""
    lines = [
        "# By how much predicted seconds of a training step are off, by features of what runs, by",
        "# constants that had not seen it; a prediction takes its 80 % range here.",
        f'source = "{source}"',
        f"low = {table.low:.4f}",
        f"high = {table.high:.4f}",
        f"runs = {table.runs}",
        f"groups = {table.groups}",
    ]
    for name, feature in table.features.items():
        lines += ["", f"[features.{name}]", f'about = "{feature.about}"']
        lines += [f"unseen = {feature.unseen:.3f}", f"[features.{name}.values]"]
        for value, e in sorted(feature.values.items()):
            said = f"wider = {e.wider:.3f}, later = {e.later:.3f}"
            lines.append(f'"{value}" = {{ {said}, runs = {e.runs}, groups = {e.groups} }}')
    write_text(path, "\n".join(lines) + "\n")
    read_residuals.cache_clear()
