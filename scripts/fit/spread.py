"""What three runs of a publisher say of its others: how it is learned, and how well it holds.

Both are of runs predicted without their group (`unseen.py`), a configuration being one look. The
spread (`roofline/evidence.py`) is that of the greatest likelihood, a group of n looks counting as
their root, what a feature carries drawn towards `CARRIED`. The score leaves a group out of the
spread, takes some of its runs as evidence and predicts its others.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from shardwise.boundary import write_text
from shardwise.evidence.training.own import looks, own_run
from shardwise.evidence.training.validate import ScoredRun
from shardwise.planner.features import FEATURES
from shardwise.roofline.evidence import APART, OwnRuns, Spread, read_spread

CARRIED = 0.8
"""What one feature is expected to carry; one deviation around it is a factor e of log(carried)."""
FAR = 3.0
"""Deviations beyond which a residual counts as this."""
ROUNDS = 60
RUNS, ROWS, DRAWS = 3, 5, 20
"""Runs that are evidence; runs of a group from which it is scored; how often they are drawn."""
BIASED = 0.1
"""Median error, early or late, from which a group is off as a whole."""


def by_group(rows: Sequence[ScoredRun]) -> dict[str, list[ScoredRun]]:
    """Runs with a range, by publisher and software."""
    groups: dict[str, list[ScoredRun]] = defaultdict(list)
    for row in rows:
        if row.interval is not None:
            groups[row.run.group].append(row)
    return dict(groups)


class Groups:
    """Looks of every group as arrays: residuals, and which features of two of them differ."""

    def __init__(self, groups: Mapping[str, Sequence[ScoredRun]]) -> None:
        self.names = [name for name in FEATURES if name != APART]
        self.far: dict[str, np.ndarray] = {}
        self.differ: dict[str, np.ndarray] = {}
        self.vendor: dict[str, np.ndarray] = {}
        for group, rows in groups.items():
            some = looks(rows)
            values = np.array([[run.features[name] for name in self.names] for run in some])
            vendors = np.array([run.features[APART] for run in some])
            self.far[group] = np.clip([run.deviations for run in some], -FAR, FAR)
            self.differ[group] = (values[:, None] != values[None]).astype(float)
            self.vendor[group] = (vendors[:, None] == vendors[None]).astype(float)
        self._start = np.zeros(2 + len(self.names))
        self._start[2:] = math.log(-math.log(CARRIED))
        self._start = self._fitted(tuple(groups))

    def spread(self, without: str = "") -> Spread:
        """The spread of all groups but one."""
        groups = tuple(group for group in self.far if group != without)
        found = self._fitted(groups) if without else self._start
        return Spread(
            between=math.exp(found[0] / 2),
            within=math.exp(found[1] / 2),
            carried=dict(zip(self.names, np.exp(-np.exp(found[2:])).tolist(), strict=True)),
            runs=sum(len(self.far[group]) for group in groups),
            groups=len(groups),
        )

    def _fitted(self, groups: Sequence[str]) -> np.ndarray:
        """log variances between and within, and log(-log) of what every feature carries."""
        usual = math.log(-math.log(CARRIED))

        def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
            drawn = x[2:] - usual
            total, slope = float(drawn @ drawn) / 2, np.concatenate([np.zeros(2), drawn])
            for group in groups:
                own, own_slope = self._loss(group, x)
                weight = len(self.far[group]) ** -0.5
                total, slope = total + weight * own, slope + weight * own_slope
            return total, slope

        options = {"maxiter": ROUNDS}
        return minimize(loss, self._start, jac=True, method="L-BFGS-B", options=options).x

    def _loss(self, group: str, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Minus the log density of a group's residuals, and its slope: for a covariance C(x)

        (far C^-1 far + log det C) / 2,    tr((C^-1 - a a) dC/dx) / 2 with a = C^-1 far
        """
        far, differ = self.far[group], self.differ[group]
        decay, within = np.exp(x[2:]), math.exp(x[1])
        shared = math.exp(x[0]) * np.exp(-differ @ decay) * self.vendor[group]
        inverse = np.linalg.inv(shared + within * np.eye(len(far)))
        a = inverse @ far
        value = (far @ a - np.linalg.slogdet(inverse)[1]) / 2
        pull = (inverse - np.outer(a, a)) / 2
        moved = pull * shared
        slope = [moved.sum(), within * np.trace(pull)]
        return value, np.concatenate([slope, -decay * np.einsum("ij,ijk->k", moved, differ)])


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScore:
    """A group whose other runs were predicted with some of its runs as evidence, `n` runs in all.
    `bias` is the median error of all without evidence; medians of |error|, shares in their range
    and the range's width with over without, of the others over all draws."""

    group: str
    n: int
    bias: float
    before: float
    after: float
    inside_before: float
    inside: float
    narrowed: float
    others: int

    @property
    def biased(self) -> bool:
        """Whether the group is off as a whole."""
        return abs(self.bias) >= BIASED


