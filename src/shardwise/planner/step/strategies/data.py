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
from shardwise.work import Op, Quantity, exchange


def gradient_reduction(rows: Sequence[Parameter], shape: TrainShape) -> tuple[Op, ...]:
    """The sum of some rows' stored gradients over their replicas."""
    kind = "all_reduce" if shape.zero == 0 else "reduce_scatter"
    ops: list[Op] = []
    for name, part in split([r for r in rows if shape.trains(r)]):
        axes = replica_axes(part[0], shape.storage_axes)
        size = shape.stored(part) * dtype_bytes(shape.dtypes.grad)
        if shape.has(*axes) and np.any(size):
            merged = _layers_of_a_bucket(part, shape)
            op = exchange(f"reduce.{name}", kind, "gradients", axes, size, merged=merged)
            ops.append(op)
    return tuple(ops)


BUCKET = (40e6, 1e6)
"""Least parameters of a bucket, and least per copy: gradients are summed by the bucket, so large
that a ring of all copies is not bound by its latency (Megatron-LM,
core/distributed/distributed_data_parallel.py)."""


def _layers_of_a_bucket(rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """How many layers' gradients are summed at once."""
    if not shape.stack_row.buckets:
        return 1.0
    least, each = BUCKET
    size = np.maximum(least, each * shape.replicas(rows[0]))
    here = max(row.layers for row in rows) * shape.stage_share
    return np.clip(size / np.maximum(shape.stored(rows), 1.0), 1.0, np.maximum(here, 1.0))
