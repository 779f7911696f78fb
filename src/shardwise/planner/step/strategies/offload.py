"""Offload: activations, and the optimizer's state, in host memory.

Activations of the offloaded kinds are copied out after the forward pass of a layer and back before
its backward pass; the optimizer's state comes in before the update and goes out after it. Copies
run on the host stream; the chain does not wait for the way out.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.models.activations import Activation
from shardwise.models.remat import Saved
from shardwise.planner.step.ops import make_op
from shardwise.planner.step.shape import TrainShape
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity


def host_copy(saved: Sequence[Activation], shape: TrainShape, step: str) -> list[Op]:
    """One layer's offloaded activations to host memory ("save") or back ("load")."""
    size = saved_bytes(saved, shape, "offload")
    if not np.any(size):
        return []
    return [make_op(f"{step}.activations", "offload", "copy", host_bytes=size, stream="host")]


def saved_bytes(saved: Sequence[Activation], shape: TrainShape, place: str) -> Quantity:
    """Bytes per layer and microbatch of what the policy keeps on the device ("keep") or on the host
    ("offload"). Sharded activations are cut by tensor, the others under sequence parallelism."""
    return bytes_of([a for a in saved if place_of(a, shape) == place], shape)


def bytes_of(saved: Sequence[Activation], shape: TrainShape) -> Quantity:
    """Bytes of some activations of one layer and microbatch on one device."""
    inner = shape.layer_shape
    size = dtype_bytes(inner.activations)
    total: Quantity = 0.0
    for a in saved:
        tokens = shape.tokens / shape.degree("tensor") if a.sharded else inner.norm_tokens
        if shape.software.keeps_gathered and a.kind == "norm" and not a.f32:
            tokens = shape.tokens
        load = _load(a, shape)
        total = total + a.bytes_per_token(size) * load * tokens
    return total


def _load(a: Activation, shape: TrainShape) -> Quantity:
    """Rows of an activation over k per token. A compiled dropless exchange (`expert_room`) weights
    the experts' outputs after their way back: what is kept of them are the sender's own rows."""
    if not a.name.startswith(ROUTED):
        return 1.0
    own = a.kind == "mlp_out" and shape.ragged and not shape.eager
    return 1.0 if own else shape.expert_room


ROUTED = ("experts", "dispatched")
"""How the names of activations begin that grow with the rows that a device's experts hold."""


def place_of(activation: Activation, shape: TrainShape) -> Saved:
    """Where the step's policy leaves an activation."""
    return activation.place(shape.remat, shape.remat_kinds)
