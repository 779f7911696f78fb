"""Rematerialisation: which ops the backward pass runs again, and which activations are kept.

A policy says for every kind of activation whether it is kept, recomputed or offloaded, and
`remat_kinds` overrides it (ch. 4.4.2). An op runs again if its kind is recomputed and something in
the backward pass needs it: everything is needed, by a weight gradient or by the gradient of the op
that reads it, except a layer's last sum into the stream. XLA drops that one as dead code and
PyTorch stops early; Megatron-LM's checkpoint runs the whole block (`recompute_whole`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

from shardwise.models.specs import Layer, Moe
from shardwise.planner.step.layer import Yield
from shardwise.planner.step.shape import TrainShape
from shardwise.plans.train import Remat, Saved, SavedKind
from shardwise.work import Op

KINDS: tuple[SavedKind, ...] = get_args(SavedKind)

_MATMULS: frozenset[SavedKind] = frozenset({"qkv", "attention_out", "mlp_in", "mlp_out"})


def statuses(remat: Remat, kinds: Mapping[SavedKind, Saved]) -> dict[str, Saved]:
    """What becomes of every kind of activation. Tokens sent to experts ("dispatch") are kept with
    the norms that they are copies of, unless the plan says something of `mlp_in`.

    >>> statuses("matmul_outputs", {"attention": "offload"})["attention"]
    'offload'
    """
    rest: Saved = "keep" if remat == "none" else "recompute"
    table: dict[str, Saved] = dict.fromkeys(KINDS, rest)
    if remat == "matmul_outputs":
        table |= dict.fromkeys(_MATMULS, "keep")
    table["block_input"] = "offload" if remat == "offload" else "keep"
    return {**table, **kinds, "dispatch": kinds.get("mlp_in", rest)}


def recomputed(layer: Layer, yields: Sequence[Yield], shape: TrainShape) -> list[Op]:
    """The ops of a layer's forward pass that its backward pass runs again, in order."""
    table = statuses(shape.remat, shape.remat_kinds)
    whole = shape.recompute_whole and all(
        table[kind] == "recompute" for kind in KINDS if kind != "block_input"
    )
    again = {kind for kind in table if table[kind] == "recompute"}
    if not whole and not needs_result(layer):
        again.discard("mlp_out" if layer.mlp is not None else "attention_out")
    return [
        replace(op, id=f"re.{op.id}", name=f"re {op.name}", phase="recompute")
        for kind, op in yields
        if kind in again
    ]


def needs_result(layer: Layer) -> bool:
    """Whether the backward pass needs a layer's last output: to weigh experts, for a norm after it,
    or to mix several streams."""
    after = any(name.startswith("post_") for name in layer.norms)
    return isinstance(layer.mlp, Moe) or after or layer.streams > 1


def regathers(yields: Sequence[Yield], shape: TrainShape) -> list[Op]:
    """Activations kept in pieces, gathered again for the gradients that need them whole (Megatron
    sequence parallelism; keys over context); the pieces are there, so this waits for nothing.
    Where the reader of a gather is recomputed, the gather is too, unless its own kind is kept."""
    table = statuses(shape.remat, shape.remat_kinds)
    whole = {"attention.gather", "mlp.gather"} if shape.keeps_gathered else set()
    return [
        replace(op, id=f"again.{op.id}", name=f"{op.name} again", phase="backward", after=())
        for kind, op in yields
        if op.collective
        and op.collective.kind == "all_gather"
        and table[kind] != "recompute"
        and op.id not in whole
    ]
