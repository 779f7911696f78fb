"""The parts of a training step: what layers, ends and the optimizer do on one device, per round.

Every function broadcasts over candidate plans and yields ops without body or count. In what
they yield, CHAIN ops follow one another by `after`; SIDE ops, collectives and host copies off the
chain, wait for nothing or are waited for by nobody. `work.py` composes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.models import ModelConfig, Parameter
from shardwise.models.activations import Activation, saved_activations, saved_scores
from shardwise.models.parameters import parameters
from shardwise.models.specs import Layer
from shardwise.planner.step.layer import (
    backward_layer,
    chain,
    layer_ops,
    matmul_op,
    tensor_step,
)
from shardwise.planner.step.ops import Yield, make_op
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.strategies.accumulation import gradient_accumulation
from shardwise.planner.step.strategies.data import gradient_reduction
from shardwise.planner.step.strategies.fsdp import held, parameter_casts, parameter_exchanges
from shardwise.planner.step.strategies.lora import adapters
from shardwise.planner.step.strategies.mtp import PREFIX, last_layer, mtp_rows, rows_of
from shardwise.planner.step.strategies.offload import host_copy
from shardwise.planner.step.strategies.optimizer import copies, update_ops
from shardwise.planner.step.strategies.remat import recomputed, regathers
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
    "parameter_casts",
    "parameter_exchanges",
    "stage_local",
    "step_rows",
]

SIDE = ("attention.ring",)
"""Ops of a layer that run beside its chain: hops of keys and values under the attention."""

PAIRED = ("experts.dispatch", "experts.combine")
"""Those that run beside the chain where two microbatches' passes are paired (DeepSeek-V3, section
3.2.1, figure 4: each pass's all-to-alls under the other's attention and MLP)."""


def step_rows(cfg: ModelConfig, shape: TrainShape) -> tuple[Parameter, ...]:
    """The tensors of one step: the model's without towers, adapters, and prediction modules."""
    rows = tuple(r for r in parameters(cfg) if r.role != "tower")
    extra = adapters(rows, shape.lora_rank) if shape.lora_rank else ()
    return (*rows, *extra, *mtp_rows(cfg, shape.mtp_layers))


def layer_chains(
    cfg: ModelConfig, group: int, rows: Sequence[Parameter], shape: TrainShape
) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Forward and backward of one layer of a group, one microbatch, with the side ops of each.

    The first op of a chain waits for the last op of the round
    before, which is the layer before. They depend on
    tokens, on the degrees of tensor, expert and context, and on structural choices only.
    """
    layer = cfg.groups[group]
    mine = [r for r in rows if r.group == group and r.role == "matmul"]
    yields = layer_ops(cfg, layer, mine, shape.layer_shape)
    saved = kept_activations(cfg, layer, shape)
    forward = [*host_copy(saved, shape, "save"), *_chained([op for _, op in yields], shape)]
    back = _backward(layer, mine, yields, shape)
    ready = [*regathers(yields, shape), *host_copy(saved, shape, "load")]
    return tuple(forward), (*ready, *_chained(back, shape))


def kept_activations(cfg: ModelConfig, layer: Layer, shape: TrainShape) -> tuple[Activation, ...]:
    """The activations of one layer that some policy keeps. XLA keeps what the backward pass reads
    and cannot fuse into what reads it; op by op all of the tape stays."""
    saved = saved_activations(cfg, layer)
    if not shape.eager:
        saved = tuple(a for a in saved if not a.remade)
    if shape.attention_kernel == "scores":
        saved += saved_scores(layer, float(shape.sequence_length))
    return saved


def _backward(
    layer: Layer, rows: Sequence[Parameter], yields: Sequence[Yield], shape: TrainShape
) -> list[Op]:
    """What backward runs again, then the backward pass; frozen matrices have no dW."""
    frozen = {f"dW {r.name}" for r in rows if not shape.trains(r)}
    back = backward_layer([op for _, op in yields])
    return [*recomputed(layer, yields, shape), *(op for op in back if op.name not in frozen)]


def _chained(ops: Sequence[Op], shape: TrainShape) -> list[Op]:
    """Side ops, which wait for nothing, and the others as a chain whose first op waits for its last
    one, of the previous round.

    Nothing that they move has to cross HBM: gathered weights can go from the links into a product,
    and serve several microbatches there. What is kept for the backward pass does cross it where it
    exceeds the on-chip memory, but that never binds: about 34 D bytes per token and layer, written
    and read, take C / (D W) of the time of their 72 D^2 FLOPs, with C / W some hundreds. So the
    lower bound has the optimizer's state alone, which every step reads and writes.
    """
    ops = [replace(op, on_chip_bytes=op.hbm_bytes) for op in ops]
    names = (*SIDE, *PAIRED) if shape.paired else SIDE
    side = [replace(op, after=()) for op in ops if op.name.endswith(names)]
    first, *rest = chain([op for op in ops if not op.name.endswith(names)])
    return [*side, replace(first, after=((rest or [first])[-1].id,)), *rest]


# Ends ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of the model: its rows, and the chains of one microbatch."""

    rows: tuple[Parameter, ...]
    forward: tuple[Op, ...]
    backward: tuple[Op, ...]


