"""Bytes per device over one training step, by kind: of one plan, or of columns of candidates.

Kinds: params, gradients, optimizer (moments and master copy), checkpoints (activations kept for
backward), transient (gathered parameters, what the layer at work needs, buffers, logits, a
microbatch's gradients). Four points are looked at: the backward pass of the last layer, when all
activations are there; of the first, when all gradients are; the loss; and the optimizer update. XLA
fills the stacks of a loop's gradients with zeros when it likes, so they count from the loss on.

`memory` puts the points together from what stays (`Resident`), what the layers keep (`Kept`) and
what comes and goes (`Working`). A search counts these once per row of candidates that differ in
what they depend on. Everything broadcasts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.planner.price.working import Working, working
from shardwise.planner.step.parts import Tensors, tensors_of
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.strategies.optimizer import copies, pieces, state_bytes
from shardwise.planner.step.strategies.remat import kept_activations, saved_bytes
from shardwise.plans.adapters import ADAPTERS
from shardwise.plans.optimizers import optimizer_row
from shardwise.units import dtype_bytes
from shardwise.work import MemoryTimeline, Quantity, largest, total

RESERVED = 1.117
"""Peak bytes that PyTorch's allocator reserves over our count of tensors: the median of the runs
that publish what it reserved (43 of torchtitan, torchao and prime-rl; 1.14, 1.11 and 1.09). Blocks
that nothing lies in it gives back before it runs out, so that a plan needs less room than that; the
free pieces of others it cannot (docs/lab/log.md has a run that ended so)."""


@dataclass(frozen=True, slots=True)
class Resident:
    """What stays on a device of a stage: its `state` by kind, and what is added to it during the
    `update`. A microbatch's own gradients are there from the loss on (`early`), or only at the end
    of its backward pass (`late`)."""

    state: Mapping[str, Quantity]
    update: Quantity
    early: Quantity
    late: Quantity


@dataclass(frozen=True, slots=True)
class Kept:
    """Activations that wait for the backward pass: of one microbatch, what a stage's layers keep
    and what prediction modules keep, and what is on its way to or from the host."""

    layers: Quantity
    modules: Quantity
    in_transit: Quantity


def memory(
    first: Resident,
    last: Resident,
    kept: Kept,
    working: Working,
    in_flight: tuple[Quantity, Quantity],
    update: Mapping[str, Quantity],
) -> MemoryTimeline:
    """The fullest devices of a step: the backward pass on the first stage, which holds the most
    microbatches and the embedding; the loss on the last, which holds the head; and the update on
    the one with the larger end (`fuller_update`). Without stages they are one device.

    `in_flight` are the microbatches of which the first stage and the last hold activations when a
    backward pass begins; when it ends, those of one of them are gone.
    """
    held, held_last = in_flight
    less = np.maximum(held - 1.0, 0.0)
    some, fewer = (kept.layers * n + kept.in_transit for n in (held, less))
    at_loss = kept.layers * held_last + kept.in_transit / 2
    backward, loss = working.backward + first.early, working.loss + last.early
    at_most = total(last.state.values()) + at_loss + kept.modules + loss
    loss = loss - np.where(np.asarray(at_most) > working.room, working.again, 0.0)
    return MemoryTimeline(
        (
            ("backward", {**first.state, "checkpoints": some, "transient": backward}),
            (
                "gradients",
                {**first.state, "checkpoints": fewer, "transient": backward + first.late},
            ),
            ("loss", {**last.state, "checkpoints": at_loss + kept.modules, "transient": loss}),
            ("optimizer", update),
        )
    )


def fuller_update(first: Resident, last: Resident) -> dict[str, Quantity]:
    """Bytes by kind during the update, of the stage on which they are more."""
    one, other = (
        {**each.state, "checkpoints": 0.0, "transient": each.update} for each in (first, last)
    )
    larger = np.asarray(total(one.values()) >= total(other.values()))
    return {kind: np.where(larger, size, other[kind]) for kind, size in one.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A pipeline stage: its share of the layers, and whether (1 or 0) it holds the embedding
    (`first`) and the head (`last`)."""

    share: Quantity
    first: Quantity
    last: Quantity


def busiest_stages(shape: TrainShape) -> tuple[Stage, Stage]:
    """The first stage and the last one, both with the most layers."""
    together = 1.0 - shape.apart
    return (
        Stage(share=shape.stage_share, first=1.0, last=together),
        Stage(share=shape.stage_share, first=together, last=1.0),
    )


