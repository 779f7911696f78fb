"""Price a plan from a file: read what it names, evaluate it, and say whether it fits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.models import ModelConfig, load_model
from shardwise.models.describe import unpriced
from shardwise.planner.price.plan import step_timeline
from shardwise.planner.price.timeline import Timeline
from shardwise.planner.serve.answer import evaluate_serve
from shardwise.planner.training import TrainAnswer, evaluate_train
from shardwise.plans import ServePlan, TrainPlan, load_plan, model_hash
from shardwise.plans.files import changed, plan_dict, plan_from
from shardwise.units import format_gib
from shardwise.work import Work
from shardwise.workflows.inputs import ChipWords, Hardware, plan_changes
from shardwise.workflows.predict import train_result
from shardwise.workflows.predict_serve import serve_result

GivenPlan = str | Path | TrainPlan | ServePlan
"""A plan's file, the name of a published one, or a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A plan from a file with its answer, the result document and the numbers to compare by."""

    plan: TrainPlan | ServePlan
    answer: Any
    result: dict[str, Any]
    headline: dict[str, float]
    warnings: list[str]


def given_plan(what: GivenPlan, fields: Mapping[str, str] | None = None) -> TrainPlan | ServePlan:
    """The plan in a file, of `audit:NAME`, or as it is; `fields` change it first."""
    if isinstance(what, str | Path):
        return load_plan(what, fields)
    return plan_from(changed(plan_dict(what), fields or {}, "the plan"), "the plan")


def price_given(what: GivenPlan, chips: ChipWords) -> Priced:
    """Price a plan with what --set, --hw and --constants change."""
    fields, overrides = plan_changes(chips.sets)
    plan = given_plan(what, fields)
    if chips.constants:
        plan = replace(plan, constants=chips.constants)  # type: ignore[arg-type]
    return price_plan(
        plan, Hardware(constants=plan.constants, files=chips.hw_files, overrides=overrides)
    )


def price_plan(plan: TrainPlan | ServePlan, hardware: Hardware) -> Priced:
    """Evaluate a plan of either kind; warns where the model is no longer the one planned for."""
    cfg = load_model(plan.model)
    warnings = [*unpriced(cfg), *stale(plan, cfg)]
    piece = hardware.slice(plan.slice).slice
    if isinstance(plan, TrainPlan):
        answer = evaluate_train(plan, cfg, piece)
        result = train_result(answer)
        headline = {
            "step_seconds.expected": result["step_seconds"]["expected"],
            "tokens_per_second": result["tokens_per_second"],
            "mfu": result["mfu"],
            "peak_bytes_per_chip": result["peak_bytes_per_chip"],
        }
    else:
        other = hardware.slice(plan.prefill_plan.slice).slice
        answer = evaluate_serve(plan, cfg, piece, prefill_piece=other)
        result = serve_result(answer)
        headline = {
            "ttft_seconds.expected": result["ttft_seconds"]["expected"],
            "tpot_seconds.expected": result["tpot_seconds"]["expected"],
            "tokens_per_second_per_chip": result["tokens_per_second_per_chip"],
            "peak_bytes_per_chip": result["peak_bytes_per_chip"],
        }
    return Priced(plan=plan, answer=answer, result=result, headline=headline, warnings=warnings)


def stale(plan: TrainPlan | ServePlan, cfg: ModelConfig) -> list[str]:
    """A line where the model is no longer the one that the plan was made for."""
    now = model_hash(cfg)
    if plan.model_hash == now:
        return []
    made = f"the plan was made for another '{plan.model}' (hash {plan.model_hash}, now {now})"
    return [f"{made}; the figures are for the model as it is now"]


def plan_timeline(answer: TrainAnswer | Any) -> Timeline:
    """The event timeline of a priced training plan; one rank where it has no stages."""
    if not isinstance(answer, TrainAnswer):
        raise BadRequest(
            "a serving plan has no pipeline to draw; give a training plan with mesh axis 'stage'"
        )
    return step_timeline(answer.plan, answer.cfg, answer.priced)


def check_fits(priced: Priced) -> None:
    """Raise NoFeasiblePlan where a hand-written plan needs more memory than a chip has."""
    miss = shortfall(priced)
    if miss:
        raise NoFeasiblePlan(miss)


def shortfall(priced: Priced) -> str:
    """By how much a plan does not fit and what would help; empty where it fits."""
    need = priced.result["peak_bytes_per_chip"]
    usable = priced.result["usable_bytes_per_chip"]
    if need <= usable:
        return ""
    kinds = priced.result["memory_by_kind"]
    largest = max(kinds, key=lambda k: kinds[k])
    return (
        f"the plan does not fit: {format_gib(need)} per chip, {format_gib(usable)} usable, "
        f"{format_gib(need - usable)} too much; most of it is {largest} "
        f"({format_gib(kinds[largest])}): {REMEDIES.get(largest, 'use more chips')}"
    )


REMEDIES = {
    "params": "raise fsdp, tensor or stage, or use more chips",
    "optimizer": "raise fsdp, set zero to 1, or use more chips",
    "gradients": "raise fsdp, set zero to 2, or use more chips",
    "checkpoints": "use remat block, more microbatches, or a smaller batch",
    "transient": "use more microbatches or a higher tensor degree",
    "weights": "use more chips or smaller weights",
    "kv": "use a smaller batch, shorter sequences or a smaller KV dtype",
    "activations": "use a smaller batch, smaller prefill chunks or a higher tensor degree",
}
"""What makes each kind of memory smaller."""


def count_plan(plan: TrainPlan | ServePlan) -> Work:
    """The Work of one training step, or of one decode step, on the busiest device."""
    return price_plan(plan, Hardware()).answer.work
