"""Where each fitted constant comes from: its prior, the runs that determine it, how firmly."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fit.constants import kind_of
from fit.solve import NOISE, ROBUST, Case, Fit, Prior, loss_of

WEAK = 1.0
"""Below this the runs say less about a constant than its prior."""
SINGLE = 0.9
"""Share of one source's information above which a constant rests on that source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A constant with what determined it.

    `information` is that of the runs over the prior's, `by_source` its shares, `runs` how many runs
    feel the constant at least a hundredth per tenth of it, `rises` by how much the loss rises when
    the constant alone moves a tenth down or up (of its scale where it is zero).
    """

    name: str
    value: float
    prior: Prior
    information: float
    by_source: Mapping[str, float]
    runs: Mapping[str, int]
    top: tuple[str, ...]
    rises: tuple[float, float]

    @property
    def single(self) -> str:
        """The source that the constant rests on, "" where it is more than one."""
        best = max(self.by_source, key=lambda s: self.by_source[s], default="")
        return best if self.information >= WEAK and self.by_source[best] > SINGLE else ""

    @property
    def source(self) -> str:
        """The citation for the catalogue."""
        prior = f"prior {self.prior.value:.3g} ({self.prior.source})"
        if self.information < WEAK:
            return f"mostly its prior, as no run tells it well: {prior}"
        shares = sorted(self.by_source.items(), key=lambda item: -item[1])
        named = ", ".join(f"{s} {self.runs.get(s, 0)}" for s, share in shares if share >= 0.05)
        return f"fitted on published runs ({named}; docs/fit.md); {prior}"


def explain(fit: Fit, cases: Sequence[Case], priors: Mapping[str, Prior]) -> dict[str, Explained]:
    """Every constant explained, in the order of the fit."""
    weight = np.minimum(1.0, ROBUST / np.maximum(np.abs(fit.residuals), 1e-12)) / NOISE**2
    return {name: _explained(name, fit, cases, priors, weight) for name in fit.values}


def _explained(
    name: str, fit: Fit, cases: Sequence[Case], priors: Mapping[str, Prior], weight: np.ndarray
) -> Explained:
    slopes = np.array([s.get(name, 0.0) for s in fit.slopes])
    told = weight * slopes**2
    by_source: dict[str, float] = defaultdict(float)
    runs: Counter[str] = Counter()
    scale = kind_of(name).scale
    tenth = 0.1 * fit.values[name] / scale or 0.1
    for case, part, slope in zip(cases, told, slopes, strict=True):
        by_source[case.run.source] += float(part)
        runs[case.run.source] += abs(slope) * tenth > 0.01
    total = float(told.sum())
    order = np.argsort(-told)[:3]
    return Explained(
        name=name,
        value=fit.values[name],
        prior=priors[name],
        information=total / (scale / priors[name].sigma) ** 2,
        by_source={s: v / total for s, v in by_source.items() if total > 0 and v > 0},
        runs={s: n for s, n in runs.items() if n},
        top=tuple(cases[i].run.id for i in order if told[i] > 0),
        rises=(_rise(name, fit, slopes, priors, -1), _rise(name, fit, slopes, priors, 1)),
    )


def _rise(name: str, fit: Fit, slopes: np.ndarray, priors: Mapping[str, Prior], sign: int) -> float:
    """Rise of the loss when the constant moves by a tenth, the others as they are; to first order
    in every run's residual."""
    kind = kind_of(name)
    step = 0.1 * fit.values[name] or 0.1 * kind.scale
    moved = float(np.clip(fit.values[name] + sign * step, kind.least, kind.most))
    residuals = fit.residuals + slopes * (moved - fit.values[name]) / kind.scale
    return loss_of(residuals, {**fit.values, name: moved}, priors) - fit.loss
