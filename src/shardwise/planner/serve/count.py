"""Count one step of a server on one device: decoding sequences, and chunks of prompts.

All tokens of a step go through the same matmuls, so weights are read once for both; attention is
counted apart (`attention.py`): a decoding sequence against its cache, a chunk against itself and
the part of its prompt that is cached already. The batch and the tokens of prompts are cut over
`data` and `expert`. Layers are counted as in training, with stored weights and a cache. Between
blocks the stream is cut over `tensor` (by tokens, in decode by D: In[B, D_Y] of ch. 7.3.2), so each
block gathers it and scatters it back.

`step_work` counts any step of an engine. A plan is priced by two of them: `decode_work`, one token
of its full batch, and `prefill_work`, all chunks of one prompt. Everything broadcasts over
candidate plans.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.models.flops import attention_flops_per_token
from shardwise.models.specs import Layer
from shardwise.planner.serve.attention import decode_core, prefill_core
from shardwise.planner.serve.shape import ServeShape, served_rows
from shardwise.planner.step.layer import (
    LayerShape,
    chain,
    forward_layer,
    matmul_op,
    tensor_step,
)
from shardwise.planner.step.strategies.stationary import sums
from shardwise.plans.layouts import compute_share
from shardwise.scheduling.step import StepShape
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity, Work, exchange, make_op

STEP = "step"

Core = Callable[[Layer, LayerShape], Sequence[Op]]
"""The ops of a layer's mixer between its projections."""


def step_work(cfg: ModelConfig, server: ServeShape, step: StepShape, *, phase: str = STEP) -> Work:
    """One step on the busiest device. `step` is of the whole replica; its fields may be arrays.

    `server` gives degrees, dtypes and how the cache is cut; its batch and lengths are not read.
    Where sequences differ in length, attention without a window is exact in the sums that the step
    holds; a window is applied to the mean length.
    """
    decoding = np.ceil(step.decode_tokens / server.splits)
    inner = server.seen(decoding + step.prefill_tokens / server.splits, 1.0)
    sampled = np.ceil(step.samples / server.splits)
    return _served(cfg, server, inner, partial(_mixers, server, step), sampled, phase)


def decode_work(cfg: ModelConfig, shape: ServeShape) -> Work:
    """One decode step on the busiest device: one token for each sequence of the batch, at the mean
    context."""
    batch: Quantity = shape.batch
    step = StepShape(
        decodes=batch,  # type: ignore[arg-type]
        decode_tokens=batch,  # type: ignore[arg-type]
        decode_context=batch * shape.context,  # type: ignore[arg-type]
        samples=batch,  # type: ignore[arg-type]
    )
    return step_work(cfg, shape, step, phase="decode")


def prefill_work(cfg: ModelConfig, shape: ServeShape) -> Work:
    """The prefill of one prompt on the busiest device, all its chunks, each the mean one: over the
    chunks a query meets half of the prompt's keys, and half a chunk."""
    inner = shape.seen(shape.chunk_tokens, shape.input_length)
    keys = (shape.input_length + shape.input_length / shape.chunks) / 2

    def core(layer: Layer, inner: LayerShape) -> Sequence[Op]:
        each = attention_flops_per_token(layer, inner.context, causal=True)
        return prefill_core(shape, layer, inner, keys=keys, flops=each * inner.mixer_tokens)

    return _served(cfg, shape, inner, core, 1.0, "prefill", shape.chunks)


def _served(
    cfg: ModelConfig,
    shape: ServeShape,
    inner: LayerShape,
    core: Core,
    sampled: Quantity,
    phase: str,
    times: int = 1,
) -> Work:
    """Embedding and all layers, `times` over, and the head of the `sampled` tokens: one body for
    each kind of layer."""
    rows = served_rows(cfg)

    def matmul(row: Parameter, seen: LayerShape) -> Op:
        return matmul_op(row, shape.as_stored(cfg, row, seen))

    ops: list[Op] = []
    for group, (layer, layers) in enumerate(cfg.layer_groups()):
        mine = [r for r in rows if r.group == group]
        matmuls = [r for r in mine if r.role == "matmul"]
        body = forward_layer(cfg, layer, matmuls, inner, matmul=matmul, core=core)
        first, *rest = chain([*_vectors(cfg, shape, inner, mine), *body])
        # A layer waits for the one before it: the last op of the previous round.
        body = [replace(first, after=(body[-1].id,)), *rest]
        ops += _looped(body, phase, f"layers.{group}", layers * times)
    ops += _looped([*_first_ops(cfg, inner), *_next_stages(cfg, inner)], phase, "embed", times)
    last = replace(inner, tokens=sampled)
    return Work((*ops, *_looped(_last_ops(cfg, shape, inner, last), phase, "sample", 1.0)))


