"""The 80 % range of every left-out run, from the residuals of other groups, and the rule for it.

Of `RULES`, those count whose ranges keep the bounds of coverage best (`BOUNDS`, over all runs and
in every class). Of these the most specific classes are taken whose interval score is within `NEAR`
of the best: width, plus what a miss lies outside times 2 / (1 - `INSIDE`), each group weighing in
by the root of its size, as in the choice of the hierarchy.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from fit.cases import Case
from shardwise.evidence.training.residuals import INSIDE, RangeRule, ResidualSample, residuals
from shardwise.roofline.residuals import Residual, class_of, classes_of

BOUNDS = ((0.75, 0.85), (0.65, 0.95))
"""Share of the runs inside: of all, and of any class."""
NEAR = 1.05
"""By what a rule of more specific classes may score worse than the best."""
RULES = tuple(
    RangeRule(widest=widest, least_groups=groups, even_groups=even, both_signs=both)
    for widest, groups, even, both in product((4, 3, 2, 1), (1, 2, 3), (True, False), (True, False))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The range of a run that its group had no part in, in log(measured / predicted)."""

    name: str
    residual: Residual
    log_ratio: float

    @property
    def inside(self) -> bool:
        """Whether the run was in it."""
        return self.residual.q10 <= self.log_ratio <= self.residual.q90

    @property
    def score(self) -> float:
        """The interval score in log: less is better."""
        low, high = self.residual.q10, self.residual.q90
        outside = max(low - self.log_ratio, self.log_ratio - high, 0.0)
        return high - low + 2 / (1 - INSIDE) * outside


def samples_of(cases: Sequence[Case], logs: np.ndarray) -> list[ResidualSample]:
    """The runs with log(measured / predicted), from the left-out log(predicted / measured)."""
    return [
        ResidualSample(
            classes=classes_of(case.run.piece.chip, case.run.stack),
            group=case.run.group,
            log_ratio=-float(log),
        )
        for case, log in zip(cases, logs, strict=True)
    ]


def ranges_by(rule: RangeRule, samples: Sequence[ResidualSample]) -> list[Range]:
    """Every run's range from the groups other than its own."""
    tables = {
        group: residuals([s for s in samples if s.group != group], rule)
        for group in dict.fromkeys(s.group for s in samples)
    }
    return [_range(s, tables[s.group]) for s in samples]


def _range(sample: ResidualSample, table: Mapping[str, Residual]) -> Range:
    name = class_of(table, sample.classes)
    assert name is not None
    return Range(name=name, residual=table[name], log_ratio=sample.log_ratio)


def chosen_rule(samples: Sequence[ResidualSample]) -> RangeRule:
    """The rule that keeps the bounds best, is specific, and scores well."""
    sizes = Counter(s.group for s in samples)
    weights = np.array([sizes[s.group] ** -0.5 for s in samples])
    found = {rule: ranges_by(rule, samples) for rule in RULES}
    beyond = {rule: round(beyond_bounds(ranges), 9) for rule, ranges in found.items()}
    scores = {
        rule: float(np.average([r.score for r in found[rule]], weights=weights))
        for rule in RULES
        if beyond[rule] == min(beyond.values())
    }
    near = [rule for rule in scores if scores[rule] <= NEAR * min(scores.values())]
    return max(near, key=lambda rule: (rule.widest, -rule.least_groups, -scores[rule]))


def beyond_bounds(found: Sequence[Range]) -> float:
    """Share of the runs by which the coverage misses its bounds, over all and class by class."""
    total = _beyond(_share(found), BOUNDS[0]) * len(found)
    for some in by_class(found).values():
        total += _beyond(_share(some), BOUNDS[1]) * len(some)
    return total / len(found)


def by_class(found: Sequence[Range]) -> dict[str, list[Range]]:
    """The ranges of each class."""
    names = sorted({r.name for r in found})
    return {name: [r for r in found if r.name == name] for name in names}


def _share(found: Sequence[Range]) -> float:
    return float(np.mean([r.inside for r in found]))


def _beyond(share: float, bounds: tuple[float, float]) -> float:
    return max(bounds[0] - share, share - bounds[1], 0.0)
