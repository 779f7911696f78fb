"""Plans near a given one: the same job, chips and dtypes, a few choices otherwise.

Each is what a person would try by hand, and what the plan's program runs. `near_table.py` combines
the choices that arrays price; `near_plans` changes one of the others, alone and beside the best
combinations.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from shardwise.errors import BadRequest
from shardwise.models import ModelConfig
from shardwise.planner.evaluate import TrainAnswer, evaluate_train
from shardwise.planner.near_table import WORTH, near_in_tables
from shardwise.plans import TrainPlan
from shardwise.plans.optimizers import optimizer_row
from shardwise.plans.software import SoftwareRow, candidates_of_plan, matters
from shardwise.plans.stacks import stack_row
from shardwise.plans.train import CHOICES

Changed = Iterator[Mapping[str, Any]]
"""Fields of a plan with other values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearPlan:
    """A priced plan that differs from the given one in its `choices`."""

    choices: tuple[str, ...]
    answer: TrainAnswer


def priced_near(answer: TrainAnswer, most_bytes: float, row: SoftwareRow | None) -> list[NearPlan]:
    """The plans near a priced one that a program runs (`row`, None for all): combinations of what
    arrays price, each other choice alone, and those beside the best of the combinations, which need
    at most `most_bytes`, or where none does are the leanest."""
    given = NearPlan(choices=(), answer=answer)
    known = [answer.plan]
    combined = list(_priced(given, near_in_tables(answer, most_bytes, row), answer, known, row))
    found = [*combined, *_priced(given, near_plans(answer.plan, answer.cfg), answer, known, row)]
    for near in _bases(combined, most_bytes):
        found += _priced(near, near_plans(near.answer.plan, answer.cfg), answer, known, row)
    return found


def _bases(combined: list[NearPlan], most_bytes: float) -> list[NearPlan]:
    """Combinations beside which another choice is changed: the fastest of those that fit and of
    those that do not, or where none fits the leanest."""

    def time(near: NearPlan) -> float:
        return near.answer.step_seconds.expected * WORTH ** len(near.choices)

    by_time = sorted(combined, key=time)
    fits = [near.answer.peak_bytes_per_chip <= most_bytes for near in by_time]
    if not any(fits):
        return sorted(combined, key=lambda near: near.answer.peak_bytes_per_chip)[:_AGAIN]
    first = [
        next((n for n, ok in zip(by_time, fits, strict=True) if ok is it), None)
        for it in (True, False)
    ]
    return [near for near in first if near]


_AGAIN = 2
"""Leanest plans beside which another choice is changed (ours: each takes a third of a second)."""


def _priced(
    base: NearPlan,
    plans: Iterable[tuple[tuple[str, ...], TrainPlan]],
    answer: TrainAnswer,
    known: list[TrainPlan],
    row: SoftwareRow | None,
) -> Iterator[NearPlan]:
    for choices, plan in plans:
        if plan in known or not _differs(plan, base.answer) or not _runs(plan, answer, row):
            continue
        known.append(plan)
        with suppress(BadRequest):  # what does not divide or is not placed
            priced = evaluate_train(plan, answer.cfg, answer.piece)
            yield NearPlan(choices=(*base.choices, *choices), answer=priced)


def _differs(plan: TrainPlan, base: TrainAnswer) -> bool:
    """Whether something that makes a difference is otherwise."""
    old, new = (candidates_of_plan(p, base.cfg, base.piece) for p in (base.plan, plan))
    changed = [name for name in CHOICES if old.value(name) != new.value(name)]
    if old.degrees != new.degrees or not changed:
        return True
    return any(matters(name, new).any() for name in changed)


def _runs(plan: TrainPlan, answer: TrainAnswer, row: SoftwareRow | None) -> bool:
    """Whether a program has no obstacle to the plan that it does not have to the given one."""
    if row is None:
        return True
    old, new = (candidates_of_plan(p, answer.cfg, answer.piece) for p in (answer.plan, plan))
    return {o.field for o in row.obstacles(new)} <= {o.field for o in row.obstacles(old)}


def near_plans(plan: TrainPlan, cfg: ModelConfig) -> Iterator[tuple[tuple[str, ...], TrainPlan]]:
    """Every plan that differs in one choice that no array prices, with the choice; one that is no
    plan is left out."""
    for choice, changes in _CHANGES.items():
        for changed in changes(plan, cfg):
            with suppress(BadRequest):
                yield (choice,), replace(plan, **changed)


def _overlaps(plan: TrainPlan, cfg: ModelConfig) -> Changed:
    """Transfers that wait, one after the other, and all that the program can hide."""
    able = stack_row(plan.stack).overlap
    now = able if plan.overlap is None else frozenset(plan.overlap)
    for name in sorted(able - now):
        yield {"overlap": tuple(sorted({*now, name}))}
    if len(able - now) > 1:
        yield {"overlap": None}


def _of(name: str, *values: Any) -> Callable[[TrainPlan, ModelConfig], Changed]:
    return lambda plan, cfg: ({name: value} for value in values if value != getattr(plan, name))


def _eight_bits(plan: TrainPlan, cfg: ModelConfig) -> Changed:
    """The optimizer with narrower moments."""
    if narrow := optimizer_row(plan.optimizer).narrow:
        yield {"optimizer": narrow}


def _chunked(plan: TrainPlan, cfg: ModelConfig) -> Changed:
    for chunks in (1, 4, 8):
        if chunks != plan.logit_chunks:
            yield {"logit_chunks": chunks}


def _dispatchers(plan: TrainPlan, cfg: ModelConfig) -> Changed:
    if cfg.has_experts:
        for sender in ("alltoall", "deepep"):
            yield {"dispatcher": sender}


_CHANGES: Mapping[str, Callable[[TrainPlan, ModelConfig], Changed]] = {
    "zero": _of("zero", 0, 1, 2),
    "overlap": _overlaps,
    "weight_gather": _of("weight_gather", "per_pass", "per_microbatch"),
    "context_method": _of("context_method", "ring", "all_gather", "ulysses"),
    "compiled": _of("compiled", True),
    "expert_over_tensor": _of("expert_over_tensor", True, False),
    "dispatcher": _dispatchers,
    "fused_loss": _of("fused_loss", True),
    "optimizer": _eight_bits,
    "offload_optimizer": _of("offload_optimizer", True, False),
    "logit_chunks": _chunked,
}
"""Of each choice, how else it could be."""
