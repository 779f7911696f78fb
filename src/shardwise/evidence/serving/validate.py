"""Predicted against measured: TPOT and TTFT of every published serving run.

`validate_serving` prices runs (`runs.read_serving`) with the constants of their engine's
family and returns one `ScoredServingRun` per run. error = predicted / measured - 1; throughput is
concurrency / TPOT, so its error is that of TPOT the other way round. The runs that gate are those
of the newest release of each family, per model and chip; older ones are reported beside them.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from shardwise.evidence.serving.runs import ServingRun, ServingTable, gating
from shardwise.evidence.serving.times import RunFeatures, features
from shardwise.evidence.training.scores import Summary, plain_summaries, share_inside, summary_of
from shardwise.roofline.engines import IDEAL_ENGINE, Engine, engine_names, load_engine

OTHERS = "others"
"""The engine of families without constants of their own: the median of those that have some."""

EngineOf = Callable[[ServingRun], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredServingRun:
    """One run priced; seconds. `gates` says whether it is of its family's newest release,
    `interval` is the 80 % range of the TPOT that the engine's constants expect."""

    run: ServingRun
    engine: str
    tpot: float
    ttft: float
    gates: bool
    interval: tuple[float, float] | None = None

    @property
    def error(self) -> float:
        return self.tpot / self.run.tpot - 1

    @property
    def ttft_error(self) -> float | None:
        return None if self.run.ttft is None else self.ttft / self.run.ttft - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingValidation:
    """What `validate_serving` found. `efficiency` says whether engines' constants priced."""

    efficiency: Literal["fitted", "roofline"]
    rows: tuple[ScoredServingRun, ...]
    table: ServingTable

    @property
    def gating(self) -> tuple[ScoredServingRun, ...]:
        return tuple(row for row in self.rows if row.gates)

    @property
    def coverage(self) -> float | None:
        """Share of the runs that gate whose measured TPOT lies in its 80 % range."""
        return share_inside((r.interval, r.run.tpot) for r in self.gating)

    def by(self, key: Callable[[ScoredServingRun], str], gates: bool = True) -> dict[str, Summary]:
        """Summaries of TPOT by a property, of the runs that gate or of all."""
        rows = self.gating if gates else self.rows
        return {
            name: tpot_summary([r for r in rows if key(r) == name])
            for name in sorted(set(map(key, rows)))
        }


def family_engine(run: ServingRun) -> Engine:
    """The engine of the run's family, or the median one."""
    return load_engine(run.family if run.family in engine_names() else OTHERS)


def validate_serving(
    table: ServingTable,
    *,
    efficiency: Literal["fitted", "roofline"] = "fitted",
    progress: Callable[[int, int], None] | None = None,
) -> ServingValidation:
    """Price every run of a table, by its engine's constants or by chip rates alone."""
    of = family_engine if efficiency == "fitted" else lambda run: IDEAL_ENGINE
    rows = scored(features(table.runs, progress), of, table.runs)
    return ServingValidation(efficiency=efficiency, rows=rows, table=table)


def scored(
    groups: Sequence[RunFeatures], engine_of: EngineOf, runs: Sequence[ServingRun]
) -> tuple[ScoredServingRun, ...]:
    """Counted runs priced with some engines, in the order of `runs`."""
    ids = {run.id for run in gating(runs)}
    found: dict[str, ScoredServingRun] = {}
    for group in groups:
        engines = {run.family: engine_of(run) for run in group.runs}
        times = {family: group.times(engine) for family, engine in engines.items()}
        for i, run in enumerate(group.runs):
            engine, tpot = engines[run.family], float(times[run.family].tpot[i])  # type: ignore[index]
            found[run.id] = ScoredServingRun(
                run=run,
                engine=engine.name,
                tpot=tpot,
                ttft=float(times[run.family].ttft[i]),  # type: ignore[index]
                gates=run.id in ids,
                interval=interval_of(engine, tpot),
            )
    return tuple(found[run.id] for run in runs)


def interval_of(engine: Engine, tpot: float) -> tuple[float, float] | None:
    """The 80 % range of a time per output token, where the engine's was measured."""
    if engine.range is None:
        return None
    return tpot * engine.range[0], tpot * engine.range[1]


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


def serving_result(found: ServingValidation) -> dict[str, Any]:
    """The document's `result`; `summary` is of the TPOT of the runs that gate."""
    return {
        "efficiency": found.efficiency,
        "summary": {
            **asdict(tpot_summary(found.gating)),
            "by_source": plain_summaries(found.by(lambda r: r.run.source)),
            "by_chip": plain_summaries(found.by(lambda r: r.run.chip)),
            "by_model": plain_summaries(found.by(lambda r: r.run.model)),
            "by_engine": plain_summaries(found.by(lambda r: r.run.family)),
        },
        "ttft": asdict(ttft_summary(found.gating)),
        "coverage": found.coverage,
        "all_releases": {
            **asdict(tpot_summary(found.rows)),
            "by_release": plain_summaries(found.by(lambda r: r.run.engine, gates=False)),
        },
        "rows": [_row(row) for row in found.rows],
        "filter": {
            "rows": found.table.rows,
            "runs": len(found.table.runs),
            "left_out": dict(found.table.left_out),
        },
    }


def _row(r: ScoredServingRun) -> dict[str, Any]:
    run = r.run
    return {
        "id": run.id,
        "source": run.source,
        "engine": run.engine,
        "constants": r.engine,
        "chip": run.chip,
        "model": run.model,
        "gates": r.gates,
        "predicted": r.tpot,
        "measured": run.tpot,
        "error": r.error,
        "interval": r.interval,
        "ttft_predicted": r.ttft,
        "ttft_measured": run.ttft,
        "tokens_per_second_predicted": run.concurrency / r.tpot,
        "tokens_per_second_measured": run.concurrency / run.tpot,
    }


def worst(rows: Sequence[ScoredServingRun], number: int) -> list[ScoredServingRun]:
    """The runs with the largest errors of TPOT, as a ratio either way."""
    return sorted(rows, key=lambda r: -abs(np.log(r.tpot / r.run.tpot)))[:number]
