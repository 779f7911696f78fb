"""The parts of a training step, each counted by itself: what one device does per round.

A `StepPart` is a row: what counts it, and what it depends on. `work.py` puts the parts of a plan
into a tree; a search counts each part on the few rows of candidates that differ in what it depends
on. Every function broadcasts over candidates and yields ops without body or count. Of these, CHAIN
ops follow one another by `after`; SIDE ops, collectives and host copies off the chain, wait
for nothing or are waited for by nobody.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwise.models import ModelConfig, Parameter
from shardwise.models.parameters import parameters
from shardwise.models.specs import Layer
from shardwise.planner.step.layer import backward_layer, chain, layer_ops, matmul_op, tensor_step
from shardwise.planner.step.shape import TrainShape, Yield
from shardwise.planner.step.strategies.accumulation import adding, gradient_accumulation
from shardwise.planner.step.strategies.data import gradient_reduction
from shardwise.planner.step.strategies.fsdp import gradient_scatters, parameter_gathers
from shardwise.planner.step.strategies.lora import adapters, with_unpacking
from shardwise.planner.step.strategies.mtp import PREFIX, last_layer, mtp_rows, rows_of
from shardwise.planner.step.strategies.optimizer import copies, update_ops
from shardwise.planner.step.strategies.pipeline import stage_transfer, tied_reduction
from shardwise.planner.step.strategies.remat import (
    host_copy,
    kept_activations,
    kept_moves,
    recomputed,
    regathers,
)
from shardwise.plans.stacks import Overlapped
from shardwise.plans.train import Structure
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity, changed, make_op

Ops = tuple[Op, ...]
Bodies = tuple[Ops, ...]
"""What runs in a round: of every kind of layer, or of the one thing that there is."""

EXCHANGED = ("parameters", "gradients", "optimizer")
"""Components of the transfers that come of sharding or replicating parameters."""

SIDE = ("attention.ring",)
"""Ops of a layer that run beside its chain: hops of keys and values under the attention."""

IN_PIECES: frozenset[Overlapped | None] = frozenset({"tensor", "expert"})
"""Whose transfers stand between the ops that make and read them, and run beside the chain where
they are hidden: those of tensor cut into pieces, of experts where two microbatches' passes pair
(DeepSeek-V3, section 3.2.1, figure 4: each pass's all-to-alls under the other's attention and
MLP)."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors of a step: the model's without towers, adapters, and prediction modules."""

    cfg: ModelConfig
    rows: tuple[Parameter, ...]

    @property
    def groups(self) -> list[list[Parameter]]:
        """Those of every kind of layer."""
        return [[r for r in self.rows if r.group == g] for g in range(len(self.cfg.groups))]

    @property
    def ends(self) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]]:
        """Those before the layers (embeddings), and after them (final norm, head, modules)."""
        groups = [r.group for r in self.rows]
        start = next((i for i, g in enumerate(groups) if g is not None), len(groups))
        return self.rows[:start], tuple(r for r in self.rows[start:] if r.group is None)


