"""Predicted against measured: price the plan of every published run and compare step times.

`validate` prices runs (`runs.read_runs`) and returns a `Validation`: one `ScoredRun` per run,
summaries over all of them and by source, chip, binding term, grade and software, the gates, memory
and rank checks, and how often the 80 % ranges hold. error = predicted / measured - 1.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardwise.errors import ShardwiseError
from shardwise.evidence.training.residuals import residuals
from shardwise.evidence.training.runs import LeftOut, PublishedRun, read_runs
from shardwise.evidence.training.table import PUBLISHED
from shardwise.hardware import Slice, Torus
from shardwise.hardware.chip import EFFICIENCIES
from shardwise.models.counts import params_total
from shardwise.planner.training import TrainAnswer, evaluate_train
from shardwise.roofline.residuals import Residual, groups_of, read_residuals, residual_of
from shardwise.units import dtype_bytes

EfficiencyOf = Literal["fitted", "roofline"]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRun:
    """One run priced. Seconds per step; `mfu` of the prediction; bytes per chip.

    `log_ratio` is log(measured / predicted), `interval` the 80 % range of the measured seconds that
    the prediction expects, `held_out` the same from the residuals of other groups alone.
    """

    run: PublishedRun
    predicted: float
    bounds: tuple[float, float]
    mfu: float
    peak_bytes: float
    bound_by: str
    interval: tuple[float, float] | None = None
    held_out: tuple[float, float] | None = None

    @property
    def measured(self) -> float:
        return self.run.measured_seconds

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def log_ratio(self) -> float:
        return math.log(self.measured / self.predicted)

    @property
    def measured_mfu(self) -> float:
        return self.mfu * self.predicted / self.measured

    @property
    def groups(self) -> tuple[str, ...]:
        """Residual groups, most specific first."""
        return groups_of(self.run.piece.chip, self.run.stack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of some runs. `rank_correlation` is Spearman's, of predicted and measured MFU; None
    below three runs or where all are equal. Zero runs have no medians."""

    n: int
    median_abs_error: float | None = None
    p90_abs_error: float | None = None
    rank_correlation: float | None = None
    median_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What `validate` found. `efficiency` says whether fitted constants or chip rates priced."""

    efficiency: EfficiencyOf
    rows: tuple[ScoredRun, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def summary(self) -> Summary:
        return summarise(self.rows)

    def by(self, key: Callable[[ScoredRun], str]) -> dict[str, Summary]:
        """Summaries by a property of the runs, in order of first appearance."""
        names = dict.fromkeys(map(key, self.rows))
        return {name: summarise([r for r in self.rows if key(r) == name]) for name in names}

    def gates(self) -> dict[str, Summary]:
        """Summaries of the named subsets of `GATES`."""
        return {
            name: summarise([r for r in self.rows if among(r)]) for name, among in GATES.items()
        }

    def coverage(self, held_out: bool = False) -> float | None:
        """Share of runs whose measured time lies in the 80 % range."""
        return share_inside((r.held_out if held_out else r.interval, r.measured) for r in self.rows)

    def memory(self) -> Summary:
        """Predicted against measured peak memory, of the runs that publish it."""
        pairs = [(r.peak_bytes, r.run.peak_mem_bytes) for r in self.rows if r.run.peak_mem_bytes]
        return summary_of([a / b - 1 for a, b in pairs], pairs)

    def unfit(self) -> list[str]:
        """Ids of runs that ran, but would not fit usable memory by our count."""
        return [
            row.run.id
            for row in self.rows
            if row.peak_bytes > (row.run.piece.chip.hbm_usable_bytes or float("inf"))
        ]

    def residuals(self) -> dict[str, Residual]:
        """The residual table of these runs, for `residuals.write_residuals`."""
        return residuals((r.groups, r.log_ratio) for r in self.rows)


def validate(
    rows: Iterable[Mapping[str, str]],
    *,
    folder: Path = PUBLISHED.parent,
    efficiency: EfficiencyOf = "fitted",
    table: Mapping[str, Residual] | None = None,
    progress: Progress | None = None,
) -> Validation:
    """Price every row that a plan can express. `efficiency` "roofline" prices with chip rates
    alone: every share of peak is 1 and no constant of a software stack applies.

    `folder` is the table's. `table` holds the residuals behind the ranges; the packaged ones where
    it is None.
    """
    runs, left_out = read_runs(rows, folder)
    return score(runs, left_out, efficiency=efficiency, table=table, progress=progress)


def score(
    runs: Sequence[PublishedRun],
    left_out: Sequence[LeftOut] = (),
    *,
    efficiency: EfficiencyOf = "fitted",
    table: Mapping[str, Residual] | None = None,
    progress: Progress | None = None,
) -> Validation:
    """As `validate`, of runs already read."""
    scored: list[ScoredRun] = []
    failed: list[LeftOut] = []
    for done, run in enumerate(runs, 1):
        try:
            scored.append(_scored(run, efficiency))
        except ShardwiseError as error:
            failed.append(LeftOut(id=run.id, source=run.source, reason=str(error)))
        if progress is not None:
            progress(done, len(runs))
    fitted = read_residuals() if table is None else table
    return Validation(
        efficiency=efficiency,
        rows=tuple(_with_ranges(scored, fitted)),
        left_out=(*left_out, *failed),
    )


def priced(run: PublishedRun, efficiency: EfficiencyOf = "fitted") -> TrainAnswer:
    """The run's plan, priced. A plan with the constants "book" has no constants of its stack."""
    if efficiency == "fitted":
        return evaluate_train(run.plan, run.cfg, run.piece)
    return evaluate_train(replace(run.plan, constants="book"), run.cfg, _at_peak(run.piece))


