"""Bytes per device while serving, by kind: weights, kv (with states and indexer keys), activations.

Two points are looked at: a decode step of the full batch, every sequence at its full length, and
the last chunk of a prompt's prefill while the rest of the batch waits. An engine that was measured
(`engine_memory.py`) has one point, what it counts when it starts, and a kind `engine` for what it
keeps beside. Everything broadcasts.
"""

import numpy as np

from shardwise.models import ModelConfig, Parameter, kv_elements, kv_tokens
from shardwise.models.kv import INDEX_SCALED, conv_elements
from shardwise.models.specs import (
    Attention,
    LatentAttention,
    Layer,
    Moe,
    RecurrentMixer,
    SoftmaxMixer,
)
from shardwise.planner.serve.attention import (
    STATE_BYTES,
    head_share,
    index_key_bytes,
    scale_bytes,
)
from shardwise.planner.serve.engine_memory import beside, padded_layers
from shardwise.planner.serve.shape import ServeShape, served_rows
from shardwise.plans.layouts import tensor_share
from shardwise.plans.serve import CHECKPOINT, ServeDtypes
from shardwise.units import dtype_bytes
from shardwise.work import MemoryTimeline, Quantity


def serve_memory(cfg: ModelConfig, shape: ServeShape) -> MemoryTimeline:
    """Memory of the fullest device at both points."""
    weights, kv = weight_bytes_per_device(cfg, shape), kv_bytes_per_device(cfg, shape)
    if shape.engine is not None:
        peak, rest = beside(shape.engine, cfg, shape)
        held = {"weights": weights, "kv": kv, "activations": peak, "engine": rest}
        return MemoryTimeline((("start", held),))
    width = _token_width(cfg, shape)
    decode = _working_set(cfg, shape, width, shape.sequences, shape.sequences)
    prefill = _working_set(cfg, shape, width, shape.chunk_tokens, 1.0)
    prefill = prefill + _prompt_in_flight(cfg, shape)
    return MemoryTimeline(
        (
            ("decode", {"weights": weights, "kv": kv, "activations": decode}),
            ("prefill", {"weights": weights, "kv": kv, "activations": prefill}),
        )
    )


def prefill_memory(cfg: ModelConfig, shape: ServeShape) -> dict[str, Quantity]:
    """Memory of a device that prefills one prompt and holds no other sequence: with the whole
    prompt's cache, of which every device has the heads that `tensor` gives it."""
    kv: Quantity = 0.0
    for layer, layers in cfg.layer_groups():
        kv = kv + layers * layer_cache_bytes(layer, shape, shape.input_length)
    return {
        "weights": weight_bytes_per_device(cfg, shape),
        "kv": kv,
        "activations": _working_set(cfg, shape, _token_width(cfg, shape), shape.chunk_tokens, 1.0),
    }


def weight_bytes_per_device(cfg: ModelConfig, shape: ServeShape) -> Quantity:
    """Stored weights: cut by tensor, experts by expert, D by fsdp, replicated over data."""
    total: Quantity = 0.0
    for row in served_rows(cfg):
        stored = shape.stored(cfg, row)
        held = row.params
        if row.group is not None and np.any(shape.degree("stage") > 1):
            held = row.size * row.layers  # a stage has its own copy of what its layers reuse
        size = held * dtype_bytes(stored)
        if size and shape.engine is not None:
            size = size * _as_loaded(row, stored, shape)
        if held:
            total = total + size * shape.held_share(row)
    return total


def stored_bytes(cfg: ModelConfig, dtypes: ServeDtypes) -> float:
    """Bytes of all weights once: what the devices of a server hold at least."""
    shape = ServeShape(
        degrees={},
        batch=1,
        input_length=1,
        output_length=1,
        prefill_chunk=1,
        kv_sharding="heads",
        dtypes=dtypes,
    )
    return float(weight_bytes_per_device(cfg, shape))


_MXFP4_DEPTH = 256
"""Multiple to which engines fill up D of experts in mxfp4 (gpt-oss-120b: 64.38 or, with F filled up
too, 65.97 GiB are loaded of 60.7 that are stored, vllm-project/vllm#33155 and #23278)."""

_QUANTIZED = (
    *("attention", "linear_attention", "mlp_dense", "routed_experts", "shared_experts"),
    "moe_latent",
)
"""Components whose matmuls engines quantize; embeddings, router, head and norms stay in bf16."""


