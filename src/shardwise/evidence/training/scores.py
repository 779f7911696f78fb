"""Errors of many predictions as a few numbers: medians, quantiles, ranks, shares.

error = predicted / measured - 1.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.boundary.records import Record


@dataclass(frozen=True, kw_only=True)
class Summary(Record):
    """Errors of some runs, as shares of what was measured."""

    n: int
    """Runs."""
    median_abs_error: float | None = None
    """Median of their sizes; null of no runs."""
    p90_abs_error: float | None = None
    """The size that 9 of 10 do not exceed; null of no runs."""
    rank_correlation: float | None = None
    """Spearman's, of predicted and measured MFU (of servers, throughput); null below three runs or
    where all are equal."""
    median_error: float | None = None
    """Median with its sign; null of no runs."""


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
