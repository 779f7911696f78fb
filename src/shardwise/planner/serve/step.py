"""Count one step of a serving engine on one device: decoding sequences and chunks of prompts.

All tokens of a step go through the same matmuls, so weights are read once for both; attention is
counted apart, decodes against their caches and chunks against themselves and what stands before
them. A step is a `StepShape` of the whole replica; its fields may be arrays, as everything here
broadcasts. Where sequences differ in length, attention without a window is exact in the sums that
the shape holds; a window is applied to the mean length. `count.py` counts the steps of a plan
(one prompt alone, or one full batch) with the same parts.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from shardwise.models import ModelConfig, kv_elements
from shardwise.models.components import CORE
from shardwise.models.flops import attention_flops_per_token
from shardwise.models.specs import Layer, RecurrentMixer, SoftmaxMixer
from shardwise.planner.serve.count import (
    MIXER_AXES,
    ServeShape,
    decode_core,
    first_ops,
    head_share,
    last_ops,
    looped,
    prefill_scan,
    stack_ops,
)
from shardwise.planner.step.shape import LayerShape, kv_heads
from shardwise.scheduling.step import StepShape
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity, Work, exchange, make_op

STEP = "step"


def step_work(cfg: ModelConfig, server: ServeShape, step: StepShape) -> Work:
    """One step on the busiest device.

    `server` gives degrees, dtypes and how the cache is cut; its batch and lengths are not read.
    Prompts are cut over `data` and `expert` as the batch is.
    """
    decoding = np.ceil(step.decode_tokens / server.splits)
    tokens = decoding + step.prefill_tokens / server.splits
    inner = server.seen(tokens, 1.0)
    ops = stack_ops(cfg, server, inner, partial(_core, server, step), STEP, 1)
    ops += looped(first_ops(cfg, inner), STEP, "embed", 1.0)
    last = replace(inner, tokens=np.ceil(step.samples / server.splits))
    return Work((*ops, *looped(last_ops(cfg, server, inner, last), STEP, "sample", 1.0)))


def _core(server: ServeShape, step: StepShape, layer: Layer, inner: LayerShape) -> list[Op]:
    """The mixer of a step: its decodes, then its chunks; each only where there are some."""
    ops: list[Op] = []
    if np.any(step.decodes):
        ops += _decodes(server, step, layer, inner)
    if np.any(step.prefill_tokens):
        ops += prefill_ops(server, step, layer, inner)
    return ops


def _decodes(server: ServeShape, step: StepShape, layer: Layer, inner: LayerShape) -> Sequence[Op]:
    """Every decoding sequence against its cache, at the mean length."""
    sequences = np.ceil(step.decodes / server.splits)
    context = step.decode_context / np.maximum(step.decodes, 1)
    queries = step.decode_tokens / np.maximum(step.decodes, 1)
    seen = replace(inner, tokens=sequences, context=context)
    return [_repeated(op, queries) for op in decode_core(server, layer, seen)]


def _repeated(op: Op, queries: Quantity) -> Op:
    """The op of a speculating sequence: its cache is read once, all its tokens multiply."""
    if np.all(np.equal(queries, 1)):
        return op
    return replace(op, flops={dtype: f * queries for dtype, f in op.flops.items()})


def prefill_ops(
    server: ServeShape, step: StepShape, layer: Layer, inner: LayerShape
) -> Sequence[Op]:
    """Chunks of prompts against themselves and the tokens that stand before them."""
    parts = server.splits * server.stationary
    if isinstance(layer.mixer, RecurrentMixer):
        seen = replace(inner, tokens=step.prefill_tokens / server.splits)
        return prefill_scan(server, layer, layer.mixer, seen)
    if not isinstance(layer.mixer, SoftmaxMixer):
        return []
    tokens = step.prefill_tokens / parts
    mixer, tensor = layer.mixer, inner.degree("tensor")
    size, stored = dtype_bytes(inner.activations), dtype_bytes(server.dtypes.kv)
    entry = kv_elements(mixer) * head_share(mixer, tensor)
    width = mixer.head_dim + mixer.v_head_dim
    keys = (step.prefill_context + step.prefill_tokens) * np.ceil(kv_heads(mixer) / tensor)
    moved = keys * width * size + tokens * mixer.heads / tensor * width * size
    core = make_op(
        "attention.prefill",
        CORE,
        "attention",
        flops={inner.compute: _chunk_flops(step, layer) / parts / tensor},
        hbm_bytes=(moved + tokens * entry * stored) * np.greater(tokens, 0),
        hbm_least=tokens * kv_elements(mixer) / tensor * stored,
    )
    if not server.has(*MIXER_AXES):
        return [core]
    wire = step.prefill_tokens * entry * stored
    gather = exchange("attention.kv", "all_gather", CORE, MIXER_AXES, wire)
    return [replace(gather, count=np.where(tokens > 0, 1.0, 0.0)), core]


def _chunk_flops(step: StepShape, layer: Layer) -> Quantity:
    """Attention FLOPs of all chunks: those per pair of the mean chunk, times the pairs."""
    chunks = np.maximum(step.prefills, 1)
    past = step.prefill_context / chunks
    upto = past + step.prefill_tokens / chunks
    flops = prompt_flops(layer, upto) - prompt_flops(layer, past)
    return flops * step.prefill_pairs / np.maximum((upto**2 - past**2) / 2, 0.5)


def prompt_flops(layer: Layer, tokens: Quantity) -> Quantity:
    """Attention FLOPs of a whole prompt, all heads: half of the square, less beyond a window."""
    return tokens * attention_flops_per_token(layer, tokens)
