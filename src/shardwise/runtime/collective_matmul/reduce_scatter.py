"""ReduceScatter collective matmul: sums travel while every device on their way makes its product.

Tmp[B_X, F_Y] * W[F_Y, D] -> Out[B_X, D_Y]: the sum for one block of D travels towards the device
that keeps it; only sums travel, a block of the output each. Or, as sequence parallelism has it,
Tmp[B_X, T, F_Y] * W[F_Y, D] -> Out[B_X, T_Y, D]: the sum for one block of rows.
Source: How To Scale Your Model, ch. 10, exercise 10.2.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.collective_matmul.ring import Start, travelling_sum


def matmul_reduce_scatter(tmp_BF: jax.Array, w_FD: jax.Array, *, axis: str) -> jax.Array:
    """One direction: |Y| - 1 hops of a block of the output. Inside `shard_map`.

    Local shapes: tmp [B, F], w [F, D], out [B, D/|Y|], where B and F are this device's own. D must
    divide by |Y|.
    """
    return _columns(tmp_BF, w_FD, axis, False)


def matmul_reduce_scatter_bidirectional(
    tmp_BF: jax.Array, w_FD: jax.Array, *, axis: str
) -> jax.Array:
    """Both directions: floor(|Y| / 2) hops. Shapes as in `matmul_reduce_scatter`."""
    return _columns(tmp_BF, w_FD, axis, True)


def reduce_scatter_rows(
    tmp: jax.Array,
    product: Callable[[jax.Array], jax.Array],
    *,
    axis: str,
    bidirectional: bool,
) -> jax.Array:
    """`product(tmp)` summed over the ring, of which this device keeps its rows. Inside `shard_map`.

    Local shapes: tmp [B, T, ...], `product` takes [B, t, ...] to [B, t, D], out [B, T/|Y|, D]. T
    must divide by |Y|.
    """

    def part(start: Start, size: int) -> jax.Array:
        return product(lax.dynamic_slice_in_dim(tmp, start, size, 1))

    size = tmp.shape[1] // lax.axis_size(axis)
    return travelling_sum(part, size, axis, 1, bidirectional=bidirectional)


def _columns(tmp_BF: jax.Array, w_FD: jax.Array, axis: str, bidirectional: bool) -> jax.Array:
    def part(start: Start, size: int) -> jax.Array:
        return jnp.dot(tmp_BF, lax.dynamic_slice_in_dim(w_FD, start, size, 1))

    size = w_FD.shape[1] // lax.axis_size(axis)
    return travelling_sum(part, size, axis, 1, bidirectional=bidirectional)
