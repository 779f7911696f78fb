"""Count one training step on the busiest device: forward, backward, gradient reduction, optimizer.

The step is a few bodies, each a loop over layers and microbatches; what can hide behind what is in
the ops' streams and `after` ids (the algorithm boxes of ch. 5.1): parameter gathers wait for
nothing and run ahead, gradient reductions are waited for by nobody, tensor and expert exchanges
stand between the matmuls. Everything broadcasts over candidate plans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.models.parameters import parameters
from shardwise.planner.layer_work import (
    LayerShape,
    backward_layer,
    chain,
    forward_layer,
    matmul_op,
    tensor_step,
)
from shardwise.planner.ops import exchange, make_op
from shardwise.plans import TrainDtypes
from shardwise.plans.layouts import compute_share, gather_axes, is_expert, stored_share
from shardwise.plans.train import Remat
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity, Work

DATA_AXES = ("replica", "data")
"""Axes over which parameters are replicated and gradients are summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainShape:
    """One training step as numbers that may be arrays over candidates.

    `sequences` is per batch shard and microbatch; `stage_share` the share of the layers that the
    busiest stage holds (1 without pipelining).
    """

    degrees: Mapping[str, Quantity]
    sequences: Quantity
    sequence_length: int
    microbatches: Quantity
    stage_share: Quantity
    remat: Remat
    zero: int
    sequence_parallel: bool
    dtypes: TrainDtypes

    def degree(self, axis: str) -> Quantity:
        """Degree of a mesh axis; 1 where there is none."""
        return self.degrees.get(axis, 1)

    @property
    def tokens(self) -> Quantity:
        """Tokens per device and microbatch, before tensor."""
        return self.sequences * self.sequence_length / self.degree("context")

    def has(self, *axes: str) -> bool:
        """Whether any candidate uses one of the axes."""
        return any(np.any(np.asarray(self.degree(a)) > 1) for a in axes)

    @property
    def layer_shape(self) -> LayerShape:
        """The shape that one layer sees; causal attention sees half of the context on average."""
        return LayerShape(
            tokens=self.tokens,
            context=self.sequence_length,
            degrees=self.degrees,
            compute=self.dtypes.compute,
            weights=self.dtypes.compute if self.dtypes.compute != "f32" else self.dtypes.param,
            activations="bf16" if dtype_bytes(self.dtypes.compute) < 2 else self.dtypes.compute,
            sequence_parallel=self.sequence_parallel,
        )


def train_work(cfg: ModelConfig, shape: TrainShape) -> Work:
    """All ops of one step on the busiest device. Towers are left out: they are never priced."""
    rows = tuple(r for r in parameters(cfg) if r.role != "tower")
    ops: list[Op] = _ends_work(cfg, rows, shape)
    for group, (_, layers) in enumerate(cfg.layer_groups()):
        ops += _group_work(cfg, rows, group, layers, shape)
    ops += _optimizer_work(rows, shape)
    return Work(tuple(ops))


def _group_work(
    cfg: ModelConfig, rows: Sequence[Parameter], group: int, layers: int, shape: TrainShape
) -> list[Op]:
    """Forward and backward of one kind of layer; the last microbatch also reduces gradients."""
    mine = [r for r in rows if r.group == group]
    layer = cfg.groups[group]
    forward = forward_layer(cfg, layer, [r for r in mine if r.role == "matmul"], shape.layer_shape)
    backward = chain([*_recompute(forward, shape.remat), *backward_layer(forward)])
    rounds = layers * shape.stage_share
    gathers = _gathers(mine, shape)
    ahead = _waits(forward, gathers)
    body = [*gathers, *_host_copy(cfg, shape, "save"), *_stage_transfer(cfg, shape, layers), *ahead]
    out = _named(body, f"forward.{group}", rounds * shape.microbatches)
    ready = [*_regathers(forward, shape.remat), *_host_copy(cfg, shape, "load")]
    reversed_body = [*gathers, *ready, *_waits(backward, gathers)]
    last_id = reversed_body[-1].id
    reversed_body[len(gathers) : len(gathers)] = _scatters(mine, shape, last_id)
    reversed_body += _accumulation(mine, shape)
    transfer = _stage_transfer(cfg, shape, layers)
    reduced = _data_reduction(mine, shape, last_id)
    # A candidate without replicas reduces nothing, so that none of its microbatches stands apart.
    replicas = np.asarray(shape.degree("replica") * shape.degree("data"))
    once = np.where(replicas > 1, 1.0 if shape.zero < 2 else shape.microbatches, 0.0)
    if reduced and np.any(np.asarray(shape.microbatches) > once):
        early = rounds * (shape.microbatches - once)
        out += _named([*transfer, *reversed_body], f"backward.{group}", early)
        out += _named(
            [*transfer, *reduced, *reversed_body], f"backward_last.{group}", rounds * once
        )
        return out
    last = [*transfer, *reduced, *reversed_body]
    return out + _named(last, f"backward.{group}", rounds * shape.microbatches)


