"""Context parallelism: a sequence is cut over `context`, and attention sees all of it.

Queries `q[B, T_context, N, H]` meet keys and values of the whole sequence, by one of

- all_gather: `k[B, S_context, K, H]` and v are gathered to `k[B, S, K, H]` before the core, their
  gradients reduce-scattered after it (Llama 3, arXiv 2407.21783, section 3.3.2);
- ring: blocks of k and v go round the ring, each hop under the attention to the block before
  (Ring Attention, arXiv 2310.01889); the backward pass sends the blocks and their gradients;
- ulysses: an all-to-all makes `q[B, T, N_context, H]` and one turns the output back (DeepSpeed
  Ulysses, arXiv 2309.14509); KV heads fewer than devices are replicated.

Causal work is counted as balanced: a device holds one chunk from the front and one from the back of
the sequence (zig-zag), so that every device has the mean.
"""

import numpy as np

from shardwise.models.components import CORE
from shardwise.models.specs import Layer, SoftmaxMixer
from shardwise.planner.step.layer_shape import LayerShape
from shardwise.planner.step.ops import exchange, make_op
from shardwise.planner.step.strategies.packing import attention_flops
from shardwise.plans.context_methods import context_row
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity

SCORE_BYTES = 2.0
"""Scores and probabilities are kept in 16 bits (Megatron-LM)."""

SCORE_PASSES = 4
"""QK^T writes the scores, scale, mask and softmax as one read and write them, PV reads them."""


def attention_core(layer: Layer, mixer: SoftmaxMixer, shape: LayerShape) -> list[Op]:
    """The mixer between its projections, with the exchange over context.

    Flash attention: scores never leave the chip; Q, K, V are read and the output is written. With
    the kernel "scores" all T x S of them are computed, masked or not, and pass through memory.
    """
    whole = shape.choices.attention_kernel == "scores"
    flops = attention_flops(
        layer, shape.context, shape.choices.packed_lengths, shape.causal and not whole
    )
    queries, keys = _bytes_per_token(mixer, shape)
    core = make_op(
        "attention.scores" if whole else "attention.core",
        CORE,
        "attention",
        # Recipes that multiply in fp8 leave the core in 16 bits (Transformer Engine's default,
        # MaxText fp8, DeepSeek-V3 section 3.3.1).
        flops={shape.activations: flops * shape.tokens / shape.degree("tensor")},
        hbm_bytes=shape.tokens * (queries + keys * _keys_read(shape)),
    )
    ops = [core, *_softmax(mixer, shape)] if whole else [core]
    before, after = _exchanges(mixer, shape)
    return [*before, *ops, *after]


def _softmax(mixer: SoftmaxMixer, shape: LayerShape) -> list[Op]:
    scores = mixer.heads / shape.degree("tensor") * shape.tokens * shape.context
    size = SCORE_PASSES * SCORE_BYTES * scores
    return [make_op("attention.softmax", CORE, "elementwise", hbm_bytes=size)]


def _bytes_per_token(mixer: SoftmaxMixer, shape: LayerShape) -> tuple[Quantity, Quantity]:
    """Bytes of queries and output, and of keys and values, per token on one device of tensor."""
    width = (mixer.head_dim + mixer.v_head_dim) * dtype_bytes(shape.activations)
    tensor = shape.degree("tensor")
    return mixer.heads / tensor * width, np.ceil(kv_heads(mixer) / tensor) * width


def _keys_read(shape: LayerShape) -> Quantity:
    """Tokens whose keys a device reads, over its own: those of the whole sequence."""
    return shape.degree("context")


def _exchanges(mixer: SoftmaxMixer, shape: LayerShape) -> tuple[list[Op], list[Op]]:
    """What goes over context before and after the core."""
    context = shape.degree("context")
    if not np.any(np.asarray(context) > 1):
        return [], []
    queries, keys = _bytes_per_token(mixer, shape)
    row = context_row(shape.choices.context_method)
    moved = shape.tokens * row.moved(context)

    def wire(op_id: str, size: Quantity) -> list[Op]:
        return [exchange(op_id, row.collective, CORE, ("context",), size)]

    if not row.cuts_heads:
        return wire(row.op, moved * keys), []
    # Half of `queries` is the queries, the other half the output.
    share = mixer.head_dim / (mixer.head_dim + mixer.v_head_dim)
    local = np.ceil(kv_heads(mixer) / shape.degree("tensor"))
    copies = np.maximum(context / local, 1.0)
    inward = wire(row.op, moved * (queries * share + keys * copies))
    return inward, wire("attention.to_tokens", moved * queries * (1 - share))


def kv_heads(mixer: SoftmaxMixer) -> int:
    """KV heads as computed with: latent attention expands its latent to every query head."""
    return getattr(mixer, "kv_heads", mixer.heads)
