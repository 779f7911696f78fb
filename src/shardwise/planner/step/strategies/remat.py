"""Rematerialisation: which ops the backward pass runs again, and which activations are kept.

A policy's row (`models/remat.py`) says for every kind of activation whether it is kept, recomputed
or offloaded, and `remat_kinds` overrides it (ch. 4.4.2). An op runs again if its kind is recomputed
and something in the backward pass needs it: everything is needed, by a weight gradient or by the
gradient of the op that reads it, except a layer's last sum into the stream. XLA drops that one as
dead code and PyTorch stops early; Megatron-LM's checkpoint runs the whole block
(`recompute_whole`).
"""

from collections.abc import Sequence
from dataclasses import replace

from shardwise.models.activations import statuses
from shardwise.models.remat import SAVED_KINDS
from shardwise.models.specs import Layer, Moe
from shardwise.planner.step.ops import Yield
from shardwise.planner.step.shape import TrainShape
from shardwise.work import Op


def recomputed(layer: Layer, yields: Sequence[Yield], shape: TrainShape) -> list[Op]:
    """The ops of a layer's forward pass that its backward pass runs again, in order."""
    table = statuses(shape.remat, shape.remat_kinds)
    whole = shape.software.recompute_whole and all(
        table[kind] == "recompute" for kind in SAVED_KINDS if kind != "block_input"
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
    whole = {"attention.gather", "mlp.gather"} if shape.software.keeps_gathered else set()
    return [
        replace(op, id=f"again.{op.id}", name=f"{op.name} again", phase="backward", after=())
        for kind, op in yields
        if op.collective
        and op.collective.kind == "all_gather"
        and table[kind] != "recompute"
        and op.id not in whole
    ]
