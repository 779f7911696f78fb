"""Predicted against measured: price the plan of every published run and compare step times.

`validate` prices runs (`runs.read_runs`) and returns a `Validation`: one `ScoredRun` per run,
summaries over all of them and by source, chip, binding term, grade and software, the gates, memory
and rank checks, and how often the 80 % ranges hold. error = predicted / measured - 1.

A published run is predicted by constants and ranges without its group (`unseen.py`); where it was
fitted on, what the constants say that have seen it stands second, as its in-sample prediction. Any
other run is unseen as it is.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from shardwise.boundary.records import Record
from shardwise.errors import ShardwiseError
from shardwise.evidence.training.runs import LeftOut, PublishedRun, read_runs
from shardwise.evidence.training.scores import (
    Summary,
    share_inside,
    spearman,
    summary_of,
)
from shardwise.evidence.training.table import PUBLISHED
from shardwise.evidence.training.unseen import UnseenPrediction, read_unseen
from shardwise.hardware import Slice, Torus
from shardwise.hardware.chip import EFFICIENCIES
from shardwise.models.counts import params_total
from shardwise.planner.evaluate import TrainAnswer, evaluate_train
from shardwise.planner.features import NOW, features_of
from shardwise.roofline.evidence import OwnRuns, Shift, read_spread
from shardwise.roofline.residuals import LogRange, RangeTable, read_residuals
from shardwise.units import dtype_bytes

EfficiencyOf = Literal["fitted", "roofline"]
CLASS_RUNS, CLASS_GROUPS = 30, 3
"""Runs and groups from which a class of runs says how often its ranges hold."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOrder(Record):
    """How well the plans of one model are ordered."""

    source: str
    """Where its runs were published."""
    model: str
    """The model."""
    n: int
    """Its runs."""
    rank_correlation: float | None
    """Spearman's, of predicted and measured MFU; null where all are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOrder(Record):
    """How well all plans of a source are ordered: rank correlations of tokens per second per chip,
    null below three runs or where all are equal."""

    n: int
    """Its runs."""
    predicted: float | None
    """Of what is predicted."""
    one_over_parameters: float | None
    """Of 1 / parameters, a guess that knows nothing of plan and chips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRun:
    """One run priced. Seconds per step; `mfu` of the prediction; bytes per chip.

    `features` say what kind of run it is (`planner/features.py`). `predicted` is by constants that
    have not seen the run's group; where those of today have,
    `in_sample` is what they say, and `constant_mfu` what one MFU per dtype of the other groups
    does. `interval` is the 80 % range of the measured seconds, from how runs of other groups that
    share its features were missed; `range_why` says what makes it wide. `shift` is what other runs
    of one's own did to both; where the run is `among` those, they are the others.
    """

    run: PublishedRun
    predicted: float
    bounds: tuple[float, float]
    mfu: float
    peak_bytes: float
    bound_by: str
    features: Mapping[str, str]
    in_sample: float | None = None
    constant_mfu: float | None = None
    interval: tuple[float, float] | None = None
    range_why: str = ""
    shift: Shift | None = None
    among: bool = False

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
    def reported_peak(self) -> float | None:
        """The predicted peak bytes as the run counts its own; None where it tells none."""
        return self.run.as_reported(self.peak_bytes) if self.run.peak_mem_bytes else None

    @property
    def peak_error(self) -> float | None:
        """The error of the predicted peak memory, as the run counts it; None without a peak."""
        measured = self.run.peak_mem_bytes
        return self.run.as_reported(self.peak_bytes) / measured - 1 if measured else None

    @property
    def measured_mfu(self) -> float:
        return self.mfu * self.predicted / self.measured

    @property
    def inside(self) -> bool | None:
        """Whether the measured time lies in the range; None without one."""
        return (
            None
            if self.interval is None
            else (self.interval[0] <= self.measured <= self.interval[1])
        )


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

    def in_sample(self) -> Summary:
        """Errors of the constants of today on the runs that they were fitted on."""
        return _against(self.rows, lambda r: r.in_sample)

    def constant_mfu(self) -> Summary:
        """Errors of one MFU per compute dtype on the same runs, left out likewise."""
        return _against(self.rows, lambda r: r.constant_mfu)

    def coverage(self) -> float | None:
        """Share of runs whose measured time lies in the 80 % range."""
        return share_inside((r.interval, r.measured) for r in self.rows)

    def coverage_by_class(self) -> dict[str, tuple[int, float]]:
        """The runs that share a feature's value, and the share inside; of values with `CLASS_RUNS`
        runs of `CLASS_GROUPS` groups or more."""
        classes: dict[str, list[ScoredRun]] = defaultdict(list)
        for row in self.rows:
            for name, value in row.features.items() if row.interval is not None else ():
                classes[f"{name}: {value}"].append(row)
        return {
            name: (len(some), float(np.mean([bool(row.inside) for row in some])))
            for name, some in sorted(classes.items())
            if len(some) >= CLASS_RUNS and len({row.run.group for row in some}) >= CLASS_GROUPS
        }

    def memory(self) -> Summary:
        """Predicted against measured peak memory, of the runs that publish it."""
        pairs = [
            (r.reported_peak, r.run.peak_mem_bytes)
            for r in self.rows
            if r.reported_peak and r.run.peak_mem_bytes
        ]
        return summary_of([a / b - 1 for a, b in pairs], pairs)

    def unfit(self) -> list[str]:
        """Ids of runs that ran, but would not fit usable memory by our count."""
        return [
            row.run.id
            for row in self.rows
            if row.peak_bytes > (row.run.piece.chip.hbm_usable_bytes or float("inf"))
        ]