def _at_peak(piece: Slice) -> Slice:
    """The slice with every efficiency at 1."""
    rates = replace(
        piece.chip.efficiency,
        **{name: 0.0 if name == "matmul_ramp" else 1.0 for name in EFFICIENCIES},
        source="none: chip rates alone",
        matmul_by_dtype={},
    )
    return replace(piece, chip=replace(piece.chip, efficiency=rates))


def _scored(run: PublishedRun, efficiency: EfficiencyOf) -> ScoredRun:
    answer = priced(run, efficiency)
    seconds = answer.step_seconds
    return ScoredRun(
        run=run,
        predicted=seconds["expected"],
        bounds=(seconds["lower"], seconds["upper"]),
        mfu=answer.mfu,
        peak_bytes=answer.peak_bytes_per_chip,
        bound_by=answer.estimate.bound_by(),
    )


def _with_ranges(rows: Sequence[ScoredRun], table: Mapping[str, Residual]) -> list[ScoredRun]:
    """The rows with their ranges, and those of tables that have not seen their group."""
    others = {
        group: residuals((r.groups, r.log_ratio) for r in rows if r.run.group != group)
        for group in dict.fromkeys(r.run.group for r in rows)
    }
    return [
        replace(
            row,
            interval=_interval(row, table),
            held_out=_interval(row, others[row.run.group]),
        )
        for row in rows
    ]


def _interval(row: ScoredRun, table: Mapping[str, Residual]) -> tuple[float, float] | None:
    found = residual_of(table, row.groups)
    return None if found is None else found.interval(row.predicted)


def share_inside(ranges: Iterable[tuple[tuple[float, float] | None, float]]) -> float | None:
    """Share of the measured seconds that lie in their range, of those with a range."""
    inside = [range_[0] <= seconds <= range_[1] for range_, seconds in ranges if range_ is not None]
    return float(np.mean(inside)) if inside else None


def summarise(rows: Sequence[ScoredRun]) -> Summary:
    """Errors of some runs, and whether the order of their MFU is predicted."""
    return summary_of([r.error for r in rows], [(r.mfu, r.measured_mfu) for r in rows])


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


def within_models(rows: Sequence[ScoredRun]) -> list[dict[str, Any]]:
    """Rank correlation of MFU among the runs of one model of one source, of those with at least
    `RANKED` runs: how well the plans of one model are ordered."""
    models = dict.fromkeys((r.run.source, r.run.model) for r in rows)
    found = []
    for source, model in models:
        some = [r for r in rows if (r.run.source, r.run.model) == (source, model)]
        if len(some) >= RANKED:
            ours = spearman([r.mfu for r in some], [r.measured_mfu for r in some])
            row = {"source": source, "model": model, "n": len(some), "rank_correlation": ours}
            found.append(row)
    return found


