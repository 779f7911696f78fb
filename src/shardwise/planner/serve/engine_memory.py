"""What an engine keeps of a GPU beside weights and cache, as it counts it when it starts.

vLLM runs a step of `max_num_batched_tokens` tokens and samples for `max_num_seqs` sequences, takes
the larger of both peaks, and gives the cache what then is left of its share of all memory:

    cache = share * total - weights - outside - max(step, sampler) - scratch - graphs

SGLang gives weights and cache a share of what is free once it has its context; all else must fit
into the rest:

    cache = share * (total - outside) - weights

TensorRT-LLM gives the cache a share of what a step at its peak has left, graphs included:

    cache = share * (total - weights - outside - max(step, sampler, scratch) - graphs)

Per device, with T the token budget, S the most running sequences, V the vocabulary, D and F the
widths, k experts a token, t the tensor degree, and a bytes of an activation:

    step    = a T (max(3 F, A) / t + 3.5 D)        the widest block: its parts, and the stream
    sampler = logits S V + 1.2 a T D + 0.1 GiB     the head is gathered: t does not cut it
    scratch = a T k (max(2 F / t, D) + F / t)      of routed experts; kept where `keeps_scratch`
    latent  = 2 * 64Ki * N (U + V_h) / t           vLLM rebuilds keys of so many cached tokens
    graphs  = sizes * (3 MiB + 0.45 MiB * layers)  of every captured batch size

The constants are rows by engine and release (`plans/engine_memory.py`).
"""

import numpy as np

from shardwise.models import ModelConfig
from shardwise.models.specs import Attention, LatentAttention, Mlp, Moe, RecurrentMixer
from shardwise.planner.serve.shape import ServeShape
from shardwise.plans.engine_memory import GIB, EngineMemory
from shardwise.units import dtype_bytes
from shardwise.work import Quantity

MIB = 2.0**20


def outside(row: EngineMemory, shape: ServeShape) -> Quantity:
    """Bytes that its allocator does not see: context, libraries, buffers of collectives."""
    ranks = shape.degree("tensor") * shape.splits
    return np.where(np.asarray(ranks) > 1, row.ranks, row.alone)[()]


def peak(row: EngineMemory, cfg: ModelConfig, shape: ServeShape) -> Quantity:
    """Bytes of activations and scratch at the peak of a step."""
    step, scratch, latent = _step(cfg, shape), _scratch(cfg, shape), _latent(cfg, shape)
    sampler = row.logits * shape.sequences * cfg.vocabulary + 0.1 * GIB
    sampler = sampler + 1.2 * _activation(shape) * _tokens(shape) * cfg.d_model
    if row.keeps_scratch:
        return np.maximum(step + latent, sampler) + scratch
    return np.maximum(step + np.maximum(scratch, latent), sampler)


def graph_bytes(row: EngineMemory, cfg: ModelConfig, shape: ServeShape) -> Quantity:
    """Bytes of the captured graphs: sizes up to twice the running sequences, 512 at most."""
    if not row.graphs:
        return 0.0
    most = np.minimum(2.0 * shape.sequences, 512.0)
    sizes = np.clip(3 + most / 8, 3, row.sizes)
    return sizes * MIB * (3 + 0.45 * cfg.layers)


def beside(row: EngineMemory, cfg: ModelConfig, shape: ServeShape) -> tuple[Quantity, Quantity]:
    """Bytes that its cache has less: activations, and all else."""
    graphs = graph_bytes(row, cfg, shape) if row.reserves_graphs else 0.0
    step = peak(row, cfg, shape) if row.reserves else 0.0
    return step, (outside(row, shape) if row.of_total else 0.0) + graphs


def budget(
    row: EngineMemory, cfg: ModelConfig, shape: ServeShape, total: float, share: float
) -> Quantity:
    """Bytes of weights, cache and what `beside` counts."""
    if row.of_total:
        return share * total
    free = total - outside(row, shape)
    rest = peak(row, cfg, shape) + graph_bytes(row, cfg, shape)
    return np.minimum(share * free, free - rest)


