"""Predicted against measured: TPOT and TTFT of every published serving run.

`validate_serving` prices runs (`runs.read_serving`) with the constants of their engine's family and
returns one `ScoredServingRun` per run. error = predicted / measured - 1; throughput is concurrency
/ TPOT, so its error is that of TPOT the other way round. On the published runs this error is
in-sample; what runs of a model, a chip or a release cost that the fit had not seen is in
`data/left_out.json` (`read_left_out`), which scripts/fit_serving.py writes, and comes first.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from shardwise.boundary.records import Record
from shardwise.evidence.serving.runs import ServingRun, ServingTable
from shardwise.evidence.serving.times import RunFeatures, features, fitting
from shardwise.evidence.training.scores import Summary, share_inside, summary_of
from shardwise.roofline.engines import (
    IDEAL_ENGINE,
    EngineConstants,
    engine_names,
    first_token_class,
    first_token_range,
    load_engine,
)

OTHERS = "others"
"""The engine of families without constants of their own: the median of those that have some."""

FOLDS = ("model", "chip", "release")
"""What is left out of a fit, one value at a time."""

LEFT_OUT = Path(__file__).parent / "data" / "left_out.json"
"""Left-out predictions of the published runs."""

EngineOf = Callable[[ServingRun], EngineConstants]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutTimes:
    """Seconds of the published runs by the fits that had not seen their model, chip or release;
    `intervals` are shares of the predicted TPOT, `first_intervals` of the predicted TTFT, from the
    residuals of other folds alone."""

    ids: tuple[str, ...]
    tpot: Mapping[str, np.ndarray]
    ttft: Mapping[str, np.ndarray]
    intervals: Mapping[str, np.ndarray]
    first_intervals: Mapping[str, np.ndarray]


def read_left_out() -> LeftOutTimes:
    """What scripts/fit_serving.py wrote."""
    record = json.loads(LEFT_OUT.read_text(encoding="utf-8"))
    return LeftOutTimes(
        ids=tuple(record["ids"]),
        **{
            name: {fold: np.array(record[name][fold], float) for fold in FOLDS}
            for name in ("tpot", "ttft", "intervals", "first_intervals")
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesErrors(Record):
    """Errors of both times of some runs."""

    tpot: Summary
    """Of the time per output token."""
    ttft: Summary
    """Of the time to the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredServingRun:
    """One run priced; seconds. `interval` is the 80 % range of the TPOT that the engine's constants
    expect, `first_interval` that of the TTFT."""

    run: ServingRun
    engine: str
    tpot: float
    ttft: float
    interval: tuple[float, float] | None = None
    first_interval: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        return self.tpot / self.run.tpot - 1

    @property
    def ttft_error(self) -> float | None:
        return None if self.run.ttft is None else self.ttft / self.run.ttft - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingValidation:
    """What `validate_serving` found. `efficiency` says whether engines' constants priced;
    `left_out` are summaries of TPOT and TTFT by fold, where the runs are those published."""

    efficiency: Literal["fitted", "roofline"]
    rows: tuple[ScoredServingRun, ...]
    table: ServingTable
    left_out: Mapping[str, TimesErrors]

    @property
    def coverage(self) -> float | None:
        """Share of the runs whose measured TPOT lies in its 80 % range."""
        return share_inside((r.interval, r.run.tpot) for r in self.rows)

    @property
    def first_coverage(self) -> float | None:
        """Share of the runs that tell it whose measured TTFT lies in its 80 % range."""
        return share_inside(
            (r.first_interval, r.run.ttft) for r in self.rows if r.run.ttft is not None
        )

    def by(self, key: Callable[[ScoredServingRun], str]) -> dict[str, Summary]:
        """Summaries of TPOT by a property."""
        return {
            name: tpot_summary([r for r in self.rows if key(r) == name])
            for name in sorted(set(map(key, self.rows)))
        }


def family_engine(run: ServingRun) -> EngineConstants:
    """The engine of the run's family, or the median one."""
    return load_engine(run.family if run.family in engine_names() else OTHERS)


