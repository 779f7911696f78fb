"""Bytes per chip over one training step, by kind.

Kinds: params, gradients, optimizer (moments and master copy), checkpoints (activations kept for
backward), transient (gathered parameters, what the layer at work needs, buffers, logits, a
microbatch's gradients). Four points are looked at: the backward pass of the last layer, when all
activations are there; of the first, when all gradients are; the loss; and the optimizer update. XLA
fills the stacks of a loop's gradients with zeros when it likes, so they count from the loss on.
Everything broadcasts. What each part is made of is in `state.py` and `working.py`.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.planner.price.memory.state import Stage, microbatch_gradients, state
from shardwise.planner.price.memory.working import (
    gathered_bytes,
    gathered_ends,
    in_transit_bytes,
    kept_bytes,
    layer_bytes,
    logit_bytes,
    loss_bytes,
    module_bytes,
)
from shardwise.planner.step.parts import step_rows
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.strategies.pipeline import rank_in_flight
from shardwise.work import MemoryTimeline, Quantity

__all__ = ["checkpoint_bytes", "layer_bytes", "stage_memory", "train_memory"]


def train_memory(cfg: ModelConfig, shape: TrainShape) -> MemoryTimeline:
    """Memory of the fullest devices of a step: the backward pass on the first stage, which holds
    the most microbatches and the embedding; the loss on the last, which holds the head; and the
    update on the one with the larger end. Without stages they are one device."""
    together = 1.0 - shape.apart
    first = Stage(share=shape.stage_share, first=1.0, last=together)
    last = Stage(share=shape.stage_share, first=together, last=1.0)
    final = shape.degree("stage") - 1.0
    one, other = _points(cfg, shape, first, 0.0), _points(cfg, shape, last, final)
    larger = np.asarray(_sum(one["optimizer"]) >= _sum(other["optimizer"]))
    update = {
        kind: np.where(larger, one["optimizer"][kind], other["optimizer"][kind])
        for kind in one["optimizer"]
    }
    return MemoryTimeline(
        (
            ("backward", one["backward"]),
            ("gradients", one["gradients"]),
            ("loss", other["loss"]),
            ("optimizer", update),
        )
    )


def stage_memory(
    cfg: ModelConfig, shape: TrainShape, layers_per_stage: tuple[int, ...]
) -> tuple[MemoryTimeline, ...]:
    """The memory of every stage of one plan, each with its own layers, ends and microbatches."""
    timelines = []
    final = len(layers_per_stage) - 1
    folded = float(1.0 - shape.apart) if final else 1.0
    for rank, layers in enumerate(layers_per_stage):
        ends = (float(rank == 0), float(rank == final))
        if final and folded:
            both = float(rank == 0 or (shape.doubled and rank == final))
            ends = (both, both)
        stage = Stage(share=layers / cfg.layers, first=ends[0], last=ends[1])
        points = _points(cfg, shape, stage, float(rank))
        if not stage.last:
            del points["loss"]
        timelines.append(MemoryTimeline(tuple(points.items())))
    return tuple(timelines)


def _points(
    cfg: ModelConfig, shape: TrainShape, stage: Stage, rank: Quantity
) -> dict[str, dict[str, Quantity]]:
    """Bytes on a device of a stage, by kind, at each of the four points."""
    rows = step_rows(cfg, shape)
    kept, less = (checkpoint_bytes(cfg, shape, rank, stage.share, done) for done in (0.0, 1.0))
    gathered = gathered_bytes(cfg, rows, shape, stage.share)
    still_gathered = 0.0 if shape.reshard_after_forward else gathered
    layer = gathered + layer_bytes(cfg, shape)
    ends = gathered_ends(rows, shape)
    loss = still_gathered + loss_bytes(ends, logit_bytes(cfg, shape), shape.eager)
    modules = module_bytes(cfg, shape) * stage.last
    always, update = _resident(cfg, state(rows, shape, stage), shape, stage)
    early, summed = _microbatch(rows, shape, stage, always["gradients"])
    return {
        "backward": {**always, "checkpoints": kept, "transient": layer + early},
        "gradients": {**always, "checkpoints": less, "transient": layer + early + summed},
        "loss": {**always, "checkpoints": kept + modules, "transient": loss + early},
        "optimizer": {**always, "checkpoints": 0.0 * kept, "transient": 0.0 * layer + update},
    }


def resident_bytes(cfg: ModelConfig, shape: TrainShape) -> tuple[Quantity, ...]:
    """Bytes of a device without any activation: parameters, gradients and optimizer state on the
    first stage and on the last, on the fuller of both during the update, and on the first stage
    what a microbatch's own gradients add at the end of its backward pass."""
    rows, together = step_rows(cfg, shape), 1.0 - shape.apart
    totals, updates, summed = [], [], []
    for first, last in ((1.0, together), (together, 1.0)):
        stage = Stage(share=shape.stage_share, first=first, last=last)
        always, update = _resident(cfg, state(rows, shape, stage), shape, stage)
        totals.append(_sum(always))
        updates.append(_sum(always) + update)
        early, late = _microbatch(rows, shape, stage, always["gradients"])
        totals[-1] = totals[-1] + early
        summed.append(late)
    return totals[0], totals[1], np.maximum(*updates), summed[0]


def _microbatch(
    rows: Sequence[Parameter], shape: TrainShape, stage: Stage, gradients: Quantity
) -> tuple[Quantity, Quantity]:
    """Bytes of a microbatch's own gradients: those that are allocated from the loss on, and those
    that are only there at the end of its backward pass."""
    size = microbatch_gradients(rows, shape, stage, gradients)
    return (0.0 * size, size) if shape.eager else (size, 0.0 * size)


def _resident(
    cfg: ModelConfig, always: dict[str, Quantity], shape: TrainShape, stage: Stage
) -> tuple[dict[str, Quantity], Quantity]:
    """State that stays on the device, and what the update adds to it."""
    if not shape.offload_optimizer:
        return always, 0.0
    # Two layers' state passes through the device at a time.
    update = 2 * always["optimizer"] / max(cfg.layers, 1) / stage.share
    return {**always, "optimizer": 0.0 * always["optimizer"]}, update


def checkpoint_bytes(
    cfg: ModelConfig,
    shape: TrainShape,
    rank: Quantity = 0.0,
    share: Quantity | None = None,
    done: float = 0.0,
) -> Quantity:
    """Activations kept for backward: layers of the stage x microbatches in flight (less those
    `done`), and what is on its way to or from the host."""
    layers = shape.stage_share if share is None else share
    in_flight = np.maximum(rank_in_flight(shape, rank) - done, 0.0)
    return kept_bytes(cfg, shape) * layers * in_flight + in_transit_bytes(cfg, shape)


def _sum(kinds: dict[str, Quantity]) -> Quantity:
    total: Quantity = 0.0
    for size in kinds.values():
        total = total + size
    return total
