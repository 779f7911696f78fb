"""AllGather collective matmul: A[B_X, D_Y] * W[D, F_Y] -> Out[B_X, F_Y].

The contracted dim of A is cut over the ring Y. Each device multiplies the block of A it has with
the rows of W that belong to it while the next block arrives; nothing waits for a whole A.
Source: How To Scale Your Model, ch. 10; Wang et al. 2023.
"""

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.collective_matmul.ring import hop, place


def all_gather_matmul(x_BD: jax.Array, w_DF: jax.Array, *, axis: str) -> jax.Array:
    """One direction: |Y| - 1 hops of a block. Inside `shard_map`.

    Local shapes: x [B, D/|Y|], w [D, F], out [B, F], where B and F are this device's own.
    """
    places, block_D = lax.axis_size(axis), x_BD.shape[1]
    out_BF = _multiply(x_BD, w_DF, place(axis, 0) * block_D)
    for away in range(1, places):
        x_BD = hop(x_BD, axis, -1)
        out_BF += _multiply(x_BD, w_DF, place(axis, away) * block_D)
    return out_BF.astype(x_BD.dtype)


def all_gather_matmul_bidirectional(x_BD: jax.Array, w_DF: jax.Array, *, axis: str) -> jax.Array:
    """Both directions: floor(|Y| / 2) hops. Shapes as in `all_gather_matmul`.

    Where |Y| is even the block opposite is as far one way as the other: a half comes each way.
    """
    places, block_D = lax.axis_size(axis), x_BD.shape[1]
    half_D = block_D // 2
    out_BF = _multiply(x_BD, w_DF, place(axis, 0) * block_D)
    after_BD = before_BD = x_BD
    for away in range(1, (places - 1) // 2 + 1):
        after_BD, before_BD = hop(after_BD, axis, -1), hop(before_BD, axis, 1)
        out_BF += _multiply(after_BD, w_DF, place(axis, away) * block_D)
        out_BF += _multiply(before_BD, w_DF, place(axis, -away) * block_D)
    if places % 2 == 0:
        start = place(axis, places // 2) * block_D
        first_BD = hop(after_BD[:, :half_D], axis, -1)
        second_BD = hop(before_BD[:, half_D:], axis, 1)
        out_BF += _multiply(first_BD, w_DF, start)
        out_BF += _multiply(second_BD, w_DF, start + half_D)
    return out_BF.astype(x_BD.dtype)


def _multiply(x_BD: jax.Array, w_DF: jax.Array, start: jax.Array) -> jax.Array:
    """x times the rows of w from `start` on; narrow floats add up in float32."""
    wide = jnp.issubdtype(x_BD.dtype, jnp.floating)
    dtype = jnp.promote_types(x_BD.dtype, jnp.float32) if wide else x_BD.dtype
    rows_DF = lax.dynamic_slice_in_dim(w_DF, start, x_BD.shape[1], 0)
    return jnp.dot(x_BD, rows_DF, preferred_element_type=dtype)
