"""The mixers of a served step: queries against their caches, chunks of prompts, recurrences.

A decoding sequence puts in one query and reads its whole cache; a chunk of a prompt attends to
itself and to what is cached of the prompt before it. Everything broadcasts.
"""

from dataclasses import replace

import numpy as np

from shardwise.models import kv_elements
from shardwise.models.components import CORE, SCAN
from shardwise.models.flops import (
    attention_flops_per_token,
    keys_seen,
    scan_flops_per_token,
)
from shardwise.models.specs import (
    Attention,
    LatentAttention,
    Layer,
    RecurrentMixer,
    SoftmaxMixer,
)
from shardwise.planner.serve.shape import MIXER_AXES, ServeShape, cached_heads
from shardwise.planner.step.layer import LayerShape, kv_heads
from shardwise.units import dtype_bytes
from shardwise.work import CollectiveKind, Op, Quantity, exchange, make_op

INDEX_BYTES = dtype_bytes("fp8")
"""An indexer's keys are kept in fp8 (DeepSeek-V3.2 reference kernels)."""

STATE_BYTES = dtype_bytes("f32")
"""Recurrent states are kept in f32."""

SCALE_BYTES = dtype_bytes("bf16")
"""An int8 cache has a scale for each token and head, of keys and of values (`runtime/cache.py`)."""

MERGE_BYTES = dtype_bytes("f32")
"""Answers of a sequence's parts are added up in f32."""


def head_share(mixer: SoftmaxMixer, tensor: Quantity) -> Quantity:
    """Share of a cached entry on one device of `tensor`: whole heads, replicated beyond K."""
    heads = cached_heads(mixer)
    return np.ceil(heads / tensor) / heads


def scale_bytes(mixer: SoftmaxMixer, shape: ServeShape) -> float:
    """Bytes of the scales of one cached token; keys and values have their own, a latent one."""
    if shape.dtypes.kv != "int8" or not shape.kv_scales:
        return 0
    return cached_heads(mixer) * (2 if isinstance(mixer, Attention) else 1) * SCALE_BYTES


def decode_core(shape: ServeShape, layer: Layer, inner: LayerShape) -> list[Op]:
    """One query per sequence against its cache, or one step of a recurrence."""
    if layer.beside is not None:
        return [op for part in layer.by_mixer for op in decode_core(shape, part, inner)]
    if isinstance(layer.mixer, RecurrentMixer):
        return [_state_step(layer, layer.mixer, inner)]
    if not isinstance(layer.mixer, SoftmaxMixer):
        return []
    mixer, tensor = layer.mixer, inner.degree("tensor")
    spread, share = shape.spread(mixer), head_share(mixer, tensor)
    mine = np.ceil(inner.mixer_tokens)
    sequences, cuts = shape.held(mixer, inner.tokens), shape.cuts(mixer, mine)
    size = dtype_bytes(inner.activations)
    query, answer = _widths(mixer)
    flops = attention_flops_per_token(layer, inner.context, causal=False, absorbed=True)
    heads = np.where(spread > 1, share, 1.0 / tensor)
    cache = sequences * share * _cache_traffic(layer, mixer, shape, inner.context)
    own = _cache_traffic(layer, mixer, shape, inner.context, reused=False)
    core = make_op(
        "attention.core",
        CORE,
        "attention",
        flops={_core_dtype(mixer, shape, inner): flops * sequences * heads},
        hbm_bytes=cache + sequences * heads * mixer.heads * (query + answer) * size,
        hbm_least=own * inner.tokens / inner.together,
        head_dims=(query, answer) if isinstance(mixer, LatentAttention) else (),
    )
    merge = []
    if np.any(cuts > 1):
        parts = mine * mixer.heads * (answer + 2) * MERGE_BYTES
        merge = [_spread_exchange("attention.merge", "reduce_scatter", parts, cuts)]
    wire = mine * mixer.heads * size
    return _to_batch_and_back(core, spread, wire * query, wire * answer, *merge)


def _core_dtype(mixer: SoftmaxMixer, shape: ServeShape, inner: LayerShape) -> str:
    """What queries meet the cache in. Kernels for a latent cache of one byte an entry multiply in
    that dtype (FlashMLA and TensorRT-LLM cast the queries), others make it wider first."""
    if isinstance(mixer, LatentAttention) and shape.dtypes.kv == "fp8":
        return shape.compute_of.get("fp8", inner.compute)
    return inner.compute


def _widths(mixer: SoftmaxMixer) -> tuple[int, int]:
    """Width of one head's query and answer as they meet the cache; latent attention absorbs the
    up-projections, so both are of the latent (DeepSeek-V2, 2.1.2)."""
    if isinstance(mixer, LatentAttention):
        return mixer.kv_lora_rank + mixer.rope_head_dim, mixer.kv_lora_rank
    return mixer.head_dim, mixer.v_head_dim


def _cache_traffic(
    layer: Layer, mixer: SoftmaxMixer, shape: ServeShape, context: Quantity, *, reused: bool = True
) -> Quantity:
    """Bytes per sequence of one layer: the keys and values that a query sees with their scales, all
    indexer keys, and the new entry written. A layer that reuses another's cache reads it too, but
    for its part that stayed on the chip: without `reused` it does not."""
    keys = keys_seen(layer, context, causal=False)
    scales = scale_bytes(mixer, shape)
    elements = _read_elements(mixer) if reused else kv_elements(mixer)
    read = (elements * dtype_bytes(shape.dtypes.kv) + scales) * keys
    written = kv_elements(mixer) * dtype_bytes(shape.dtypes.kv) + scales
    if mixer.indexer is not None:
        read += index_key_bytes(mixer, shape) * context / mixer.indexer.ratio
    return read + written


