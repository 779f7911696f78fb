"""What a token leaves in a cache: the width of its entries, and the scales of small numbers; and
the states of recurrent layers."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models import Attention, LatentAttention
from shardwise.models.specs import DeltaNet, RecurrentMixer, ShortConv
from shardwise.runtime.precision import DTYPES
from shardwise.runtime.quant import NARROW

SCALE = ".scale"
"""Ends the name of the scales of an array."""


def widths(mixer: object, *, joint: bool) -> tuple[dict[str, int], int]:
    """Width of each array's entry of a token, and the heads that it has."""
    if isinstance(mixer, LatentAttention):
        latent, rotated = mixer.kv_lora_rank, mixer.rope_head_dim
        return ({"cr": latent + rotated} if joint else {"c": latent, "r": rotated}), 1
    assert isinstance(mixer, Attention)
    heads = mixer.kv_heads
    return {"k": heads * mixer.head_dim, "v": heads * mixer.v_head_dim}, heads


def states(mixer: RecurrentMixer, shape: tuple[int, ...]) -> dict[str, jax.Array]:
    """The states of `shape` sequences before their first token, in float32."""
    assert isinstance(mixer, ShortConv | DeltaNet)
    if isinstance(mixer, ShortConv):
        return {"conv": jnp.zeros((*shape, mixer.conv_width - 1, mixer.width), jnp.float32)}
    values = (mixer.value_heads, mixer.key_head_dim, mixer.value_head_dim)
    width = 2 * mixer.key_heads * mixer.key_head_dim + mixer.value_heads * mixer.value_head_dim
    return {
        "conv": jnp.zeros((*shape, mixer.conv_width - 1, width), jnp.float32),
        "delta": jnp.zeros((*shape, *values), jnp.float32),
    }


SMALL = {jnp.dtype(NARROW[name].dtype): NARROW[name] for name in ("int8", "fp8")}
"""The dtypes of a cache of small numbers; each token and head has a scale."""


CACHES: Mapping[str, Any] = {
    **DTYPES,
    **{name: form.dtype for name, form in NARROW.items() if jnp.dtype(form.dtype) in SMALL},
}
"""The dtypes of caches by the names that plans use."""


def is_small(dtype: Any) -> bool:
    """Whether a cache in this dtype has scales."""
    return jnp.dtype(dtype) in SMALL


BITS = jnp.dtype(jnp.uint16)
"""In which a bf16 cache lies on CPUs: XLA has no scatter of 16-bit floats there, and would widen
and narrow the whole cache for each (44 ms for 17 M entries, 0.02 ms as bits)."""


def held_as(dtype: Any, platform: str) -> Any:
    """The dtype of the arrays of a cache."""
    return BITS if platform == "cpu" and jnp.dtype(dtype) == jnp.bfloat16 else dtype


def to_held(entries: jax.Array, dtype: Any) -> jax.Array:
    """Entries as a cache's arrays have them."""
    if dtype != BITS:
        return entries.astype(dtype)
    return jax.lax.bitcast_convert_type(entries.astype(jnp.bfloat16), BITS)


def from_held(entries: jax.Array) -> jax.Array:
    """Entries as numbers."""
    if entries.dtype != BITS:
        return entries
    return jax.lax.bitcast_convert_type(entries, jnp.bfloat16)


def rounded(x_BTKH: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Values in a small dtype and their scales [B, T, K] in bf16, max |x| / most of a head. An int8
    value is off by at most half a scale: that bf16 rounds a scale by 1/512 moves the largest one by
    1/4."""
    form, wide_BTKH = SMALL[jnp.dtype(dtype)], x_BTKH.astype(jnp.float32)
    most_BTK = jnp.abs(wide_BTKH).max(-1)
    scale_BTK = jnp.where(most_BTK == 0, 1.0, most_BTK / form.most).astype(jnp.bfloat16)
    values_BTKH = wide_BTKH / scale_BTK.astype(jnp.float32)[..., None]
    if jnp.issubdtype(form.dtype, jnp.integer):
        values_BTKH = jnp.round(values_BTKH)
    return jnp.clip(values_BTKH, -form.most, form.most).astype(form.dtype), scale_BTK
