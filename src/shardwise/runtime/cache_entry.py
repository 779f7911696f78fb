"""What a token leaves in a cache: the width of its entries, and int8 ones' scales; and the states
of recurrent layers."""

import jax
import jax.numpy as jnp

from shardwise.models import Attention, LatentAttention
from shardwise.models.specs import RecurrentMixer, ShortConv

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
    assert isinstance(mixer, ShortConv)
    return {"conv": jnp.zeros((*shape, mixer.conv_width - 1, mixer.width), jnp.float32)}


def rounded(x_BTKH: jax.Array) -> tuple[jax.Array, jax.Array]:
    """int8 values and their scales [B, T, K] in bf16, max |x| / 127 of a head. A value is off by at
    most half a scale: that bf16 rounds a scale by 1/512 moves the largest one by 1/4."""
    wide_BTKH = x_BTKH.astype(jnp.float32)
    most_BTK = jnp.abs(wide_BTKH).max(-1)
    scale_BTK = jnp.where(most_BTK == 0, 1.0, most_BTK / 127).astype(jnp.bfloat16)
    values_BTKH = jnp.round(wide_BTKH / scale_BTK.astype(jnp.float32)[..., None])
    return jnp.clip(values_BTKH, -127, 127).astype(jnp.int8), scale_BTK
