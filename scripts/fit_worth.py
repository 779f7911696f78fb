"""What each term and constant of the model of a step is worth: docs/lab/worth.json, and its table
in docs/lab/fit.md.

    python scripts/fit_worth.py [--seconds 120]

Starts from the constants that are committed. A row that stands in the JSON is not made again while
constants and runs are those that it is of; a call begins no row after `--seconds`, so that several
calls make the table.
"""

import argparse
import time
from pathlib import Path

from fit.cases import Case, case_of, laid_out
from fit.constants import names, parts_of
from fit.folds import chosen_levels
from fit.hierarchy import Hierarchy
from fit.outputs import PAGE, kept_worths, write_worths
from fit.priors import prior_values
from fit.solve import Fit, linear_at
from fit.worth import Fitted, comparisons, worth_table
from made import made, put

from shardwise.boundary import read_toml
from shardwise.evidence.training.runs import PublishedRun, read_runs
from shardwise.evidence.training.table import PUBLISHED, read_table
from shardwise.evidence.training.unseen import read_unseen
from shardwise.hardware.catalogue import GENERATIONS
from shardwise.roofline import load_stack, stack_names


def committed() -> dict[str, float]:
    """The constants as the files of the package have them."""
    return {name: _value(*parts_of(name)) for name in names()}


def _value(owner: str, constant: str) -> float:
    if owner in stack_names():
        return float(getattr(load_stack(owner), constant))
    return float(read_toml(GENERATIONS / f"{owner}.toml", "constants")[constant]["value"])


def start(runs: list[PublishedRun], values: dict[str, float]) -> Fitted:
    """The runs of the fit priced and differentiated at the constants, and the others beside."""
    cases: list[Case] = laid_out([case_of(run) for run in runs if run.fitted], values)
    linear, hierarchy = linear_at(cases, values), Hierarchy(prior_values())
    levels = chosen_levels(linear, hierarchy)
    fit = Fit(values=values, columns={}, linear=linear, weights=linear.shares)
    judges = [run for run in runs if not run.fitted and _is_priced(run)]
    return Fitted(fit=fit, cases=cases, hierarchy=hierarchy, levels=levels, judges=judges)


def _is_priced(run: PublishedRun) -> bool:
    return run.fingerprint in read_unseen()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    until = time.monotonic() + parser.parse_args().seconds
    runs, _ = read_runs(read_table(PUBLISHED).rows, Path(PUBLISHED).parent)
    values, of = committed(), [run for run in runs if run.fitted]
    rows = {row.name: row for row in kept_worths(values, of)}
    asked = comparisons(start(runs, values))
    for name, compare in asked.items():
        if name not in rows and time.monotonic() < until:
            rows[name] = compare()
            told = [rows[known] for known in asked if known in rows]
            write_worths(made(), values, of, told)
            print(f"{len(told)} of {len(asked)}: {rows[name]}", flush=True)
    put(PAGE, __file__, worth_table([rows[name] for name in asked if name in rows]))


if __name__ == "__main__":
    main()
