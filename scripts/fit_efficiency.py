#!/usr/bin/env python3
"""Fit the constants of chip generations and software stacks on published training runs.

    python scripts/fit_efficiency.py [TRAINING_CSV] [--date DAY] [--leave-one-source-out]
                                     [--dry-run] [--few-runs | --resolution]

TRAINING_CSV has one measured run a row (`evidence/training/runs.py` makes plans of them), by
default those that the package ships. Priors come from tables of kernel benchmarks and of what
compilers schedule (`scripts/fit/rates.py`).
Prints the errors and the constants. Unless --dry-run, writes a file per chip generation,
src/shardwise/hardware/data/generations/*.toml, and src/shardwise/roofline/data/stacks.toml, and
with --leave-one-source-out, which leaves every group of runs out in turn, also docs/lab/fit.md, the
residuals behind the 80 % ranges and the left-out prediction of every run, which is what
`shardwise validate` shows of them. The page's table of what each term and constant is worth is of
`scripts/fit_worth.py`. With the left-out predictions it also writes what they cannot tell of a plan
(src/shardwise/roofline/data/resolution.toml); --resolution writes that alone, in seconds, from the
left-out predictions that are there. --few-runs makes only what follows from these: the spread
behind `--evidence` and its section of docs/lab/fit.md. Constants are fitted on the rows that are
`fitted`. The same input gives the same output.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # on small matrices threads only wait

import numpy as np
from fit.baseline import baseline_logs, constant_mfu
from fit.cases import Case, case_of, laid_out, roofline_logs
from fit.explain import explain
from fit.few_runs import write_few_runs
from fit.folds import Fold, chosen_levels, folds, together
from fit.hierarchy import Hierarchy, Levels
from fit.outputs import (
    PAGE,
    told_worths,
    unseen_runs,
    write_constants,
    write_unseen,
    write_what_is_told,
)
from fit.priors import prior_values
from fit.ranges import (
    common_ranges,
    ranges_by,
    samples_of,
    share_inside,
    unlike_logs,
    unseen_values,
)
from fit.regressions import regressions
from fit.report import Results, report
from fit.residuals import Samples, write_residuals
from fit.solve import Linear, fit_all, linear_at
from fit.worth import Fitted

from shardwise.errors import ShardwiseError
from shardwise.evidence.training import unseen
from shardwise.evidence.training.runs import read_runs
from shardwise.evidence.training.table import PUBLISHED, read_table
from shardwise.roofline.residuals import DATA


def main() -> None:
    asked = arguments()
    if asked.few_runs:
        write_few_runs(asked.table, asked.date)
        return
    say = clock()
    if asked.resolution:
        runs, _ = read_runs(read_table(asked.table).rows, asked.table.parent)
        write_what_is_told(runs, asked.date)
        return
    cases = counted(asked.table)
    say(f"{len(cases)} runs counted")
    hierarchy = Hierarchy(prior_values())
    start = fitted([case for case in cases if case.run.fitted], hierarchy)
    say(f"fitted: {summary(start.fit.residuals)} in-sample, sigmas {start.levels}")
    found = explain(start.fit, start.cases, hierarchy, start.levels)
    if not asked.dry_run:
        write_constants(found, hierarchy, start.fit.columns, asked.date)
    if asked.leave_one_source_out:
        judges = [case for case in cases if not case.run.fitted]
        known = [*start.cases, *laid_out(judges, start.fit.values)]
        place = {case.run.id: i for i, case in enumerate(cases)}
        leave_out(start, sorted(known, key=lambda case: place[case.run.id]), found, asked, say)
        if not asked.dry_run:  # in a process of its own, which reads the constants just written
            again = [sys.executable, __file__, str(asked.table), "--few-runs", "--date", asked.date]
            subprocess.run(again, check=True)


def counted(path: Path) -> list[Case]:
    """The runs of a table that can be priced."""
    runs, left_out = read_runs(read_table(path).rows, path.parent)
    reasons, cases = {row.id: row.reason for row in left_out}, list[Case]()
    for run in runs:
        try:
            cases.append(case_of(run))
        except ShardwiseError as error:
            reasons[run.id] = str(error)
    for name, reason in reasons.items():
        print(f"not priced: {name}: {reason}")
    return cases


def fitted(cases: list[Case], hierarchy: Hierarchy) -> Fitted:
    """The fit of all runs, at the sigmas of the least left-out error."""
    fit, cases = fit_all(cases, hierarchy, Levels(), rounds=3)
    levels = chosen_levels(fit.linear, hierarchy)
    fit, cases = fit_all(cases, hierarchy, levels, fit.values)
    return Fitted(fit=fit, cases=cases, hierarchy=hierarchy, levels=levels)


def leave_out(
    start: Fitted, cases: list[Case], found: dict, asked: argparse.Namespace, say: Callable
) -> None:
    """Every group left out, what each constant is worth, and the page of it all."""
    hierarchy, levels = start.hierarchy, start.levels
    left_folds = folds(start.fit, start.cases, cases, hierarchy, levels, say)
    linear = linear_at(cases, start.fit.values)
    say("judges differentiated")
    write_left_out(start, cases, left_folds, linear, found, asked, say)


def write_left_out(
    start: Fitted,
    cases: list[Case],
    left_folds: Sequence[Fold],
    linear: Linear,
    found: dict,
    asked: argparse.Namespace,
    say: Callable,
) -> None:
    """Ranges from what the folds said, the page, and the data that predictions read."""
    left, baseline = together(left_folds), baseline_logs(cases)
    say(f"left out: {summary(left)}; a constant MFU: {summary(baseline)}")
    rest = (cases, linear, start.hierarchy, start.levels)
    samples = samples_of(cases, left, unlike_logs(*rest))
    table = Samples(samples).table(np.ones(len(samples), bool))
    ranges = ranges_by(samples)
    say(f"{share_inside(ranges):.1%} in their ranges")
    results = Results(
        date=asked.date,
        cases=cases,
        fitted=start.fit.residuals,
        left=left,
        baseline=baseline,
        roofline=roofline_logs(cases),
        mfu=constant_mfu(cases),
        levels=start.levels,
        folds=left_folds,
        found=found,
        table=table,
        ranges=ranges,
        common=common_ranges(samples),
        unseen=unseen_values(samples, unlike_logs(*rest, folds=False)),
        regressions=regressions(case.run for case in cases),
        worths=told_worths(start.fit.values, [c.run for c in start.cases]),
    )
    page = report(results)
    print(page)
    say("done")
    if not asked.dry_run:
        PAGE.write_text(page, encoding="utf-8")
        by = f"scripts/fit_efficiency.py on {asked.date}"
        of = f"{by}: {len(cases)} published runs, docs/lab/fit.md"
        write_residuals(DATA, table, of)
        rows = unseen_runs(cases, linear.residuals, left, baseline, ranges)
        write_unseen(unseen.DATA, rows)
        write_what_is_told([case.run for case in cases], asked.date)


def summary(logs: np.ndarray) -> str:
    """Median, 90th percentile and signed median of errors."""
    errors = np.expm1(logs)
    size = np.abs(errors)
    return f"{np.median(size):.1%} (90th {np.quantile(size, 0.9):.1%}, {np.median(errors):+.1%})"


def clock() -> Callable[[str], None]:
    """A printer of lines with the seconds since now."""
    start = time.monotonic()
    return lambda text: print(f"[{time.monotonic() - start:4.0f} s] {text}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("table", type=Path, nargs="?", default=PUBLISHED, metavar="TRAINING_CSV")
    parser.add_argument("--date", default=date.today().isoformat())
    parser.add_argument("--leave-one-source-out", action="store_true")
    parser.add_argument("--few-runs", action="store_true")
    parser.add_argument("--resolution", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
