#!/usr/bin/env python3
"""Fit the constants of serving engines on published measurements of TPOT and TTFT.

    python scripts/fit_serving.py SERVING_CSV [--date DAY] [--dry-run]

SERVING_CSV has one metric of one configuration a row (`evidence/serving/runs.py` says which rows
are runs). Chips keep the constants of the catalogue; every engine family gets four of its own.
Prints the filter's counts, the errors, and those of every model and every chip when left out of the
fit. Unless --dry-run, writes src/shardwise/roofline/data/engines.toml, the table that the package
ships (evidence/serving/data/serving_runs.csv) and docs/fit_serving.md. The same input gives the
same output.
"""

import argparse
import csv
import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import made
import numpy as np
from fit.serving import NAMES, PRIORS, Keep, fit_families

from shardwise.evidence.serving.runs import (
    PUBLISHED_SERVING,
    ServingRun,
    ServingTable,
    gating,
    read_serving,
    wide_rows,
)
from shardwise.evidence.serving.times import RunFeatures, features
from shardwise.evidence.serving.validate import (
    OTHERS,
    ScoredServingRun,
    scored,
    tpot_summary,
    ttft_summary,
    worst,
)
from shardwise.evidence.training.scores import Summary
from shardwise.roofline.engines import ENGINE_CONSTANTS, IDEAL_ENGINE, Engine

ROOT = Path(__file__).parents[1]
ENGINES = ROOT / "src" / "shardwise" / "roofline" / "data" / "engines.toml"
PAGE = ROOT / "docs" / "fit_serving.md"
OLD = "vllm-2023"
"""A family of a year that no plan of today uses: not in the median of the others."""
_FEW = 10
ABOUT = """# The fit of the serving constants

Made by `scripts/fit_serving.py` on {day} from {runs} published runs; do not
edit by hand.

A run's steps are counted as Work and priced with the chip's constants (docs/fit.md), of
which none is fitted here, and four constants of the engine's family, which belong to no
chip, model or run. They minimise Huber's loss of log(predicted / measured) of TPOT, a
tenth counting as one sigma, and with a weight of 0.3 of TTFT, plus the squared sigmas by
which they leave their priors, on the runs that gate: those of the newest release of each
family, per model and chip. `evidence/serving/loop.py` says what a closed loop of requests
makes of the steps, `evidence/serving/runs.py` what a row leaves open."""
_WORST = 12
FILTER = """{rows:,} rows of the table, {runs:,} runs, {gates} of them gate.
Left out:"""
WELL = """TPOT of the runs that gate; throughput is concurrency / TPOT. Chip rates alone, without
the engines' constants: {alone} in the median."""
TTFT = """TTFT of the same runs, which the closed form predicts for an even stream of requests (a
benchmark starts with all of them at once, and its mean has that first wave in it):"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutFit:
    """The runs of one model or chip, priced by the fit of all others (`rows`); `engines` are that
    fit's."""

    what: str
    name: str
    fitted: Summary
    rows: tuple[ScoredServingRun, ...]
    engines: Mapping[str, Engine]

    @property
    def out(self) -> Summary:
        return tpot_summary(self.rows)


