"""What our runtime's step moves beside the plan's list, as lines made from the model and the mesh.

The planner counts what every framework moves. These lines are how our layouts come out (in
`runtime/parallel/tensor.py`, `passes.py` and the ring's backward pass); the comparison adds them
to the plan's list, so that the program must have each of them, no byte less and none more. All are
in the dtype of the activations, which is what `rules.py` scales both lists to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from shardwise.hardware.slices import parse_slice
from shardwise.models import Attention, ModelConfig, Parameter
from shardwise.models.parameters import parameters
from shardwise.plans import TrainPlan
from shardwise.plans.layouts import UNEVEN, gather_axes, tensor_letter
from shardwise.profiler.collectives.lines import Line, activation_dtype
from shardwise.roofline.stacks import whole_sums
from shardwise.scheduling import pipeline_schedule
from shardwise.units import dtype_bytes
from shardwise.work import CollectiveKind

ADDED = {
    "statistics": "softmax over a vocabulary that tensor cuts: the largest logit, the sum and the "
    "target's own, summed for every token",
    "replicated over tensor": "gradients of what tensor does not cut (norms, biases, routers, KV "
    "heads that it does not divide) are summed over it in every microbatch, since it cuts the "
    "tokens; of what is stored in pieces, the piece",
    "whole heads": "KV heads that tensor does not divide are whole on each of its devices: the "
    "gradients of keys and values are gathered over it",
    "pieces between passes": "a pipeline keeps in pieces what a later pass reads too and gathers "
    "it over tensor in both: the head's input, and the gradients that enter a layer's two blocks "
    "where the backward pass is split",
    "home": "a ring's sums of gradients go one hop further than its keys, home",
    "tied table": "a table that is looked up and multiplied has two gradients, each summed "
    "by itself",
}
"""Name -> what it is."""

STATISTICS = 3
"""The largest logit, the sum of exponentials and the target's logit."""


def added_lines(plan: TrainPlan, cfg: ModelConfig, planned: Sequence[Line]) -> Iterator[Line]:
    """What a step of the plan moves beside its list, over axes that have devices.

    V = elements * width of the activations, all microbatches together: statistics `3 tokens`,
    replicated `sum of sizes / storage degree * microbatches`, heads `tokens layers K (H + H_v)`,
    between passes `tokens D (1 + 2 layers if split)`, tied tables what the plan
    sums, home `1 / (n - 1)` of the gradients' hops.
    """
    if plan.degree("tensor") > 1:
        yield from _over_tensor(plan, cfg)
    rerun = any(line.kind == "permute" and "/re." in line.name for line in planned)
    for line in planned:
        if cfg.tied_embeddings and _sums_first(line):
            yield replace(line, name="tied table")
        if line.kind == "permute" and "/d." in line.name:
            # Planned are as many hops of keys as of their gradients, n - 1 of each.
            hop = line.bytes / 2 / (plan.degree("context") - 1)
            # As many bytes as the first hop of the keys, which two passes may share.
            yield replace(line, bytes=hop, sent=hop, name="home", again=rerun)


def with_token_rows(plan: TrainPlan, cfg: ModelConfig, planned: Sequence[Line]) -> list[Line]:
    """The plan's list with the rows that XLA for TPUs before tpu7x usually sends in place of the
    first sum of a looked up table: `tokens N D` over the N devices of its axis, to each the columns
    that it stores, or all where they replicate. As it is where sequences are cut, too."""
    tables = [x for x in planned if _sums_first(x) and x.name.endswith(".params")]
    storing = [a for a in plan.storage_axes if plan.degree(a) > 1]
    cut = len(storing) > 1 or plan.degree("context") > 1
    if not tables or cut or parse_slice(plan.slice).chip.generation not in whole_sums():
        return [*planned]
    table, axis = tables[0], tables[0].axes[0]
    if len(table.axes) > 1 or table.kind != "reduce_scatter":
        return [*planned]
    kind: CollectiveKind = "all_to_all" if axis in storing else "all_gather"
    tokens = plan.tokens / plan.batch_shards
    rows = _line(plan, "rows of tokens", kind, tokens * plan.degree(axis) * cfg.d_model)
    rows = replace(rows, axes=table.axes)
    return [rows if line is table else line for line in planned]


def _sums_first(line: Line) -> bool:
    """Whether a line of the plan sums the gradient of what stands before the stack."""
    sums = line.kind in ("reduce_scatter", "all_reduce")
    return sums and line.name.startswith("first/") and "params" in line.name


def _over_tensor(plan: TrainPlan, cfg: ModelConfig) -> Iterator[Line]:
    tokens = plan.tokens / (plan.batch_shards * plan.degree("context"))
    yield _line(plan, "statistics", "all_reduce", STATISTICS * tokens)
    if not plan.sequence_parallel:
        return
    if whole := _replicated(plan, cfg):
        yield _line(plan, "replicated over tensor", "all_reduce", whole * plan.microbatches)
    if heads := _whole_heads(plan, cfg):
        yield _line(plan, "whole heads", "all_gather", tokens * heads)
    if plan.degree("stage") > 1:
        layers = plan.layers_per_stage[-1] if _splits_backward(plan) else 0
        size = tokens * cfg.d_model * (1 + 2 * layers)
        yield _line(plan, "pieces between passes", "all_gather", size)


def _line(plan: TrainPlan, name: str, kind: CollectiveKind, elements: float) -> Line:
    dtype = activation_dtype(plan)
    size = elements * dtype_bytes(dtype)
    return Line(kind=kind, axes=("tensor",), bytes=size, count=1.0, name=name, dtype=dtype)


def _here(plan: TrainPlan, cfg: ModelConfig) -> float:
    """Share of the layers on the last rank, which the lists are of."""
    return plan.layers_per_stage[-1] / cfg.layers


def _replicated(plan: TrainPlan, cfg: ModelConfig) -> float:
    """Elements of the rows that tensor leaves whole, in the pieces that are stored."""
    found = 0.0
    for row in parameters(cfg):
        apart = row.role == "lookup" and plan.degree("stage") > 1  # on the first rank
        if apart or _is_cut(row, plan.degree("tensor")):
            continue
        layers = row.layers * (1.0 if row.group is None else _here(plan, cfg))
        pieces = prod(plan.degree(axis) for axis in gather_axes(row, plan.storage_axes))
        found += row.size * layers / pieces
    return found


def _is_cut(row: Parameter, tensor: int) -> bool:
    letter = tensor_letter(row)
    uneven = letter and dict(row.dims)[letter] % tensor and UNEVEN.get(letter) == "replicate"
    return bool(letter) and not uneven


def _whole_heads(plan: TrainPlan, cfg: ModelConfig) -> float:
    """Keys and values of one token in all layers whose KV heads tensor does not divide."""
    found, here = 0.0, _here(plan, cfg)
    for layer, layers in cfg.layer_groups():
        m = layer.mixer
        if isinstance(m, Attention) and m.kv_heads % plan.degree("tensor"):
            found += layers * here * m.kv_heads * (m.head_dim + m.v_head_dim)
    return found


def _splits_backward(plan: TrainPlan) -> bool:
    stages, chunks = plan.degree("stage"), plan.virtual_stages
    made = pipeline_schedule(plan.pipeline_schedule, stages, plan.microbatches, chunks)
    return made.splits_backward
