"""What a few runs of one's own say of a plan: how far its step moves, how its range narrows.

Residuals z = log(measured / predicted) are in units of their own ranges, so that a run of a kind
that is badly known says little of one that is well known. The level of one publisher's runs is
drawn from a normal density; two of its runs, or a run and the asked plan, share of it

    alike(x, y) = product over the features that differ of what `carried` says of each

and none over chips of two vendors. With B the variance of levels, W that of runs of one kind around
their level, K and k what the runs share with each other and with the plan:

    level of the plan      m = B k (B K + W)^-1 z        (a mean of its like, drawn towards 0)
    what is left unknown   v = B + W - B^2 k (B K + W)^-1 k

The step is taken times exp(m), in the units of the plan's range, and that by sqrt(v / (B + W)).
A run further than one deviation of W from the middle of all (and of one more run that went as
predicted) counts as that far, as one odd run in three is common; runs that differ among themselves
by more than W widen v. B, W and `carried` are of published runs: `scripts/fit/spread.py`
finds them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from shardwise.boundary import read_toml
from shardwise.errors import BadRequest
from shardwise.roofline.residuals import LogRange

DATA = Path(__file__).parent / "data" / "train_evidence.toml"
APART = "vendor"
"""The feature over which nothing is carried: the fit has next to no publisher with chips of two."""
LEAST = 0.1
"""What a run shares with a plan at least to say anything of it; below, it is another thing."""
SIDE = 1.2816
"""Deviations from the middle to the end of a normal 80 % range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """What one configuration was run like: its features, log(measured / predicted) and the range
    that the prediction had. `marks` stand for its rows, one for each."""

    features: Mapping[str, str]
    log_ratio: float
    range_: LogRange
    marks: tuple[str, ...]

    @property
    def deviations(self) -> float:
        """The residual in units of the range."""
        return self.log_ratio / unit(self.range_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What a table's rows say of one plan: its step times exp(`level`), and the ends of its range
    around that, in log; `before` is the range without them. `like` of the `rows` rows say so."""

    name: str
    level: float
    low: float
    high: float
    before: LogRange
    like: int
    rows: int

    @property
    def times(self) -> float:
        """The step over the one that published runs suggest."""
        return math.exp(self.level)

    def interval(self, seconds: float) -> tuple[float, float]:
        """The 80 % range around a step that was moved already."""
        return seconds * math.exp(self.low), seconds * math.exp(self.high)

    def interval_before(self, seconds: float) -> tuple[float, float]:
        """The 80 % range of the same step without the rows."""
        return self.before.interval(seconds / self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How runs of one publisher lie, in units of their ranges: deviations of its level and of its
    runs around that, and by feature what part of the level a run of another value shares."""

    between: float
    within: float
    carried: Mapping[str, float]
    runs: int
    groups: int

    def alike(self, one: Mapping[str, str], other: Mapping[str, str]) -> float:
        """What two kinds of runs share of a level, 0 to 1."""
        if one[APART] != other[APART]:
            return 0.0
        return math.prod(part for name, part in self.carried.items() if one[name] != other[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRuns:
    """Runs of one's own, of the table `name`."""

    name: str
    runs: Sequence[OwnRun]

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return sum(len(run.marks) for run in self.runs)

    def has(self, mark: str) -> bool:
        """Whether a run is among them."""
        return any(mark in run.marks for run in self.runs)

    def without(self, mark: str) -> "OwnRuns":
        """The same without a run, which says nothing new of itself, nor do others of its
        configuration."""
        return replace(self, runs=[run for run in self.runs if mark not in run.marks])

    def of(self, features: Mapping[str, str], range_: LogRange, spread: Spread) -> Shift:
        """What they say of a plan with such features and such a range."""
        shared = [(run, spread.alike(run.features, features)) for run in self.runs]
        like = [(run, part) for run, part in shared if part >= LEAST]
        level, times = _posterior(like, spread)
        return Shift(
            name=self.name,
            level=level * unit(range_),
            low=range_.low * times,
            high=range_.high * times,
            before=range_,
            like=sum(len(run.marks) for run, _ in like),
            rows=self.rows,
        )


def unit(range_: LogRange) -> float:
    """One deviation of a normal density with so wide an 80 % range."""
    return max(range_.high - range_.low, 1e-6) / (2 * SIDE)


def _posterior(like: Sequence[tuple[OwnRun, float]], spread: Spread) -> tuple[float, float]:
    """The level in units of the range, and times which the range is what it was."""
    if not like:
        return 0.0, 1.0
    runs, parts = [run for run, _ in like], np.array([part for _, part in like])
    far = np.array([run.deviations for run in runs])
    middle = weighted_middle(np.append(far, 0.0), np.append((parts / parts.max()) ** 2, 1.0))
    near = middle + np.clip(far - middle, -spread.within, spread.within)
    between, within = spread.between**2, spread.within**2
    shared = between * np.array(
        [[spread.alike(a.features, b.features) for b in runs] for a in runs]
    )
    known = shared + within * np.eye(len(runs))
    level = between * parts @ np.linalg.solve(known, near)
    explained = between * parts @ np.linalg.solve(known, between * parts)
    differ = float(np.mean((far - shared @ np.linalg.solve(known, near)) ** 2))
    left = between - explained + max(within, differ)
    return float(level), math.sqrt(left / (between + within))


def weighted_middle(values: np.ndarray, weights: np.ndarray) -> float:
    """The median by weight; between two the one nearer to 0.

    >>> weighted_middle(np.array([0.3, 0.1, 0.2, 0.0]), np.ones(4))
    0.1
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / np.sum(weights)
    first = int(np.searchsorted(reached, 0.5 - 1e-9))
    last = min(int(np.searchsorted(reached, 0.5 + 1e-9)), len(values) - 1)
    low, high = float(values[order][first]), float(values[order][last])
    return 0.0 if low <= 0 <= high else min(low, high, key=abs)


@lru_cache(maxsize=8)
def read_spread(path: Path = DATA) -> Spread:
    """The spread in a file. Raises BadRequest for a file that holds none."""
    held = read_toml(path, "the spread of publishers' runs")
    try:
        names = ("between", "within", "carried", "runs", "groups")
        return Spread(**{name: held[name] for name in names})
    except (KeyError, TypeError) as error:
        raise BadRequest(f"{path}: no spread of publishers' runs ({error})") from None
