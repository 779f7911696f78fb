"""Gradient accumulation: a batch in several microbatches, whose gradients are summed.

With more than one microbatch every gradient is added to the sum of the earlier ones, in the dtype
of the gradients and where they are stored: read both, write the sum.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.models import Parameter
from shardwise.planner.step.shape import TrainShape
from shardwise.units import dtype_bytes
from shardwise.work import Op, make_op


def gradient_accumulation(rows: Sequence[Parameter], shape: TrainShape) -> tuple[Op, ...]:
    """Adding a microbatch's gradients to the sum of the earlier ones, once per round."""
    share = np.where(np.asarray(shape.microbatches) > 1, 1.0, 0.0)
    trained = [r for r in rows if shape.trains(r)]
    size = 3 * dtype_bytes(shape.dtypes.grad) * shape.stored(trained) * share
    if not np.any(size):
        return ()
    return (make_op("accumulate.gradients", "gradients", "elementwise", hbm_bytes=size),)
