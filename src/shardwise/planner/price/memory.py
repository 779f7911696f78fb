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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.models.activations import Activation
from shardwise.models.specs import Layer, Moe, SoftmaxMixer
from shardwise.planner.step.parts import Tensors, kept_activations, tensors_of
from shardwise.planner.step.shape import TrainShape, kv_heads
from shardwise.planner.step.strategies.optimizer import copies, pieces, state_bytes
from shardwise.planner.step.strategies.remat import bytes_of, place_of, saved_bytes
from shardwise.plans.context_methods import context_row
from shardwise.units import dtype_bytes
from shardwise.work import MemoryTimeline, Quantity, largest, total


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


@dataclass(frozen=True, slots=True)
class Working:
    """What comes and goes: in the backward pass of a layer, and at the loss."""

    backward: Quantity
    loss: Quantity


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
    some, fewer, at_loss = (kept.layers * n + kept.in_transit for n in (held, less, held_last))
    backward, loss = working.backward + first.early, working.loss + last.early
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
        return Resident(kinds, 0.0, early, late)
    update = 2 * kinds["optimizer"] / max(tensors.cfg.layers, 1) / stage.share
    return Resident({**kinds, "optimizer": 0.0 * kinds["optimizer"]}, update, early, late)


def state(tensors: Tensors, shape: TrainShape, stage: Stage) -> dict[str, Quantity]:
    """Bytes of params, gradients and optimizer on a device of a stage.

    Gradients are cut over replicas under ZeRO-2, optimizer state under ZeRO-1 too; rows that are
    not trained have neither. A doubled schedule holds two copies of the layers; with ZeRO-1/2 the
    optimizer state of half of each.
    """
    held = _copies(shape)
    totals: dict[str, Quantity] = {"params": 0.0, "gradients": 0.0, "optimizer": 0.0}
    for row, local in _local(tensors, shape, stage):
        totals["params"] = totals["params"] + local * dtype_bytes(shape.dtypes.param)
        if not shape.trains(row):
            continue
        cut = shape.replicas(row) if shape.zero == 2 else 1.0
        mine = local / held * copies(shape) if row.group is not None else local
        updated = mine / pieces(row, shape) * state_bytes(row, shape)
        summed = local / cut * _gathered_share(row, shape)
        totals["gradients"] = totals["gradients"] + summed * dtype_bytes(shape.dtypes.grad)
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
            local = local * stage.share * held
        elif row.shares:
            local = local * stage.last * (1.0 - stage.first)
        else:
            local = local * (stage.first if id(row) in first else stage.last)
        yield row, local


def _gathered_share(row: Parameter, shape: TrainShape) -> Quantity:
    """Elements of a row's gradient over those that are stored, while gradients are summed."""
    whole = shape.compute_share(row) / shape.stored_share(row)
    return 1.0 + (whole - 1.0) * shape.whole_gradients


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
    if not shape.software.sums_apart:
        return 0.0
    made = dtype_bytes(shape.layer_shape.activations)
    sum_bytes = dtype_bytes(shape.dtypes.grad)
    several = np.asarray(shape.microbatches) > 1
    size = min(made, sum_bytes)
    if not shape.eager:
        whole = sum(local for row, local in _local(tensors, shape, stage) if shape.trains(row))
        alone = np.maximum(whole * size - gradients, 0.0) if shape.zero == 2 else 0.0
        return np.where(several, whole * size, alone)
    apart = np.ones_like(several) if sum_bytes > made else several
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
    """Offloaded activations on their way: those of the layer at work and of one neighbour."""
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


# What comes and goes ------------------------------------------------------------------------------


def working(tensors: Tensors, shape: TrainShape, share: Quantity) -> Working:
    """What comes and goes on a stage with a share of the layers."""
    cfg, gathered = tensors.cfg, gathered_bytes(tensors, shape, share)
    ends, logits = gathered_ends(tensors, shape), logit_bytes(cfg, shape)
    stays = shape.weight_gather != "per_pass"
    return working_of(gathered, layer_bytes(cfg, shape), ends, logits, shape.eager, stays)


def working_of(
    gathered: Quantity,
    layer: Quantity,
    ends: Sequence[Quantity],
    logits: Sequence[Quantity],
    eager: bool,
    stays: bool,
) -> Working:
    """From `gathered_bytes`, `layer_bytes`, `gathered_ends` and `logit_bytes`; `stays` says whether
    the layers are still gathered at the loss."""
    loss = loss_bytes(ends, logits, eager)
    return Working(backward=gathered + layer, loss=loss + gathered if stays else loss)


def layer_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """What the backward pass of the widest layer needs on top of what is kept: what it recomputes,
    the gradients at work, and buffers of its exchanges."""
    return largest(_layer(cfg, layer, shape) for layer in cfg.groups)


def _layer(cfg: ModelConfig, layer: Layer, shape: TrainShape) -> Quantity:
    saved = kept_activations(cfg, layer, shape)
    tape = [a for a in saved if a.tape]
    again = [a for a in tape if place_of(a, shape) != "keep"]
    return (
        bytes_of(again, shape)
        + _gradients(cfg, tape, shape)
        + _expert_buffers(cfg, layer, shape)
        + _context_buffers(layer, shape)
    )


