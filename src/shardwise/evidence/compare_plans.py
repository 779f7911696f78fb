"""A plan of ours beside a published one: what differs, and what each choice is worth.

`effect` changes one choice of the published plan to ours and prices that; choices hang together
(stages need microbatches), so where that alone is refused the effect is None.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from shardwise.boundary.records import Record
from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.evaluate import evaluate_train
from shardwise.plans import MESH_AXES, TrainPlan, is_of
from shardwise.plans.train import CHOICES, spread

_JOB = {"lora_rank", "lora_targets", "quantize", "library", "frozen", "packed_lengths"}
_JOB |= {"remat_kinds", "stack", "constants"}
"""Choices that say what is trained or how it is priced, or another one in more detail."""
_FIELDS = ("microbatches", "layers_per_stage", *(name for name in CHOICES if name not in _JOB))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Record):
    """One choice that differs."""

    field: str
    """Its name in a plan."""
    ours: Any
    """Its value in our plan."""
    theirs: Any
    """Its value in theirs."""
    effect: float | None
    """Seconds of their plan with our value over theirs as it is; null where that is refused."""
    fits: bool
    """Whether theirs then fits in memory."""


def compare_plans(
    best: TrainPlan, published: TrainPlan, cfg: ModelConfig, piece: Slice
) -> tuple[Difference, ...]:
    """Every choice that differs, the mesh as a whole first.

    The plans must be of the same model, slice, batch and length. Raises BadRequest otherwise.
    """
    for name in ("model_hash", "slice", "global_batch_sequences", "sequence_length"):
        ours, theirs = getattr(best, name), getattr(published, name)
        if ours != theirs and not (name == "model_hash" and is_of(theirs, cfg)):
            raise BadRequest(
                f"{name} is {ours} in one plan and {theirs} in the other; compare plans of one job"
            )
    base = evaluate_train(published, cfg, piece).step_seconds.expected
    limit = piece.chip.require("hbm_usable_bytes")
    rows = []

    def add(field: str, ours: Any, theirs: Any, **changes: Any) -> float | None:
        effect, fits = None, False
        with suppress(BadRequest):
            found = evaluate_train(replace(published, **changes), cfg, piece)
            effect = found.step_seconds.expected / base
            fits = found.peak_bytes_per_chip <= limit
        rows.append(Difference(field=field, ours=ours, theirs=theirs, effect=effect, fits=fits))
        return effect

    meshes = [{a: p.degree(a) for a in MESH_AXES if p.degree(a) > 1} for p in (best, published)]
    if meshes[0] != meshes[1]:
        stages = spread(cfg.layers, best.degree("stage"))
        changed = {"mesh": best.mesh, "box": best.box, "slices": best.slices}
        if add("mesh", meshes[0], meshes[1], **changed, layers_per_stage=stages) is None:
            # Stages need their schedule and microbatches: what hangs together, at once.
            hanging = ("microbatches", "pipeline_schedule", "virtual_stages")
            changed |= {name: getattr(best, name) for name in hanging}
            changed["layers_per_stage"] = stages
            together = [
                f"{p.pipeline_schedule} of {p.microbatches} microbatches" for p in (best, published)
            ]
            add("mesh with its schedule", together[0], together[1], **changed)
    for name in _FIELDS:
        ours, theirs = getattr(best, name), getattr(published, name)
        if ours != theirs and not _follows(name, best, published):
            changed = {name: ours}
            if name == "pipeline_schedule":
                changed["virtual_stages"] = best.virtual_stages
            add(name, ours, theirs, **changed)
    return tuple(rows)


def _follows(name: str, best: TrainPlan, published: TrainPlan) -> bool:
    """Whether a choice hangs on another one that differs and is listed: chunks on the schedule,
    layers per stage on the stages."""
    if name == "virtual_stages":
        return best.pipeline_schedule != published.pipeline_schedule
    return name == "layers_per_stage" and best.degree("stage") != published.degree("stage")