def train_memory(cfg: ModelConfig, shape: TrainShape) -> MemoryTimeline:
    """The memory of the fullest devices of a step."""
    tensors, share = tensors_of(cfg, shape), shape.stage_share
    first, last = (resident(tensors, shape, stage) for stage in busiest_stages(shape))
    in_flight = shape.in_flight(0.0), shape.in_flight(shape.degree("stage") - 1.0)
    saved, busy = kept(cfg, shape, share), working(tensors, shape, share)
    return memory(first, last, saved, busy, in_flight, fuller_update(first, last))


def stage_memory(
    cfg: ModelConfig, shape: TrainShape, layers_per_stage: tuple[int, ...]
) -> tuple[MemoryTimeline, ...]:
    """The memory of every stage of one plan, each with its own layers, ends and microbatches."""
    timelines, tensors = [], tensors_of(cfg, shape)
    final = len(layers_per_stage) - 1
    folded = float(1.0 - shape.apart) if final else 1.0
    for rank, layers in enumerate(layers_per_stage):
        ends = (float(rank == 0), float(rank == final))
        if final and folded:
            both = float(rank == 0 or (shape.doubled and rank == final))
            ends = (both, both)
        stage = Stage(share=layers / cfg.layers, first=ends[0], last=ends[1])
        mine, flight = resident(tensors, shape, stage), shape.in_flight(float(rank))
        saved, busy = kept(cfg, shape, stage.share), working(tensors, shape, stage.share)
        points = memory(mine, mine, saved, busy, (flight, flight), fuller_update(mine, mine)).points
        here = [point for point in points if point[0] != "loss" or stage.last]
        timelines.append(MemoryTimeline(tuple(here)))
    return tuple(timelines)


# What stays ---------------------------------------------------------------------------------------


def resident(tensors: Tensors, shape: TrainShape, stage: Stage) -> Resident:
    """What stays on a device of a stage. Offloaded state leaves it: during the update that of two
    layers passes through at a time."""
    kinds = state(tensors, shape, stage)
    own = microbatch_gradients(tensors, shape, stage, kinds["gradients"])
    early, late = (0.0, own) if shape.eager else (own, 0.0)
    if not shape.offload_optimizer:
        return Resident(kinds, square_roots(tensors, shape, stage), early, late)
    update = 2 * kinds["optimizer"] / max(tensors.cfg.layers, 1) / stage.share
    return Resident({**kinds, "optimizer": 0.0 * kinds["optimizer"]}, update, early, late)


def square_roots(tensors: Tensors, shape: TrainShape, stage: Stage) -> Quantity:
    """What PyTorch's Adam of lists makes of all second moments before it divides by them."""
    if not (shape.library_row.listed_moments and optimizer_row(shape.optimizer).roots):
        return 0.0
    trained = ((row, local) for row, local in _local(tensors, shape, stage) if shape.trains(row))
    elements = total(local / pieces(row, shape) for row, local in trained)
    return elements * dtype_bytes(shape.dtypes.moments)


def state(tensors: Tensors, shape: TrainShape, stage: Stage) -> dict[str, Quantity]:
    """Bytes of params, gradients and optimizer on a device of a stage.

    Gradients are cut over replicas under ZeRO-2, optimizer state under ZeRO-1 too; rows that are
    not trained have neither. A doubled schedule holds two copies of the layers; with ZeRO-1/2 the
    optimizer state of half of each.
    """
    held = _copies(shape)
    totals: dict[str, Quantity] = {"params": 0.0, "gradients": 0.0, "optimizer": 0.0}
    for row, local in _local(tensors, shape, stage):
        held_bytes = shape.stored_bytes(row) + _copied(row, shape)
        totals["params"] = totals["params"] + local * held_bytes
        if not shape.trains(row):
            continue
        cut = shape.replicas(row) if shape.zero == 2 else 1.0
        mine = local / held * copies(shape) if row.group is not None else local
        updated = mine / pieces(row, shape) * state_bytes(row, shape)
        totals["gradients"] = totals["gradients"] + local / cut * _summed_bytes(row, shape)
        totals["optimizer"] = totals["optimizer"] + updated
    return totals


def _local(
    tensors: Tensors, shape: TrainShape, stage: Stage
) -> Iterator[tuple[Parameter, Quantity]]:
    """Each row with its elements on a device of the stage."""
    first, held = {id(r) for r in tensors.ends[0]}, _copies(shape)
    for row in tensors.rows:
        local = row.size * row.layers * shape.stored_share(row)
        if row.group is not None:
            local = local * stage.share * held * shape.held(row)
        elif row.shares:
            local = local * stage.last * (1.0 - stage.first)
        else:
            local = local * (stage.first if id(row) in first else stage.last)
        yield row, local