def _as_loaded(row: Parameter, stored: str, shape: ServeShape) -> Quantity:
    """Times their stored bytes that an engine has of weights once they are loaded."""
    assert shape.engine is not None
    small = dtype_bytes("bf16") / dtype_bytes(stored)
    quantized = row.component in _QUANTIZED and row.role == "matmul"
    if shape.dtypes.weights != CHECKPOINT and small > 1 and not quantized:
        return small
    factor: Quantity = 1.0
    if stored == "mxfp4" and row.role == "matmul" and "E" in row.batch:
        tiles = {"D": (_MXFP4_DEPTH, 1.0), "F": (shape.engine.mxfp4_width, shape.degree("tensor"))}
        for letter, size in row.dims:
            if letter in tiles:
                tile, ranks = tiles[letter]
                factor = factor * np.ceil(size / ranks / tile) * tile * ranks / size
    return factor


def kv_bytes_per_device(cfg: ModelConfig, shape: ServeShape) -> Quantity:
    """Cache of all sequences of the device at their full length. Windows cap their layers, but for
    the chunk that a step of a prompt writes before anything of it is given back."""
    total: Quantity = 0.0
    padded = padded_layers(cfg) if shape.engine and shape.engine.groups else {}
    for index, (layer, count) in enumerate(cfg.layer_groups()):
        layers = count * padded.get(index, 1.0)
        for part in layer.by_mixer:
            sequences = shape.held(part.mixer, shape.sequences)
            total = total + layers * sequences * layer_cache_bytes(part, shape, shape.longest)
            if not isinstance(part.mixer, RecurrentMixer):
                total = total + layers * sequences * state_bytes_of(part, shape)
        total = total + layers * _chunk_beyond_window(layer, shape)
    return total


def token_bytes_per_device(cfg: ModelConfig, shape: ServeShape) -> Quantity:
    """Bytes that a token adds to the cache of all layers, as an engine's pages have it: windows as
    whole caches, groups of layers filled up."""
    total: Quantity = 0.0
    padded = padded_layers(cfg) if shape.engine and shape.engine.groups else {}
    for index, (layer, layers) in enumerate(cfg.layer_groups()):
        attending = layer.by_mixer[0]
        if isinstance(attending.mixer, SoftmaxMixer):
            each = layer_cache_bytes(attending, shape, 1.0)
            total = total + layers * padded.get(index, 1.0) * each
    return total


def _chunk_beyond_window(layer: Layer, shape: ServeShape) -> Quantity:
    """Bytes by which one sequence's cache grows beyond its window while a chunk is written."""
    mixer = layer.mixer
    slides = isinstance(mixer, Attention | LatentAttention) and mixer.window is not None
    if not slides or not kv_elements(mixer):
        return 0.0
    if shape.engine and shape.engine.window_share:
        return 0.0
    kept = kv_tokens(mixer, shape.longest)
    beyond = np.minimum(shape.input_length, kept + shape.prefill_chunk) - kept
    each = layer_cache_bytes(layer.by_mixer[0], shape, shape.longest) / kept
    return each * np.maximum(beyond, 0.0)


