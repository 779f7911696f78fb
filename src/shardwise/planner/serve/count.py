"""Count serving on one device: a decode step of the whole batch, and the prefill of one prompt.

Decode reads every weight that the batch hits once, and the cache of every sequence; prefill is a
causal forward pass whose tokens are cut over `data` and `expert`, in chunks. Both use the layer
counting of training with stored weights and a cache. Between blocks the stream is cut over `tensor`
(by tokens, in decode by D: In[B, D_Y] of ch. 7.3.2), so each block gathers it and scatters it back.
Everything broadcasts over candidate plans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from shardwise.models import ModelConfig, Parameter, kv_elements, weight_dtype
from shardwise.models.components import CORE, SCAN
from shardwise.models.flops import (
    attention_flops_per_token,
    keys_seen,
    scan_flops_per_token,
)
from shardwise.models.parameters import parameters
from shardwise.models.specs import (
    Attention,
    LatentAttention,
    Layer,
    Mixer,
    RecurrentMixer,
    SoftmaxMixer,
)
from shardwise.planner.step.layer import chain, forward_layer, matmul_op
from shardwise.planner.step.shape import LayerShape, kv_heads
from shardwise.planner.step.strategies.stationary import cut_by_width, sums
from shardwise.planner.step.strategies.tensor import tensor_step
from shardwise.plans.layouts import compute_share
from shardwise.plans.serve import CHECKPOINT, KvSharding, ServeDtypes
from shardwise.units import dtype_bytes
from shardwise.work import CollectiveKind, Op, Quantity, Work, exchange, make_op

SPLIT_AXES = ("data", "expert")
"""Axes that cut the batch in decode and the tokens of the prompt in prefill."""

MIXER_AXES = (*SPLIT_AXES, "fsdp")
"""Axes that cut them for attention: where weights are cut along D, it has tokens of its own."""

INDEX_BYTES = dtype_bytes("fp8")
"""An indexer's keys are kept in fp8 (DeepSeek-V3.2 reference kernels)."""

STATE_BYTES = dtype_bytes("f32")
"""Recurrent states are kept in f32."""

SCALE_BYTES = dtype_bytes("bf16")
"""An int8 cache has a scale for each token and head, of keys and of values (`runtime/cache.py`)."""

