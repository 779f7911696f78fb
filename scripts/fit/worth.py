"""What each constant and each term is worth: the left-out error without it, over that with it.

Without a constant, it stays at its prior; without a term, the constant behind it at the value at
which it changes nothing, or the plans say what they would without it (`terms.py`). All others are
then fitted again, without each group in turn. Errors are to first order around the fit of what is
left.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fit.cases import Case, case_of, laid_out
from fit.constants import family_of, kind_of
from fit.folds import left_out_logs, score
from fit.hierarchy import Hierarchy, Levels, bounds_of
from fit.solve import Fit, Linear, linear_at, solved, values_of
from fit.terms import TERMS, Term
from shardwise.evidence.training.runs import PublishedRun
from shardwise.planner.evaluate import evaluate_train

WHOLE = "all of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Left-out errors without something: the median, the 90th percentile, and the `score` by
    which sigmas are chosen; `touched` runs are priced otherwise where it is a term of plans.
    `judges` are the runs beside those of the fit that a term touches, and `judged` their median
    errors with it and without it, at the constants of the fit."""

    name: str
    median: float
    p90: float
    score: float
    touched: int | None = None
    judges: int | None = None
    judged: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What every comparison starts from."""

    fit: Fit
    cases: Sequence[Case]
    hierarchy: Hierarchy
    levels: Levels
    judges: Sequence[PublishedRun] = ()

    @property
    def whole(self) -> Worth:
        """With everything."""
        return worth_of(
            WHOLE,
            left_out_logs(self.fit.linear, self.hierarchy, self.levels),
            self.fit.linear,
        )


def worth_of(name: str, logs: np.ndarray, linear: Linear, touched: int | None = None) -> Worth:
    """The errors in a row."""
    errors = np.abs(np.expm1(logs))
    return Worth(
        name=name,
        median=float(np.median(errors)),
        p90=float(np.quantile(errors, 0.9)),
        score=score(logs, linear),
        touched=touched,
    )


def without_constant(start: Fitted, name: str) -> Worth:
    """One constant of one owner at its prior."""
    linear = start.fit.linear
    bounds = _bounds(linear, {name: start.hierarchy.priors[name].value})
    return worth_of(name, left_out_logs(linear, start.hierarchy, start.levels, bounds), linear)


def without_family(start: Fitted, values: Mapping[str, float], name: str) -> Worth:
    """The constants of `values` held there, all others fitted again: from where the fit's slopes
    say that leads to, priced anew."""
    linear = start.fit.linear
    penalty = start.hierarchy.penalty(start.levels)
    there = solved(linear, penalty, start.levels, _bounds(linear, values))
    again = linear_at(start.cases, {**values_of(linear, there.values), **values})
    logs = left_out_logs(again, start.hierarchy, start.levels, _bounds(again, values))
    return worth_of(name, logs, again)


def _bounds(linear: Linear, held: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Those of all constants, some of which are held."""
    low, high = bounds_of(linear.names)
    for name, value in held.items():
        at = linear.names.index(name)
        low[at] = high[at] = value / kind_of(name).scale
    return low, high


def without_term(start: Fitted, term: Term) -> Worth:
    """Plans that say what they would without a term of the step's model."""
    plans = [c.run.plan for c in start.cases]
    touched = [i for i, plan in enumerate(plans) if term.without(plan) != plan]
    runs = [replace(start.cases[i].run, plan=term.without(plans[i])) for i in touched]
    again = linear_at(laid_out([case_of(run) for run in runs], start.fit.values), start.fit.values)
    linear = start.fit.linear
    residuals, slopes = linear.residuals.copy(), linear.slopes.copy()
    residuals[touched], slopes[touched] = again.residuals, again.slopes
    linear = replace(linear, residuals=residuals, slopes=slopes)
    logs = left_out_logs(linear, start.hierarchy, start.levels)
    found = worth_of(term.name, logs, linear, len(touched))
    judges = [run for run in start.judges if term.without(run.plan) != run.plan]
    others = [replace(run, plan=term.without(run.plan)) for run in judges]
    both = _median_error(judges), _median_error(others)
    return replace(found, judges=len(judges), judged=both if judges else None)


def _median_error(runs: Sequence[PublishedRun]) -> float:
    """That of the expected seconds of some runs, 0 of none."""
    errors = [
        float(evaluate_train(run.plan, run.cfg, run.piece).estimate.expected) / run.measured_seconds
        - 1
        for run in runs
    ]
    return float(np.median(np.abs(errors))) if errors else 0.0


def families(hierarchy: Hierarchy) -> dict[str, list[str]]:
    """The constants of all owners, by what they are."""
    found: dict[str, list[str]] = {}
    for name in hierarchy.names:
        found.setdefault(family_of(name), []).append(name)
    return found


def comparisons(start: Fitted) -> dict[str, Callable[[], Worth]]:
    """By name what to look at: everything; each family at its priors; each at the value that
    changes nothing; each term of plans; each constant of one owner."""
    found: dict[str, Callable[[], Worth]] = {WHOLE: lambda: start.whole}
    for family, some in families(start.hierarchy).items():
        priors = {name: start.hierarchy.priors[name].value for name in some}
        values = {f"{family} at its prior": priors}
        idle = kind_of(some[0]).idle
        if idle is not None:
            values[f"{family} = {idle:g}"] = dict.fromkeys(some, idle)
        found |= {name: partial(without_family, start, held, name) for name, held in values.items()}
    found |= {term.name: partial(without_term, start, term) for term in TERMS}
    return found | {name: partial(without_constant, start, name) for name in start.fit.values}


ABOUT = """Left-out errors of the runs that were fitted on, to first order around the fit, with the
sigmas of all groups. A constant is held at its prior, or at the value at which it changes nothing;
a term of plans is switched off; the rest is fitted anew. The score is the mean log error up to
0.5, a group counting as the root of its runs; where it falls, what is left out is worth nothing.
The last two columns are of the other runs, which no constant is fitted on: how many a term
touches, and their median error with it and without it.
"""


def worth_table(rows: Sequence[Worth]) -> str:
    """The rows as a section: `WHOLE` is the first of them."""
    if not rows:
        return "Not run."
    whole = rows[0]
    lines = [
        ABOUT,
        "| without | median | 90th percentile | score | worse by | touched | others | errors |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for w in rows:
        touched = "" if w.touched is None else str(w.touched)
        judges = "" if w.judges is None else str(w.judges)
        judged = "" if w.judged is None else f"{w.judged[0]:.1%}, {w.judged[1]:.1%}"
        lines.append(
            f"| {'nothing' if w is whole else w.name} | {w.median:.1%} | {w.p90:.1%} | "
            f"{w.score:.4f} | {w.score - whole.score:+.4f} | {touched} | {judges} | {judged} |"
        )
    return "\n".join(lines)
