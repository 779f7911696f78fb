"""Bytes that a sequence keeps between steps: keys and values, indexer keys, recurrent states."""

from dataclasses import dataclass

from shardwise.models.config import ModelConfig
from shardwise.models.specs import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Mixer,
    RecurrentMixer,
)
from shardwise.units import dtype_bytes


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layer groups whose cache keeps the same tokens: all (`window` None), the last `window`, or
    none but a recurrent state. `layers` are indices of `ModelConfig.groups`."""

    layers: tuple[int, ...]
    window: int | None = None
    state: bool = False

    def reach(self, page_size: int) -> int:
        """Whole pages before a token's own that it may need; a state's is the last one."""
        return 1 if self.window is None else -(-(self.window - 1) // page_size)


def cache_groups(cfg: ModelConfig, longest: int) -> tuple[CacheGroup, ...]:
    """The layers by what their cache keeps of sequences of up to `longest` tokens: first those
    that keep all (there may be none), then windows, the shortest first, then states."""
    found: dict[tuple[int, bool], list[int]] = {(longest, False): []}
    for index, layer in enumerate(cfg.groups):
        sliding = layer.mixer if isinstance(layer.mixer, Attention | LatentAttention) else None
        window = (sliding and sliding.window) or longest
        state = isinstance(layer.mixer, RecurrentMixer)
        found.setdefault((0 if state else min(window, longest), state), []).append(index)
        if layer.beside is not None:
            found.setdefault((0, True), []).append(index)
    whole = CacheGroup(tuple(found.pop((longest, False))))
    windows = sorted((w, layers) for (w, state), layers in found.items() if not state)
    states = [layers for (_, state), layers in found.items() if state]
    return (
        whole,
        *(CacheGroup(tuple(layers), window=window) for window, layers in windows),
        *(CacheGroup(tuple(layers), state=True) for layers in states),
    )


def kv_elements(mixer: Mixer | None) -> int:
    """Values that one token adds to the cache of one layer.

    K * (H + U) for attention, C + R for latent attention, the one shared entry of a compressed
    layer's window; 0 where the layer keeps no keys (recurrent), reuses an earlier layer's, or
    attends to image tokens.
    """
    match mixer:
        case Attention(kind="cross") | Attention(reuses_kv=True):
            return 0
        case Attention():
            return mixer.kv_heads * (mixer.head_dim + mixer.v_head_dim)
        case LatentAttention():
            return mixer.kv_lora_rank + mixer.rope_head_dim
        case CompressedAttention():
            return mixer.head_dim
        case _:
            return 0


def kv_tokens(mixer: Mixer | None, context: float) -> float:
    """Entries that one layer holds for a sequence of `context` tokens.

    A window or chunk caps them. A compressed layer holds its window and one entry per `ratio`
    tokens (DeepSeek-V4).
    """
    match mixer:
        case CompressedAttention():
            compressed = context // mixer.ratio if mixer.ratio else 0
            return min(context, mixer.window) + compressed
        case Attention(window=int() as window) | LatentAttention(window=int() as window):
            return min(context, window)
        case _:
            return context


def kv_bytes_per_token(cfg: ModelConfig, dtype: str = "bf16") -> float:
    """Bytes that one token adds to the cache over all layers, before any window is full.

    Each caching layer counts one entry. Indexer keys (`index_bytes`) and recurrent states
    (`state_bytes`) are apart.
    """
    elements = sum(count * kv_elements(layer.mixer) for layer, count in cfg.layer_groups())
    return elements * dtype_bytes(dtype)


def kv_bytes(cfg: ModelConfig, context: float, dtype: str = "bf16") -> float:
    """Bytes of keys and values of one sequence of `context` tokens; windows cap their layers."""
    return dtype_bytes(dtype) * sum(
        count * kv_elements(layer.mixer) * kv_tokens(layer.mixer, context)
        for layer, count in cfg.layer_groups()
    )


def index_bytes(cfg: ModelConfig, context: float, dtype: str = "fp8") -> float:
    """Bytes of the indexer's own keys of one sequence (fp8 in the reference kernels); beside latent
    attention each has an f32 scale per `INDEX_SCALED` values, beside plain attention they are kept
    as keys and values are, in bf16 here (`MiniMaxSparseKVPool` of sglang 0.5.23)."""
    total = 0.0
    for layer, count in cfg.layer_groups():
        indexer = getattr(layer.mixer, "indexer", None)
        if indexer is not None:
            plain = isinstance(layer.mixer, Attention)
            key = indexer.head_dim * dtype_bytes("bf16" if plain else dtype)
            if isinstance(layer.mixer, LatentAttention) and dtype == "fp8":
                key += dtype_bytes("f32") * indexer.head_dim / INDEX_SCALED
            total += count * key * (context // indexer.ratio)
    return total


INDEX_SCALED = 128
"""Values of an indexer's key, and of a sparse latent cache in fp8, that share an f32 scale
(sgl-project/sglang#11309: 656 + 132 bytes a layer of DeepSeek-V3.2)."""


def state_elements(cfg: ModelConfig) -> int:
    """Values of recurrent state per sequence, whatever its length."""
    return sum(count * layer.state_elements for layer, count in cfg.layer_groups())


def conv_elements(mixer: Mixer | None) -> int:
    """Values of a layer's state that are the last inputs of a convolution."""
    return getattr(mixer, "conv_elements", 0)


def state_bytes(cfg: ModelConfig, dtype: str = "f32", conv: str = "bf16") -> float:
    """Bytes of state per sequence, whatever its length: recurrences in f32 unless their engine is
    told otherwise, the last inputs of convolutions as engines keep activations."""
    inputs = sum(
        count * conv_elements(part.mixer)
        for layer, count in cfg.layer_groups()
        for part in layer.by_mixer
    )
    states = state_elements(cfg) - inputs
    return states * dtype_bytes(dtype) + inputs * dtype_bytes(conv)