def _named(ops: Sequence[Op], body: str, count: Quantity) -> list[Op]:
    """The ops as one body: ids made unique, `after` renamed with them, counts set."""
    phase = body.split(".")[0].removesuffix("_last")
    return [
        replace(
            op,
            id=f"{body}/{op.id}",
            after=tuple(f"{body}/{a}" for a in op.after),
            body=body,
            phase=op.phase or phase,
            count=count * op.count,
        )
        for op in ops
    ]


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


def _waits(ops: Sequence[Op], gathers: Sequence[Op]) -> list[Op]:
    """The first op waits for the layer's parameters and for the layer before it (the last op, of
    the previous round); the rest follow their chain."""
    if not ops:
        return []
    first = replace(ops[0], after=(*(g.id for g in gathers), ops[-1].id))
    return [first, *ops[1:]]


def _split(rows: Sequence[Parameter]) -> list[tuple[str, list[Parameter]]]:
    """Rows by how their storage is cut: experts, and everything else."""
    parts = [("experts", [r for r in rows if is_expert(r)])]
    parts.append(("params", [r for r in rows if not is_expert(r)]))
    return [(name, part) for name, part in parts if part]


def _in_use(rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """Parameters of one layer on one device while in use."""
    total: Quantity = 0.0
    for row in rows:
        if not row.shares:
            total = total + row.size * compute_share(row, shape.degrees)
    return total


def _stored(rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """Parameters of one layer on one device between uses."""
    total: Quantity = 0.0
    for row in rows:
        if not row.shares:
            total = total + row.size * stored_share(row, shape.degrees)
    return total


def _gathers(rows: Sequence[Parameter], shape: TrainShape) -> list[Op]:
    """FSDP all-gather of one layer's parameters, in the compute dtype; waits for nothing."""
    dtype = shape.dtypes.compute if shape.dtypes.compute != "f32" else shape.dtypes.param
    return [
        _collective(f"gather.{name}", "all_gather", gather_axes(part[0]), size * dtype_bytes(dtype))
        for name, part in _split(rows)
        if shape.has(*gather_axes(part[0]))
        for size in [_in_use(part, shape)]
    ]


def _scatters(rows: Sequence[Parameter], shape: TrainShape, last: str) -> list[Op]:
    """FSDP reduce-scatter of one layer's gradients: after its last op, waited for by nobody."""
    size = dtype_bytes(shape.dtypes.grad)
    return [
        _collective(
            f"scatter.{name}",
            "reduce_scatter",
            gather_axes(part[0]),
            _in_use(part, shape) * size,
            after=(last,),
        )
        for name, part in _split(rows)
        if shape.has(*gather_axes(part[0]))
    ]


def _accumulation(rows: Sequence[Parameter], shape: TrainShape) -> list[Op]:
    """Adding a microbatch's gradients to the sum of the earlier ones: two reads, one write."""
    share = np.where(np.asarray(shape.microbatches) > 1, 1.0, 0.0)
    if not np.any(share):
        return []
    size = 3 * dtype_bytes(shape.dtypes.grad) * _stored(rows, shape) * share
    return [_traffic("accumulate.gradients", "gradients", size)]


def _data_reduction(rows: Sequence[Parameter], shape: TrainShape, last: str) -> list[Op]:
    """Sum of gradients over the axes that replicate parameters; ZeRO-1/2 need only their piece."""
    if not shape.has(*DATA_AXES):
        return []
    kind = "all_reduce" if shape.zero == 0 else "reduce_scatter"
    size = _stored(rows, shape) * dtype_bytes(shape.dtypes.grad)
    return [_collective("reduce.gradients", kind, DATA_AXES, size, after=(last,))]


def _host_copy(cfg: ModelConfig, shape: TrainShape, step: str) -> list[Op]:
    """Offload: the block input of every layer to host memory and back."""
    if shape.remat != "offload":
        return []
    inner = shape.layer_shape
    size = inner.norm_tokens * cfg.d_model * dtype_bytes(inner.activations)
    return [
        Op(
            id=f"{step}.block_input",
            name=f"{step} block input (host)",
            phase="",
            component="offload",
            op_class="copy",
            host_bytes=size,
            stream="host",
        )
    ]


def _stage_transfer(cfg: ModelConfig, shape: TrainShape, layers: int) -> list[Op]:
    """Activations to the next stage once per microbatch; one share of it per layer round."""
    if not shape.has("stage"):
        return []
    inner = shape.layer_shape
    size = inner.norm_tokens * cfg.d_model * dtype_bytes(inner.activations)
    per_round = np.where(np.asarray(shape.degree("stage")) > 1, 1.0, 0.0) / (
        cfg.layers * shape.stage_share
    )
    op = _collective("transfer.stage", "permute", ("stage",), size)
    return [replace(op, count=per_round)]


def _ends_work(cfg: ModelConfig, rows: Sequence[Parameter], shape: TrainShape) -> list[Op]:
    """Embedding lookup, final norm, logits and loss. With pipelining they lie on different stages;
    the busiest one holds the head."""
    inner = shape.layer_shape
    size = dtype_bytes(inner.activations)
    outside = [r for r in rows if r.group is None]
    heads = [r for r in outside if r.role == "matmul"]
    forward = [matmul_op(r, inner) for r in heads]
    logits = cfg.vocabulary / shape.degree("tensor") * shape.tokens
    # Softmax and its gradient in f32: written by the matmul, read for the sum, read and written
    # for the gradient, read by the backward matmuls.
    loss = _traffic("logits.softmax", "head", 4 * 4.0 * logits)
    lookup = _traffic(
        "embedding.lookup", "embedding", 4 * shape.tokens * cfg.d_model * size, "gather"
    )
    norm = _traffic("final.norm", "norm", 12 * inner.norm_tokens * cfg.d_model * size)
    # Rows of the vocabulary lie apart over tensor: partial sums in, gathered activations out.
    into = tensor_step("embedding.scatter", "reduce_scatter", "embedding", cfg, inner)
    out = tensor_step("head.gather", "all_gather", "head", cfg, inner)
    exchanges = chain([*into, *out])
    ops = [lookup, *into, norm, *out, *forward, loss, *backward_layer([*exchanges, *forward])]
    gathers = _gathers(outside, shape)
    ops = [*gathers, *gathers_again(gathers), *_scatters(outside, shape, ops[-1].id), *ops]
    named = _named(ops, "ends", shape.microbatches)
    times = shape.microbatches if shape.zero == 2 else 1.0
    reduced = _named(_data_reduction(outside, shape, "final.norm"), "ends", times)
    return [*reduced, *named]


def gathers_again(gathers: Sequence[Op]) -> list[Op]:
    """The same gathers for the backward pass."""
    return [replace(op, id=f"re.{op.id}") for op in gathers]


def _optimizer_work(rows: Sequence[Parameter], shape: TrainShape) -> list[Op]:
    """Adam: read gradient, moments and master copy, write moments, master and parameter; with
    ZeRO-1/2 each data shard updates its piece and the parameters are gathered."""
    local: Quantity = 0.0
    for row in rows:
        layers = 1.0 if row.group is None else shape.stage_share
        if not row.shares:
            local = local + row.size * row.layers * stored_share(row, shape.degrees) * layers
    pieces = 1.0
    if shape.zero:
        pieces = shape.degree("replica") * shape.degree("data")
    dtypes = shape.dtypes
    param = dtype_bytes(dtypes.param)
    traffic = dtype_bytes(dtypes.grad) + 2 * dtypes.optimizer_bytes + param
    ops = [_traffic("optimizer.adam", "optimizer", local / pieces * traffic)]
    if shape.zero and shape.has(*DATA_AXES):
        ops.append(
            _collective(
                "optimizer.gather", "all_gather", DATA_AXES, local * param, after=(ops[0].id,)
            )
        )
    return _named(ops, "optimizer", 1.0)


def _traffic(op_id: str, component: str, size: Quantity, op_class: str = "elementwise") -> Op:
    return make_op(op_id, component, op_class, hbm_bytes=size)


def _collective(
    op_id: str, kind: str, axes: tuple[str, ...], size: Quantity, after: tuple[str, ...] = ()
) -> Op:
    component = "gradients" if kind != "all_gather" else "parameters"
    return exchange(op_id, kind, component, axes, size, after=after)