MERGE_BYTES = dtype_bytes("f32")
"""Answers of a sequence's parts are added up in f32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeShape:
    """One replica as numbers that may be arrays over candidates; `batch` is the replica's.

    `compute_of` names the dtype of matmuls by the dtype of their stored weights, where that is not
    `dtypes.compute`: what the chip multiplies quantized weights in. Without `kv_scales` those of an
    int8 cache are left out, as the book does.
    """

    degrees: Mapping[str, Quantity]
    batch: Quantity
    input_length: int
    output_length: int
    prefill_chunk: int
    kv_sharding: KvSharding
    dtypes: ServeDtypes
    compute_of: Mapping[str, str] = field(default_factory=dict)
    kv_scales: bool = True

    def degree(self, axis: str) -> Quantity:
        """Degree of a mesh axis; 1 where there is none."""
        return self.degrees.get(axis, 1)

    @property
    def splits(self) -> Quantity:
        """Into how many parts `data` and `expert` cut the batch, or the prompt."""
        return self.degree("data") * self.degree("expert")

    @property
    def stationary(self) -> Quantity:
        """Over how many devices weights are cut along D."""
        return self.degree("fsdp")

    @property
    def sequences(self) -> Quantity:
        """Sequences of the fullest part of the batch."""
        return np.ceil(self.batch / self.splits)

    @property
    def context(self) -> float:
        """Tokens in the cache at the mean decode step: the prompt and half of the answer."""
        return self.input_length + self.output_length / 2

    @property
    def longest(self) -> int:
        """Tokens of a finished sequence."""
        return self.input_length + self.output_length

    @property
    def chunks(self) -> int:
        """Chunks of the prefill of one prompt."""
        return -(-self.input_length // self.prefill_chunk)

    @property
    def chunk_tokens(self) -> Quantity:
        """Tokens of one chunk on one device, before tensor."""
        return np.ceil(self.input_length / self.chunks / self.splits)

    def has(self, *axes: str) -> bool:
        """Whether any candidate uses one of the axes."""
        return any(np.any(np.asarray(self.degree(a)) > 1) for a in axes)

    def seen(self, tokens: Quantity, context: Quantity) -> LayerShape:
        """What one device sees of a layer; the weights' dtype is each row's own."""
        return LayerShape(
            tokens=tokens,
            context=context,
            degrees=self.degrees,
            compute=self.dtypes.compute,
            weights="bf16",
            activations=self.dtypes.activations,
            stationary=self.stationary,
        )

    def spread(self, mixer: Mixer | None) -> Quantity:
        """Over how many devices of `tensor` the sequences of one KV head are spread."""
        if self.kv_sharding == "heads" or not isinstance(mixer, SoftmaxMixer):
            return 1.0
        return np.maximum(np.floor(self.degree("tensor") / cached_heads(mixer)), 1.0)

    def cuts(self, mixer: Mixer | None, sequences: Quantity) -> Quantity:
        """Into how many parts the cache of one sequence is cut: as many devices as would idle."""
        if self.kv_sharding != "heads_then_batch_then_sequence":
            return 1.0
        return np.maximum(np.floor(self.spread(mixer) / np.maximum(sequences, 1.0)), 1.0)

    def held(self, mixer: Mixer | None, sequences: Quantity) -> Quantity:
        """Sequences whose cache a device has of one KV head; a part of one where they are cut."""
        sequences = np.ceil(sequences / self.stationary)
        cuts = self.cuts(mixer, sequences)
        return np.ceil(sequences / (self.spread(mixer) / cuts)) / cuts

    def stored(self, cfg: ModelConfig, row: Parameter) -> str:
        """The dtype that a parameter is stored in."""
        if self.dtypes.weights == CHECKPOINT:
            return weight_dtype(cfg, row.dtype_role)
        return self.dtypes.weights

    def as_stored(self, cfg: ModelConfig, row: Parameter, seen: LayerShape) -> LayerShape:
        """What a device sees, with the dtypes that this row is stored and multiplied in."""
        stored = self.stored(cfg, row)
        return replace(seen, weights=stored, compute=self.compute_of.get(stored, seen.compute))


def served_rows(cfg: ModelConfig) -> tuple[Parameter, ...]:
    """The parameters that serve text; towers are left out."""
    return tuple(r for r in parameters(cfg) if r.role != "tower")


def cached_heads(mixer: SoftmaxMixer) -> int:
    """Heads that the cache can be cut by: K, or 1 where all queries share one latent entry."""
    return mixer.kv_heads if isinstance(mixer, Attention) else 1


def head_share(mixer: SoftmaxMixer, tensor: Quantity) -> Quantity:
    """Share of a cached entry on one device of `tensor`: whole heads, replicated beyond K."""
    heads = cached_heads(mixer)
    return np.ceil(heads / tensor) / heads


def scale_bytes(mixer: SoftmaxMixer, shape: ServeShape) -> float:
    """Bytes of the scales of one cached token; keys and values have their own, a latent one."""
    if shape.dtypes.kv != "int8" or not shape.kv_scales:
        return 0
    return cached_heads(mixer) * (2 if isinstance(mixer, Attention) else 1) * SCALE_BYTES


def decode_work(cfg: ModelConfig, shape: ServeShape) -> Work:
    """One decode step on the busiest device: one token for each sequence of the batch."""
    inner = shape.seen(shape.sequences, shape.context)
    ops = stack_ops(cfg, shape, inner, partial(decode_core, shape), "decode", 1)
    ops += looped(first_ops(cfg, inner), "decode", "embed", 1.0)
    return Work((*ops, *looped(last_ops(cfg, shape, inner, inner), "decode", "sample", 1.0)))


def prefill_work(cfg: ModelConfig, shape: ServeShape) -> Work:
    """The prefill of one prompt on the busiest device, all its chunks."""
    inner = shape.seen(shape.chunk_tokens, shape.input_length)
    ops = stack_ops(cfg, shape, inner, partial(_prefill_core, shape), "prefill", shape.chunks)
    ops += looped(first_ops(cfg, inner), "prefill", "embed", shape.chunks)
    last = replace(inner, tokens=1.0)
    return Work((*ops, *looped(last_ops(cfg, shape, inner, last), "prefill", "sample", 1.0)))


def stack_ops(
    cfg: ModelConfig, shape: ServeShape, inner: LayerShape, core, phase: str, times: int
) -> list[Op]:
    """All layers, one body per kind of layer, `times` over."""
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
        ops += looped(body, phase, f"layers.{group}", layers * times)
    return ops


def looped(ops: Sequence[Op], phase: str, body: str, count: Quantity) -> list[Op]:
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
        size = size + whole * _share(row, shape)
        least = least + whole * compute_share(row, {"expert": shape.degree("expert")})
    least = least / inner.together
    return [make_op("vectors", "norms", "elementwise", hbm_bytes=size, hbm_least=least)]


def _share(row: Parameter, shape: ServeShape) -> Quantity:
    return compute_share(row, {a: shape.degree(a) for a in ("tensor", "expert")})


def held_share(row: Parameter, shape: ServeShape) -> Quantity:
    """Share of a parameter in a device's memory."""
    return _share(row, shape) / (shape.stationary if cut_by_width(row) else 1.0)