def against_size(rows: Sequence[ScoredRun], source: str) -> dict[str, float | int | None]:
    """Rank correlation over all runs of a source of tokens per second per chip: predicted, and of
    the guess 1 / parameters, which knows nothing of plan and chips."""
    some = [r for r in rows if r.run.source == source]
    measured = [_rate(r, r.measured) for r in some]
    guess = [1 / float(params_total(r.run.cfg)) for r in some]
    return {
        "n": len(some),
        "predicted": spearman([_rate(r, r.predicted) for r in some], measured),
        "one_over_parameters": spearman(guess, measured),
    }


RANKED = 8
"""Runs of one model below which the order of its plans says little."""


def _rate(row: ScoredRun, seconds: float) -> float:
    return row.run.plan.tokens / seconds / row.run.piece.chips


def _dense_16_bit(row: ScoredRun) -> bool:
    return not row.run.moe and not _narrow(row)


def _narrow(row: ScoredRun) -> bool:
    return dtype_bytes(row.run.plan.dtypes.compute) < 2


def _tpu(row: ScoredRun) -> bool:
    return isinstance(row.run.piece.chip.network, Torus)


GATES: Mapping[str, Callable[[ScoredRun], bool]] = {
    "all": lambda row: True,
    "grade A": lambda row: row.run.grade == "A",
    "grade B": lambda row: row.run.grade == "B",
    "dense, 16 bit": _dense_16_bit,
    "dense, fp8 or narrower": lambda row: not row.run.moe and _narrow(row),
    "mixture of experts": lambda row: row.run.moe,
    "TPU": _tpu,
    "GPU": lambda row: not _tpu(row),
    "pipelined": lambda row: row.run.plan.degree("stage") > 1,
}
"""Named subsets whose errors are watched."""


def validation_result(found: Validation) -> dict[str, Any]:
    """The document's `result`, under the names that the design fixes."""
    within = within_models(found.rows)
    ranked = dict.fromkeys(row["source"] for row in within)
    return {
        "efficiency": found.efficiency,
        "summary": {
            **asdict(found.summary),
            "by_group": plain_summaries(found.by(lambda r: r.run.group)),
            "by_source": plain_summaries(found.by(lambda r: r.run.source)),
            "by_chip": plain_summaries(found.by(lambda r: r.run.chip)),
            "by_bound": plain_summaries(found.by(lambda r: r.bound_by)),
            "by_grade": plain_summaries(found.by(lambda r: r.run.grade)),
            "by_stack": plain_summaries(found.by(lambda r: r.run.stack)),
            "gates": plain_summaries(found.gates()),
        },
        "memory": asdict(found.memory()),
        "would_not_fit": found.unfit(),
        "coverage": {
            "in_sample": found.coverage(),
            "held_out_by_group": found.coverage(held_out=True),
        },
        "within_model": within,
        "against_size": {s: against_size(found.rows, s) for s in ranked},
        "rows": [row_result(row) for row in found.rows],
        "left_out": [{"id": r.id, "source": r.source, "reason": r.reason} for r in found.left_out],
    }


def row_result(row: ScoredRun) -> dict[str, Any]:
    """One run of the document."""
    run = row.run
    return {
        "id": run.id,
        "source": run.source,
        "group": run.group,
        "chip": run.chip,
        "slice": str(run.piece),
        "stack": run.stack,
        "grade": run.grade,
        "moe": run.moe,
        "model": run.model,
        "mesh": dict(run.plan.mesh),
        "predicted": row.predicted,
        "measured": row.measured,
        "error": row.error,
        "interval": row.interval,
        "lower": row.bounds[0],
        "upper": row.bounds[1],
        "mfu": row.mfu,
        "measured_mfu": row.measured_mfu,
        "bound_by": row.bound_by,
        "peak_bytes_per_chip": row.peak_bytes,
        "measured_peak_bytes_per_chip": run.peak_mem_bytes,
        "inferred": list(run.inferred),
    }


def plain_summaries(summaries: Mapping[str, Summary]) -> dict[str, dict[str, Any]]:
    """Summaries as plain values."""
    return {name: asdict(summary) for name, summary in summaries.items()}
