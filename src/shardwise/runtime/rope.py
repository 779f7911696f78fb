"""Rotary positions (Su et al. 2021) and their scalings; `models.numerics.Rope` says which."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.models.numerics import Rope
from shardwise.runtime.precision import wide


def inverse_frequencies(rope: Rope) -> np.ndarray:
    """Radians per position of each rotated pair, float32 [dim / 2]: theta^(-2i/dim), scaled."""
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    plain = (1.0 / np.float32(rope.theta) ** exponents).astype(np.float32)
    match rope.scaling:
        case "linear":
            return plain / np.float32(rope.factor)
        case "llama3":
            return _llama3(plain, rope)
        case "yarn":
            return _yarn(plain, rope)
    return plain


def _llama3(plain: np.ndarray, rope: Rope) -> np.ndarray:
    """Llama 3.1: long waves slowed by `factor`, short ones kept, a blend between."""
    turns = rope.original_context * plain / (2 * math.pi)  # rotations within the context
    blend = np.clip((turns - rope.low) / (rope.high - rope.low), 0, 1)
    return ((1 - blend) * plain / rope.factor + blend * plain).astype(np.float32)


def _yarn(plain: np.ndarray, rope: Rope) -> np.ndarray:
    """YaRN (Peng et al. 2023, section 3.2): dims that turn fast are kept, slow ones slowed."""

    def dim_of(rotations: float) -> float:
        span = math.log(rope.original_context / (rotations * 2 * math.pi))
        return rope.dim * span / (2 * math.log(rope.theta))

    low, high = dim_of(rope.high), dim_of(rope.low)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # as in the reference code: a ramp of no width would divide by zero
    ramp = np.clip((np.arange(len(plain), dtype=np.float32) - low) / (high - low), 0, 1)
    return (plain / rope.factor * ramp + plain * (1 - ramp)).astype(np.float32)


def rotate(x_BTNH: jax.Array, positions_BT: jax.Array, rope: Rope | None) -> jax.Array:
    """x with the first `rope.dim` elements of every head rotated by its position.

    Angles and products are float32 or wider: in bf16 positions above 256 would collide.
    """
    if rope is None:
        return x_BTNH
    dtype = wide(x_BTNH)
    frequencies = inverse_frequencies(rope)[None, None].astype(dtype)
    angles = positions_BT[..., None].astype(dtype) * frequencies
    cos = (jnp.cos(angles) * rope.attention_factor)[:, :, None, :]
    sin = (jnp.sin(angles) * rope.attention_factor)[:, :, None, :]
    turned, rest = x_BTNH[..., : rope.dim].astype(dtype), x_BTNH[..., rope.dim :]
    if rope.interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = jnp.split(turned, 2, axis=-1)
    parts = (first * cos - second * sin, second * cos + first * sin)
    if rope.interleaved:
        out = jnp.stack(parts, axis=-1).reshape(turned.shape)
    else:
        out = jnp.concatenate(parts, axis=-1)
    return jnp.concatenate((out.astype(x_BTNH.dtype), rest), axis=-1)
