#!/usr/bin/env python3
"""Fit the constants of serving engines on published measurements of TPOT and TTFT.

    python scripts/fit_serving.py [TABLE] [--date DAY] [--dry-run]

TABLE is one of serving runs (`evidence/serving/runs.py`); the one that the package ships unless
told. Chips keep the constants of the catalogue; every engine family gets its own, drawn from common
ones (`fit/serving.py`). Every model, every chip and every release (a family and the first two
numbers of its version) is left out of the fit in turn: those errors come first on the page. Unless
--dry-run, writes src/shardwise/roofline/data/engines.toml, docs/lab/fit_serving.md and
src/shardwise/evidence/serving/data/left_out.json. The same input gives the same output.
"""

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import made
import numpy as np
from fit.first_tokens import CLASS_HEADS, OTHER_CLASS, FirstTokens, class_lines, found_classes
from fit.serving import IDLE_CHIPS, PRIORS, EngineFit, begin, fit_engines, idle_runs, stacked

from shardwise.evidence.serving.runs import (
    PUBLISHED_SERVING,
    ServingRun,
    ServingTable,
    read_serving,
)
from shardwise.evidence.serving.times import RunFeatures, features
from shardwise.evidence.serving.validate import (
    FOLDS,
    LEFT_OUT,
    OTHERS,
    ScoredServingRun,
    scored,
    tpot_summary,
    ttft_summary,
    worst,
)
from shardwise.evidence.training.validate import Summary, share_inside
from shardwise.roofline.engines import (
    ARRIVAL_CONSTANTS,
    ENGINE_CONSTANTS,
    IDEAL_ENGINE,
    EngineConstants,
)

ROOT = Path(__file__).parents[1]
ENGINES = ROOT / "src" / "shardwise" / "roofline" / "data" / "engines.toml"
PAGE = ROOT / "docs" / "lab" / "fit_serving.md"
ERRORS = ENGINES.with_name("serving_errors.toml")
REASONS = PUBLISHED_SERVING.with_name("serving_left_out.json")
_FEW = 10
_FAR = 0.01
"""Tail on either side beyond the range of chips of which no run is known."""
_CLASS = 30
"""Rows that a class of ranges needs; with fewer the wider class is taken."""
_SHARE = 0.8
_TAILS = (0.1, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01)
"""Tails that a range may leave out on either side, the widest first."""
_WORST = 12