def first_ops(cfg: ModelConfig, inner: LayerShape) -> list[Op]:
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


def last_ops(
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


def decode_core(shape: ServeShape, layer: Layer, inner: LayerShape) -> list[Op]:
    """One query per sequence against its cache, or one step of a recurrence."""
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
        flops={inner.compute: flops * sequences * heads},
        hbm_bytes=cache + sequences * heads * mixer.heads * (query + answer) * size,
        hbm_least=own * inner.tokens / inner.together,
    )
    if not np.any(spread > 1):
        return [core]
    wire = mine * mixer.heads * size
    merge = mine * mixer.heads * (answer + 2) * MERGE_BYTES
    return [
        _spread_exchange("attention.to_batch", "all_to_all", wire * query, spread),
        core,
        *(
            [_spread_exchange("attention.merge", "reduce_scatter", merge, cuts)]
            if np.any(cuts > 1)
            else []
        ),
        _spread_exchange("attention.to_heads", "all_to_all", wire * answer, spread),
    ]


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
    indexer = None if isinstance(mixer, Attention) else mixer.indexer
    if indexer is not None:
        read += indexer.head_dim * context / indexer.ratio * INDEX_BYTES
    return read + written


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


def _prefill_core(shape: ServeShape, layer: Layer, inner: LayerShape) -> list[Op]:
    """Causal attention of a chunk against itself and the chunks before it, or a scan."""
    if isinstance(layer.mixer, RecurrentMixer):
        return prefill_scan(shape, layer, layer.mixer, inner)
    if not isinstance(layer.mixer, SoftmaxMixer):
        return []
    mixer, tensor = layer.mixer, inner.degree("tensor")
    size, stored = dtype_bytes(inner.activations), dtype_bytes(shape.dtypes.kv)
    share = head_share(mixer, tensor)
    entry = kv_elements(mixer) * share
    ops: list[Op] = []
    if shape.has(*MIXER_AXES):
        gathered = inner.tokens * shape.splits * entry * stored
        ops.append(exchange("attention.kv", "all_gather", CORE, MIXER_AXES, gathered))
    # Over the chunks a query tile meets half of the prompt's keys, and half a chunk.
    seen = (shape.input_length + shape.input_length / shape.chunks) / 2
    width = mixer.head_dim + mixer.v_head_dim
    keys = seen * np.ceil(kv_heads(mixer) / tensor) * width * size
    queries = inner.mixer_tokens * mixer.heads / tensor * width * size
    flops = attention_flops_per_token(layer, inner.context, causal=True)
    ops.append(
        make_op(
            "attention.core",
            CORE,
            "attention",
            flops={inner.compute: flops * inner.mixer_tokens / tensor},
            hbm_bytes=keys + queries + inner.mixer_tokens * entry * stored,
            hbm_least=inner.tokens * kv_elements(mixer) / inner.together * stored,
        )
    )
    return ops


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
