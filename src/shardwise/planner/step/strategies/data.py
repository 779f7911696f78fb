"""Replicated parameters: gradients are summed over the axes that replicate them (ch. 5.1.1).

`dW[D, F]{U_data}` becomes `dW[D, F]` by an all-reduce (ZeRO-0), or `dW[D_data, F]` by a
reduce-scatter where the optimizer keeps pieces only (ZeRO-1, and ZeRO-2 after every microbatch);
the new parameters are then gathered. Axes that replicate: `replica`, `data`, and those of `expert`
and `context` that are no storage axes; experts have no copies over `expert`.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.models import Parameter
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.strategies.fsdp import split
from shardwise.plans.layouts import replica_axes
from shardwise.units import dtype_bytes
from shardwise.work import Op, exchange


def gradient_reduction(rows: Sequence[Parameter], shape: TrainShape) -> tuple[Op, ...]:
    """The sum of some rows' stored gradients over their replicas."""
    kind = "all_reduce" if shape.zero == 0 else "reduce_scatter"
    ops = []
    for name, part in split([r for r in rows if shape.trains(r)]):
        axes = replica_axes(part[0], shape.storage_axes)
        size = shape.stored(part) * dtype_bytes(shape.dtypes.grad)
        if shape.has(*axes) and np.any(size):
            ops.append(exchange(f"reduce.{name}", kind, "gradients", axes, size))
    return tuple(ops)
