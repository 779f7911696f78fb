"""Parameters stored in pieces (ZeRO-3, FSDP): gathered before use, gradients scattered after.

A weight is stored as `W[D_{fsdp,expert,context}, F_tensor]` and computed with as `W[D, F_tensor]`:
an all-gather before use, and for its gradient `dW[D, F_tensor]{U_fsdp}` the transpose of that, a
reduce-scatter (ch. 5.1.2). Which axes store is the plan's choice (`storage_axes`); experts already
lie apart over `expert`, so they are gathered over the other storage axes only.
"""

from collections.abc import Callable, Sequence

import numpy as np

from shardwise.models import Parameter
from shardwise.planner.step.shape import TrainShape
from shardwise.plans.layouts import gather_axes, is_expert
from shardwise.units import dtype_bytes
from shardwise.work import CollectiveKind, Op, Quantity, exchange, total


def parameter_gathers(rows: Sequence[Parameter], shape: TrainShape) -> tuple[Op, ...]:
    """The all-gathers of some rows' parameters before one use, in the dtype of the matmuls, or
    quantised as they are stored."""
    of = shape.gathered_bytes
    return _over_storage("gather", "all_gather", "parameters", rows, shape, of)


def gradient_scatters(rows: Sequence[Parameter], shape: TrainShape) -> tuple[Op, ...]:
    """The reduce-scatters of some rows' gradients after a backward pass."""
    trained = [r for r in rows if shape.trains(r)]
    grad = dtype_bytes(shape.dtypes.grad)
    return _over_storage("scatter", "reduce_scatter", "gradients", trained, shape, lambda row: grad)


def _over_storage(
    step: str,
    kind: CollectiveKind,
    component: str,
    rows: Sequence[Parameter],
    shape: TrainShape,
    element: Callable[[Parameter], float],
) -> tuple[Op, ...]:
    """One collective per way of cutting storage, of what the rows are while in use."""
    ops = []
    for name, part in split(rows):
        axes = gather_axes(part[0], shape.storage_axes)
        size = total(in_use([row], shape) * element(row) for row in part)
        if shape.has(*axes) and np.any(size):
            ops.append(exchange(f"{step}.{name}", kind, component, axes, size))
    return tuple(ops)


def split(rows: Sequence[Parameter]) -> list[tuple[str, list[Parameter]]]:
    """Rows by how their storage is cut: experts, and everything else."""
    parts = [("experts", [r for r in rows if is_expert(r)])]
    parts.append(("params", [r for r in rows if not is_expert(r)]))
    return [(name, part) for name, part in parts if part]


def in_use(rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """Parameters of one layer on one device while in use."""
    return total(shape.held(row) * row.size * shape.compute_share(row) for row in rows)