def validate_serving(
    table: ServingTable,
    *,
    efficiency: Literal["fitted", "roofline"] = "fitted",
    progress: Callable[[int, int], None] | None = None,
) -> ServingValidation:
    """Price every run of a table, by its engine's constants or by chip rates alone."""
    table = fitting(table)
    of = family_engine if efficiency == "fitted" else lambda run: IDEAL_ENGINE
    rows = scored(features(table.runs, progress), of, table.runs)
    left = left_out_summaries(table.runs) if efficiency == "fitted" else {}
    return ServingValidation(efficiency=efficiency, rows=rows, table=table, left_out=left)


def left_out_summaries(runs: Sequence[ServingRun]) -> dict[str, TimesErrors]:
    """TPOT and TTFT of published runs, each by the fit that had not seen its model (chip, release);
    nothing where some run is not among them."""
    found = read_left_out()
    place = {name: i for i, name in enumerate(found.ids)}
    if not runs or any(run.id not in place for run in runs):
        return {}
    index = [place[run.id] for run in runs]
    return {
        fold: times_summaries(runs, found.tpot[fold][index], found.ttft[fold][index])
        for fold in FOLDS
    }


def times_summaries(runs: Sequence[ServingRun], tpot: np.ndarray, ttft: np.ndarray) -> TimesErrors:
    """Of predicted TPOT and TTFT."""
    rows = [
        ScoredServingRun(run=run, engine="", tpot=float(a), ttft=float(b))
        for run, a, b in zip(runs, tpot, ttft, strict=True)
    ]
    return TimesErrors(tpot=tpot_summary(rows), ttft=ttft_summary(rows))


def scored(
    groups: Sequence[RunFeatures], engine_of: EngineOf, runs: Sequence[ServingRun]
) -> tuple[ScoredServingRun, ...]:
    """Counted runs priced with some engines, in the order of `runs`."""
    found: dict[str, ScoredServingRun] = {}
    for group in groups:
        engines = {run.family: engine_of(run) for run in group.runs}
        times = {family: group.times(engine) for family, engine in engines.items()}
        for i, run in enumerate(group.runs):
            engine, tpot = engines[run.family], float(times[run.family].tpot[i])  # type: ignore[index]
            ttft = float(times[run.family].ttft[i])  # type: ignore[index]
            found[run.id] = ScoredServingRun(
                run=run,
                engine=engine.name,
                tpot=tpot,
                ttft=ttft,
                interval=interval_of(engine, run.chip, tpot),
                first_interval=first_interval_of(engine, run, ttft),
            )
    return tuple(found[run.id] for run in runs)


def interval_of(engine: EngineConstants, chip: str, tpot: float) -> tuple[float, float] | None:
    """The 80 % range of a time per output token on a chip, where the engine's was measured; a wider
    one on a chip of which no run is known."""
    found = engine.range_on(chip)
    return found and (tpot * found[0], tpot * found[1])


def first_interval_of(
    engine: EngineConstants, run: ServingRun, ttft: float
) -> tuple[float, float] | None:
    """The 80 % range of a time to the first token, where the engine's was measured."""
    if engine.range is None:
        return None
    each = run.concurrency / run.workers
    kind = first_token_class(run.family, pools=run.prefill is not None, in_flight=each)
    low, high = first_token_range(kind)
    return ttft * low, ttft * high


def tpot_summary(rows: Sequence[ScoredServingRun]) -> Summary:
    """Errors of TPOT, and whether the order of the runs' throughput is predicted."""
    pairs = [(r.run.concurrency / r.tpot, r.run.concurrency / r.run.tpot) for r in rows]
    return summary_of([r.error for r in rows], pairs)


def ttft_summary(rows: Sequence[ScoredServingRun]) -> Summary:
    """Errors of TTFT, of the runs that state it, and whether its order is predicted."""
    known = [r for r in rows if r.ttft_error is not None]
    return summary_of(
        [r.ttft / r.run.ttft - 1 for r in known if r.run.ttft],
        [(r.ttft, r.run.ttft) for r in known if r.run.ttft],
    )


def worst(rows: Sequence[ScoredServingRun], number: int) -> list[ScoredServingRun]:
    """The runs with the largest errors of TPOT, as a ratio either way."""
    return sorted(rows, key=lambda r: -abs(np.log(r.tpot / r.run.tpot)))[:number]