def end_rows(rows: Sequence[Parameter]) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]]:
    """Rows before the stack (embeddings), and after it (final norm, head, prediction modules)."""
    groups = [r.group for r in rows]
    start = next((i for i, g in enumerate(groups) if g is not None), len(groups))
    before = tuple(rows[:start])
    return before, tuple(r for r in rows[start:] if r.group is None)


def end_chains(cfg: ModelConfig, rows: Sequence[Parameter], shape: TrainShape) -> dict[str, End]:
    """`first`: embedding lookup and what stands before the stack. `last`: final norm, logits, loss,
    and the modules that predict further tokens.

    The table is cut by rows over tensor: partial sums in, gathered activations out.
    """
    before, after = end_rows(rows)
    inner = shape.layer_shape
    lookup = make_op(
        "embedding.lookup",
        "embedding",
        "gather",
        hbm_bytes=2 * shape.tokens * cfg.d_model * dtype_bytes(inner.activations),
    )
    first = [
        lookup,
        *(matmul_op(r, inner) for r in before if r.role == "matmul"),
        *tensor_step("embedding.scatter", "reduce_scatter", "embedding", cfg, inner),
    ]
    head = _head(cfg, after, shape)
    forward, back = list(head), list(backward_layer(head))
    for module in range(shape.mtp_layers):
        ops, returned = _mtp(cfg, after, shape, module)
        forward, back = [*forward, *ops], [*returned, *back]
    return {
        "first": _end(before, first, backward_layer(first), shape),
        "last": _end(after, forward, back, shape),
    }


def _head(cfg: ModelConfig, rows: Sequence[Parameter], shape: TrainShape) -> list[Op]:
    """Final norm, logits and loss. Softmax in f32: logits are read and cast, the maximum and the
    sum are taken, probabilities are written; the gradient reads them and writes its own."""
    inner = shape.layer_shape
    width = inner.norm_tokens * cfg.d_model * dtype_bytes(inner.activations)
    logits = cfg.vocabulary / shape.degree("tensor") * shape.tokens
    heads = [r for r in rows if r.role == "matmul" and not r.name.startswith(PREFIX)]
    return [
        make_op("final.norm", "norms", "elementwise", hbm_bytes=4 * width),
        *tensor_step("head.gather", "all_gather", "lm_head", cfg, inner),
        *(matmul_op(r, inner) for r in heads),
        make_op("logits.softmax", "lm_head", "elementwise", hbm_bytes=2 * 4.0 * logits),
    ]


def _mtp(
    cfg: ModelConfig, rows: Sequence[Parameter], shape: TrainShape, module: int
) -> tuple[list[Op], list[Op]]:
    """Forward and backward of one prediction module, with its own pass through the head."""
    inner, layer = shape.layer_shape, last_layer(cfg)
    width = inner.norm_tokens * cfg.d_model * dtype_bytes(inner.activations)
    lookup = make_op("embedding.lookup", "embedding", "gather", hbm_bytes=2 * width)
    norms = make_op("input.norm", "norms", "elementwise", hbm_bytes=4 * width)
    own = next(r for r in rows if r.name == f"{PREFIX}{module}.projection")
    into = [lookup, norms, matmul_op(own, replace(inner, tokens=inner.norm_tokens))]
    mine = rows_of(rows, module)
    yields = layer_ops(cfg, layer, mine, inner)
    head = _head(cfg, rows, shape)
    forward = [*into, *(op for _, op in yields), *head]
    back = [*backward_layer(head), *_backward(layer, mine, yields, shape), *backward_layer(into)]
    return _prefixed(forward, module), _prefixed(back, module)


def _prefixed(ops: Sequence[Op], module: int) -> list[Op]:
    return [replace(op, id=f"{PREFIX}{module}/{op.id}") for op in ops]


def _end(
    rows: tuple[Parameter, ...], forward: Sequence[Op], back: Sequence[Op], shape: TrainShape
) -> End:
    """Both passes as one chain; frozen matrices have no dW."""
    frozen = {f"dW {r.name}" for r in rows if not shape.trains(r)}
    forth = [replace(op, phase=op.phase or "forward") for op in forward]
    both = _chained([*forth, *(op for op in back if op.name not in frozen)], shape)
    return End(
        rows=rows,
        forward=tuple(op for op in both if op.phase == "forward"),
        backward=tuple(op for op in both if op.phase != "forward"),
    )


# Optimizer ----------------------------------------------------------------------------------------


def optimizer_ops(cfg: ModelConfig, rows: Sequence[Parameter], shape: TrainShape) -> tuple[Op, ...]:
    """The optimizer's update of the busiest stage, and the gather of the new parameters."""
    trained = [r for r in rows if shape.trains(r)]
    first = {id(r) for r in end_rows(rows)[0]}
    return update_ops(trained, shape, lambda part: stage_local(part, first, shape) * copies(shape))


def stage_local(part: Sequence[Parameter], first: set[int], shape: TrainShape) -> Quantity:
    """Stored elements of some rows on the busiest stage: its share of the layers and, with stages,
    the head alone (`first`, ids of the embedding's rows, lie on another), without them both."""
    total: Quantity = 0.0
    for row in part:
        share = shape.stage_share if row.group is not None else 1.0
        if id(row) in first:
            share = 1.0 - shape.apart
        size = row.size * row.layers * shape.stored_share(row)
        total = total + held(row, shape) * size * share
    return total
