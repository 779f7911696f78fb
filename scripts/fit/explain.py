"""Where a fitted constant comes from: what it was drawn from, and which runs tell it how well."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fit.cases import Case
from fit.constants import kind_of
from fit.hierarchy import Hierarchy, Levels, Prior
from fit.solve import NOISE, Fit

WEAK = 1.0
"""Below this the runs say less about a constant than what it is drawn from."""
SINGLE = 0.9
"""Share of one group's information above which a constant rests on that group."""
FELT = 0.01
"""Log seconds by which a run feels a tenth of a constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A constant with what determined it.

    `expected` is what the levels above it say, `information` that of the runs over theirs,
    `by_group` its shares, `runs` how many runs of a group feel a tenth of the constant.
    """

    name: str
    value: float
    prior: Prior
    expected: float
    information: float
    by_group: Mapping[str, float]
    runs: Mapping[str, int]

    @property
    def single(self) -> str:
        """The group that the constant rests on, "" where it is more than one."""
        best = max(self.by_group, key=lambda g: self.by_group[g], default="")
        return best if self.information >= WEAK and self.by_group[best] > SINGLE else ""

    @property
    def basis(self) -> str:
        """What kind of number it is (`hardware.chip.BASES`)."""
        return "prior" if self.information < WEAK else "fitted"

    @property
    def source(self) -> str:
        """The citation for the catalogue."""
        prior = f"prior {self.prior.value:.3g} ({self.prior.source})"
        if self.information < WEAK:
            rest = "so it is as the others of its kind are"
            return f"no published run determines it well, {rest}; {prior}"
        shares = sorted(self.by_group.items(), key=lambda item: -item[1])
        named = ", ".join(f"{g} {self.runs.get(g, 0)}" for g, share in shares if share >= 0.05)
        return f"fitted on published runs ({named}; docs/lab/fit.md); {prior}"


def explain(
    fit: Fit, cases: Sequence[Case], hierarchy: Hierarchy, levels: Levels
) -> dict[str, Explained]:
    """Every constant explained, in the order of the fit.

    A group of n runs with an effect of its own tells a constant what its slopes leave beside that
    effect: per group, s'Ws - (s'W1)^2 / (1'W1 + 1 / sigma^2).
    """
    groups = [c.run.group for c in cases]
    return {name: _explained(name, fit, groups, hierarchy, levels) for name in fit.values}


def _explained(
    name: str, fit: Fit, groups: Sequence[str], hierarchy: Hierarchy, levels: Levels
) -> Explained:
    kind, value = kind_of(name), fit.values[name]
    slopes = fit.linear.slopes[:, fit.linear.names.index(name)]
    told, runs = _told(slopes, fit.weights / NOISE**2, groups, levels), Counter()
    for group, slope in zip(groups, slopes, strict=True):
        runs[group] += abs(slope) * (0.1 * value / kind.scale or 0.1) > FELT
    total = sum(told.values())
    prior = hierarchy.priors[name]
    close = prior.closeness(kind.scale)
    above = close * sum(fit.columns[column] for column in hierarchy.above(name))
    return Explained(
        name=name,
        value=value,
        prior=prior,
        expected=float(np.clip(prior.value + kind.scale * above, kind.least, kind.most)),
        information=total * (levels.own * close) ** 2,
        by_group={g: t / total for g, t in told.items() if total > 0 and t > 0},
        runs={g: n for g, n in runs.items() if n},
    )


def _told(
    slopes: np.ndarray, weights: np.ndarray, groups: Sequence[str], levels: Levels
) -> dict[str, float]:
    """What each group tells of a constant, beside its own effect."""
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(3))
    for group, s, w in zip(groups, slopes, weights, strict=True):
        sums[group] += (w * s * s, w * s, w)
    return {
        group: float(max(square - cross**2 / (weight + levels.group**-2), 0.0))
        for group, (square, cross, weight) in sums.items()
    }