def _activation(shape: ServeShape) -> float:
    return dtype_bytes(shape.dtypes.activations)


def _tokens(shape: ServeShape) -> Quantity:
    """T of one rank: the budget is the replica's."""
    return np.ceil(shape.prefill_chunk / shape.splits)


def _step(cfg: ModelConfig, shape: ServeShape) -> Quantity:
    """The peak of a step's widest block."""
    tensor, width = shape.degree("tensor"), 0.0
    for layer in cfg.groups:
        mlp = layer.mlp
        if isinstance(mlp, Moe):
            dense = max(mlp.shared_d_ff, mlp.dense.d_ff if mlp.dense else 0)
        else:
            dense = mlp.d_ff if isinstance(mlp, Mlp) else 0
        width = max(width, 3.0 * dense, _mixer_width(layer.mixer))
    return _activation(shape) * _tokens(shape) * (width / tensor + 3.5 * cfg.d_model)


def _mixer_width(mixer) -> float:
    """Elements of a token that attention has at once: queries, keys, values, result."""
    if isinstance(mixer, Attention):
        return mixer.heads * (mixer.head_dim + mixer.v_head_dim) + mixer.kv_heads * (
            mixer.head_dim + mixer.v_head_dim
        )
    if isinstance(mixer, LatentAttention):
        whole = mixer.nope_head_dim + mixer.rope_head_dim
        return mixer.heads * (2.0 * whole + 2.0 * mixer.v_head_dim)
    return 0.0


def _scratch(cfg: ModelConfig, shape: ServeShape) -> Quantity:
    """Inner results of routed experts; where experts lie apart they keep their width."""
    tensor, largest = shape.degree("tensor"), 0.0
    for layer in cfg.groups:
        if isinstance(layer.mlp, Moe):
            moe, width = layer.mlp, layer.mlp.latent_dim or cfg.d_model
            inner = (2.0 if moe.gated else 1.0) * moe.d_ff / tensor
            each = np.maximum(inner, width) + moe.d_ff / tensor
            largest = np.maximum(largest, moe.experts_per_token * each)
    return _activation(shape) * _tokens(shape) * largest


_CONTEXT_TOKENS = 64 * 1024
"""Cached tokens whose keys and values vLLM makes anew at once of latents (its workspace)."""


def _latent(cfg: ModelConfig, shape: ServeShape) -> Quantity:
    """Keys and values that are made anew of cached latents."""
    widest = 0.0
    for layer in cfg.groups:
        mixer = layer.mixer
        if isinstance(mixer, LatentAttention):
            widest = max(widest, mixer.heads * (mixer.nope_head_dim + mixer.v_head_dim))
    return _activation(shape) * _CONTEXT_TOKENS * widest / shape.degree("tensor")


def padded_layers(cfg: ModelConfig) -> dict[int, float]:
    """By layer group of the model, how many layers' room one layer takes where engines lay caches
    of unlike windows into groups of one size: that of the smallest, the last filled up."""
    counts: dict[tuple[str, int], float] = {}
    kind_of: dict[int, tuple[str, int]] = {}
    for index, (layer, layers) in enumerate(cfg.layer_groups()):
        mixer = layer.mixer
        if isinstance(mixer, RecurrentMixer):
            kind_of[index] = ("state", 0)
        elif isinstance(mixer, Attention) and not mixer.reuses_kv and mixer.kind != "cross":
            kind_of[index] = ("window", mixer.window or 0)
        else:
            continue
        counts[kind_of[index]] = counts.get(kind_of[index], 0) + layers
    least, most = min(counts.values(), default=1), max(counts.values(), default=1)
    size = most if most < 1.25 * least else least
    factors = {kind: np.ceil(n / size) * size / n for kind, n in counts.items()}
    return {index: float(factors[kind]) for index, kind in kind_of.items()}
