"""Gradient accumulation: a batch in several microbatches, whose gradients are summed.

With more than one microbatch every gradient is added to the sum of the earlier ones, in the dtype
of the gradients and where they are stored, or whole where they are reduced once a step: read both,
write the sum. Where the matmuls of weight gradients add into the sum (Megatron's and Transformer
Engine's `gradient_accumulation_fusion`) there is no op of its own; they read and write the sum.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.models import Parameter
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.strategies.fsdp import in_use
from shardwise.units import dtype_bytes
from shardwise.work import Op, changed, make_op


def gradient_accumulation(rows: Sequence[Parameter], shape: TrainShape) -> tuple[Op, ...]:
    """Adding a microbatch's gradients to the sum of the earlier ones, once per round."""
    if shape.fuses_accumulation:
        return ()
    share = np.where(np.asarray(shape.microbatches) > 1, 1.0, 0.0)
    trained = [r for r in rows if shape.trains(r)]
    held = in_use(trained, shape) if shape.reduces_once else shape.stored(trained)
    size = 3 * dtype_bytes(shape.dtypes.grad) * held * share
    if not np.any(size):
        return ()
    return (make_op("accumulate.gradients", "gradients", "elementwise", hbm_bytes=size),)


def adding(op: Op, shape: TrainShape) -> Op:
    """An op of the backward pass where matmuls add to the sum of gradients: one that yields a
    weight gradient reads and writes the sum rather than write the gradient."""
    if op.phase != "weight" or op.matmul is None:
        return op
    written = 2 * dtype_bytes(shape.dtypes.grad) - dtype_bytes(shape.weights)
    more = written * op.matmul.m * op.matmul.n * op.matmul.batch
    return changed(op, hbm_bytes=op.hbm_bytes + more, on_chip_bytes=op.on_chip_bytes + more)