def main() -> None:
    asked = arguments()
    table = read_serving(asked.table)
    groups = features(table.runs)
    engines = fit_families(groups, table.runs)
    rows = price_with(groups, engines, table.runs)
    left = [*left_out(groups, table, rows, "model"), *left_out(groups, table, rows, "chip")]
    page = report(asked.date, table, rows, engines, left, groups)
    print(page)
    if asked.dry_run:
        return
    ENGINES.write_text(engines_toml(engines, left, table.runs, asked.date), encoding="utf-8")
    PAGE.write_text(page, encoding="utf-8")
    write_table(asked.table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("table", type=Path, metavar="SERVING_CSV")
    parser.add_argument("--date", default=date.today().isoformat())
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def price_with(
    groups: Sequence[RunFeatures], engines: Mapping[str, Engine], runs: Sequence[ServingRun]
) -> tuple[ScoredServingRun, ...]:
    return scored(groups, lambda run: engines[run.family], runs)


def left_out(
    groups: Sequence[RunFeatures],
    table: ServingTable,
    rows: Sequence[ScoredServingRun],
    what: str,
) -> list[LeftOutFit]:
    """Every model, or chip, of the gating runs left out of the fit in turn."""
    found = []
    for name in sorted({getattr(run, what) for run in gating(table.runs)}):
        keep: Keep = lambda run, name=name: getattr(run, what) != name  # noqa: E731
        engines = fit_families(groups, table.runs, keep)
        mine = [r for r in rows if r.gates and getattr(r.run, what) == name]
        ids = {r.run.id for r in mine}
        again = price_with(groups, engines, table.runs)
        found.append(
            LeftOutFit(
                what=what,
                name=name,
                fitted=tpot_summary(mine),
                rows=tuple(r for r in again if r.run.id in ids),
                engines=engines,
            )
        )
    return found


def report(
    day: str,
    table: ServingTable,
    rows: Sequence[ScoredServingRun],
    engines: Mapping[str, Engine],
    left: Sequence[LeftOutFit],
    groups: Sequence[RunFeatures],
) -> str:
    """The page: filter, errors, what is left out, constants with the rows behind them."""
    gates = [r for r in rows if r.gates]
    ideal = scored(groups, lambda run: IDEAL_ENGINE, table.runs)
    alone = tpot_summary([r for r in ideal if r.gates])
    behind = Counter(
        (r.run.family, r.run.version, r.run.model, r.run.weights, r.run.chip) for r in gates
    )
    parts = [
        ABOUT.format(day=day, runs=len(table.runs)),
        "## The filter",
        FILTER.format(rows=table.rows, runs=len(table.runs), gates=len(gates)),
        made.table(["rows", "why"], [[str(n), why] for why, n in _largest(table.left_out)]),
        "## How well it predicts",
        WELL.format(alone=_percent(alone.median_abs_error)),
        _summaries("runs", {"all": tpot_summary(gates)}),
        *(_summaries(what, _by(gates, what)) for what in ("family", "chip", "model")),
        TTFT,
        _summaries("runs", {"all": ttft_summary(gates), **_by(gates, "family", ttft_summary)}),
        "## One model, one chip left out",
        "Median error of TPOT of its runs, fitted on all, and fitted on the runs of others only.",
        made.table(
            ["left out", "n", "fitted", "left out", "90th percentile"],
            [
                [
                    f"{x.what} {x.name}",
                    str(x.out.n),
                    _percent(x.fitted.median_abs_error),
                    _percent(x.out.median_abs_error),
                    _percent(x.out.p90_abs_error),
                ]
                for x in left
            ],
        ),
        "## The constants",
        "Range: the least and the most over the fits that leave one model or one chip out.",
        made.table(
            ["family", "constant", "value", "range", "prior", "what"],
            [
                [
                    family,
                    name,
                    f"{getattr(engine, name):.3g}",
                    "{:.3g} to {:.3g}".format(*_range(left, family, name)),
                    f"{PRIORS[name].value:.3g}",
                    ENGINE_CONSTANTS[name],
                ]
                for family, engine in engines.items()
                for name in NAMES
            ],
        ),
        "Priors: "
        + "; ".join(f"{n} {p.value:.3g} +- {p.sigma:.3g}, {p.source}" for n, p in PRIORS.items())
        + ".",
        "The runs behind each family's constants:",
        made.table(
            ["family", "release", "model", "weights", "chip", "runs"],
            [[*key, str(n)] for key, n in sorted(behind.items())],
        ),
        "## Every release",
        "TPOT with the same constants; a release without a number is not stated.",
        _summaries("release", _by(rows, "engine")),
        "Where a family's newest release counts alone, whatever it ran and on what:",
        _summaries("release", _by(_newest_alone(rows), "engine")),
        "## The worst",
        made.table(
            ["run", "predicted ms", "measured ms"],
            [
                [r.run.id, f"{r.tpot * 1e3:.2f}", f"{r.run.tpot * 1e3:.2f}"]
                for r in worst(gates, _WORST)
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _newest_alone(rows: Sequence[ScoredServingRun]) -> list[ScoredServingRun]:
    """The runs of the newest numbered release of each family."""
    newest: dict[str, tuple[int, ...]] = {}
    for r in rows:
        newest[r.run.family] = max(newest.get(r.run.family, ()), r.run.release)
    return [r for r in rows if r.run.release and r.run.release == newest[r.run.family]]


def _by(rows: Sequence[ScoredServingRun], what: str, summary=tpot_summary) -> dict[str, Summary]:
    names = sorted({getattr(r.run, what) for r in rows})
    return {n: summary([r for r in rows if getattr(r.run, what) == n]) for n in names}


def _summaries(title: str, summaries: Mapping[str, Summary]) -> str:
    rows = [
        [
            name,
            str(s.n),
            _percent(s.median_abs_error),
            _percent(s.p90_abs_error),
            _percent(s.median_error, sign="+"),
            "" if s.rank_correlation is None else f"{s.rank_correlation:.2f}",
        ]
        for name, s in summaries.items()
    ]
    return made.table([title, "n", "median error", "90th percentile", "bias", "rank"], rows)


def _percent(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1%}"


def _largest(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])


def _range(left: Sequence[LeftOutFit], family: str, name: str) -> tuple[float, float]:
    values = [getattr(x.engines[family], name) for x in left]
    return min(values), max(values)


def engines_toml(
    engines: Mapping[str, Engine], left: Sequence[LeftOutFit], runs: Sequence[ServingRun], day: str
) -> str:
    """One table per family, and the median of those of today for all others."""
    lines = [
        f"# Made by scripts/fit_serving.py on {day}; docs/fit_serving.md says how they were found."
    ]
    mine = {f: [r for r in gating(runs) if r.family == f] for f in engines}
    for family, engine in engines.items():
        chips = Counter(r.chip for r in mine[family]).most_common()
        said = ", ".join(f"{chip} {n}" for chip, n in chips)
        lines += ["", f"[{family}]"]
        for name in NAMES:
            low, high = _range(left, family, name)
            source = (
                f"fitted on {len(mine[family])} published runs ({said}; docs/fit_serving.md), "
                f"{low:.3g} to {high:.3g} with a model or a chip left out; prior "
                f"{PRIORS[name].value:.3g} ({PRIORS[name].source})"
            )
            if len(mine[family]) < _FEW:
                source = f"mostly its prior, as few runs tell it: {source}"
            lines.append(_entry(name, getattr(engine, name), source))
        lines += _range_entry(left, {family})
    told = [e for f, e in engines.items() if f != OLD and len(mine[f]) >= _FEW]
    lines += ["", f"[{OTHERS}]"]
    for name in NAMES:
        source = f"assumed: median of {', '.join(e.name for e in told)} (docs/fit_serving.md)"
        lines.append(_entry(name, statistics.median(getattr(e, name) for e in told), source))
    lines += _range_entry(left, {e.name for e in told})
    return "\n".join(lines) + "\n"


def _range_entry(left: Sequence[LeftOutFit], families: set[str]) -> list[str]:
    """80 % of the measured over the predicted TPOT of runs whose model the fit had not seen."""
    rows = [r for x in left if x.what == "model" for r in x.rows if r.run.family in families]
    if len(rows) < _FEW:
        return []
    low, high = np.quantile([r.run.tpot / r.tpot for r in rows], (0.1, 0.9))
    source = f"{len(rows)} runs, each priced by the fit without its model (docs/fit_serving.md)"
    return [f"range = {{ low = {low:.3g}, high = {high:.3g}, source = {json.dumps(source)} }}"]


def _entry(name: str, value: float, source: str) -> str:
    return f"{name} = {{ value = {float(f'{value:.3g}')!r}, source = {json.dumps(source)} }}"


def write_table(path: Path) -> None:
    """The runs' rows as the package ships them; nothing where they are read from there."""
    if path.resolve() == PUBLISHED_SERVING.resolve():
        return
    with path.open(encoding="utf-8", newline="") as file:
        rows = wide_rows([{k: v or "" for k, v in r.items() if k} for r in csv.DictReader(file)])
    with PUBLISHED_SERVING.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
