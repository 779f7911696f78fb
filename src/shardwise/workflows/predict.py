"""Plan and price, and shape the answer as the `result` of a document (names fixed in the design)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardwise.errors import NoFeasiblePlan
from shardwise.hardware import Chip, Slice, describe, slices_of
from shardwise.models import ModelConfig, parameters, params_total
from shardwise.planner.train_search import TrainRequest
from shardwise.planner.training import (
    TrainAnswer,
    TrainPlanning,
    plan_train,
    run_of,
    tokens_per_second_at,
)
from shardwise.plans import activation_layout, parameter_layout
from shardwise.units import format_seconds, sig
from shardwise.work import Op

_SHOWN_OPS = 8


def train_on(
    request_of: Callable[[Slice], TrainRequest], target: Slice | Chip, top: int, constants: str
) -> TrainPlanning:
    """Plan on a slice; a bare chip means the smallest of its slices that a plan fits."""
    if isinstance(target, Slice):
        return plan_train(request_of(target), top=top, constants=constants)
    miss = ""
    for piece in slices_of(target, domains=1024):
        try:
            return plan_train(request_of(piece), top=top, constants=constants)
        except NoFeasiblePlan as error:
            miss = str(error)
    raise NoFeasiblePlan(f"no slice of {target.id} is large enough; of the largest: {miss}")


def train_result(answer: TrainAnswer) -> dict[str, Any]:
    """One priced training plan under the stable names of the design."""
    piece, plan = answer.piece, answer.plan
    return {
        "slice": str(piece),
        "slice_means": describe(piece),
        "mesh": dict(plan.mesh),
        "box": list(plan.box),
        "placement": answer.placement.describe(),
        "microbatches": plan.microbatches,
        "layers_per_stage": list(plan.layers_per_stage),
        "remat": plan.remat,
        "zero": plan.zero,
        "layouts": layouts(answer),
        "chips_used": answer.chips_used,
        "chips_idle": answer.chips_idle,
        "step_seconds": answer.step_seconds,
        "tokens_per_second": answer.tokens_per_second,
        "mfu": answer.mfu,
        "mfu_6nd": answer.mfu_6nd,
        "peak_bytes_per_chip": answer.peak_bytes_per_chip,
        "usable_bytes_per_chip": piece.chip.require("hbm_usable_bytes"),
        "memory_by_kind": answer.memory_by_kind,
        "memory_peak_at": answer.memory.peak_point()[0],
        "bound_by": answer.estimate.bound_by(),
        "resource_seconds": {k: float(v) for k, v in answer.estimate.resources.items()},
        "exposed_seconds": answer.exposed_seconds,
        "top_ops": [_op_row(t.op, float(t.total)) for t in answer.estimate.top(_SHOWN_OPS)],
    }


def _op_row(op: Op, seconds: float) -> dict[str, Any]:
    return {
        "name": op.name,
        "phase": op.phase,
        "component": op.component,
        "stream": op.stream,
        "count": float(op.count),
        "seconds": seconds,
    }


def layouts(answer: TrainAnswer) -> dict[str, str]:
    """The Layouts of the first layer's matmul parameters and of the activations, in notation."""
    mesh = answer.plan.mesh
    rows = [r for r in parameters(answer.cfg) if r.role == "matmul" and r.group == 0]
    shown = {r.name: str(parameter_layout(r, mesh)) for r in rows}
    return {**shown, "activations": str(activation_layout(mesh, answer.plan.sequence_parallel))}


def planning_result(planning: TrainPlanning) -> dict[str, Any]:
    """The best plan, its runners-up and how much was searched."""
    best = planning.best
    report = planning.search
    return {
        **train_result(best),
        "why": reasons(planning),
        "runners_up": [_runner_up(a, best) for a in planning.runners_up],
        "search": {
            "enumerated": report.enumerated,
            "legal": report.legal,
            "candidates": report.candidates,
            "seconds": report.seconds,
        },
    }


def _runner_up(answer: TrainAnswer, best: TrainAnswer) -> dict[str, Any]:
    expected = answer.step_seconds["expected"]
    return {
        "mesh": dict(answer.plan.mesh),
        "box": list(answer.plan.box),
        "microbatches": answer.plan.microbatches,
        "remat": answer.plan.remat,
        "chips_used": answer.chips_used,
        "step_seconds": answer.step_seconds,
        "times_slower": expected / best.step_seconds["expected"],
        "mfu": answer.mfu,
        "peak_bytes_per_chip": answer.peak_bytes_per_chip,
        "bound_by": answer.estimate.bound_by(),
        "exposed_seconds": answer.exposed_seconds,
    }