def _mixers(server: ServeShape, step: StepShape, layer: Layer, inner: LayerShape) -> list[Op]:
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
    """Chunks of prompts against themselves and what is cached of their prompts before them."""
    return prefill_core(
        server,
        layer,
        replace(inner, tokens=step.prefill_tokens / server.splits),
        keys=step.prefill_context + step.prefill_tokens,
        flops=_chunk_flops(step, layer) / server.splits / server.stationary,
        name="attention.prefill",
    )


def _chunk_flops(step: StepShape, layer: Layer) -> Quantity:
    """Attention FLOPs of all chunks: those per pair of the mean chunk, times the pairs. The mean
    chunk ends at token u after p cached ones and has (u^2 - p^2) / 2 pairs."""
    chunks = np.maximum(step.prefills, 1)
    past = step.prefill_context / chunks
    upto = past + step.prefill_tokens / chunks
    flops = prompt_flops(layer, upto) - prompt_flops(layer, past)
    return flops * step.prefill_pairs / np.maximum((upto**2 - past**2) / 2, 0.5)


def prompt_flops(layer: Layer, tokens: Quantity) -> Quantity:
    """Attention FLOPs of a whole prompt, all heads: half of the square, less beyond a window."""
    return tokens * attention_flops_per_token(layer, tokens)


def _looped(ops: Sequence[Op], phase: str, body: str, count: Quantity) -> list[Op]:
    """The ops as one loop of a phase: ids made unique, `after` renamed with them, counts set."""
    name = f"{phase}.{body}"
    return [
        replace(
            op,
            id=f"{name}/{op.id}",
            after=tuple(f"{name}/{a}" for a in op.after),
            body=name,
            phase=phase,
            count=op.count * count,
        )
        for op in ops
    ]


def _vectors(
    cfg: ModelConfig, shape: ServeShape, inner: LayerShape, rows: Sequence[Parameter]
) -> list[Op]:
    """Reading what is no matrix: norms, biases, convolutions, a recurrence's own vectors."""
    small = [r for r in rows if r.role in ("norm", "bias", "scan", "conv", "scale")]
    if not small:
        return []
    size: Quantity = 0.0
    least: Quantity = 0.0
    for row in small:
        whole = row.size * dtype_bytes(shape.stored(cfg, row))
        size = size + whole * shape.share(row)
        least = least + whole * compute_share(row, {"expert": shape.degree("expert")})
    least = least / inner.together
    return [make_op("vectors", "norms", "elementwise", hbm_bytes=size, hbm_least=least)]


def _first_ops(cfg: ModelConfig, inner: LayerShape) -> list[Op]:
    """Embedding lookup. The table is cut by rows over tensor: partial sums are added up."""
    size = dtype_bytes(inner.activations)
    lookup = make_op(
        "embedding",
        "embedding",
        "gather",
        hbm_bytes=2 * inner.tokens * cfg.d_model / inner.stationary * size,
    )
    return list(
        chain([lookup, *tensor_step("embed.sum", "reduce_scatter", "embedding", cfg, inner)])
    )


def _next_stages(cfg: ModelConfig, inner: LayerShape) -> list[Op]:
    """The stream on its way from stage to stage, a share of each rank of `tensor`."""
    stages = inner.degree("stage")
    if not np.any(np.asarray(stages) > 1):
        return []
    size = inner.tokens / inner.degree("tensor") * cfg.d_model * dtype_bytes(inner.activations)
    op = exchange("transfer.stage", "permute", "pipeline", ("stage",), size)
    return [replace(op, count=stages - 1)]


def _last_ops(
    cfg: ModelConfig, shape: ServeShape, inner: LayerShape, last: LayerShape
) -> tuple[Op, ...]:
    """Final norm, logits and sampling of the tokens that yield one; other rows outside the stack
    (projected or per-layer embeddings) see all tokens."""
    size = dtype_bytes(last.activations)
    rows = [r for r in served_rows(cfg) if r.group is None]
    width = cfg.d_model / last.stationary
    ops = [
        *tensor_step("head.gather", "all_gather", "lm_head", cfg, last),
        make_op("norm", "norms", "elementwise", hbm_bytes=4 * last.tokens * width * size),
    ]
    for row in rows:
        if row.role == "matmul":
            seen = last if row.component == "lm_head" else inner
            ops.append(matmul_op(row, shape.as_stored(cfg, row, seen)))
    head = [r for r in rows if r.component == "lm_head" and r.role == "matmul"]
    logits = last.mixer_tokens * cfg.vocabulary / last.degree("tensor")
    ops += [
        *sums("head.sums", "lm_head", head, last),
        *_vectors(cfg, shape, last, rows),
        # f32 logits are written once and read once for the softmax.
        make_op("logits", "lm_head", "elementwise", hbm_bytes=2 * 4.0 * logits),
    ]
    if shape.has("tensor"):
        # Each shard of the vocabulary offers its best token: an id and a value.
        best = last.mixer_tokens * 8.0 * last.degree("tensor")
        ops.append(exchange("sample", "all_gather", "lm_head", ("tensor",), best))
    return chain(ops)
