"""A plan of ours beside a published one: what differs, and what each choice is worth.

`effect` changes one choice of the published plan to ours and prices that; choices hang together
(stages need microbatches), so where that alone is refused the effect is None.
"""

from dataclasses import dataclass, replace
from typing import Any

from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.training import evaluate_train
from shardwise.plans import MESH_AXES, TrainPlan
from shardwise.plans.train import CHOICES, spread

_JOB = {"lora_rank", "frozen", "packed_lengths", "remat_kinds", "stack", "constants"}
"""Choices that say what is trained or how it is priced, or another one in more detail."""
_FIELDS = ("microbatches", "layers_per_stage", *(name for name in CHOICES if name not in _JOB))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One choice: ours, theirs, and the seconds of their plan with ours over theirs as it is."""

    field: str
    ours: Any
    theirs: Any
    effect: float | None


def compare_plans(
    best: TrainPlan, published: TrainPlan, cfg: ModelConfig, piece: Slice
) -> tuple[Difference, ...]:
    """Every choice that differs, the mesh as a whole first.

    The plans must be of the same model, slice, batch and length. Raises BadRequest otherwise.
    """
    for name in ("model_hash", "slice", "global_batch_sequences", "sequence_length"):
        ours, theirs = getattr(best, name), getattr(published, name)
        if ours != theirs:
            raise BadRequest(
                f"{name} is {ours} in one plan and {theirs} in the other; compare plans of one job"
            )
    base = _seconds(published, cfg, piece)
    rows = []
    meshes = [{a: p.degree(a) for a in MESH_AXES if p.degree(a) > 1} for p in (best, published)]
    if meshes[0] != meshes[1]:
        stages = spread(cfg.layers, best.degree("stage"))
        changed = {"mesh": best.mesh, "box": best.box, "slices": best.slices}
        effect = _effect(published, {**changed, "layers_per_stage": stages}, cfg, piece, base)
        rows.append(Difference(field="mesh", ours=meshes[0], theirs=meshes[1], effect=effect))
        if effect is None:
            # Stages need their schedule and microbatches: what hangs together, at once.
            hanging = ("microbatches", "pipeline_schedule", "virtual_stages")
            changed |= {name: getattr(best, name) for name in hanging}
            changed["layers_per_stage"] = stages
            effect = _effect(published, changed, cfg, piece, base)
            together = [
                f"{p.pipeline_schedule} of {p.microbatches} microbatches" for p in (best, published)
            ]
            name = "mesh with its schedule"
            rows.append(Difference(field=name, ours=together[0], theirs=together[1], effect=effect))
    for name in _FIELDS:
        ours, theirs = getattr(best, name), getattr(published, name)
        if ours != theirs and not _follows(name, best, published):
            changed = {name: ours}
            if name == "pipeline_schedule":
                changed["virtual_stages"] = best.virtual_stages
            effect = _effect(published, changed, cfg, piece, base)
            rows.append(Difference(field=name, ours=ours, theirs=theirs, effect=effect))
    return tuple(rows)


def _follows(name: str, best: TrainPlan, published: TrainPlan) -> bool:
    """Whether a choice hangs on another one that differs and is listed: chunks on the schedule,
    layers per stage on the stages."""
    if name == "virtual_stages":
        return best.pipeline_schedule != published.pipeline_schedule
    return name == "layers_per_stage" and best.degree("stage") != published.degree("stage")


def _effect(
    plan: TrainPlan, changes: dict[str, Any], cfg: ModelConfig, piece: Slice, base: float
) -> float | None:
    try:
        return _seconds(replace(plan, **changes), cfg, piece) / base
    except BadRequest:
        return None


def _seconds(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> float:
    return evaluate_train(plan, cfg, piece).step_seconds["expected"]
