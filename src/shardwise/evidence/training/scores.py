"""Errors of many predictions as a few numbers: medians, quantiles, ranks, shares.

error = predicted / measured - 1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of some runs. `rank_correlation` is Spearman's, of predicted and measured MFU; None
    below three runs or where all are equal. Zero runs have no medians."""

    n: int
    median_abs_error: float | None = None
    p90_abs_error: float | None = None
    rank_correlation: float | None = None
    median_error: float | None = None


def summary_of(errors: Sequence[float], pairs: Sequence[tuple[float, float]]) -> Summary:
    """Errors as a summary, with the rank correlation of (predicted, measured) pairs."""
    if not errors:
        return Summary(n=0)
    sizes = np.abs(errors)
    return Summary(
        n=len(errors),
        median_abs_error=float(np.median(sizes)),
        p90_abs_error=float(np.quantile(sizes, 0.9)),
        rank_correlation=spearman(*zip(*pairs, strict=True)),
        median_error=float(np.median(errors)),
    )


def spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Rank correlation, ties at their mean rank; None below three pairs or where all are equal.

    >>> spearman([1, 2, 3, 4], [10, 20, 40, 30])
    0.8
    """
    if len(left) < 3:
        return None
    a, b = _ranks(left), _ranks(right)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(round(np.corrcoef(a, b)[0, 1], 12))


def _ranks(values: Sequence[float]) -> np.ndarray:
    given = np.asarray(values, float)
    _, inverse, counts = np.unique(given, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[inverse]


def share_inside(ranges: Iterable[tuple[tuple[float, float] | None, float]]) -> float | None:
    """Share of the measured seconds that lie in their range, of those with a range."""
    inside = [range_[0] <= seconds <= range_[1] for range_, seconds in ranges if range_ is not None]
    return float(np.mean(inside)) if inside else None


def plain_summaries(summaries: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    """Summaries as plain values."""
    return {name: asdict(summary) for name, summary in summaries.items()}
