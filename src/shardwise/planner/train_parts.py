"""The parts of a training step: what layers, ends and the optimizer do on one device, per round.

Every function broadcasts over candidate plans and yields ops without body or count. In what
they yield, CHAIN ops follow one another by `after`; SIDE ops, collectives and host copies off the
chain, wait for nothing or are waited for by nobody. `train_work.py` composes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.planner.layer_work import (
    backward_layer,
    chain,
    forward_layer,
    matmul_op,
    tensor_step,
)
from shardwise.planner.ops import exchange, make_op
from shardwise.planner.parallel.data import gradient_reduction, replicas
from shardwise.planner.parallel.fsdp import held, parameter_exchanges, split, stored
from shardwise.planner.train_shape import TrainShape
from shardwise.plans.layouts import replica_axes, stored_share
from shardwise.plans.train import Remat
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity

__all__ = [
    "End",
    "end_chains",
    "end_rows",
    "gradient_accumulation",
    "gradient_reduction",
    "layer_chains",
    "optimizer_ops",
    "parameter_exchanges",
]


def layer_chains(
    cfg: ModelConfig, group: int, rows: Sequence[Parameter], shape: TrainShape
) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Forward and backward of one layer of a group, one microbatch, with the side ops of each.

    The first op of a chain waits for its last: the layer before, a round ago. They depend on
    tokens, on the degrees of tensor, expert and context, and on structural choices only.
    """
    mine = [r for r in rows if r.group == group and r.role == "matmul"]
    forward = forward_layer(cfg, cfg.groups[group], mine, shape.layer_shape)
    backward = chain([*_recompute(forward, shape.remat), *backward_layer(forward)])
    ahead = (*_host_copy(cfg, shape, "save"), *looped(forward))
    ready = (*_regathers(forward, shape.remat), *_host_copy(cfg, shape, "load"))
    return ahead, (*ready, *looped(backward))


def looped(ops: Sequence[Op]) -> tuple[Op, ...]:
    """A chain whose first op waits for its last one, of the previous round."""
    return (replace(ops[0], after=(*ops[0].after, ops[-1].id)), *ops[1:]) if ops else ()


def _recompute(forward: Sequence[Op], remat: Remat) -> tuple[Op, ...]:
    """What backward runs again: everything (block, offload), or all but the matmuls (ch. 4.4.2)."""
    if remat == "none":
        return ()
    kept = {"matmul", "collective"} if remat == "matmul_outputs" else set()
    again = [op for op in forward if op.op_class not in kept]
    return tuple(
        replace(op, id=f"re.{op.id}", name=f"re {op.name}", phase="recompute") for op in again
    )


def _regathers(forward: Sequence[Op], remat: Remat) -> list[Op]:
    """Activations kept in pieces, gathered again for the weight gradients (Megatron sequence
    parallelism); the pieces are there, so this waits for nothing. Recomputing gathers anyway."""
    if remat in ("block", "offload"):
        return []
    gathers = [op for op in forward if op.collective and op.collective.kind == "all_gather"]
    return [
        replace(op, id=f"again.{op.id}", name=f"{op.name} again", phase="backward", after=())
        for op in gathers
    ]


def _host_copy(cfg: ModelConfig, shape: TrainShape, step: str) -> list[Op]:
    """Offload: the block input of every layer to host memory and back."""
    if shape.remat != "offload":
        return []
    inner = shape.layer_shape
    size = inner.norm_tokens * cfg.d_model * dtype_bytes(inner.activations)
    op = make_op(f"{step}.block_input", "offload", "copy", host_bytes=size, stream="host")
    return [replace(op, name=f"{step} block input (host)")]


def gradient_accumulation(rows: Sequence[Parameter], shape: TrainShape) -> tuple[Op, ...]:
    """Adding a microbatch's gradients to the sum of the earlier ones: two reads, one write."""
    share = np.where(np.asarray(shape.microbatches) > 1, 1.0, 0.0)
    if not np.any(share):
        return ()
    size = 3 * dtype_bytes(shape.dtypes.grad) * stored(rows, shape) * share
    return (make_op("accumulate.gradients", "gradients", "elementwise", hbm_bytes=size),)


