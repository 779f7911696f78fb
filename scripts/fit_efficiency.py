#!/usr/bin/env python3
"""Fit the constants of chip generations and software stacks on published training runs.

    python scripts/fit_efficiency.py TRAINING_CSV [--microbench CSV] [--kernels DIR] [--date DAY]
                                     [--leave-one-source-out] [--dry-run]

TRAINING_CSV has one measured run a row (`evidence/training/runs.py` makes plans of them). Priors
come from kernel benchmarks: `microbench.csv` and `kernels/gemm_best.csv.gz`, by default beside it.
Prints the errors and the constants. Unless --dry-run, writes a file per chip generation,
src/shardwise/hardware/data/generations/*.toml, and src/shardwise/roofline/data/stacks.toml, and
with --leave-one-source-out also docs/fit.md and the residual quantiles behind the 80 % ranges,
which need the left-out fits. The same input gives the same output.
"""

import argparse
from datetime import date
from pathlib import Path

import numpy as np
from fit.explain import explain
from fit.leave_out import leave_out, table_of
from fit.outputs import ROOT, write_constants
from fit.priors import prior_values
from fit.report import report
from fit.solve import case_of, fit_all, roofline_logs

from shardwise.evidence.training.residuals import write_residuals
from shardwise.evidence.training.runs import read_runs
from shardwise.evidence.training.table import read_table
from shardwise.roofline.residuals import DATA


def main() -> None:
    asked = arguments()
    runs, left_out = read_runs(read_table(asked.table).rows, asked.table.parent)
    for row in left_out:
        print(f"left out: {row.id}: {row.reason}")
    cases = [case_of(run) for run in runs]
    folder = asked.table.parent
    microbench = asked.microbench or folder / "microbench.csv"
    priors = prior_values(microbench, asked.kernels or folder / "kernels")
    fit, cases = fit_all(cases, priors)
    found = explain(fit, cases, priors)
    left = leave_out(fit, cases, priors) if asked.leave_one_source_out else ()
    outside = {s.source: s.left for s in left}
    table = table_of(cases, outside) if left else {}
    page = report(asked.date, cases, fit.residuals, roofline_logs(cases), found, left, table)
    print(page)
    print(f"loss {fit.loss:.2f}, median error {np.median(np.abs(np.expm1(fit.residuals))):.3f}")
    if asked.dry_run:
        return
    write_constants(found, asked.date)
    if left:
        (ROOT / "docs" / "fit.md").write_text(page, encoding="utf-8")
        text = (
            f"scripts/fit_efficiency.py on {asked.date}: {len(cases)} published runs, docs/fit.md"
        )
        write_residuals(DATA, table, text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("table", type=Path, metavar="TRAINING_CSV")
    parser.add_argument("--microbench", type=Path)
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--date", default=date.today().isoformat())
    parser.add_argument("--leave-one-source-out", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