def validate(
    rows: Iterable[Mapping[str, str]],
    *,
    folder: Path = PUBLISHED.parent,
    efficiency: EfficiencyOf = "fitted",
    table: RangeTable | None = None,
    unseen: Mapping[str, UnseenPrediction] | None = None,
    evidence: OwnRuns | None = None,
    lines: Iterable[int] = (),
    progress: Progress | None = None,
) -> Validation:
    """Price every row that a plan can express. `efficiency` "roofline" prices with chip rates
    alone: every share of peak is 1, no constant of a software stack applies, and there is no range.

    `folder` is the table's. `table` is what ranges are made of, `unseen` what the fit said of
    published runs; the packaged ones where they are None. `evidence` moves every prediction by runs
    of one's own, but for the run itself. `lines` are those of the rows in their file.
    """
    runs, left_out = read_runs(rows, folder, lines)
    return score(
        runs,
        left_out,
        efficiency=efficiency,
        table=table,
        unseen=unseen,
        evidence=evidence,
        progress=progress,
    )


def score(
    runs: Sequence[PublishedRun],
    left_out: Sequence[LeftOut] = (),
    *,
    efficiency: EfficiencyOf = "fitted",
    table: RangeTable | None = None,
    unseen: Mapping[str, UnseenPrediction] | None = None,
    evidence: OwnRuns | None = None,
    progress: Progress | None = None,
) -> Validation:
    """As `validate`, of runs already read."""
    scored: list[ScoredRun] = []
    failed: list[LeftOut] = []
    for done, run in enumerate(runs, 1):
        try:
            scored.append(_scored(run, efficiency))
        except ShardwiseError as error:
            reason = str(error)
            failed.append(LeftOut(id=run.id, source=run.source, reason=reason, line=run.line))
        if progress is not None:
            progress(done, len(runs))
    if efficiency == "fitted":
        ranges = read_residuals() if table is None else table
        known = read_unseen() if unseen is None else unseen
        scored = [_with_range(row, ranges, known.get(row.run.fingerprint)) for row in scored]
        scored = [_moved(row, evidence) for row in scored] if evidence else scored
    return Validation(efficiency=efficiency, rows=tuple(scored), left_out=(*left_out, *failed))


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
        clock=1.0,
        source="none: chip rates alone",
        matmul_by_dtype={},
    )
    return replace(piece, chip=replace(piece.chip, efficiency=rates))