def index_key_bytes(mixer: SoftmaxMixer, shape: ServeShape) -> Quantity:
    """Bytes of one key of an indexer; beside plain attention it is kept as keys and values are
    (`MiniMaxSparseKVPool` of sglang 0.5.23)."""
    if mixer.indexer is None:
        return 0.0
    plain = isinstance(mixer, Attention)
    return mixer.indexer.head_dim * (dtype_bytes(shape.dtypes.kv) if plain else INDEX_BYTES)


def _read_elements(mixer: SoftmaxMixer) -> int:
    """Values per cached entry that a query meets; a layer that reuses a cache reads it too."""
    if isinstance(mixer, Attention):
        return kv_elements(replace(mixer, reuses_kv=False))
    return kv_elements(mixer)


def _spread_exchange(op_id: str, kind: CollectiveKind, size: Quantity, spread: Quantity) -> Op:
    """All-to-all between heads and sequences (ch. 7.3.3), or the sum of the answers of a sequence's
    parts, each with its largest score and its sum. It stays within the devices that share a KV
    head; it is priced over all of `tensor`, which is a little slower."""
    op = exchange(op_id, kind, CORE, ("tensor",), size)
    return replace(op, count=np.where(spread > 1, 1.0, 0.0))


def _state_step(layer: Layer, mixer: RecurrentMixer, inner: LayerShape) -> Op:
    """One token through a recurrence: its state is read and written."""
    share = np.ceil(inner.mixer_tokens) / inner.degree("tensor")
    return make_op(
        "scan",
        SCAN,
        "scan",
        flops={inner.compute: scan_flops_per_token(layer) * share},
        hbm_bytes=2 * mixer.state_elements * STATE_BYTES * share,
        hbm_least=2 * mixer.state_elements * STATE_BYTES * share,
    )


def prefill_core(
    shape: ServeShape,
    layer: Layer,
    inner: LayerShape,
    *,
    keys: Quantity,
    flops: Quantity,
    name: str = "attention.core",
) -> list[Op]:
    """Causal attention of chunks, or a scan over them. The device's queries read `keys` tokens and
    take `flops`, of all heads; keys and values of a prompt that is cut are gathered first. Where
    sequences are spread over devices of one KV head, queries go to theirs and answers back."""
    if layer.beside is not None:
        given = {"keys": keys, "flops": flops, "name": name}
        return [op for part in layer.by_mixer for op in prefill_core(shape, part, inner, **given)]
    if isinstance(layer.mixer, RecurrentMixer):
        return prefill_scan(shape, layer, layer.mixer, inner)
    if not isinstance(layer.mixer, SoftmaxMixer):
        return []
    mixer, tensor = layer.mixer, inner.degree("tensor")
    size, stored = dtype_bytes(inner.activations), dtype_bytes(shape.dtypes.kv)
    entry = kv_elements(mixer) * head_share(mixer, tensor)
    width = mixer.head_dim + mixer.v_head_dim
    tokens = inner.mixer_tokens
    read = keys * np.ceil(kv_heads(mixer) / tensor) * width * size
    queries = tokens * mixer.heads / tensor * width * size
    core = make_op(
        name,
        CORE,
        "attention",
        flops={inner.compute: flops / tensor},
        hbm_bytes=(read + queries + tokens * entry * stored) * np.greater(tokens, 0),
        hbm_least=inner.tokens * kv_elements(mixer) / inner.together * stored,
    )
    wire = tokens * mixer.heads * size
    sent = wire * mixer.head_dim, wire * mixer.v_head_dim
    ops = _to_batch_and_back(core, shape.spread(mixer), *sent)
    if shape.has(*MIXER_AXES):
        wire = inner.tokens * shape.splits * entry * stored
        ops.insert(0, exchange("attention.kv", "all_gather", CORE, MIXER_AXES, wire))
    there = np.where(tokens > 0, 1.0, 0.0)
    return [op if op is core else replace(op, count=op.count * there) for op in ops]


def _to_batch_and_back(
    core: Op, spread: Quantity, queries: Quantity, answers: Quantity, *merge: Op
) -> list[Op]:
    """The core where sequences of one KV head are spread: so many bytes of queries go to them and
    of answers come back, those of a sequence's parts after a `merge`."""
    if not np.any(spread > 1):
        return [core]
    return [
        _spread_exchange("attention.to_batch", "all_to_all", queries, spread),
        core,
        *merge,
        _spread_exchange("attention.to_heads", "all_to_all", answers, spread),
    ]


def prefill_scan(
    shape: ServeShape, layer: Layer, mixer: RecurrentMixer, inner: LayerShape
) -> list[Op]:
    """A scan over the chunk; where the prompt is cut, the parts' states are gathered."""
    share = 1.0 / inner.degree("tensor")
    traffic = 4 * mixer_width(mixer) * inner.mixer_tokens * dtype_bytes(inner.activations)
    state = mixer.state_elements * STATE_BYTES * share
    ops = [
        make_op(
            "scan",
            SCAN,
            "scan",
            flops={inner.compute: scan_flops_per_token(layer) * inner.mixer_tokens * share},
            hbm_bytes=traffic * share + 2 * state,
            hbm_least=state,
        )
    ]
    if shape.has(*MIXER_AXES):
        wire = state * shape.splits * shape.stationary
        ops.insert(0, exchange("scan.states", "all_gather", SCAN, MIXER_AXES, wire))
    return ops


def mixer_width(mixer: RecurrentMixer) -> int:
    """Channels of a recurrence's input and output."""
    if hasattr(mixer, "width"):
        return mixer.width  # type: ignore[union-attr]
    head = getattr(mixer, "value_head_dim", 0) or mixer.head_dim  # type: ignore[union-attr]
    return mixer.heads * head  # type: ignore[union-attr]
