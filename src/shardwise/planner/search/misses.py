"""What is said where no training plan is legal, or none fits."""

from collections.abc import Mapping

import numpy as np

from shardwise.hardware import describe, enough
from shardwise.planner.search.loop import Found
from shardwise.planner.search.request import TrainRequest
from shardwise.planner.search.space import batch_units
from shardwise.plans import TrainPlan
from shardwise.plans.train import mesh_text
from shardwise.units import format_bytes, format_gib
from shardwise.work import Quantity


def no_legal_plan(request: TrainRequest) -> str:
    """That no mesh is legal, and the nearest batches that some mesh divides."""
    pins = f" with {mesh_text(request.pins)} pinned" if request.pins else ""
    if request.software is not None:
        pins += f", of those that {request.software.title} runs,"
    near = nearest_batches(request)
    if request.sequences in near:
        return (
            f"no mesh on {request.piece}{pins} is legal for a batch of {request.sequences} "
            "sequences; take a slice of 2^n chips, pin fewer axes, or use --for any"
        )
    if not near:
        return (
            f"no mesh on {request.piece}{pins} can be placed on any part of it; "
            "pin fewer axes, or degrees that are powers of two"
        )
    return (
        f"no mesh on {request.piece}{pins} divides a batch of {request.sequences} sequences x "
        f"{request.sequence_length} tokens; nearest legal batches: "
        + " or ".join(f"{n} sequences" for n in near)
    )


def nearest_batches(request: TrainRequest) -> list[int]:
    """The nearest smaller and larger batches (in sequences) that some mesh divides."""
    units = batch_units(request)
    if not units.size:
        return []
    below = int(np.max(request.sequences // units * units))
    above = int(np.min(-(-request.sequences // units) * units))
    return [n for n in (below, above) if n]


def nearest_miss(
    request: TrainRequest,
    nearest: Found,
    plan: TrainPlan,
    kinds: Mapping[str, Quantity],
    unpinned: TrainPlan | None,
    leaner: str = "",
) -> str:
    """That nothing fits: how much the leanest plan needs, most of it what, and a remedy. `kinds`
    are its bytes at the fullest point; `unpinned` fits where no degree is pinned, `leaner` are
    options with which this plan does. Of a plan's file,
    which says its part of the slice, the mesh is given and nothing is looked for."""
    largest = max(kinds, key=lambda k: float(kinds[k]))
    over = nearest.memory - request.max_hbm_bytes
    state = sum(float(np.max(kinds[k])) for k in ("params", "gradients", "optimizer"))
    chips = int(np.ceil(request.piece.chips * nearest.memory / request.max_hbm_bytes))
    remedy = (
        enough(request.piece.chip, chips)
        if state > request.max_hbm_bytes / 2
        else "use a smaller batch or shorter sequences"
    )
    pinned = f" with {mesh_text(request.pins)} pinned" if request.pins else ""
    if unpinned is not None:
        remedy = f"pin fewer axes: {mesh_text(unpinned.mesh)} fits, or {remedy}"
    elif pinned and request.part is None:
        remedy += "; no plan with fewer axes pinned fits either"
    if leaner:
        remedy = f"it fits with {leaner}; or {remedy}"
    return (
        f"no plan{pinned} fits {describe(request.piece)}: the smallest ({mesh_text(plan.mesh)}, "
        f"{plan.microbatches} microbatches, remat {plan.remat}) needs {format_gib(nearest.memory)} "
        f"per device, {format_gib(request.max_hbm_bytes)} usable: {format_bytes(over)} too much, "
        f"mostly {largest} ({format_bytes(float(kinds[largest]))}); {remedy}"
    )
