"""Pipeline stages: activations travel to the next stage, gradients to the one before (ch. 5.1.5).

Each microbatch's `x[B, T_tensor, D]` crosses every boundary once each way, once per chunk of the
stage. A tied embedding lies on the first and the last stage, which sum its gradient (Megatron-LM).
When a stage idles is the schedule's matter (`planner/price/pipeline.py`), not counted here.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.planner.step.shape import TrainShape
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity, changed, exchange


def stage_transfer(cfg: ModelConfig, shape: TrainShape) -> tuple[Op, ...]:
    """Activations to the next stage once per microbatch and chunk, as a share per round of a layer
    and chunk.

    It waits for nothing here and nobody for it: the next microbatch's work goes on meanwhile. Each
    tensor rank sends its share, also where all hold the whole (Megatron's scatter and gather, SC21
    section 4.1); what they then gather from each other is left out, a hundredth of a stage's work.
    """
    inner = shape.layer_shape
    share = inner.tokens / inner.degree("tensor")
    size = share * cfg.d_model * dtype_bytes(inner.activations)
    layers = cfg.layers * shape.stage_share
    op = exchange("transfer.stage", "permute", "pipeline", ("stage",), size)
    return (changed(op, count=shape.piped / layers),)


def tied_reduction(rows: Sequence[Parameter], shape: TrainShape) -> tuple[Op, ...]:
    """The gradient of a tied head to the embedding's stage and back, once per step."""
    tied = [r for r in rows if r.shares]
    size = shape.stored(tied) * dtype_bytes(shape.dtypes.grad)
    if not tied or not np.any(size):
        return ()
    return (exchange("reduce.tied", "permute", "gradients", ("stage",), size),)


def mirror_exchanges(local: Quantity, shape: TrainShape) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Of a schedule that holds every layer twice: gradients of the two copies are summed before the
    update, and with ZeRO-1/2, where each copy's holder updates half of it, the new parameters come
    back after it.

    `local` are the trained elements of one copy; a device holds two, of different stages, and
    exchanges them with the device opposite.
    """
    half = 0.5 if shape.zero else 1.0
    sent = 2 * local * half * shape.piped
    grad, param = dtype_bytes(shape.dtypes.grad), dtype_bytes(shape.dtypes.param)
    summed = exchange("reduce.mirror", "permute", "gradients", ("stage",), sent * grad)
    returned = exchange("gather.mirror", "permute", "parameters", ("stage",), sent * param)
    return (summed,), ((returned,) if shape.zero else ())
