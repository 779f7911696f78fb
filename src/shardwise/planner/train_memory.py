"""Bytes per chip over one training step, by kind.

Kinds: params, gradients, optimizer (moments and master copy), checkpoints (activations kept for
backward), transient (gathered parameters, the layer in flight, logits). Three points are looked at:
the backward pass of a layer, the loss, and the optimizer update. Everything broadcasts.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.models.activations import Activation, saved_activations
from shardwise.models.parameters import parameters
from shardwise.planner.train_work import TrainShape
from shardwise.plans.layouts import STORAGE_AXES, compute_share, stored_share
from shardwise.plans.train import Remat
from shardwise.units import dtype_bytes
from shardwise.work import MemoryTimeline, Quantity


def train_memory(cfg: ModelConfig, shape: TrainShape) -> MemoryTimeline:
    """Memory of the busiest device. Its stage holds the larger of first and last stage's tables."""
    rows = tuple(r for r in parameters(cfg) if r.role != "tower")
    stored = _stored_params(rows, shape)
    replicas = shape.degree("replica") * shape.degree("data")
    dtypes = shape.dtypes
    gradients = stored * dtype_bytes(dtypes.grad) / (replicas if shape.zero == 2 else 1.0)
    state = {
        "params": stored * dtype_bytes(dtypes.param),
        "gradients": gradients,
        "optimizer": stored * dtypes.optimizer_bytes / (replicas if shape.zero else 1.0),
    }
    kept = checkpoint_bytes(cfg, shape)
    gathered = _gathered(cfg, rows, shape)
    layer = gathered + layer_bytes(cfg, shape)
    loss = _gathered_ends(rows, shape) + _logits(cfg, shape)
    return MemoryTimeline(
        (
            ("backward", {**state, "checkpoints": kept, "transient": layer}),
            ("loss", {**state, "checkpoints": kept, "transient": loss}),
            ("optimizer", {**state, "checkpoints": 0.0 * kept, "transient": 0.0 * layer}),
        )
    )


def checkpoint_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """Activations kept for backward: layers of the stage x microbatches in flight.

    1F1B keeps at most one microbatch per stage alive on the first stage (Megatron-LM, SC21).
    """
    if shape.remat == "offload":
        return 2 * _layer_kept(cfg, shape, "block") / max(cfg.layers, 1)
    in_flight = np.minimum(shape.degree("stage"), shape.microbatches)
    return _layer_kept(cfg, shape, shape.remat) * shape.stage_share * in_flight


def layer_bytes(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """Everything that the backward pass of the widest layer needs at once."""
    widest: Quantity = 0.0
    for layer, _ in cfg.layer_groups():
        saved = saved_activations(cfg, layer)
        widest = np.maximum(widest, _saved_bytes(saved, shape, "none"))
    return widest


def _layer_kept(cfg: ModelConfig, shape: TrainShape, policy: Remat) -> Quantity:
    total: Quantity = 0.0
    for layer, count in cfg.layer_groups():
        total = total + count * _saved_bytes(saved_activations(cfg, layer), shape, policy)
    return total


def _saved_bytes(saved: Sequence[Activation], shape: TrainShape, policy: Remat) -> Quantity:
    """Bytes per layer and microbatch; sharded activations are cut by tensor, the others only under
    sequence parallelism."""
    inner = shape.layer_shape
    size = dtype_bytes(inner.activations)
    kept = [a for a in saved if policy in a.policies]
    cut = sum(a.bytes_per_token(size) for a in kept if a.sharded)
    whole = sum(a.bytes_per_token(size) for a in kept if not a.sharded)
    return cut * shape.tokens / shape.degree("tensor") + whole * inner.norm_tokens


def _stored_params(rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """Parameters that the busiest device stores. Embedding and head lie on different stages."""
    stack: Quantity = 0.0
    ends: list[Quantity] = [0.0]
    for row in rows:
        if row.shares:
            continue
        local = row.size * row.layers * stored_share(row, shape.degrees)
        if row.group is None:
            ends.append(local)
        else:
            stack = stack + local * shape.stage_share
    together, apart = sum(ends), _largest(ends)
    return stack + np.where(np.asarray(shape.degree("stage")) > 1, apart, together)


def _gathered(cfg: ModelConfig, rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """Gathered parameters of the layer in use and the next one, and the layer's whole gradient."""
    if not shape.has(*STORAGE_AXES):
        return 0.0
    widest: Quantity = 0.0
    for group in range(len(cfg.groups)):
        mine = [r for r in rows if r.group == group and not r.shares]
        widest = np.maximum(widest, sum(_extra(r, shape) for r in mine))
    size = 2 * dtype_bytes(shape.layer_shape.weights) + dtype_bytes(shape.dtypes.grad)
    return widest * size


def _gathered_ends(rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """Gathered vocabulary matrix and its gradient."""
    sizes = [_extra(r, shape) for r in rows if r.group is None]
    size = dtype_bytes(shape.layer_shape.weights) + dtype_bytes(shape.dtypes.grad)
    return _largest(sizes) * size


def _extra(row: Parameter, shape: TrainShape) -> Quantity:
    """Elements of a row that are on the device only while gathered."""
    return row.size * (compute_share(row, shape.degrees) - stored_share(row, shape.degrees))


def _logits(cfg: ModelConfig, shape: TrainShape) -> Quantity:
    """Logits and their gradient in f32, of one microbatch."""
    return 2 * 4.0 * shape.tokens * cfg.vocabulary / shape.degree("tensor")


def _largest(values: Sequence[Quantity]) -> Quantity:
    largest: Quantity = 0.0
    for value in values:
        largest = np.maximum(largest, value)
    return largest
