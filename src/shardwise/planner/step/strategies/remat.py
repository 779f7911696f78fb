"""What becomes of a layer's activations: kept, recomputed, or offloaded to host memory.

A policy's row (`models/remat.py`) says it for every kind of activation, and `remat_kinds` overrides
it (ch. 4.4.2). An op runs again if its kind is recomputed and something in the backward pass needs
it: everything is needed, by a weight gradient or by the gradient of the op that reads it, except a
layer's last sum into the stream. XLA drops that one as dead code and PyTorch stops early;
Megatron-LM's checkpoint runs the whole block (`recompute_whole`).

Activations of the offloaded kinds are copied out after the forward pass of a layer and back before
its backward pass, on the host stream; the chain does not wait for the way out.

Which tensors there are to keep is the software's matter. An autograd tape keeps all of them. A
compiler (XLA, torch.compile) keeps what the backward pass reads and cannot fuse into what reads it.
Megatron-LM's fused kernels keep their inputs alone: that of an MLP's activation with its gate
(`bias_swiglu_fusion`), which weighs the experts' inputs to their last matmul too, so that nobody
needs what the experts yield (`weighted_bias_swiglu_impl`). Transformer Engine keeps what its
matmuls read as they quantised it; the core of attention keeps its own output beside that.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwise.models import ModelConfig
from shardwise.models.activations import Activation, saved_activations, saved_scores, statuses
from shardwise.models.parameters import parameters
from shardwise.models.remat import REMAT_KINDS, Saved
from shardwise.models.specs import Layer, Moe
from shardwise.planner.step.shape import TrainShape, Yield, kv_heads
from shardwise.planner.step.strategies.lora import kept_beside
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity, changed, make_op, total

CORE = "attention output"


def kept_activations(cfg: ModelConfig, layer: Layer, shape: TrainShape) -> tuple[Activation, ...]:
    """The activations of one layer that some policy keeps."""
    saved = tuple(a for a in saved_activations(cfg, layer) if not _remade(a, shape))
    if shape.quantises_kept:
        saved += tuple(replace(a, name=f"{CORE}, quantised", fed=True) for a in saved if _core(a))
    if shape.attention_kernel == "scores":
        wide = shape.stack_row.wide_softmax and shape.tapes
        wide = wide and not shape.library_row.narrow_softmax
        saved += saved_scores(layer, float(shape.sequence_length), wide=wide)
    if shape.library_row.f32_norms:
        saved = in_f32(cfg, layer, saved, shape)
    if shape.library_row.whole_qkv:
        saved += whole_qkv(layer)
    if shape.library_row.repeats_kv:
        saved += repeated_kv(layer)
    if shape.library_row.narrow_gates:
        saved = tuple(_narrowed(a, shape) for a in saved)
    if not shape.lora_rank:
        return saved
    group = cfg.groups.index(layer)
    rows = [r for r in parameters(cfg) if r.group == group and r.role == "matmul"]
    return kept_beside(saved, rows, shape)


def in_f32(
    cfg: ModelConfig, layer: Layer, saved: Sequence[Activation], shape: TrainShape
) -> tuple[Activation, ...]:
    """What layers keep whose RMSNorms work on an f32 copy of their input: the copy, and where the
    norm is trained what it scales. The stream itself is kept for a block that runs again alone."""
    if layer.norm_bias:
        return tuple(saved)
    heads = [a.width for a in saved if a.name in ("normed queries", "normed keys")]
    width = cfg.d_model * len(layer.norms) + sum(heads)
    copies = [Activation(name="norm inputs", width=width, letter="", kind="norm", f32=True)]
    if not shape.lora_rank:
        scaled = replace(copies[0], name="norms before their scale", f32=False)
        copies.append(scaled)
    whole = statuses(shape.remat, shape.remat_kinds)["norm"] == "keep"
    copied = {"stream after mixer", *(["block input"] if whole else [])}
    return (*(a for a in saved if a.name not in copied), *copies)


def whole_qkv(layer: Layer) -> tuple[Activation, ...]:
    """The queries and keys of the product that values are a view of, beside the rotated ones."""
    mixer = layer.attention
    if mixer is None:
        return ()
    width = (mixer.heads + kv_heads(mixer)) * mixer.head_dim
    return (Activation(name="queries and keys", width=width, letter="N", kind="qkv"),)


def repeated_kv(layer: Layer) -> tuple[Activation, ...]:
    """Keys and values of the heads of queries beyond those that have their own."""
    mixer = layer.attention
    if mixer is None:
        return ()
    width = 2 * (mixer.heads - kv_heads(mixer)) * mixer.head_dim
    return (Activation(name="repeated keys and values", width=width, letter="N", kind="qkv"),)


def _narrowed(activation: Activation, shape: TrainShape) -> Activation:
    """An activation in fp8 where it goes into an MLP's activation function."""
    if activation.kind not in ("mlp_in", "mlp_gate") or activation.f32 or not activation.sharded:
        return activation
    size = dtype_bytes(shape.layer_shape.activations)
    return replace(activation, width=activation.width * dtype_bytes("fp8") / size)