def _scored(run: PublishedRun, efficiency: EfficiencyOf) -> ScoredRun:
    answer = priced(run, efficiency)
    seconds = answer.step_seconds
    return ScoredRun(
        run=run,
        predicted=seconds.expected,
        bounds=(seconds.lower, seconds.upper),
        mfu=answer.mfu,
        peak_bytes=answer.peak_bytes_per_chip,
        bound_by=answer.estimate.bound_by(),
        features=features_of(answer, run.release[:4] or NOW),
    )


def _with_range(row: ScoredRun, table: RangeTable, seen: UnseenPrediction | None) -> ScoredRun:
    """The row with its range; a published run as it was predicted without its group."""
    if seen is None:
        found = table.range_of(row.features)
        return replace(row, interval=found.interval(row.predicted), range_why="; ".join(found.why))
    off, priced_anew = seen.predicted / seen.fitted, row.predicted / seen.fitted
    return replace(
        row,
        predicted=row.predicted * off,
        bounds=(row.bounds[0] * off, row.bounds[1] * off),
        mfu=row.mfu / off,
        in_sample=row.predicted if row.run.fitted else None,
        constant_mfu=seen.constant_mfu,
        interval=(seen.low * priced_anew, seen.high * priced_anew),
        range_why=seen.why,
    )


def _moved(row: ScoredRun, evidence: OwnRuns) -> ScoredRun:
    """The row as runs of one's own move it, itself left out."""
    assert row.interval is not None
    low, high = (math.log(end / row.predicted) for end in row.interval)
    others = evidence.without(row.run.fingerprint)
    shift = others.of(row.features, LogRange(low=low, high=high), read_spread())
    predicted = row.predicted * shift.times
    return replace(
        row,
        predicted=predicted,
        bounds=(min(row.bounds[0], predicted), max(row.bounds[1], predicted)),
        mfu=row.mfu / shift.times,
        interval=shift.interval(predicted),
        shift=shift,
        among=evidence.has(row.run.fingerprint),
    )


def _against(rows: Sequence[ScoredRun], said: Callable[[ScoredRun], float | None]) -> Summary:
    """Errors of another prediction of the runs, of those that have one."""
    pairs = [(row, other) for row in rows if (other := said(row)) is not None]
    ranked = [(row.mfu * row.predicted / other, row.measured_mfu) for row, other in pairs]
    return summary_of([other / row.measured - 1 for row, other in pairs], ranked)


def summarise(rows: Sequence[ScoredRun]) -> Summary:
    """Errors of some runs, and whether the order of their MFU is predicted."""
    return summary_of([r.error for r in rows], [(r.mfu, r.measured_mfu) for r in rows])


def within_models(rows: Sequence[ScoredRun]) -> list[ModelOrder]:
    """Rank correlation of MFU among the runs of one model of one source, of those with at least
    `RANKED` runs: how well the plans of one model are ordered."""
    models = dict.fromkeys((r.run.source, r.run.model) for r in rows)
    found = []
    for source, model in models:
        some = [r for r in rows if (r.run.source, r.run.model) == (source, model)]
        if len(some) >= RANKED:
            ours = spearman([r.mfu for r in some], [r.measured_mfu for r in some])
            row = ModelOrder(source=source, model=model, n=len(some), rank_correlation=ours)
            found.append(row)
    return found


def against_size(rows: Sequence[ScoredRun], source: str) -> SizeOrder:
    """Rank correlation over all runs of a source of tokens per second per chip: predicted, and of
    the guess 1 / parameters, which knows nothing of plan and chips."""
    some = [r for r in rows if r.run.source == source]
    measured = [_rate(r, r.measured) for r in some]
    guess = [1 / float(params_total(r.run.cfg)) for r in some]
    return SizeOrder(
        n=len(some),
        predicted=spearman([_rate(r, r.predicted) for r in some], measured),
        one_over_parameters=spearman(guess, measured),
    )


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
