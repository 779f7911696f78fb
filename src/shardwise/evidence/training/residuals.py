"""How far predictions miss: the range of measured over predicted time, class by class.

Conformal: a range is wide enough for 80 % of runs that the constants had not seen. A class speaks
with `MIN_ROWS` rows or more; a `RangeRule` says which classes there are and how their rows count.
`scripts/fit_efficiency.py` chooses it by what covers the runs of other groups best and writes the
table to `roofline/data/train_residuals.toml`, where a prediction finds its 80 % range
(`roofline/residuals.py`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardwise.boundary import write_text
from shardwise.roofline.residuals import ALL, Residual, read_residuals

MIN_ROWS = 30
"""Rows below which a class says nothing of its own."""
INSIDE = 0.8
"""Share of the runs that a range is to hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualSample:
    """A run that the constants had not seen: its classes, its group, log(measured / predicted)."""

    classes: tuple[str, ...]
    group: str
    log_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeRule:
    """How ranges are made of samples.

    `widest` of the classes of a run are used, from `ALL` back; a class needs `least_groups`
    groups. With `even_groups` each group counts the same in its class, with `both_signs` a
    residual counts with either sign, which makes the range plus or minus one number.
    """

    widest: int = 4
    least_groups: int = 1
    even_groups: bool = True
    both_signs: bool = True


def residuals(samples: Iterable[ResidualSample], rule: RangeRule) -> dict[str, Residual]:
    """The range of every class that is large enough; always one of `ALL`."""
    by_class: dict[str, list[ResidualSample]] = defaultdict(list)
    for sample in samples:
        for name in sample.classes[-rule.widest :]:
            by_class[name].append(sample)
    return {
        name: _residual(some, rule)
        for name, some in by_class.items()
        if name == ALL or (len(some) >= MIN_ROWS and _groups(some) >= rule.least_groups)
    }


def _groups(samples: Sequence[ResidualSample]) -> int:
    return len({s.group for s in samples})


def _residual(samples: Sequence[ResidualSample], rule: RangeRule) -> Residual:
    logs = np.array([s.log_ratio for s in samples])
    _, group, sizes = np.unique([s.group for s in samples], return_inverse=True, return_counts=True)
    weights = 1 / sizes[group] if rule.even_groups else np.ones(len(logs))
    share = min(1.0, INSIDE * (1 + 1 / len(logs)))  # one more run is to lie inside
    if rule.both_signs:
        high = weighted_quantile(np.abs(logs), weights, share)
        low = -high
    else:
        low = -weighted_quantile(-logs, weights, (1 + share) / 2)
        high = weighted_quantile(logs, weights, (1 + share) / 2)
    return Residual(q10=min(low, 0.0), q90=max(high, 0.0), n=len(logs), groups=len(sizes))


def weighted_quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The least value up to which at least this share of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0]), 0.75)
    2.0
    """
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / np.sum(weights)
    place = int(np.searchsorted(reached, share - 1e-9))
    return float(values[order][min(place, len(values) - 1)])


def write_residuals(path: Path, table: Mapping[str, Residual], source: str) -> None:
    """Write a table; `source` says of which runs and constants it is."""
    lines = [
        "# Ranges of log(measured / predicted) seconds per training step, by class of runs, of",
        "# constants that had not seen them; a prediction takes its 80 % range here.",
        f'source = "{source}"',
    ]
    for name in sorted(table):
        r = table[name]
        lines += ["", f'[classes."{name}"]', f"q10 = {r.q10:.4f}", f"q90 = {r.q90:.4f}"]
        lines += [f"n = {r.n}", f"groups = {r.groups}"]
    write_text(path, "\n".join(lines) + "\n")
    read_residuals.cache_clear()