ABOUT = """# The fit of the serving constants

Made by `scripts/fit_serving.py` on {day} from {runs:,} published runs; do not edit by hand.

A run's steps are counted as Work and priced with the chip's constants (docs/lab/fit.md), of which
none is fitted here, and with the constants of the engine's family, which belong to no chip, model
or run. A constant is a common value times the family's own factor; the first is drawn from its
prior, the second from 1, so that few rows move it little and a family without rows has the common
value. They minimise Huber's loss of log(predicted / measured) of TPOT and, with a weight of 0.3, of
TTFT. `evidence/serving/loop.py` says what a closed loop of requests makes of the steps,
`evidence/serving/runs.py` what a row leaves open, `scripts/serving_rows.py` where the columns of
the table are from."""
HEADLINE = """Every run predicted by the fit that had not seen its model, its chip, or its release
(a family and the first two numbers of its version). In-sample is the same fit on all runs; chip
rates alone are no engine's constants at all. A range is of the measured over the predicted TPOT of
the other folds' runs of the same class (dense models, or mixtures; all with fewer than {few} runs),
as wide as ranges made without one of those folds must be to hold 80 % of its runs; {coverage}
of the runs lie in theirs.

TTFT is the weaker half. With few requests in flight some runs state seconds where their likes
state a tenth: until January 2026 the public benchmark started without a request before, so that
first programs are in its mean. Near the limit of the servers that prefill, a small error of their
rate is a large one. Its ranges are by class, from the residuals of the other models, each with the
same weight:"""
FOUND = """{runs:,} runs of {rows:,} configurations in the collected table. Not among them:"""
IDLE_SERVERS = """First tokens where one request is in flight (scripts/fit/idle.csv). The fit has
seen those of {chips}; all others are left out. Within: predictions at most 20 % off."""
UNDER = """Median |error| of TPOT and TTFT, their 90th percentile, and the median signed error of
TPOT (bias), each run by the fit without the value in the first column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutRuns:
    """All runs, each by the fit without its value of `what`; `ranges` are shares of the predicted
    TPOT, `engines` the constants of every such fit."""

    what: str
    rows: tuple[ScoredServingRun, ...]
    ranges: np.ndarray
    first: FirstTokens
    engines: tuple[Mapping[str, EngineConstants], ...]

    @property
    def coverage(self) -> float:
        """Share of the runs in their range."""
        inside = share_inside((r.interval, r.run.tpot) for r in self.rows)
        return float("nan") if inside is None else inside


def main() -> None:
    asked = arguments()
    table = read_serving(asked.table)
    groups, idle = features(table.runs), features(idle_runs())
    parts = stacked([*groups, *idle])
    whole = fit_engines(parts, begin(table.runs), seen_idle)
    rows = price_with(groups, whole.engines(), table.runs)
    left = [left_out(parts, groups, table.runs, what) for what in FOLDS]
    page = report(asked.date, table, rows, whole, left, groups, idle)
    print(page)
    if asked.dry_run:
        return
    ENGINES.write_text(engines_toml(whole, left, table.runs, asked.date), encoding="utf-8")
    PAGE.write_text(page, encoding="utf-8")
    LEFT_OUT.write_text(left_out_json(left), encoding="utf-8")
    ERRORS.write_text(errors_toml(left[0], asked.date), encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("table", type=Path, nargs="?", default=PUBLISHED_SERVING)
    parser.add_argument("--date", default=made.made(())["date"])
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def price_with(
    groups: Sequence[RunFeatures],
    engines: Mapping[str, EngineConstants],
    runs: Sequence[ServingRun],
) -> tuple[ScoredServingRun, ...]:
    return scored(groups, lambda run: engines[run.family], runs)


def seen_idle(run: ServingRun) -> bool:
    """Whether a fit sees a run: of idle servers those of some chips."""
    return np.isfinite(run.tpot) or run.chip in IDLE_CHIPS


def left_out(
    parts: Sequence[RunFeatures],
    groups: Sequence[RunFeatures],
    runs: Sequence[ServingRun],
    what: str,
) -> LeftOutRuns:
    """Every model, chip or release left out in turn, of fits that begin at the priors."""
    found: dict[str, ScoredServingRun] = {}
    engines = []
    for name in sorted({getattr(run, what) for run in runs}):

        def seen(run: ServingRun, name: str = name) -> bool:
            return getattr(run, what) != name and seen_idle(run)

        fold = fit_engines(parts, begin(runs), seen).engines()
        engines.append(fold)
        for row in price_with(groups, fold, runs):
            if getattr(row.run, what) == name:
                found[row.run.id] = row
    rows = [found[run.id] for run in runs]
    ranges = class_ranges(rows, what)
    held = [
        ScoredServingRun(
            run=row.run,
            engine=row.engine,
            tpot=row.tpot,
            ttft=row.ttft,
            interval=(row.tpot * float(low), row.tpot * float(high)),
        )
        for row, (low, high) in zip(rows, ranges, strict=True)
    ]
    told = [row for row in rows if row.run.ttft is not None]
    first = FirstTokens(
        runs=[row.run for row in told],
        ratios=np.array([(row.run.ttft or np.nan) / row.ttft for row in told]),
        folds=np.array([getattr(row.run, what) for row in told]),
    )
    return LeftOutRuns(
        what=what, rows=tuple(held), ranges=ranges, first=first, engines=tuple(engines)
    )


def class_ranges(rows: Sequence[ScoredServingRun], what: str) -> np.ndarray:
    """The range of each run from the other folds' residuals; see HEADLINE."""
    ratios = np.array([row.run.tpot / row.tpot for row in rows])
    folds = np.array([getattr(row.run, what) for row in rows])
    kinds = np.array(["mixture" if row.run.mixture else "dense" for row in rows])
    found = np.zeros((len(rows), 2))
    for fold, kind in sorted(set(zip(folds, kinds, strict=True))):
        used = (folds != fold) & (kinds == kind)
        if used.sum() < _CLASS:
            used = folds != fold
        found[(folds == fold) & (kinds == kind)] = fold_range(ratios[used], folds[used])
    return found


