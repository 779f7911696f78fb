"""`plan diff`: what changes between two plans, and what it does to the estimate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from shardwise.boundary import Command
from shardwise.boundary.options import option, place
from shardwise.boundary.records import Record, hidden, values
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.inputs import PLAN_CONSTANTS, ChipWords
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.plan_serve.loaded import served_under
from shardwise.commands.pricing.plans import GivenPlan, Priced, price_given, shortfall
from shardwise.errors import BadRequest
from shardwise.hardware import Chip
from shardwise.plans import ServePlan, TrainPlan, is_of, model_hash
from shardwise.plans.files import flat_plan
from shardwise.results.served import served_result
from shardwise.results.server import PricedServer
from shardwise.results.train import PricedPlan
from shardwise.units import format_bytes, format_gib, format_seconds, format_usd, sig


@dataclass(frozen=True, kw_only=True)
class PlanDiff(Record):
    """What two plans differ in. Every pair is that of the first plan, then of the second."""

    changed: Mapping[str, tuple[Any, Any]]
    """Choices that differ, by dotted name; null where a plan does not name it."""
    effect: Mapping[str, tuple[float, float]]
    """The headline numbers; a time with its lower and upper bound."""
    bound_by: Mapping[str, tuple[str, str]]
    """What bounds a "step"; for serving "prefill" and "decode"."""
    memory_by_kind: Mapping[str, tuple[float, float]]
    """Bytes per chip at the peak, of the kinds that either plan has."""

    misses: tuple[str, str] = hidden()
    """Why a plan does not fit its chips; "" where it does."""


def diff_plans(first: Priced, second: Priced) -> PlanDiff:
    """Two serving plans that were made for loads are held against each other under those, with the
    figures of their answers. Raises BadRequest where one plan trains and the other serves."""
    if type(first.plan) is not type(second.plan):
        raise BadRequest(
            "one file is a training plan and the other a serving plan; give two of a kind"
        )
    # A server under a load has a cache of the room that there is: as many sequences as fit run.
    misses = shortfall(first), shortfall(second)
    if all(isinstance(p.plan, ServePlan) and p.plan.workload is not None for p in (first, second)):
        first, second, misses = _under_load(first), _under_load(second), ("", "")
    left, right = flat_plan(_renewed(first)), flat_plan(_renewed(second))
    kinds = [p.result.memory_by_kind for p in (first, second)]
    bounds = [_bounds(p.result) for p in (first, second)]
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
        misses=misses,
    )


def _renewed(priced: Priced) -> TrainPlan | ServePlan:
    """The plan, the former hash of its model replaced by that of today."""
    plan, cfg = priced.plan, priced.answer.cfg
    same = is_of(plan.model_hash, cfg)
    return replace(plan, model_hash=model_hash(cfg)) if same else plan


def _under_load(priced: Priced) -> Priced:
    """A serving plan with the figures of its load: what `plan serve` printed."""
    result = served_result(served_under(priced))
    usd = result.usd_per_million_tokens
    dollars = {f"usd_per_million_tokens.{k}": v for k, v in values(usd).items()}
    names = ("requests_per_second", "in_target", "chips", "usd_per_hour")
    times = {f"{name}_seconds": getattr(result, f"{name}_seconds") for name in _TIMES}
    expected = {f"{name}.expected": found.expected for name, found in times.items()}
    shown = {**{name: getattr(result, name) for name in names}, **dollars, **expected}
    headline = {name: float(value) for name, value in shown.items() if value is not None}
    return replace(priced, headline=headline, times=times)


_TIMES = ("ttft", "tpot", "e2e")


def _bounds(result: PricedPlan | PricedServer) -> dict[str, str]:
    if isinstance(result, PricedPlan):
        return {"step": result.bound_by}
    return {"prefill": result.bound_by.prefill, "decode": result.bound_by.decode}


def _effect(first: Priced, second: Priced) -> dict[str, tuple[float, float]]:
    """Headline numbers; a time stands with its two bounds."""
    effect: dict[str, tuple[float, float]] = {}
    for name, value in first.headline.items():
        if name not in second.headline:  # dollars of a chip without a price
            continue
        effect[name] = (value, second.headline[name])
        time = name.removesuffix(".expected")
        if time in first.times and time in second.times:
            before, after = first.times[time], second.times[time]
            effect[f"{time}.lower"] = before.lower, after.lower
            effect[f"{time}.upper"] = before.upper, after.upper
    return effect


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDiffRequest(ChipWords, Command):
    """Choices that differ between two plans, and their effect on the prediction. Each plan is a
    file, "audit:NAME" or a plan. `sets` change both. Raises BadRequest if one trains and the
    other serves."""

    COMMAND: ClassVar[str] = "plan diff"

    first: GivenPlan = field(kw_only=False, metadata=place(kind="file"))
    second: GivenPlan = field(kw_only=False, metadata=place(kind="file"))
    constants: str | None = option(PLAN_CONSTANTS)

    def answer(self, progress: Progress | None = None) -> "PlansCompared":
        """Price both."""
        both = (self.first, self.second)
        names = [
            str(p) if isinstance(p, str | Path) else n
            for p, n in zip(both, ("first", "second"), strict=True)
        ]
        a, b = (price_given(plan, self) for plan in both)
        found = diff_plans(a, b)
        misses = zip(names, found.misses, strict=True)
        return PlansCompared.of(
            found,
            first=names[0],
            second=names[1],
            prices=list(dict.fromkeys(_price_text(x.answer.piece.chip) for x in (a, b))),
            warnings=[
                *dict.fromkeys([*a.warnings, *b.warnings]),
                *(f"{name}: {miss}" for name, miss in misses if miss),
            ],
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class PlansCompared(Answer, PlanDiff):
    """Two plans, compared."""

    first: str = hidden()
    second: str = hidden()
    prices: Sequence[str] = hidden()

    def table(self) -> list[Row]:
        """The choices that differ, then what they do."""
        pairs = {**self.changed, **self.effect}
        return [{"name": name, "first": x, "second": y} for name, (x, y) in pairs.items()]

    def page(self) -> Page:
        """Choices, estimates and memory, those that differ."""
        both = (self.first, self.second)
        rows = [[name, _said(old), _said(new)] for name, (old, new) in self.changed.items()]
        yield TextTable(["choice", *both], rows or [["(no choice differs)", "", ""]])
        yield ""
        rows = [[name, *_pair(name, x, y)] for name, (x, y) in self.effect.items()]
        rows += [[f"{phase} bound by", *pair, ""] for phase, pair in self.bound_by.items()]
        yield TextTable(["predicted", *both, "ratio"], rows)
        if any(name.startswith("usd") for name in self.effect):
            yield from (f"  dollars at {price}" for price in self.prices)
        moved = {kind: pair for kind, pair in self.memory_by_kind.items() if pair[0] != pair[1]}
        if moved:
            yield ""
            rows = [
                [kind, format_bytes(x), format_bytes(y), _ratio(x, y)]
                for kind, (x, y) in moved.items()
            ]
            yield TextTable(["HBM per chip at the peak", *both, "ratio"], rows)


def _said(value: object) -> str:
    """A value of a plan in words.

    >>> _said(None), _said(True), _said(8)
    ('not set', 'yes', '8')
    """
    words = {"None": "not set", "True": "yes", "False": "no"}
    return words.get(str(value), str(value))


def _price_text(chip: Chip) -> str:
    return f"{chip.price} for {chip.id}" if chip.price else f"no price for {chip.id}"


def _pair(name: str, x: float, y: float) -> list[str]:
    return [_shown(name, x), _shown(name, y), _ratio(x, y)]


def _ratio(x: float, y: float) -> str:
    return f"{y / x:.3f}" if x else "new"


def _shown(name: str, value: float) -> str:
    if "seconds" in name:
        return format_seconds(value)
    if name.startswith("usd"):
        return format_usd(value)
    return format_gib(value) if "bytes" in name else sig(value, 4)


plan_diff = verb("plan_diff", PlanDiffRequest)
