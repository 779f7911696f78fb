"""The optimizer's update: state per parameter, memory traffic, and Muon's matmuls.

An update reads gradient, state (`plans/optimizers.py`) and master copy (the parameter where there
is none) and writes state, master copy and parameter.

Muon orthogonalises each momentum matrix whole by 5 Newton-Schulz iterations (arXiv 2502.16982):
X (n x m, n <= m) -> aX + (b A + c A A) X with A = X X^T, so 4 n^2 m + 2 n^3 FLOPs each. Devices
that store pieces share the matrices between them: each collects whole ones and returns the result.
"""

from collections.abc import Callable, Sequence

import numpy as np

from shardwise.models import Parameter
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.strategies.fsdp import split
from shardwise.planner.step.strategies.pipeline import mirror_exchanges
from shardwise.plans.layouts import gather_axes, is_expert, replica_axes
from shardwise.plans.optimizers import matrix_of, optimizer_row, orthogonalised
from shardwise.units import dtype_bytes
from shardwise.work import CollectiveKind, Matmul, Op, Quantity, changed, exchange, make_op

NEWTON_SCHULZ = 5
UPDATE_DTYPE = "bf16"
"""Muon's iterations run, and its matrices travel, in bf16."""


def state_bytes(row: Parameter, shape: TrainShape) -> float:
    """Bytes of optimizer state per element of a row, master copy included."""
    master = 0.0 if shape.dtypes.master == "none" else dtype_bytes(shape.dtypes.master)
    return master + optimizer_row(shape.optimizer).state(row, dtype_bytes(shape.dtypes.moments))


Local = Callable[[Sequence[Parameter]], Quantity]
"""Stored elements of some rows on this device, all layers of its stage."""


def pieces(row: Parameter, shape: TrainShape) -> Quantity:
    """Into how many parts ZeRO-1/2 cut the update of a stored row."""
    return shape.replicas(row) if shape.zero else 1.0


def update_ops(rows: Sequence[Parameter], shape: TrainShape, local: Local) -> tuple[Op, ...]:
    """The update of the trained rows, and with ZeRO-1/2 the gather of the new parameters.

    The norm of all gradients, to clip them, reads them once more. With `offload_optimizer` the
    state comes from host memory and goes back there. No step does without reading and writing the
    state and writing the parameters; gradients, and state on its way from the host, may stay on the
    chip.
    """
    dtypes, param = shape.dtypes, dtype_bytes(shape.dtypes.param)
    grad = dtype_bytes(dtypes.grad)
    read = param if dtypes.master == "none" else 0.0
    norm: Quantity = 0.0
    traffic: Quantity = 0.0
    least: Quantity = 0.0
    state: Quantity = 0.0
    for row in rows:
        mine = local([row]) / pieces(row, shape)
        norm = norm + mine * grad
        state = state + mine * state_bytes(row, shape)
        traffic = traffic + mine * (grad + 2 * state_bytes(row, shape) + read + param)
        least = least + mine * (read + param)
    least = least if shape.offload_optimizer else least + 2 * state
    summed, returned = (), ()
    if shape.doubled and "pipeline" in shape.strategies:
        summed, returned = mirror_exchanges(local(rows) / copies(shape), shape)
    chain = [*summed, make_op("optimizer.norm", "optimizer", "elementwise", hbm_bytes=norm)]
    if optimizer_row(shape.optimizer).orthogonalises:
        chain += _muon(rows, shape, local)
    name = f"optimizer.{shape.optimizer}"
    update = make_op(name, "optimizer", "elementwise", hbm_bytes=traffic, hbm_least=least)
    chain = [*chain, update]
    chain = [changed(op, after=(chain[i - 1].id,)) for i, op in enumerate(chain)]
    gathers = [*(changed(op, after=(name,)) for op in returned)]
    gathers += _gathers(rows, shape, local, name)
    if not shape.offload_optimizer:
        return (*chain, *gathers)
    load, store = (
        make_op(f"optimizer.{step}", "offload", "copy", host_bytes=state, stream="host")
        for step in ("load", "store")
    )
    chain[-1] = changed(chain[-1], after=(*chain[-1].after, load.id))
    return (load, *chain, changed(store, after=(name,)), *gathers)


