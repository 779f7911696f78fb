"""Summaries of errors as tables, for the validations of training and of serving."""

from collections.abc import Mapping

from shardwise.apps.cli.output import table
from shardwise.evidence.training.validate import Summary


def summaries_table(title: str, summaries: Mapping[str, Summary], rank: str) -> None:
    """One line per summary; `rank` says what is ranked."""
    rows = [
        [
            name,
            str(s.n),
            share_text(s.median_abs_error),
            share_text(s.p90_abs_error),
            signed_text(s.median_error),
            rank_text(s.rank_correlation),
        ]
        for name, s in summaries.items()
    ]
    table([title, "runs", "median |error|", "90th %", "median error", rank], rows)


def share_text(value: float | None) -> str:
    """5.1%, or nothing."""
    return "" if value is None else f"{value:.1%}"


def signed_text(value: float | None) -> str:
    """+5.1%, or nothing."""
    return "" if value is None else f"{value:+.1%}"


def rank_text(value: float | None) -> str:
    """A rank correlation, or nothing."""
    return "" if value is None else f"{value:.2f}"