def _gradients(cfg: ModelConfig, tape: Sequence[Activation], shape: TrainShape) -> Quantity:
    """Gradients alive at once: of what goes into and comes out of the widest elementwise op (an
    MLP's activation, or queries, keys and values), and of the stream."""
    inner = shape.layer_shape
    mlp = bytes_of([a for a in tape if a.kind in ("mlp_in", "activation") and a.sharded], shape)
    mixer = bytes_of([a for a in tape if a.kind in ("qkv", "attention") and a.sharded], shape)
    stream = inner.norm_tokens * cfg.d_model * dtype_bytes(inner.activations)
    return np.maximum(mlp, mixer) + stream


def _expert_buffers(cfg: ModelConfig, layer: Layer, shape: TrainShape) -> Quantity:
    """What an all-to-all receives: the rows of a device, in and out."""
    inner = shape.layer_shape
    if not isinstance(layer.mlp, Moe):
        return 0.0
    width = (layer.mlp.latent_dim or cfg.d_model) * dtype_bytes(inner.activations)
    slots = inner.norm_tokens * layer.mlp.experts_per_token * shape.expert_room
    return np.where(np.asarray(inner.expert_group) > 1, 2 * slots * width, 0.0)


def _context_buffers(layer: Layer, shape: TrainShape) -> Quantity:
    """Keys and values that a device has at once by its context method, and their gradients."""
    inner, mixer = shape.layer_shape, layer.mixer
    if not isinstance(mixer, SoftmaxMixer):
        return 0.0
    width = np.ceil(kv_heads(mixer) / inner.degree("tensor")) * (mixer.head_dim + mixer.v_head_dim)
    block = inner.tokens * width * dtype_bytes(inner.activations)
    context = inner.degree("context")
    held = 2 * block * context_row(shape.context_method).held(context)
    return np.where(np.asarray(context) > 1, held, 0.0)


def gathered_bytes(tensors: Tensors, shape: TrainShape, share: Quantity) -> Quantity:
    """Gathered parameters: the layer in use, the next one, and the layer's whole gradient. All
    layers of the stage stay gathered where they are not gathered before every pass."""
    groups = [[r for r in rows if not r.shares] for rows in tensors.groups]
    weight = dtype_bytes(shape.weights)
    grad = largest(sum(_extra(r, shape) * shape.trains(r) for r in mine) for mine in groups)
    held = 2 * largest(sum(_extra(r, shape) for r in mine) for mine in groups)
    if shape.weight_gather != "per_pass":
        layers = sum(_extra(r, shape) * r.layers for mine in groups for r in mine)
        held = layers * share
    return held * weight + grad * dtype_bytes(shape.dtypes.grad)


RING_PIECES = (8, 32)
"""XLA cuts a matmul into a ring of at most 32 pieces: `max_windowed_einsum_iteration` by default
(openxla/xla, xla/service/spmd/spmd_partitioner.h). Of 4 pieces none was made (docs/log.md)."""


def gathered_ends(tensors: Tensors, shape: TrainShape) -> tuple[Quantity, ...]:
    """Bytes of the gathered vocabulary matrix and of its gradient before that is scattered, and 1
    where XLA stores the gradient of the logits, else 0.

    It stores it where the matrix's gradient is scattered by a ring of `RING_PIECES` devices, which
    reads the logits' gradient piece by piece, and where only one dim of the tokens is cut.
    """
    size = largest(_extra(r, shape) for r in tensors.rows if r.group is None)
    stored = np.asarray(shape.degree("fsdp") * shape.degree("expert"))
    copies = shape.degree("data") * shape.degree("replica") if shape.zero else 1.0
    pieces = np.where(stored > 1, stored, copies)
    least, most = RING_PIECES
    alone = np.asarray(shape.degree("context")) == 1
    written = np.where((pieces >= least) & (pieces <= most) & alone, 1.0, 0.0)
    return size * dtype_bytes(shape.weights), size * dtype_bytes(shape.dtypes.grad), written


def _extra(row: Parameter, shape: TrainShape) -> Quantity:
    """Elements of a row that are on the device only while gathered."""
    return row.size * (shape.compute_share(row) - shape.stored_share(row))


def logit_bytes(cfg: ModelConfig, shape: TrainShape) -> tuple[Quantity, Quantity]:
    """Logits of one microbatch in f32, and their gradient in the dtype of the activations, in which
    the matmuls of the backward pass read it. Run op by op (PyTorch) the gradient is f32 first, and
    16-bit logits and their gradient stand beside their f32 copy and the f32 probabilities."""
    size = dtype_bytes(shape.layer_shape.activations)
    logits = shape.tokens * cfg.vocabulary / shape.degree("tensor")
    if shape.eager:
        return 4.0 * logits, (4.0 + (2 * size if size < 4 else 0.0)) * logits
    return 4.0 * logits, size * logits


def loss_bytes(ends: Sequence[Quantity], logits: Sequence[Quantity], eager: bool) -> Quantity:
    """Bytes at the fullest moment of the loss, from `gathered_ends` and `logit_bytes`.

        op by op (PyTorch)                 matrix + its gradient + logits + their gradient
        XLA, logits' gradient stored       matrix + logits' gradient + max(logits, its gradient)
        XLA, logits' gradient not stored   matrix + logits + its gradient

    Where it is stored, the logits are freed before the matrix's gradient is made. Where it is not,
    the matmuls that read it compute it from the logits, which stay until both have run.
    """
    (matrix, matrix_gradient, written), (made, gradient) = ends, logits
    if eager:
        return matrix + matrix_gradient + made + gradient
    apart = gradient + np.maximum(made, matrix_gradient)
    return matrix + np.where(np.asarray(written) > 0, apart, made + matrix_gradient)
