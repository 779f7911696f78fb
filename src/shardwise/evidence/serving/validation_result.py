"""What is told of serving runs, predicted against measured: the fields of `validate --serving`.

Their names are the keys of its document, and stay the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardwise.boundary.records import Record
from shardwise.evidence.serving.validate import (
    ScoredServingRun,
    ServingValidation,
    TimesErrors,
    tpot_summary,
    ttft_summary,
)
from shardwise.evidence.training.scores import Summary


@dataclass(frozen=True, kw_only=True)
class ServingErrors(Summary):
    """Errors of the time per output token of all serving runs, by constants that saw them."""

    by_source: Mapping[str, Summary]
    """By where the runs were published."""
    by_chip: Mapping[str, Summary]
    """By chip."""
    by_model: Mapping[str, Summary]
    """By model."""
    by_engine: Mapping[str, Summary]
    """By the software that served."""
    by_release: Mapping[str, Summary]
    """By its release."""


@dataclass(frozen=True, kw_only=True)
class ValidatedServing(Record):
    """One serving run, predicted against measured."""

    id: str
    """Its name."""
    source: str
    """Where it was published."""
    engine: str
    """The software that served, and its release."""
    constants: str
    """The engine whose constants price it."""
    chip: str
    """Its chip."""
    model: str
    """Its model."""
    predicted: float
    """Predicted seconds per output token."""
    measured: float
    """Measured seconds per output token."""
    error: float
    """predicted / measured - 1."""
    interval: tuple[float, float] | None
    """The 80 % range of the seconds per output token; null where it was not measured."""
    ttft_predicted: float
    """Predicted seconds to the first token."""
    ttft_measured: float | None
    """Measured seconds to the first token; null where the run tells none."""
    ttft_interval: tuple[float, float] | None
    """The 80 % range of the seconds to the first token; null where it was not measured."""
    tokens_per_second_predicted: float
    """Predicted tokens per second of all sequences."""
    tokens_per_second_measured: float
    """Measured tokens per second of all sequences."""


@dataclass(frozen=True, kw_only=True)
class RowsKept(Record):
    """Which rows of the table are runs."""

    rows: int
    """Rows of the table."""
    runs: int
    """Rows that are priced."""
    left_out: Mapping[str, int]
    """Reasons and the rows that are left out for them."""
    first: Mapping[str, str]
    """Reasons and the first row that is left out for each."""


@dataclass(frozen=True, kw_only=True)
class ServingRuns(Record):
    """Serving runs, predicted against measured."""

    efficiency: Literal["fitted", "roofline"]
    """Whether engines' constants priced, or chip rates alone (roofline)."""
    left_out: Mapping[str, TimesErrors]
    """Errors of fits that had not seen a run's model, chip or release; {} of other runs than those
    published."""
    summary: ServingErrors
    """Errors of the time per output token."""
    ttft: Summary
    """Errors of the time to the first token of the runs that tell it."""
    coverage: float | None
    """Share of runs whose measured time per output token lies in its 80 % range; null without."""
    ttft_coverage: float | None
    """Share of runs whose measured time to the first token lies in its 80 % range; null without."""
    rows: Sequence[ValidatedServing]
    """Each run."""
    filter: RowsKept
    """Which rows of the table are runs."""


def serving_runs(found: ServingValidation) -> ServingRuns:
    """All that is told of some runs."""
    table = found.table
    return ServingRuns(
        efficiency=found.efficiency,
        left_out=found.left_out,
        summary=ServingErrors.of(
            tpot_summary(found.rows),
            by_source=found.by(lambda r: r.run.source),
            by_chip=found.by(lambda r: r.run.chip),
            by_model=found.by(lambda r: r.run.model),
            by_engine=found.by(lambda r: r.run.family),
            by_release=found.by(lambda r: r.run.release),
        ),
        ttft=ttft_summary(found.rows),
        coverage=found.coverage,
        ttft_coverage=found.first_coverage,
        rows=[_validated(row) for row in found.rows],
        filter=RowsKept(
            rows=table.rows, runs=len(table.runs), left_out=table.left_out, first=table.first
        ),
    )


def _validated(r: ScoredServingRun) -> ValidatedServing:
    run = r.run
    return ValidatedServing.part_of(
        run,
        constants=r.engine,
        predicted=r.tpot,
        measured=run.tpot,
        error=r.error,
        interval=r.interval,
        ttft_predicted=r.ttft,
        ttft_measured=run.ttft,
        ttft_interval=r.first_interval,
        tokens_per_second_predicted=run.concurrency / r.tpot,
        tokens_per_second_measured=run.concurrency / run.tpot,
    )
