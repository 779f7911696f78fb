"""Activations kept for backward, and what comes and goes: the layer at work, gathered parameters,
buffers of collectives, logits. All per device."""

from collections.abc import Sequence

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.models.activations import Activation
from shardwise.models.specs import Layer, Moe, SoftmaxMixer
from shardwise.planner.step.parts import kept_activations
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.strategies.context import kv_heads
from shardwise.planner.step.strategies.mtp import last_layer
from shardwise.planner.step.strategies.offload import bytes_of, place_of, saved_bytes
from shardwise.plans.context_methods import context_row
from shardwise.units import dtype_bytes
from shardwise.work import Quantity


def kept_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """Activations of one microbatch kept on the device, all layers of the model."""
    total: Quantity = 0.0
    for layer, count in cfg.layer_groups():
        total = total + count * saved_bytes(kept_activations(cfg, layer, shape), shape, "keep")
    return total


def in_transit_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """Offloaded activations on their way: those of the layer at work and of one neighbour."""
    return 2 * _widest(
        saved_bytes(kept_activations(cfg, layer, shape), shape, "offload") for layer in cfg.groups
    )


def module_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """Kept activations of the prediction modules, of one microbatch."""
    saved = kept_activations(cfg, last_layer(cfg), shape)
    return shape.mtp_layers * saved_bytes(saved, shape, "keep")


def layer_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """What the backward pass of the widest layer needs on top of what is kept: what it recomputes,
    the gradients at work, and buffers of its exchanges."""
    return _widest(_layer(cfg, layer, shape) for layer in cfg.groups)


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


def gathered_bytes(
    cfg: ModelConfig, rows: Sequence[Parameter], shape: TrainShape, share: Quantity
) -> Quantity:
    """Gathered parameters: the layer in use, the next one, and the layer's whole gradient. Without
    `reshard_after_forward` all layers of the stage stay gathered."""
    groups = [[r for r in rows if r.group == g and not r.shares] for g in range(len(cfg.groups))]
    weight = dtype_bytes(shape.weights)
    grad = _widest(sum(_extra(r, shape) * shape.trains(r) for r in mine) for mine in groups)
    held = 2 * _widest(sum(_extra(r, shape) for r in mine) for mine in groups)
    if not shape.reshard_after_forward:
        layers = sum(_extra(r, shape) * r.layers for mine in groups for r in mine)
        held = layers * share
    return held * weight + grad * dtype_bytes(shape.dtypes.grad)


RING_PIECES = (8, 32)
"""XLA cuts a matmul into a ring of at most 32 pieces: `max_windowed_einsum_iteration` by default
(openxla/xla, xla/service/spmd/spmd_partitioner.h). Of 4 pieces none was made (docs/log.md)."""


def gathered_ends(rows: Sequence[Parameter], shape: TrainShape) -> tuple[Quantity, ...]:
    """Bytes of the gathered vocabulary matrix and of its gradient before that is scattered, and 1
    where XLA stores the gradient of the logits, else 0.

    It stores it where the matrix's gradient is scattered by a ring of `RING_PIECES` devices, which
    reads the logits' gradient piece by piece, and where only one dim of the tokens is cut.
    """
    size = _widest(_extra(r, shape) for r in rows if r.group is None)
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


def _widest(values) -> Quantity:
    largest: Quantity = 0.0
    for value in values:
        largest = np.maximum(largest, value)
    return largest
