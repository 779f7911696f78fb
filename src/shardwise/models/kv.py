"""Bytes that a sequence keeps between steps: keys and values, indexer keys, recurrent states."""

from shardwise.models.config import ModelConfig
from shardwise.models.specs import (
    Attention,
    CompressedAttention,
    LatentAttention,
    Mixer,
    RecurrentMixer,
)
from shardwise.units import dtype_bytes


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
        case Attention() if mixer.window is not None:
            return min(context, mixer.window)
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
    """Bytes of the indexer's own keys of one sequence (fp8 in the reference kernels)."""
    total = 0.0
    for layer, count in cfg.layer_groups():
        indexer = getattr(layer.mixer, "indexer", None)
        if indexer is not None:
            total += count * indexer.head_dim * (context // indexer.ratio)
    return total * dtype_bytes(dtype)


def state_elements(cfg: ModelConfig) -> int:
    """Values of recurrent state per sequence, whatever its length."""
    return sum(
        count * layer.mixer.state_elements
        for layer, count in cfg.layer_groups()
        if isinstance(layer.mixer, RecurrentMixer)
    )


def state_bytes(cfg: ModelConfig, dtype: str = "f32") -> float:
    """Bytes of recurrent state per sequence; states are usually kept in f32."""
    return state_elements(cfg) * dtype_bytes(dtype)