def _copied(row: Parameter, shape: TrainShape) -> float:
    """Bytes that matmuls add to an element of a frozen row that they read in less than 16 bits: its
    quantised copy, which waits for the backward pass, as every layer's input needs a gradient
    (Transformer Engine, pytorch/module/linear.py: `ctx.save_for_backward` of the quantised
    weight). Parameters that are trained lie quantised (fp8_param_gather of NVIDIA's recipes)."""
    if not shape.quantises_kept or shape.trains(row) or shape.stored_bytes(row) < 2:
        return 0.0
    read = row.role == "matmul" and row.group is not None
    wide = row.name.endswith(ADAPTERS) or row.component in shape.layer_shape.exact
    return dtype_bytes(shape.dtypes.compute) if read and not wide else 0.0


def _summed_bytes(row: Parameter, shape: TrainShape) -> Quantity:
    """Bytes of a row's summed gradient for each element that is stored; what lies elsewhere is
    summed, too, until gradients are reduced, by some libraries in the dtype of computing."""
    own = dtype_bytes(shape.dtypes.grad)
    elsewhere = (shape.compute_share(row) / shape.stored_share(row) - 1.0) * shape.whole_gradients
    if not _sums_where_made(shape):
        return own + elsewhere * own
    return own + elsewhere * (4.0 if shape.library_row.sums_wide else _made_bytes(shape))


def _sums_where_made(shape: TrainShape) -> bool:
    row = shape.library_row
    return shape.eager and (row.sums_computed or row.sums_wide) and shape.reduces_once


def _made_bytes(shape: TrainShape) -> float:
    return dtype_bytes(shape.layer_shape.activations)


def _copies(shape: TrainShape) -> Quantity:
    return 1.0 + shape.piped if shape.doubled else 1.0


def microbatch_gradients(
    tensors: Tensors, shape: TrainShape, stage: Stage, gradients: Quantity
) -> Quantity:
    """One microbatch's gradients beside the sum of the earlier ones, in the dtype that matmuls
    yield; `gradients` are the bytes of the sum.

    There are none where matmuls add to the sum, and none where the only microbatch's gradients are
    of the sum's dtype already. XLA stacks those of a loop over layers whole and cuts them over
    replicas afterwards, so that with ZeRO-2 the only microbatch's are there beside their pieces.
    """
    if not shape.stack_row.sums_apart:
        return 0.0
    made = _made_bytes(shape)
    sum_bytes = dtype_bytes(shape.dtypes.grad)
    several = np.asarray(shape.microbatches) > 1
    size = min(made, sum_bytes)
    if not shape.eager:
        whole = sum(local for row, local in _local(tensors, shape, stage) if shape.trains(row))
        alone = np.maximum(whole * size - gradients, 0.0) if shape.zero == 2 else 0.0
        return np.where(several, whole * size, alone)
    apart = np.ones_like(several) if sum_bytes > made else several
    if _sums_where_made(shape):  # each layer's is added where it is made
        apart = apart & ~several
    return np.where(apart, gradients / sum_bytes * size, 0.0)


# What waits for the backward pass -----------------------------------------------------------------


def kept(cfg: ModelConfig, shape: TrainShape, share: Quantity) -> Kept:
    """The activations that a stage with a share of the layers keeps of one microbatch."""
    return Kept(
        kept_bytes(cfg, shape) * share, module_bytes(cfg, shape), in_transit_bytes(cfg, shape)
    )


def kept_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """Activations of one microbatch kept on the device, all layers of the model."""
    return total(
        count * saved_bytes(kept_activations(cfg, layer, shape), shape, "keep")
        for layer, count in cfg.layer_groups()
    )


def in_transit_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """Offloaded activations on their way: those of the layer at work and of one neighbour. At the
    loss no layer is at work."""
    return 2 * largest(
        saved_bytes(kept_activations(cfg, layer, shape), shape, "offload") for layer in cfg.groups
    )


def module_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """Kept activations of the prediction modules, of one microbatch; each runs a layer of the
    model's last kind."""
    if not shape.mtp_layers:
        return 0.0
    saved = kept_activations(cfg, cfg.groups[cfg.pattern[-1]], shape)
    return shape.mtp_layers * saved_bytes(saved, shape, "keep")


def checkpoint_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """Activations kept for backward on the first stage, when a backward pass begins."""
    saved = kept(cfg, shape, shape.stage_share)
    return saved.layers * shape.in_flight(0.0) + saved.in_transit