def fold_range(ratios: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """The range of a fold that is in none of these: at the tails at which ranges made without a
    fold hold 80 % of its runs, over all folds."""
    whole = np.quantile(ratios, (_TAILS[0], 1 - _TAILS[0]))
    if len(set(folds)) < 2:
        return whole
    for tail in _TAILS:
        inside = 0
        for fold in set(folds):
            low, high = np.quantile(ratios[folds != fold], (tail, 1 - tail))
            held = ratios[folds == fold]
            inside += int(((low <= held) & (held <= high)).sum())
        whole = np.quantile(ratios, (tail, 1 - tail))
        if inside >= _SHARE * len(ratios):
            return whole
    return whole


def report(
    day: str,
    table: ServingTable,
    rows: Sequence[ScoredServingRun],
    whole: EngineFit,
    left: Sequence[LeftOutRuns],
    groups: Sequence[RunFeatures],
    idle: Sequence[RunFeatures],
) -> str:
    """The page: left-out errors first, then in-sample ones, constants and what is behind them."""
    ideal = scored(groups, lambda run: IDEAL_ENGINE, table.runs)
    coverage = ", ".join(f"{x.coverage:.0%} ({x.what})" for x in left)
    reasons = json.loads(REASONS.read_text(encoding="utf-8")) if REASONS.exists() else {}
    shown = {f"{x.what} left out": x.rows for x in left}
    shown |= {"in-sample": tuple(rows), "chip rates alone": ideal}
    parts = [
        ABOUT.format(day=day, runs=len(table.runs)),
        "## Left out",
        HEADLINE.format(few=_CLASS, coverage=coverage),
        made.table(
            ["fit", "runs", "dense", "mixtures", "all", "90th percentile", "bias", "TTFT"],
            [[name, *_headline(mine)] for name, mine in shown.items()],
        ),
        made.table(CLASS_HEADS, class_lines(left[0].first)),
        UNDER,
        *(_by_fold(x) for x in left),
        "## In-sample",
        "The same with constants that have seen the run.",
        *(_by(what, rows) for what in ("model", "chip", "family", "release")),
        "## Idle servers",
        IDLE_SERVERS.format(chips=", ".join(IDLE_CHIPS)),
        _idle(whole, idle),
        "## The runs",
        FOUND.format(runs=len(table.runs), rows=len(table.runs) + sum(reasons.values())),
        made.table(["configurations", "why"], [[str(n), why] for why, n in _largest(reasons)]),
        made.table(
            ["family", "model", "weights", "chip", "runs"],
            [[*key, str(n)] for key, n in sorted(_behind(table.runs).items())],
        ),
        "## The constants",
        "Range: the least and the most over the fits that leave something out.",
        _constants(whole, left),
        "Priors, with the log sigmas of the common value and of a family's own: "
        + "; ".join(
            f"{n} {p.value:.3g}, {p.common:.2g} and {p.own:.2g}, {p.source}"
            for n, p in PRIORS.items()
        )
        + ".",
        "## The worst",
        made.table(
            ["run", "predicted ms", "measured ms"],
            [
                [r.run.id, f"{r.tpot * 1e3:.2f}", f"{r.run.tpot * 1e3:.2f}"]
                for r in worst(rows, _WORST)
            ],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _headline(rows: Sequence[ScoredServingRun]) -> list[str]:
    dense = tpot_summary([r for r in rows if not r.run.mixture])
    mixtures = tpot_summary([r for r in rows if r.run.mixture])
    both, first = tpot_summary(rows), ttft_summary(rows)
    medians = [_percent(s.median_abs_error) for s in (dense, mixtures, both)]
    spread = [_percent(both.p90_abs_error), _percent(both.median_error, sign="+")]
    return [str(both.n), *medians, *spread, _percent(first.median_abs_error)]


def _idle(whole: EngineFit, idle: Sequence[RunFeatures]) -> str:
    """Predicted against measured first tokens of idle servers, by engine and chip."""
    engines = whole.engines()
    errors: dict[tuple[str, str], list[float]] = {}
    for part in idle:
        for i, run in enumerate(part.runs):
            predicted = float(np.asarray(part.times(engines[run.family]).ttft)[i])
            errors.setdefault((run.family, run.chip), []).append(predicted / (run.ttft or 1) - 1)
    return made.table(
        ["engine", "chip", "figures", "median error", "bias", "within"],
        [
            [
                family,
                chip + ("" if chip in IDLE_CHIPS else " (left out)"),
                str(len(found)),
                _percent(statistics.median(map(abs, found))),
                _percent(statistics.median(found), sign="+"),
                str(sum(abs(e) <= 0.2 for e in found)),
            ]
            for (family, chip), found in sorted(errors.items())
        ],
    )


def _by_fold(left: LeftOutRuns) -> str:
    return _by(left.what, left.rows)


def _by(what: str, rows: Sequence[ScoredServingRun]) -> str:
    """TPOT and TTFT by a property of the run."""
    lines = []
    for name in sorted({getattr(r.run, what) for r in rows}):
        mine = [r for r in rows if getattr(r.run, what) == name]
        lines.append([name, *_line(tpot_summary(mine), ttft_summary(mine))])
    heads = ["n", "TPOT", "90th percentile", "bias", "rank", "TTFT", "90th percentile"]
    return made.table([what, *heads], lines)


def _line(tpot: Summary, ttft: Summary) -> list[str]:
    return [
        str(tpot.n),
        _percent(tpot.median_abs_error),
        _percent(tpot.p90_abs_error),
        _percent(tpot.median_error, sign="+"),
        "" if tpot.rank_correlation is None else f"{tpot.rank_correlation:.2f}",
        _percent(ttft.median_abs_error),
        _percent(ttft.p90_abs_error),
    ]


def _percent(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1%}"


def _largest(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])


def _behind(runs: Sequence[ServingRun]) -> Counter[tuple[str, ...]]:
    return Counter((r.family, r.model, r.weights, r.chip) for r in runs)


def value_of(engine: EngineConstants, name: str) -> float:
    """A constant of the step or of the arrival."""
    return float(getattr(engine if name in ENGINE_CONSTANTS else engine.arrival, name))


def _range(left: Sequence[LeftOutRuns], family: str, name: str) -> tuple[float, float]:
    values = [value_of(fold[family], name) for x in left for fold in x.engines]
    return min(values), max(values)


def _constants(whole: EngineFit, left: Sequence[LeftOutRuns]) -> str:
    said = {**ENGINE_CONSTANTS, **ARRIVAL_CONSTANTS}
    lines = [
        [
            family,
            name,
            f"{value_of(engine, name):.3g}",
            "{:.3g} to {:.3g}".format(*_range(left, family, name)),
            said[name],
        ]
        for family, engine in whole.engines().items()
        for name in said
    ]
    return made.table(["family", "constant", "value", "range", "what"], lines)


def engines_toml(
    whole: EngineFit, left: Sequence[LeftOutRuns], runs: Sequence[ServingRun], day: str
) -> str:
    """Two tables per family, and the median of those of today for all others."""
    lines = [
        (
            f"# Made by scripts/fit_serving.py on {day}; "
            "docs/lab/fit_serving.md says how they were found."
        )
    ]
    engines = whole.engines()
    mine = {f: [r for r in runs if r.family == f] for f in engines}
    for family, engine in engines.items():
        chips = Counter(r.chip for r in mine[family]).most_common()
        said = ", ".join(f"{chip} {n}" for chip, n in chips)
        few = "mostly its prior, as few runs tell it: " if len(mine[family]) < _FEW else ""

        def source(name: str, family: str = family, said: str = said, few: str = few) -> str:
            low, high = _range(left, family, name)
            return (
                f"{few}fitted on {len(mine[family])} published runs "
                f"({said}; docs/lab/fit_serving.md), "
                f"{low:.3g} to {high:.3g} with a model, a chip or a release left out"
            )

        lines += _tables(family, lambda n, e=engine: value_of(e, n), source, left)
    told = [e for f, e in engines.items() if f not in whole.known["eager"] and len(mine[f]) >= _FEW]
    names = ", ".join(e.name for e in told)
    lines += _tables(
        OTHERS,
        lambda n: statistics.median(value_of(e, n) for e in told),
        lambda n: f"assumed: median of {names} (docs/lab/fit_serving.md)",
        left,
    )
    return "\n".join(lines) + "\n"


def _tables(
    name: str,
    value: Callable[[str], float],
    source: Callable[[str], str],
    left: Sequence[LeftOutRuns],
) -> list[str]:
    lines = ["", f"[{name}]"]
    lines += [_entry(n, value(n), source(n)) for n in ENGINE_CONSTANTS]
    lines += _range_entry(left)
    lines += ["", f"[{name}.arrival]"]
    return lines + [_entry(n, value(n), source(n)) for n in ARRIVAL_CONSTANTS]


def _range_entry(left: Sequence[LeftOutRuns]) -> list[str]:
    """The range of a model that the fit had not seen, of all families: those of one are too few;
    on chips of which some runs are known. Elsewhere the fits without a chip tell, by their tails:
    none of them lacked all chips of a vendor."""
    rows = {x.what: x.rows for x in left}
    ratios = {what: np.array([r.run.tpot / r.tpot for r in mine]) for what, mine in rows.items()}
    low, high = fold_range(ratios["model"], np.array([r.run.model for r in rows["model"]]))
    least, most = np.quantile(ratios["chip"], (_FAR, 1 - _FAR))
    number = f"{len(rows['model'])} runs of all engines, each priced by the fit without its"
    known = Counter(r.run.chip for r in rows["chip"]).items()
    chips = json.dumps(sorted(chip for chip, n in known if n >= _FEW))
    near = json.dumps(f"{number} model (docs/lab/fit_serving.md)")
    far = json.dumps(f"98 % of {number} chip (docs/lab/fit_serving.md)")
    return [
        f"range = {{ low = {low:.3g}, high = {high:.3g}, chips = {chips}, source = {near} }}",
        f"elsewhere = {{ low = {least:.3g}, high = {most:.3g}, source = {far} }}",
    ]


def _entry(name: str, value: float, source: str) -> str:
    return f"{name} = {{ value = {float(f'{value:.3g}')!r}, source = {json.dumps(source)} }}"


def errors_toml(left: LeftOutRuns, day: str) -> str:
    """How far each class of models is missed by fits that had not seen the model, and the ranges of
    times to the first token."""
    rows = left.rows
    lines = [f"# Made by scripts/fit_serving.py on {day}; medians of |error|, model left out."]
    for name, mixture in (("dense", False), ("mixtures", True)):
        mine = [r for r in rows if r.run.mixture == mixture]
        tpot, ttft = tpot_summary(mine).median_abs_error, ttft_summary(mine).median_abs_error
        lines += ["", f"[{name}]", f"runs = {len(mine)}"]
        lines += [f"tpot = {tpot:.3g}", f"ttft = {ttft:.3g}"]
    for one in found_classes(left.first):
        lines += ["", f'[first_token."{one.name}"]', f"runs = {one.runs}"]
        lines += [f"inside = {one.inside:.3g}", f"low = {one.low:.3g}", f"high = {one.high:.3g}"]
    if OTHER_CLASS not in left.first.classes:
        low, high = left.first.whole(OTHER_CLASS)
        lines += ["", f'[first_token."{OTHER_CLASS.name}"]', "runs = 0"]
        lines += [f"low = {low:.3g}", f"high = {high:.3g}"]
    return "\n".join(lines) + "\n"


def left_out_json(left: Sequence[LeftOutRuns]) -> str:
    """Predicted seconds and ranges of every run by fold, for tests and `validate`."""

    def numbers(values: Sequence[float]) -> list[float]:
        return [float(f"{value:.5g}") for value in values]

    record = {
        "ids": [row.run.id for row in left[0].rows],
        "tpot": {x.what: numbers([r.tpot for r in x.rows]) for x in left},
        "ttft": {x.what: numbers([r.ttft for r in x.rows]) for x in left},
        "intervals": {x.what: [numbers(pair) for pair in x.ranges.tolist()] for x in left},
        "first_intervals": {
            x.what: [numbers(pair) for pair in x.first.left_out().tolist()] for x in left
        },
    }
    return json.dumps(record, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    main()