def score_groups(
    rows: Sequence[ScoredRun], *, nested: bool = False, draws: int = DRAWS, seed: int = 0
) -> list[GroupScore]:
    """Of every group of `ROWS` runs: `RUNS` of them are evidence, `draws` times, and the others are
    predicted with it. `nested` finds the spread without the group each time; else it is that of the
    packaged table."""
    groups = by_group(rows)
    arrays = Groups(groups) if nested else None
    found = []
    for group, some in groups.items():
        if len(some) >= ROWS:
            spread = arrays.spread(without=group) if arrays else read_spread()
            found.append(_score(group, some, spread, draws, np.random.default_rng(seed)))
    return found


def _score(
    group: str, rows: Sequence[ScoredRun], spread: Spread, draws: int, random: np.random.Generator
) -> GroupScore:
    before, after, inside_before, inside, narrowed = [], [], [], [], []
    for _ in range(draws):
        chosen = set(random.choice(len(rows), RUNS, replace=False).tolist())
        evidence = OwnRuns(name=group, runs=looks([rows[i] for i in sorted(chosen)]))
        for other in (own_run(row) for i, row in enumerate(rows) if i not in chosen):
            shift, log = evidence.of(other.features, other.range_, spread), other.log_ratio
            before.append(abs(math.expm1(-log)))
            after.append(abs(math.expm1(shift.level - log)))
            inside_before.append(other.range_.low <= log <= other.range_.high)
            inside.append(shift.low <= log - shift.level <= shift.high)
            narrowed.append((shift.high - shift.low) / (other.range_.high - other.range_.low))
    return GroupScore(
        group=group,
        n=len(rows),
        bias=float(np.median([row.error for row in rows])),
        before=float(np.median(before)),
        after=float(np.median(after)),
        inside_before=float(np.mean(inside_before)),
        inside=float(np.mean(inside)),
        narrowed=float(np.mean(narrowed)),
        others=len(before),
    )


def coverage(scores: Sequence[GroupScore]) -> float:
    """The share of all the others that were in their ranges with evidence."""
    return float(np.average([s.inside for s in scores], weights=[s.others for s in scores]))


def fewer(scores: Sequence[GroupScore]) -> float:
    """The geometric mean over groups of the error with evidence over that without."""
    return float(np.exp(np.mean([math.log(s.after / s.before) for s in scores])))


def write_spread(path: Path, spread: Spread, source: str) -> None:
    """Write a spread; `source` says of which runs and constants it is."""
    lines = [
        "# How the runs of one publisher lie around what is predicted of them without it, in units",
        "# of their 80 % ranges; a few runs of one's own move predictions by it (--evidence).",
        f'source = "{source}"',
        f"between = {spread.between:.3f}",
        f"within = {spread.within:.3f}",
        f"runs = {spread.runs}",
        f"groups = {spread.groups}",
        "",
        "[carried]",
        *(f"{name} = {part:.3f}" for name, part in spread.carried.items()),
    ]
    write_text(path, "\n".join(lines) + "\n")
    read_spread.cache_clear()
