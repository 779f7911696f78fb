"""RMSNorm and LayerNorm, in float32 whatever the activations are."""

from collections.abc import Mapping

import jax
from jax import lax

from shardwise.models.numerics import Numerics
from shardwise.runtime.precision import wide


@jax.named_scope("norms")
def norm(
    params: Mapping[str, jax.Array], name: str, x: jax.Array, numerics: Numerics, dims: int = 1
) -> jax.Array:
    """The norm `name` over the last `dims` dims of x, in the dtype of x.

    "rms": x / sqrt(mean x^2 + eps) * (offset + scale). "layer": (x - mean) / sqrt(var + eps) *
    scale + bias, without the bias where the model has none. The scale has the shape of the last
    dims, or of the last alone where heads share it.
    """
    over = tuple(range(x.ndim - dims, x.ndim))
    y = x.astype(wide(x))
    if numerics.norm == "layer":
        y = y - y.mean(over, keepdims=True)
    mean_square = (y * y).mean(over, keepdims=True)
    out = y * lax.rsqrt(mean_square + numerics.norm_eps)
    out = out * (_aligned(params[name], x) + numerics.norm_offset)
    if f"{name}.bias" in params:
        out = out + _aligned(params[f"{name}.bias"], x)
    return out.astype(x.dtype)


def _aligned(scale: jax.Array, x: jax.Array) -> jax.Array:
    """The scale in float32 with leading dims of one (rank promotion is never implicit)."""
    shape = (1,) * (x.ndim - scale.ndim) + scale.shape
    return scale.astype(wide(scale)).reshape(shape)