def copies(shape: TrainShape) -> Quantity:
    """How many copies of its layers a device updates: both of a doubled schedule's without ZeRO,
    with it half of each."""
    return 1.0 + shape.piped if shape.doubled and not shape.zero else 1.0


def _gathers(rows: Sequence[Parameter], shape: TrainShape, local: Local, update: str) -> list[Op]:
    """New parameters over the replicas, each of which updated a piece."""
    if not shape.zero or "data" not in shape.strategies:
        return []
    ops = []
    for name, part in split(rows):
        axes = replica_axes(part[0], shape.storage_axes)
        size = local(part) * dtype_bytes(shape.dtypes.param)
        if shape.has(*axes):
            op = exchange(f"optimizer.gather.{name}", "all_gather", "parameters", axes, size)
            ops.append(changed(op, after=(update,)))
    return ops


def _muon(rows: Sequence[Parameter], shape: TrainShape, local: Local) -> list[Op]:
    """Collect matrices whole, orthogonalise the device's share of them, return the results."""
    matrices = [r for r in rows if orthogonalised(r)]
    collects, returns = [], []
    for name, part in split(matrices):
        size = local(part) * dtype_bytes(UPDATE_DTYPE)
        copies = replica_axes(part[0], shape.storage_axes) if shape.zero else ()
        stored = gather_axes(part[0], shape.storage_axes)
        storage: Quantity = 1.0
        for axis in stored:
            storage = storage * shape.degree(axis)
        tensor = shape.degree("tensor") / pieces(part[0], shape)
        collects += _wires(f"collect.{name}", "all_to_all", copies, size, shape)
        collects += _wires(f"store.{name}", "all_to_all", stored, size * storage, shape)
        collects += _wires(f"tensor.{name}", "all_gather", ("tensor",), size * tensor, shape)
        returns += _wires(f"return.{name}", "all_to_all", stored, size * storage, shape)
    return [*collects, *(_orthogonalise(r, shape, local) for r in matrices), *returns]


def _wires(
    name: str, kind: CollectiveKind, axes: tuple[str, ...], size: Quantity, shape: TrainShape
) -> list[Op]:
    if not axes or not shape.has(*axes):
        return []
    return [exchange(f"optimizer.{name}", kind, "optimizer", axes, size)]


def _orthogonalise(row: Parameter, shape: TrainShape, local: Local) -> Op:
    """Newton-Schulz over this device's share of a row's matrices; tensor ranks repeat it."""
    n, m = sorted(matrix_of(row))
    share = local([row]) / pieces(row, shape) / row.size
    if not (is_expert(row) and shape.expert_over_tensor):
        share = share * np.where(_cut_by_tensor(row, shape), shape.degree("tensor"), 1.0)
    matrices = share * row.batches
    flops = NEWTON_SCHULZ * (4.0 * n * n * m + 2.0 * n**3) * matrices
    return make_op(
        f"optimizer.muon.{row.group}.{row.name}",
        "optimizer",
        "matmul",
        flops={UPDATE_DTYPE: flops},
        hbm_bytes=NEWTON_SCHULZ * dtype_bytes(UPDATE_DTYPE) * (4 * n * m + 4 * n * n) * matrices,
        matmul=Matmul(m=n, k=n, n=m, batch=flops / (2.0 * n * n * m)),
    )


def _cut_by_tensor(row: Parameter, shape: TrainShape) -> np.ndarray:
    experts = shape.degree("expert") if is_expert(row) else 1.0
    return np.asarray(shape.compute_share(row) * experts) < 1