def reasons(planning: TrainPlanning) -> list[str]:
    """Why this plan: what bounds it, what waits, and what the other strategies would cost."""
    best = planning.best
    expected = best.step_seconds["expected"]
    resources = best.estimate.resources
    bound = best.estimate.bound_by()
    said = [
        f"{bound} binds: {format_seconds(float(resources[bound]))} of it per step at peak rates, "
        f"{format_seconds(best.step_seconds['lower'])} with what the structure idles",
        f"compute waits {format_seconds(max(best.exposed_seconds, 0.0))} of "
        f"{format_seconds(expected)} for networks and the host",
    ]
    used = set(best.plan.mesh)
    for other in planning.runners_up:
        if set(other.plan.mesh) == used:
            continue
        slower = other.step_seconds["expected"] / expected
        said.append(
            f"{strategy(other)} instead is {sig(slower)}x slower: "
            f"it waits {format_seconds(max(other.exposed_seconds, 0.0))} per step"
        )
    if best.chips_idle:
        said.append(
            f"{best.chips_idle} chips idle: no mesh that divides the batch and the model uses more "
            "of the slice and is faster"
        )
    return said


def strategy(answer: TrainAnswer) -> str:
    """The axes in use, as one word: fsdp+tensor."""
    return "+".join(answer.plan.mesh) or "one device"


def run_result(
    answer: TrainAnswer, tokens: float, mfu: float | None, params: float | None
) -> dict[str, Any]:
    """Days and dollars of a whole run: at the expected step time, or at a given utilisation of
    6*N*tokens (the book's arithmetic). The price is per chip of the slice, used or idle."""
    piece = answer.piece
    if mfu is None:
        rate, basis = answer.tokens_per_second, "expected step time"
    else:
        n = params or params_total(answer.cfg)
        rate = tokens_per_second_at(mfu, n, piece, answer.plan.dtypes.compute)
        basis = f"{mfu:.0%} MFU of 6*N*tokens with N = {n:,.0f}"
    run = run_of(tokens, rate, piece)
    price = piece.chip.price
    cost: dict[str, Any] = {"usd": None, "usd_per_chip_hour": None}
    if price is not None:
        cost = {
            "usd": run["chip_hours"] * price.usd_per_chip_hour,
            "usd_per_chip_hour": price.usd_per_chip_hour,
            "price_as_of": price.as_of,
            "price_source": price.source,
        }
    return {"tokens": tokens, "basis": basis, "tokens_per_second": rate, **run, **cost}


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A plan from a file with its answer, the result document and the numbers to compare by."""

    plan: TrainPlan | ServePlan
    answer: Any
    result: dict[str, Any]
    headline: dict[str, float]
    warnings: list[str]


def price_plan(plan: TrainPlan | ServePlan, hardware: Hardware) -> Priced:
    """Evaluate a plan of either kind; warns where the model is no longer what the plan was made for."""
    cfg = load_model(plan.model)
    warnings = tower_warnings(cfg)
    if plan.model_hash != model_hash(cfg):
        warnings.append(
            f"the plan was made for another '{plan.model}' (hash {plan.model_hash}, now "
            f"{model_hash(cfg)}); the figures are for the model as it is now"
        )
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
        answer = evaluate_serve(plan, cfg, piece)
        result = serve_result(answer)
        headline = {
            "ttft_seconds.expected": result["ttft_seconds"]["expected"],
            "tpot_seconds.expected": result["tpot_seconds"]["expected"],
            "tokens_per_second_per_chip": result["tokens_per_second_per_chip"],
        }
    return Priced(plan=plan, answer=answer, result=result, headline=headline, warnings=warnings)


def check_fits(priced: Priced) -> None:
    """Raise NoFeasiblePlan where a hand-written plan needs more memory than a chip has."""
    need = priced.result["peak_bytes_per_chip"]
    usable = priced.result["usable_bytes_per_chip"]
    if need <= usable:
        return
    kinds = priced.result["memory_by_kind"]
    largest = max(kinds, key=lambda k: kinds[k])
    raise NoFeasiblePlan(
        f"the plan does not fit: {format_gib(need)} per chip, {format_gib(usable)} usable, "
        f"{format_gib(need - usable)} too much; most of it is {largest} "
        f"({format_gib(kinds[largest])}): {_REMEDIES.get(largest, 'use more chips')}"
    )


_REMEDIES = {
    "params": "raise fsdp, tensor or stage, or use more chips",
    "optimizer": "raise fsdp, set zero to 1, or use more chips",
    "gradients": "raise fsdp, set zero to 2, or use more chips",
    "checkpoints": "use remat block, more microbatches, or a smaller batch",
    "transient": "use more microbatches or a higher tensor degree",
    "weights": "use more chips or smaller weights",
    "kv": "use a smaller batch, shorter sequences or a smaller KV dtype",
}
"""What makes each kind of memory smaller."""


def tower_warnings(cfg: ModelConfig) -> list[str]:
    """What the model has that is counted but not priced, or could not be read."""
    said = []
    if cfg.towers:
        names = ", ".join(t.name for t in cfg.towers)
        said.append(f"{names} of {cfg.name}: counted, left out of memory and time")
    if cfg.towers_unread:
        said.append(
            f"{', '.join(cfg.towers_unread)} of {cfg.name}: neither counted nor priced "
            "(the config does not give its shape)"
        )
    return said
