"""Parameters stored in pieces (ZeRO-3, FSDP): gathered before use, gradients scattered after.

A weight is stored as `W[D_{fsdp,expert,context}, F_tensor]` and computed with as `W[D, F_tensor]`:
an all-gather before use, and for its gradient `dW[D, F_tensor]{U_fsdp}` the transpose of that, a
reduce-scatter (ch. 5.1.2). Which axes store is the plan's choice (`storage_axes`); experts already
lie apart over `expert`, so they are gathered over the other storage axes only.
"""

from collections.abc import Sequence

import numpy as np

from shardwise.models import Parameter
from shardwise.planner.step.ops import exchange, make_op
from shardwise.planner.step.shape import TrainShape
from shardwise.plans.layouts import gather_axes, is_expert
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity


def parameter_exchanges(
    rows: Sequence[Parameter], shape: TrainShape
) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """The all-gathers of some rows' parameters before one use, and the reduce-scatters of their
    gradients after a backward pass; both once per round. Gathers travel in the compute dtype."""
    gathers = _over_storage("gather", "all_gather", "parameters", rows, shape, shape.weights)
    trained = [r for r in rows if shape.trains(r)]
    scatters = _over_storage(
        "scatter", "reduce_scatter", "gradients", trained, shape, shape.dtypes.grad
    )
    return gathers, scatters


def _over_storage(
    step: str,
    kind: str,
    component: str,
    rows: Sequence[Parameter],
    shape: TrainShape,
    dtype: str,
) -> tuple[Op, ...]:
    """One collective per way of cutting storage, of what the rows are while in use."""
    ops = []
    for name, part in split(rows):
        axes = gather_axes(part[0], shape.storage_axes)
        size = in_use(part, shape) * dtype_bytes(dtype)
        if shape.has(*axes) and np.any(size):
            ops.append(exchange(f"{step}.{name}", kind, component, axes, size))
    return tuple(ops)


def parameter_casts(rows: Sequence[Parameter], shape: TrainShape) -> tuple[Op, ...]:
    """Stored parameters of 4 bytes cast to the compute dtype before each use (MaxText): read them,
    write the copy that is gathered; nothing where they are stored as they are computed with."""
    param, weights = dtype_bytes(shape.dtypes.param), dtype_bytes(shape.weights)
    if param == weights:
        return ()
    size = stored(rows, shape) * (param + weights)
    return (make_op("cast.params", "parameters", "elementwise", hbm_bytes=size),)


def gathers_per_round(shape: TrainShape) -> tuple[Quantity, Quantity]:
    """How often parameters are gathered per forward and per backward round.

    Once each; without `reshard_after_forward` the backward pass finds them gathered. With pipeline
    stages some microbatch is always between its two passes, so that they then stay for the whole
    step: one gather for all microbatches.
    """
    if shape.reshard_after_forward:
        return 1.0, 1.0
    return np.where(shape.piped > 0, 1.0 / shape.microbatches, 1.0), 0.0


def end_gathers_again(shape: TrainShape) -> tuple[Quantity, Quantity]:
    """How often the parameters before and after the stack are gathered for the backward pass.

    Not at all without pipeline stages: the backward pass of a lookup reads no table, and that of
    the head follows its forward pass while the head is still gathered. With stages the head's two
    passes are apart, and each gathers.
    """
    _, again = gathers_per_round(shape)
    return 0.0, again * shape.piped


def split(rows: Sequence[Parameter]) -> list[tuple[str, list[Parameter]]]:
    """Rows by how their storage is cut: experts, and everything else."""
    parts = [("experts", [r for r in rows if is_expert(r)])]
    parts.append(("params", [r for r in rows if not is_expert(r)]))
    return [(name, part) for name, part in parts if part]


def in_use(rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """Parameters of one layer on one device while in use."""
    total: Quantity = 0.0
    for row in rows:
        total = total + held(row, shape) * row.size * shape.compute_share(row)
    return total


def stored(rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """Parameters of one layer on one device between uses."""
    total: Quantity = 0.0
    for row in rows:
        total = total + held(row, shape) * row.size * shape.stored_share(row)
    return total


def held(row: Parameter, shape: TrainShape) -> Quantity:
    """1 for a row with storage of its own; a tied head has its own copy only on another stage than
    the embedding."""
    return shape.apart if row.shares else 1.0