def layer_cache_bytes(layer: Layer, shape: ServeShape, context: float) -> Quantity:
    """Bytes of one sequence in one layer on one device: keys and values with an int8 cache's
    scales, indexer keys, state."""
    if layer.beside is not None:
        parts = [layer_cache_bytes(part, shape, context) for part in layer.by_mixer]
        return parts[0] + parts[1]
    mixer, tensor = layer.mixer, shape.degree("tensor")
    if isinstance(mixer, RecurrentMixer):
        return state_bytes_of(layer, shape)
    if not isinstance(mixer, SoftmaxMixer):
        return 0.0
    entry = kv_elements(mixer) * dtype_bytes(shape.dtypes.kv)
    entry = entry + (entry and scale_bytes(mixer, shape))
    indexer = mixer.indexer
    key = index_key_bytes(mixer, shape)
    if shape.engine and indexer is not None and isinstance(mixer, LatentAttention):
        key = key + _SCALE * indexer.head_dim / INDEX_SCALED
        if shape.dtypes.kv == "fp8":
            latent = mixer.kv_lora_rank * (1 + _SCALE / INDEX_SCALED)
            entry = latent + mixer.rope_head_dim * dtype_bytes("bf16")
    size = entry * _tokens_kept(mixer, context, shape) * head_share(mixer, tensor)
    return size if indexer is None else size + key * (context // indexer.ratio)


def state_bytes_of(layer: Layer, shape: ServeShape) -> Quantity:
    """Bytes of one sequence's states and inputs of convolutions in one layer on one device; an
    engine keeps the inputs in the dtype of activations."""
    spare = shape.engine.spare_states if shape.engine else 1
    inputs = conv_elements(layer.mixer)
    kept = dtype_bytes(shape.dtypes.activations) if shape.engine else STATE_BYTES
    states = (layer.state_elements - inputs) * STATE_BYTES
    return spare * (states + inputs * kept) / shape.degree("tensor")


def _tokens_kept(mixer: SoftmaxMixer, context: float, shape: ServeShape) -> float:
    """Entries of one sequence in one layer; of a window as many as its engine's pool has."""
    share = shape.engine.window_share if shape.engine else 0.0
    if share and isinstance(mixer, Attention | LatentAttention) and mixer.window is not None:
        return share * context
    return kv_tokens(mixer, context)


_SCALE = dtype_bytes("f32")
"""Engines keep an f32 scale per `INDEX_SCALED` values of a sparse latent cache in fp8 and of the
indexer's keys, and the rotary part in bf16: 48,072 bytes a token of DeepSeek-V3.2."""


def _working_set(
    cfg: ModelConfig, shape: ServeShape, width: Quantity, tokens: Quantity, sampled: Quantity
) -> Quantity:
    """The activations of tokens of a `width`, and f32 logits of the sampled ones."""
    logits = 4.0 * sampled * cfg.vocabulary / shape.degree("tensor")
    return tokens * width * dtype_bytes(shape.dtypes.activations) + logits


def _token_width(cfg: ModelConfig, shape: ServeShape) -> Quantity:
    """Elements of a token on one device: the residual stream (cut over tensor), and what the widest
    block holds beside it."""
    widest: Quantity = 0.0
    for group in range(len(cfg.groups)):
        widest = np.maximum(widest, _block_width(cfg, group, shape))
    return cfg.d_model / shape.stationary / shape.degree("tensor") + widest


def _block_width(cfg: ModelConfig, group: int, shape: ServeShape) -> Quantity:
    """Elements per token that a layer's wider block holds at once on one device: its gathered input
    with what the first matmuls yield; or what the last one reads, and its result.

    Routed experts see k copies of a token.
    """
    tensor = shape.degree("tensor")
    first: dict[bool, Quantity] = {}
    last: dict[bool, Quantity] = {}
    for row in served_rows(cfg):
        if row.group != group or row.role != "matmul":
            continue
        copies = float(row.active * row.batches) if isinstance(cfg.groups[group].mlp, Moe) else 1.0
        if "E" not in row.batch:
            copies = float(row.batches)
        mixer = row.component in ("attention", "linear_attention")
        share = tensor_share(row, tensor)
        if _summed(row):
            held, width = last, row.outputs + row.contracted * share
        else:
            held, width = first, row.outputs * share
        held[mixer] = held.get(mixer, 0.0) + copies * width
    gathered = cfg.d_model / shape.stationary
    widest: Quantity = gathered
    for mixer in (True, False):
        widest = np.maximum(widest, gathered + first.get(mixer, 0.0))
        widest = np.maximum(widest, last.get(mixer, 0.0))
    return widest


def _summed(row) -> bool:
    """Whether tensor cuts the contraction of a row, so that its result is whole on every device."""
    letters = [letter for letter, _ in row.dims if letter in "FNKV"]
    return not letters or letters[0] in row.contracts


def _prompt_in_flight(cfg: ModelConfig, shape: ServeShape) -> Quantity:
    """Keys and values of the prompt that a device needs besides its own share of the cache: one
    layer's while it is computed, all layers' where later chunks come back to them."""
    widest: Quantity = 0.0
    kept: Quantity = 0.0
    for layer, layers in cfg.layer_groups():
        size = layer_cache_bytes(layer, shape, shape.input_length)
        widest = np.maximum(widest, size)
        shared = shape.splits * shape.stationary * shape.spread(layer.mixer) > 1
        kept = kept + layers * size * np.where(shared, 1.0, 0.0)
    return widest if shape.chunks == 1 else np.maximum(widest, kept)