# Ends ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of the model: its rows, and the chains of one microbatch."""

    rows: tuple[Parameter, ...]
    forward: tuple[Op, ...]
    backward: tuple[Op, ...]


def end_rows(rows: Sequence[Parameter]) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]]:
    """Rows before the stack (embeddings), and after it (final norm, head)."""
    groups = [r.group for r in rows]
    start = next((i for i, g in enumerate(groups) if g is not None), len(groups))
    before = tuple(rows[:start])
    return before, tuple(r for r in rows[start:] if r.group is None)


def end_chains(cfg: ModelConfig, rows: Sequence[Parameter], shape: TrainShape) -> dict[str, End]:
    """`first`: embedding lookup and what stands before the stack. `last`: final norm, logits, loss.

    The table is cut by rows over tensor: partial sums in, gathered activations out.
    """
    before, after = end_rows(rows)
    inner = shape.layer_shape
    width = inner.norm_tokens * cfg.d_model * dtype_bytes(inner.activations)
    lookup = _traffic("embedding.lookup", "embedding", 2 * shape.tokens / inner.norm_tokens * width)
    first = [
        replace(lookup, op_class="gather"),
        *(matmul_op(r, inner) for r in before if r.role == "matmul"),
        *tensor_step("embedding.scatter", "reduce_scatter", "embedding", cfg, inner),
    ]
    logits = cfg.vocabulary / shape.degree("tensor") * shape.tokens
    last = [
        _traffic("final.norm", "norm", 4 * width),
        *tensor_step("head.gather", "all_gather", "head", cfg, inner),
        *(matmul_op(r, inner) for r in after if r.role == "matmul"),
        # Softmax and its gradient in f32: written by the matmul, read for the sum, then read and
        # written for the gradient, which the backward matmuls read.
        _traffic("logits.softmax", "head", 2 * 4.0 * logits),
    ]
    return {"first": _end(before, first), "last": _end(after, last)}


def _end(rows: tuple[Parameter, ...], ops: Sequence[Op]) -> End:
    forward = [replace(op, phase="forward") for op in chain(ops)]
    backward = list(backward_layer(forward))
    if forward and backward:
        backward[0] = replace(backward[0], after=(forward[-1].id,))
        forward[0] = replace(forward[0], after=(backward[-1].id,))
    return End(rows=rows, forward=tuple(forward), backward=tuple(backward))


# Optimizer ----------------------------------------------------------------------------------------


def optimizer_ops(cfg: ModelConfig, rows: Sequence[Parameter], shape: TrainShape) -> tuple[Op, ...]:
    """Adam: read gradient, moments and master copy, write moments, master and parameter; with
    ZeRO-1/2 each replica updates its piece and the parameters are gathered."""
    dtypes, param = shape.dtypes, dtype_bytes(shape.dtypes.param)
    each = dtype_bytes(dtypes.grad) + 2 * dtypes.optimizer_bytes + param
    traffic: Quantity = 0.0
    gathers = []
    for name, part in split(rows):
        local = stage_local(part, rows, shape)
        pieces = replicas(part[0], shape) if shape.zero else 1.0
        traffic = traffic + local / pieces * each
        axes = replica_axes(part[0], shape.storage_axes)
        if shape.zero and shape.has(*axes):
            size = local * param
            gathers.append(
                exchange(f"optimizer.gather.{name}", "all_gather", "parameters", axes, size)
            )
    update = _traffic("optimizer.adam", "optimizer", traffic)
    return (update, *(replace(g, after=(update.id,)) for g in gathers))


def stage_local(
    part: Sequence[Parameter], rows: Sequence[Parameter], shape: TrainShape
) -> Quantity:
    """Stored elements of some rows on the busiest stage: its share of the layers and, with stages,
    the head alone (the embedding is the first stage's), without them both ends."""
    first = {id(r) for r in end_rows(rows)[0]}
    total: Quantity = 0.0
    for row in part:
        share = shape.stage_share if row.group is not None else 1.0
        if id(row) in first:
            share = 1.0 - shape.piped
        size = row.size * row.layers * stored_share(row, shape.degrees, shape.storage_axes)
        total = total + held(row, shape) * size * share
    return total


def _traffic(op_id: str, component: str, size: Quantity) -> Op:
    return make_op(op_id, component, "elementwise", hbm_bytes=size)
