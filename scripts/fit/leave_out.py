"""Leave one source out: fit on the others, predict it, and see whether the 80 % ranges hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fit.solve import Case, Fit, Prior, at, solve
from shardwise.evidence.training.residuals import MIN_ROWS, residuals
from shardwise.roofline.residuals import ALL, Residual, groups_of, residual_of

Samples = Sequence[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutSource:
    """A source predicted from the others: log(predicted / measured) of its runs, fitted and left
    out, whether others cover its chips and its software, and how many runs their ranges hold."""

    source: str
    fitted: np.ndarray
    left: np.ndarray
    other_chip: bool
    other_stack: bool
    inside: int


def leave_out(
    fit: Fit, cases: Sequence[Case], priors: Mapping[str, Prior], *, rounds: int = 4
) -> tuple[LeftOutSource, ...]:
    """Every source left out in turn; fits start from the full one with that source's constants at
    their priors where nobody else tells them."""
    found: dict[str, np.ndarray] = {}
    for source in _sources(cases):
        others = [c for c in cases if c.run.source != source]
        owners = {owner for c in others for owner in c.owners}
        touched = {owner for c in cases if c.run.source == source for owner in c.owners}
        start = {
            n: v if n.rpartition(".")[0] in owners else priors[n].value
            for n, v in fit.values.items()
        }
        near = [c for c in others if touched & set(c.owners)]
        part = {n: p for n, p in priors.items() if n.rpartition(".")[0] in _owners(near) | touched}
        again = solve(near, part, {n: start[n] for n in part}, rounds=rounds) if near else None
        values = {**start, **(again.values if again else {})}
        mine = [c for c in cases if c.run.source == source]
        found[source] = at(mine, values, priors).residuals
    return tuple(_answer(source, found, fit, cases) for source in found)


def _owners(cases: Sequence[Case]) -> set[str]:
    return {owner for case in cases for owner in case.owners}


def _answer(
    source: str, found: Mapping[str, np.ndarray], fit: Fit, cases: Sequence[Case]
) -> LeftOutSource:
    mine = [i for i, c in enumerate(cases) if c.run.source == source]
    others = [c for c in cases if c.run.source != source]
    table = table_of(cases, found, without=source)
    inside = 0
    for i, left in zip(mine, found[source], strict=True):
        r = residual_of(table, groups_of(cases[i].run.piece.chip, cases[i].run.stack))
        inside += r is not None and r.q10 <= -left <= r.q90
    chips = {c.owners[0] for c in others}
    return LeftOutSource(
        source=source,
        fitted=fit.residuals[mine],
        left=found[source],
        other_chip=all(cases[i].owners[0] in chips for i in mine),
        other_stack=cases[mine[0]].run.stack in {c.run.stack for c in others},
        inside=inside,
    )


def table_of(
    cases: Sequence[Case],
    left_out: Mapping[str, np.ndarray],
    *,
    without: str = "",
) -> dict[str, Residual]:
    """Quantiles of log(measured / predicted) of runs whose source was left out of the fit: a plan
    that nobody has run yet is such a run, so ranges of fitted residuals would be too narrow. What a
    left-out source misses by leans one way, but which way the next one leans is not known: every
    residual counts with both signs, which makes the range plus or minus the 80th percentile."""
    place = {source: iter(values) for source, values in left_out.items()}
    samples: list[tuple[tuple[str, ...], float]] = []
    for case in cases:
        outside = next(place[case.run.source])
        if case.run.source == without:
            continue
        groups = groups_of(case.run.piece.chip, case.run.stack)
        samples += [(groups, float(outside)), (groups, -float(outside))]
    return {
        group: replace(r, n=r.n // 2)
        for group, r in residuals(samples).items()
        if r.n >= 2 * MIN_ROWS or group == ALL
    }


def _sources(cases: Sequence[Case]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(c.run.source for c in cases))