def tensors_of(cfg: ModelConfig, shape: TrainShape) -> Tensors:
    """The tensors of a step."""
    rows = tuple(r for r in parameters(cfg) if r.role != "tower")
    if shape.lora_rank:
        rows += adapters(rows, shape.lora_rank, shape.lora_targets)
    if shape.mtp_layers:
        rows += mtp_rows(cfg, shape.mtp_layers)
    return Tensors(cfg, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """A part of a step, and what it depends on beside the model.

    `count` gives the ops of one thing or of several (a layer's forward and backward pass), body by
    body; `layers` is how many layers of the model are like each body. Two steps have the same part
    where they agree in `choices` and in `keys`: mesh axes (degree and links) and other columns of
    candidates (`search/leaves.py`). A part that `pairs` depends on whether passes are paired, which
    changes no op of it but what runs beside the others.
    """

    name: str
    count: Callable[[Tensors, TrainShape], tuple[Any, ...]]
    choices: Callable[[Structure], tuple]
    keys: tuple[str, ...]
    layers: Callable[[ModelConfig], list[float]] = lambda cfg: [1.0]
    pairs: bool = False


# Layers -------------------------------------------------------------------------------------------


def _layers(tensors: Tensors, shape: TrainShape) -> tuple[Bodies, ...]:
    """(forward, backward) of one layer of every kind, one microbatch."""
    groups = range(len(tensors.cfg.groups))
    chains = [layer_chains(tensors.cfg, group, tensors.rows, shape) for group in groups]
    return tuple(zip(*chains, strict=True))


def _layer_exchanges(tensors: Tensors, shape: TrainShape) -> tuple[Bodies, ...]:
    """(gathers, scatters, accumulation, casts) of one layer of every kind."""
    return tuple(zip(*(_exchanges(rows, shape) for rows in tensors.groups), strict=True))


def _exchanges(rows: Sequence[Parameter], shape: TrainShape) -> tuple[Ops, Ops, Ops, Ops]:
    """What parameters and gradients of some rows take per round: see `LayerParts`."""
    used = shape.strategies
    gathers = parameter_gathers(rows, shape) if "fsdp" in used else ()
    scatters = () if shape.reduces_once else _scatters(rows, shape)
    summed = gradient_accumulation(rows, shape) if "accumulation" in used else ()
    return gathers, scatters, summed, parameter_casts(rows, shape)


def _scatters(rows: Sequence[Parameter], shape: TrainShape) -> Ops:
    return gradient_scatters(rows, shape) if "fsdp" in shape.strategies else ()


def overlapped_of(op: Op) -> Overlapped | None:
    """Whose transfer a collective is; None of an op that is none."""
    if op.collective is None:
        return None
    if op.component in EXCHANGED:
        return "data"
    names = op.collective.axes
    return _OF_AXIS.get(names[0], "expert")


_OF_AXIS: Mapping[str, Overlapped] = {
    "stage": "pipeline",
    "context": "context",
    "tensor": "tensor",
}


def runs_beside(op: Op, aside: bool, hidden: frozenset[Overlapped]) -> bool:
    """Whether a transfer runs beside its body's chain: of those that nothing waits for (`aside`)
    the hidden ones. When a stage waits for another one is its schedule's matter."""
    whose = overlapped_of(op)
    return aside and (whose in (None, "pipeline") or whose in hidden)


def layer_chains(
    cfg: ModelConfig, group: int, rows: Sequence[Parameter], shape: TrainShape
) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Forward and backward of one layer of a group, one microbatch, with the side ops of each.

    The first op of a chain waits for the last op of the round before, which is the layer before.
    """
    layer = cfg.groups[group]
    mine = [r for r in rows if r.group == group and r.role == "matmul"]
    yields = layer_ops(cfg, layer, mine, shape.layer_shape)
    saved = kept_activations(cfg, layer, shape)
    there = [*(op for _, op in yields), *kept_moves(saved, shape, "save")]
    there = with_unpacking(there, mine, shape)
    forward = [*host_copy(saved, shape, "save"), *_chained(there, shape)]
    fetched = [changed(op, phase="backward") for op in kept_moves(saved, shape, "load")]
    back = [*fetched, *_backward(layer, mine, yields, shape)]
    ready = [*regathers(yields, shape), *host_copy(saved, shape, "load")]
    return tuple(forward), (*ready, *_chained(back, shape))


def _backward(
    layer: Layer, rows: Sequence[Parameter], yields: Sequence[Yield], shape: TrainShape
) -> list[Op]:
    """What backward runs again, then the backward pass; frozen matrices have no dW."""
    back = _trained(rows, backward_layer([op for _, op in yields]), shape)
    return with_unpacking([*recomputed(layer, yields, shape), *back], rows, shape)


def _trained(rows: Sequence[Parameter], back: Sequence[Op], shape: TrainShape) -> list[Op]:
    """A backward pass without dW of frozen matrices; all others add to the sum of gradients where
    matmuls do that."""
    frozen = {f"dW {r.name}" for r in rows if not shape.trains(r)}
    kept = [op for op in back if op.name not in frozen]
    return [adding(op, shape) for op in kept] if shape.fuses_accumulation else kept


def _chained(ops: Sequence[Op], shape: TrainShape) -> list[Op]:
    """Side ops, which wait for nothing, and the others as a chain whose first op waits for its last
    one, of the previous round.

    Nothing that they move has to cross HBM: gathered weights can go from the links into a product,
    and serve several microbatches there. What is kept for the backward pass does cross it where it
    exceeds the on-chip memory, but that never binds: about 34 D bytes per token and layer, written
    and read, take C / (D W) of the time of their 72 D^2 FLOPs, with C / W some hundreds. So the
    lower bound has the optimizer's state alone, which every step reads and writes.
    """
    ops = [changed(op, on_chip_bytes=op.hbm_bytes) for op in ops]
    hidden = shape.hidden & IN_PIECES
    beside = [op.name.endswith(SIDE) or overlapped_of(op) in hidden for op in ops]
    side = [changed(op, after=()) for op, apart in zip(ops, beside, strict=True) if apart]
    first, *rest = chain([op for op, apart in zip(ops, beside, strict=True) if not apart])
    return [*side, changed(first, after=((rest or [first])[-1].id,)), *rest]


def parameter_casts(rows: Sequence[Parameter], shape: TrainShape) -> tuple[Op, ...]:
    """Stored parameters of 4 bytes cast to the compute dtype before each use (MaxText): read them,
    write the copy that is gathered; nothing where they are stored as they are computed with. Op by
    op narrow copies are made once a step, for all microbatches (Transformer Engine's
    `is_first_microbatch`), which is left out."""
    param, weights = dtype_bytes(shape.dtypes.param), dtype_bytes(shape.weights)
    if param == weights or (shape.eager and weights < param):
        return ()
    rows = [r for r in rows if not shape.quantised(r)]
    size = shape.stored(rows) * (param + weights)
    return (make_op("cast.params", "parameters", "elementwise", hbm_bytes=size),)


def _reductions(tensors: Tensors, shape: TrainShape) -> tuple[Bodies, ...]:
    """The gradient reduction of one layer of every kind."""
    return (tuple(_reduction(rows, shape) for rows in tensors.groups),)


def _reduction(rows: Sequence[Parameter], shape: TrainShape) -> Ops:
    scatters = _scatters(rows, shape) if shape.reduces_once else ()
    if "data" not in shape.strategies:
        return scatters
    return (*scatters, *gradient_reduction(rows, shape))


def _transfer(tensors: Tensors, shape: TrainShape) -> tuple[Bodies, ...]:
    """The share per layer and chunk of sending activations to the next stage."""
    sent = stage_transfer(tensors.cfg, shape) if "pipeline" in shape.strategies else ()
    return ((sent,),)


# Ends ---------------------------------------------------------------------------------------------


def _ends(tensors: Tensors, shape: TrainShape) -> tuple[Bodies, ...]:
    """Both passes of both ends, one microbatch. First: embedding lookup and what stands before the
    layers. Last: final norm, logits, loss, and the modules that predict further tokens.

    The table is cut by rows over tensor: partial sums in, gathered activations out.
    """
    cfg, (before, after) = tensors.cfg, tensors.ends
    inner = shape.layer_shape
    lookup = make_op(
        "embedding.lookup",
        "embedding",
        "gather",
        hbm_bytes=2 * shape.tokens * cfg.d_model * dtype_bytes(inner.activations),
    )
    first = [lookup, *(matmul_op(r, inner) for r in before if r.role == "matmul")]
    if "tensor" in shape.strategies:
        first += tensor_step("embedding.scatter", "reduce_scatter", "embedding", cfg, inner)
    head = _head(cfg, after, shape)
    forward, back = list(head), [*_made_again(head, shape), *backward_layer(head)]
    for module in range(shape.mtp_layers):
        ops, returned = _mtp(cfg, after, shape, module)
        forward, back = [*forward, *ops], [*returned, *back]
    return (
        (_both_passes(before, first, backward_layer(first), shape),),
        (_both_passes(after, forward, back, shape),),
    )


def _made_again(head: Sequence[Op], shape: TrainShape) -> list[Op]:
    """The matmuls of the head that the backward pass runs again where the loss is made in pieces:
    their logits are not kept (MaxText's num_vocab_tiling)."""
    if shape.logit_chunks == 1:
        return []
    again = [op for op in head if op.op_class == "matmul"]
    return [changed(op, id=f"re.{op.id}", name=f"re {op.name}", phase="recompute") for op in again]


def _head(cfg: ModelConfig, rows: Sequence[Parameter], shape: TrainShape) -> list[Op]:
    """Final norm, logits and loss. Softmax in f32: logits are read and cast, the maximum and the
    sum are taken, probabilities are written; the gradient reads them and writes its own. A fused
    loss of PyTorch's reads what the product wrote, and then reads it and writes the gradient."""
    inner = shape.layer_shape
    fused = shape.eager and shape.fuses_loss
    moved = dtype_bytes(inner.activations) if fused else 2 * 4.0
    width = inner.norm_tokens * cfg.d_model * dtype_bytes(inner.activations)
    logits = cfg.vocabulary / shape.degree("tensor") * shape.tokens
    heads = [r for r in rows if r.role == "matmul" and not r.name.startswith(PREFIX)]
    gather = []
    if "tensor" in shape.strategies:
        gather = tensor_step("head.gather", "all_gather", "lm_head", cfg, inner)
    return [
        make_op("final.norm", "norms", "elementwise", hbm_bytes=4 * width),
        *gather,
        *(matmul_op(r, inner) for r in heads),
        make_op("logits.softmax", "lm_head", "elementwise", hbm_bytes=moved * logits),
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
    return [changed(op, id=f"{PREFIX}{module}/{op.id}") for op in ops]


def _both_passes(
    rows: tuple[Parameter, ...], forward: Sequence[Op], back: Sequence[Op], shape: TrainShape
) -> Ops:
    """Both passes as one chain; frozen matrices have no dW."""
    forth = [changed(op, phase=op.phase or "forward") for op in forward]
    both = _chained([*forth, *_trained(rows, back, shape)], shape)
    return tuple(sorted(both, key=lambda op: op.phase != "forward"))


def _end_exchanges(tensors: Tensors, shape: TrainShape) -> tuple[Bodies, ...]:
    """(gathers, regathers, scatters, accumulation, casts) of both ends: see `EndParts`."""
    found: list[Bodies] = []
    for rows in tensors.ends:
        gathers, scatters, summed, casts = _exchanges(rows, shape)
        regathers = (changed(g, id=f"re.{g.id}") for g in gathers)
        found += [
            (_phase(gathers, "forward"),),
            (_phase(regathers, "backward"),),
            (_phase(scatters, "backward"),),
            (_phase(summed, "backward"),),
            (_phase(casts, "forward"),),
        ]
    return tuple(found)


def _end_reductions(tensors: Tensors, shape: TrainShape) -> tuple[Bodies, ...]:
    """The gradient reduction of both ends, a tied head's with the last one's."""
    tied = tied_reduction if "pipeline" in shape.strategies else lambda rows, shape: ()
    both = ((*_reduction(rows, shape), *tied(rows, shape)) for rows in tensors.ends)
    return tuple((_phase(ops, "backward"),) for ops in both)


def _phase(ops: Iterable[Op], phase: str) -> Ops:
    return tuple(changed(op, phase=phase) for op in ops)


# Optimizer ----------------------------------------------------------------------------------------


def _update(tensors: Tensors, shape: TrainShape) -> tuple[Bodies, ...]:
    """The optimizer's update of the busiest stage, and the gather of the new parameters."""
    trained = [r for r in tensors.rows if shape.trains(r)]
    first = {id(r) for r in tensors.ends[0]}

    def local(rows: Sequence[Parameter]) -> Quantity:
        return stage_local(rows, first, shape) * copies(shape)

    return ((update_ops(trained, shape, local),),)


def stage_local(part: Sequence[Parameter], first: set[int], shape: TrainShape) -> Quantity:
    """Stored elements of some rows on the busiest stage: its share of the layers and, with stages,
    the head alone (`first`, ids of the embedding's rows, lie on another), without them both."""
    total: Quantity = 0.0
    for row in part:
        share = shape.stage_share if row.group is not None else 1.0
        if id(row) in first:
            share = 1.0 - shape.apart
        size = row.size * row.layers * shape.stored_share(row)
        total = total + shape.held(row) * size * share
    return total


# The table ----------------------------------------------------------------------------------------


def _of_each_kind(cfg: ModelConfig) -> list[float]:
    return [float(many) for _, many in cfg.layer_groups()]


INNER = ("expert", "context", "tensor")
STORED = ("fsdp", *INNER)
"""Axes that the storage and the gathers of a parameter depend on."""
COPIES = ("replica", "data", *STORED)

LAYER = StepPart(
    name="layer",
    count=_layers,
    choices=lambda s: (s.remat, s.context_method, s.paired),
    keys=(*INNER, "tokens"),
    layers=_of_each_kind,
    pairs=True,
)
LAYER_EXCHANGES = StepPart(
    name="layer exchanges",
    count=_layer_exchanges,
    choices=lambda s: (s.storage_axes, s.gradient_reduce),
    keys=(*STORED, "loop"),
    layers=_of_each_kind,
)
REDUCTION = StepPart(
    name="reduction",
    count=_reductions,
    choices=lambda s: (s.storage_axes, s.gradient_reduce, s.zero == 0),
    keys=COPIES,
    layers=_of_each_kind,
)
TRANSFER = StepPart(
    name="transfer",
    count=_transfer,
    choices=lambda s: (),
    keys=("stage", "tensor", "tokens"),
    layers=lambda cfg: [float(cfg.layers)],
)
ENDS = StepPart(
    name="ends",
    count=_ends,
    choices=lambda s: (s.remat, s.context_method, s.paired),
    keys=(*INNER, "tokens"),
    pairs=True,
)
END_EXCHANGES = StepPart(
    name="end exchanges",
    count=_end_exchanges,
    choices=lambda s: (s.storage_axes, s.gradient_reduce, s.ends == "apart"),
    keys=(*STORED, "loop", "piped"),
)
END_REDUCTIONS = StepPart(
    name="end reductions",
    count=_end_reductions,
    choices=lambda s: (s.storage_axes, s.gradient_reduce, s.zero == 0, s.ends == "apart"),
    keys=("stage", *COPIES),
)
UPDATE = StepPart(
    name="update",
    count=_update,
    choices=lambda s: (s.storage_axes, s.zero > 0, s.ends),
    keys=("stage", *COPIES),
)
PARTS = (
    LAYER, LAYER_EXCHANGES, REDUCTION, TRANSFER, ENDS, END_EXCHANGES, END_REDUCTIONS, UPDATE,
)  # fmt: skip
