"""What changes between two priced plans, and what it does to the estimate."""

from dataclasses import dataclass, replace
from typing import Any

from shardwise.errors import BadRequest
from shardwise.plans import ServePlan
from shardwise.plans.files import flat_plan
from shardwise.workflows.plan_file import Priced, shortfall
from shardwise.workflows.predict_fleet import served_result
from shardwise.workflows.simulate import served_under


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiff:
    """Every pair is (first, second).

    changed: choices that differ, by dotted name; None where a plan does not name it.
    effect: the headline numbers, then lower and upper of each time.
    bound_by: what binds a "step"; for serving "prefill" and "decode".
    memory_by_kind: bytes per chip at the peak, kinds that either plan has.
    misses: why a plan does not fit its chips, empty where it does.
    """

    changed: dict[str, tuple[Any, Any]]
    effect: dict[str, tuple[float, float]]
    bound_by: dict[str, tuple[str, str]]
    memory_by_kind: dict[str, tuple[float, float]]
    misses: tuple[str, str]


def diff_plans(first: Priced, second: Priced) -> PlanDiff:
    """Two serving plans that were made for loads are held against each other under those, with the
    figures of their answers. Raises BadRequest where one plan trains and the other serves."""
    if type(first.plan) is not type(second.plan):
        raise BadRequest(
            "one file is a training plan and the other a serving plan; give two of a kind"
        )
    if all(isinstance(p.plan, ServePlan) and p.plan.workload is not None for p in (first, second)):
        first, second = _under_load(first), _under_load(second)
    left, right = flat_plan(first.plan), flat_plan(second.plan)
    kinds = [p.result["memory_by_kind"] for p in (first, second)]
    bounds = [_bounds(p.result["bound_by"]) for p in (first, second)]
    return PlanDiff(
        changed={
            name: (left.get(name), right.get(name))
            for name in dict.fromkeys([*left, *right])
            if left.get(name) != right.get(name)
        },
        effect=_effect(first, second),
        bound_by={phase: (bound, bounds[1][phase]) for phase, bound in bounds[0].items()},
        memory_by_kind={
            kind: (float(kinds[0].get(kind, 0.0)), float(kinds[1].get(kind, 0.0)))
            for kind in dict.fromkeys([*kinds[0], *kinds[1]])
        },
        misses=(shortfall(first), shortfall(second)),
    )


def _under_load(priced: Priced) -> Priced:
    """A serving plan with the figures of its load: what `plan serve` printed."""
    result = {**priced.result, **served_result(served_under(priced))}
    usd = {f"usd_per_million_tokens.{k}": v for k, v in result["usd_per_million_tokens"].items()}
    names = ("requests_per_second", "in_target", "chips", "usd_per_hour")
    times = {f"{name}_seconds.expected": result[f"{name}_seconds"]["expected"] for name in _TIMES}
    shown = {**{name: result[name] for name in names}, **usd, **times}
    headline = {name: float(value) for name, value in shown.items() if value is not None}
    return replace(priced, result=result, headline=headline)


_TIMES = ("ttft", "tpot", "e2e")


def _bounds(bound_by: str | dict[str, str]) -> dict[str, str]:
    return bound_by if isinstance(bound_by, dict) else {"step": bound_by}


def _effect(first: Priced, second: Priced) -> dict[str, tuple[float, float]]:
    """Headline numbers; a time stands with its two bounds."""
    effect: dict[str, tuple[float, float]] = {}
    for name, value in first.headline.items():
        if name not in second.headline:  # dollars of a chip without a price
            continue
        effect[name] = (value, second.headline[name])
        outer = name.removesuffix(".expected")
        if outer != name:
            for bound in ("lower", "upper"):
                effect[f"{outer}.{bound}"] = (
                    first.result[outer][bound],
                    second.result[outer][bound],
                )
    return effect