def _core(activation: Activation) -> bool:
    return activation.name == CORE


def _remade(activation: Activation, shape: TrainShape) -> bool:
    if not shape.tapes and activation.remade:
        return True
    gate = activation.remade and activation.kind == "activation"
    experts = activation.name.startswith("experts")
    weighed = experts and activation.kind == "mlp_out"
    fuses = shape.stack_row.fuses_mlp or (experts and shape.library_row.weighs_inside)
    return fuses and (gate or weighed)


def recomputed(layer: Layer, yields: Sequence[Yield], shape: TrainShape) -> list[Op]:
    """The ops of a layer's forward pass that its backward pass runs again, in order."""
    table = statuses(shape.remat, shape.remat_kinds)
    whole = shape.stack_row.recompute_whole and all(
        table[kind] == "recompute" for kind in REMAT_KINDS if kind != "block_input"
    )
    again = {kind for kind in table if table[kind] == "recompute"}
    if not whole and not needs_result(layer):
        again.discard("mlp_out" if layer.mlp is not None else "attention_out")
    return [
        changed(op, id=f"re.{op.id}", name=f"re {op.name}", phase="recompute")
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
    whole = {"attention.gather", "mlp.gather"} if shape.stack_row.keeps_gathered else set()
    return [
        changed(op, id=f"again.{op.id}", name=f"{op.name} again", phase="backward", after=())
        for kind, op in yields
        if op.collective
        and op.collective.kind == "all_gather"
        and table[kind] != "recompute"
        and op.id not in whole
    ]


def host_copy(saved: Sequence[Activation], shape: TrainShape, step: str) -> list[Op]:
    """One layer's offloaded activations to host memory ("save") or back ("load")."""
    size = saved_bytes(saved, shape, "offload")
    if not np.any(size):
        return []
    return [make_op(f"{step}.activations", "offload", "copy", host_bytes=size, stream="host")]


KEPT_PASSES = {"save": 4, "load": 5}
"""Times that a kept activation crosses HBM: into the stack of all layers on the way there, out of
it and into the layout that its reader wants on the way back. Their sum is of least squares over 28
compiled plans (docs/lab/log.md, 2026-11-26); how it falls to both ways is assumed."""


def kept_moves(saved: Sequence[Activation], shape: TrainShape, step: str) -> list[Op]:
    """What a compiled loop over layers does to keep one layer's activations on the device ("save"),
    and to have them back ("load")."""
    if not shape.stack_row.stacks_kept:
        return []
    size = KEPT_PASSES[step] * saved_bytes(saved, shape, "keep")
    return [make_op(f"{step}.kept", "activations", "elementwise", hbm_bytes=size)]


def saved_bytes(saved: Sequence[Activation], shape: TrainShape, place: str) -> Quantity:
    """Bytes per layer and microbatch of what the policy keeps on the device ("keep") or on the host
    ("offload"). Sharded activations are cut by tensor, the others under sequence parallelism."""
    return bytes_of([a for a in saved if place_of(a, shape) == place], shape)


def bytes_of(saved: Sequence[Activation], shape: TrainShape) -> Quantity:
    """Bytes of some activations of one layer and microbatch on one device."""
    inner = shape.layer_shape
    size = dtype_bytes(inner.activations)
    narrow = dtype_bytes(shape.dtypes.compute) if shape.quantises_kept else size

    def tokens(a: Activation) -> Quantity:
        if shape.stack_row.keeps_gathered and a.kind == "norm" and not a.f32:
            return shape.tokens
        return shape.tokens / shape.degree("tensor") if a.sharded else inner.norm_tokens

    return total(
        a.bytes_per_token(narrow if a.fed else size) * _load(a, shape) * tokens(a) for a in saved
    )


def _load(a: Activation, shape: TrainShape) -> Quantity:
    """Rows of an activation over k per token. A compiled dropless exchange (`expert_kept`) weights
    the experts' outputs after their way back: what is kept of them are the sender's own rows."""
    if not a.name.startswith(ROUTED):
        return 1.0
    own = a.kind == "mlp_out" and shape.ragged and not shape.eager
    return 1.0 if own else shape.expert_kept


ROUTED = ("experts", "dispatched")
"""How the names of activations begin that grow with the rows that a device's experts hold."""


def place_of(activation: Activation, shape: TrainShape) -> Saved:
    """Where the step's policy leaves an activation."""
    return activation.place(shape.remat, shape.remat_kinds)
