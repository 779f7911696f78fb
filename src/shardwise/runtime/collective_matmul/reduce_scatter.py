"""ReduceScatter collective matmul: Tmp[B_X, F_Y] * W[F_Y, D] -> Out[B_X, D_Y].

The sum for one block of D travels towards the device that keeps it and every device on its way adds
its own product, made while the sum was on the wire. Only sums travel, a block of the output each.
Source: How To Scale Your Model, ch. 10, exercise 10.2.
"""

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.collective_matmul.ring import hop, place


def matmul_reduce_scatter(tmp_BF: jax.Array, w_FD: jax.Array, *, axis: str) -> jax.Array:
    """One direction: |Y| - 1 hops of a block of the output. Inside `shard_map`.

    Local shapes: tmp [B, F], w [F, D], out [B, D/|Y|], where B and F are this device's own. D must
    divide by |Y|.
    """
    places = lax.axis_size(axis)
    out_BD = _multiply(tmp_BF, w_FD, axis, 1)
    for step in range(2, places + 1):
        out_BD = hop(out_BD, axis, -1) + _multiply(tmp_BF, w_FD, axis, step)
    return out_BD


def matmul_reduce_scatter_bidirectional(
    tmp_BF: jax.Array, w_FD: jax.Array, *, axis: str
) -> jax.Array:
    """Both directions: floor(|Y| / 2) hops. Shapes as in `matmul_reduce_scatter`.

    Sums come from both sides and meet. Where |Y| is even the product of the device opposite comes
    in halves, one each way.
    """
    places = lax.axis_size(axis)
    far = places // 2
    half_D = w_FD.shape[1] // places // 2
    if places == 1:
        return _multiply(tmp_BF, w_FD, axis, 0)
    down_BD, up_BD = _multiply(tmp_BF, w_FD, axis, -far), _multiply(tmp_BF, w_FD, axis, far)
    if places % 2 == 0:
        down_BD, up_BD = down_BD[:, :half_D], up_BD[:, half_D:]
    for away in range(far - 1, 0, -1):
        down_BD, up_BD = hop(down_BD, axis, -1), hop(up_BD, axis, 1)
        down_BD = _add(_multiply(tmp_BF, w_FD, axis, -away), down_BD, 0)
        up_BD = _add(_multiply(tmp_BF, w_FD, axis, away), up_BD, half_D)
    down_BD, up_BD = hop(down_BD, axis, -1), hop(up_BD, axis, 1)
    out_BD = _add(_multiply(tmp_BF, w_FD, axis, 0), down_BD, 0)
    return _add(out_BD, up_BD, half_D)


def _multiply(tmp_BF: jax.Array, w_FD: jax.Array, axis: str, away: int) -> jax.Array:
    """This device's product for the block of D that the device `away` places on keeps."""
    block_D = w_FD.shape[1] // lax.axis_size(axis)
    columns_FD = lax.dynamic_slice_in_dim(w_FD, place(axis, away) * block_D, block_D, 1)
    return jnp.dot(tmp_BF, columns_FD)


def _add(out_BD: jax.Array, sum_BD: jax.Array, start: int) -> jax.Array:
    """Add a whole block, or the half of one that begins at column `start`."""
    if sum_BD.shape == out_BD.shape:
        return out_BD + sum_BD
    return out_BD.at[:, start : start + sum_BD.shape[1]].add(sum_BD)
