"""Parameters, gradients and optimizer state that one device keeps through a step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.models import Parameter
from shardwise.planner.step.parts import end_rows
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.strategies.data import replicas
from shardwise.planner.step.strategies.optimizer import copies, pieces, state_bytes
from shardwise.units import dtype_bytes
from shardwise.work import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A pipeline stage: its share of the layers, and whether (1 or 0) it holds the embedding
    (`first`) and the head (`last`)."""

    share: Quantity
    first: Quantity
    last: Quantity


def state(rows: Sequence[Parameter], shape: TrainShape, stage: Stage) -> dict[str, Quantity]:
    """Bytes of params, gradients and optimizer on a device of a stage.

    Gradients are cut over replicas under ZeRO-2, optimizer state under ZeRO-1 too; rows that are
    not trained have neither. DualPipe holds two copies of the layers; with ZeRO-1/2 the optimizer
    state of half of each.
    """
    held = _copies(shape)
    totals: dict[str, Quantity] = {"params": 0.0, "gradients": 0.0, "optimizer": 0.0}
    for row, local in _local(rows, shape, stage):
        totals["params"] = totals["params"] + local * dtype_bytes(shape.dtypes.param)
        if not shape.trains(row):
            continue
        cut = replicas(row, shape) if shape.zero == 2 else 1.0
        mine = local / held * copies(shape) if row.group is not None else local
        updated = mine / pieces(row, shape) * state_bytes(row, shape)
        totals["gradients"] = totals["gradients"] + local / cut * dtype_bytes(shape.dtypes.grad)
        totals["optimizer"] = totals["optimizer"] + updated
    return totals


def _local(
    rows: Sequence[Parameter], shape: TrainShape, stage: Stage
) -> Iterator[tuple[Parameter, Quantity]]:
    """Each row with its elements on a device of the stage."""
    first, held = {id(r) for r in end_rows(rows)[0]}, _copies(shape)
    for row in rows:
        local = row.size * row.layers * shape.stored_share(row)
        if row.group is not None:
            local = local * stage.share * held
        elif row.shares:
            local = local * stage.last * (1.0 - stage.first)
        else:
            local = local * (stage.first if id(row) in first else stage.last)
        yield row, local


def _copies(shape: TrainShape) -> Quantity:
    return 1.0 + shape.piped if shape.pipeline_schedule == "dualpipe" else 1.0


def microbatch_gradients(
    rows: Sequence[Parameter], shape: TrainShape, stage: Stage, gradients: Quantity
) -> Quantity:
    """One microbatch's gradients beside the sum of the earlier ones, in the dtype that matmuls
    yield; `gradients` are the bytes of the sum. None where there is but one microbatch whose
    gradients are of that dtype already, or where matmuls add to the sum. XLA stacks those of a loop
    over layers whole and cuts them over replicas afterwards (ZeRO-2): the only microbatch's are
    then no longer whole where they are summed."""
    if not shape.sums_apart:
        return 0.0 * gradients
    made = dtype_bytes(shape.layer_shape.activations)
    sum_bytes = dtype_bytes(shape.dtypes.grad)
    several = np.asarray(shape.microbatches) > 1
    size = min(made, sum_bytes)
    if not shape.eager:
        whole = sum(local for row, local in _local(rows, shape, stage) if shape.trains(row))
        alone = np.maximum(whole * size - gradients, 0.0) if shape.zero == 2 else 0.0
        return np.where(several, whole * size, alone)
    apart = np.ones_like(several) if sum_bytes > made else several
    return np.where(apart, gradients / sum_bytes * size, 0.0)
