"""AllGather collective matmul: each device multiplies the block it has while the next arrives.

A[B_X, D_Y] * W[D, F_Y] -> Out[B_X, F_Y], where the contracted dim of A is cut over the ring Y: a
block meets the rows of W that belong to it, and the products add up. Or, as sequence parallelism
has it, A[B_X, T_Y, D] * W[D, F_Y] -> Out[B_X, T, F_Y]: a block gives the rows of Out that are its
own. Source: How To Scale Your Model, ch. 10; Wang et al. 2023.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.collective_matmul.ring import Start, arriving


def all_gather_matmul(x_BD: jax.Array, w_DF: jax.Array, *, axis: str) -> jax.Array:
    """One direction: |Y| - 1 hops of a block. Inside `shard_map`.

    Local shapes: x [B, D/|Y|], w [D, F], out [B, F], where B and F are this device's own.
    """
    return _contracted(x_BD, w_DF, axis, False)


def all_gather_matmul_bidirectional(x_BD: jax.Array, w_DF: jax.Array, *, axis: str) -> jax.Array:
    """Both directions: floor(|Y| / 2) hops. Shapes as in `all_gather_matmul`."""
    return _contracted(x_BD, w_DF, axis, True)


def all_gather_rows(
    x_BTD: jax.Array,
    products: Callable[[jax.Array], tuple[jax.Array, ...]],
    *,
    axis: str,
    bidirectional: bool,
) -> tuple[jax.Array, ...]:
    """`products(x)` of the whole x, from the products of its blocks. Inside `shard_map`.

    Local shapes: x [B, T/|Y|, D]; `products` takes [B, t, D] to any number of [B, t, ...], and the
    outputs are [B, T, ...]. So x goes round once for several weights.
    """
    outs: list[jax.Array] = []
    for start, block_BTD in arriving(x_BTD, axis, 1, bidirectional=bidirectional):
        made = products(block_BTD)
        if not outs:
            T = x_BTD.shape[1] * lax.axis_size(axis)
            outs = [jnp.zeros((y.shape[0], T, *y.shape[2:]), y.dtype) for y in made]
        pairs = zip(outs, made, strict=True)
        outs = [lax.dynamic_update_slice_in_dim(out, y, start, 1) for out, y in pairs]
    return tuple(outs)


def _contracted(x_BD: jax.Array, w_DF: jax.Array, axis: str, bidirectional: bool) -> jax.Array:
    blocks = arriving(x_BD, axis, 1, bidirectional=bidirectional)
    products = [_multiply(block_BD, w_DF, start) for start, block_BD in blocks]
    return sum(products[1:], products[0]).astype(x_BD.dtype)


def _multiply(x_BD: jax.Array, w_DF: jax.Array, start: Start) -> jax.Array:
    """x times the rows of w from `start` on; narrow floats add up in float32."""
    wide = jnp.issubdtype(x_BD.dtype, jnp.floating)
    dtype = jnp.promote_types(x_BD.dtype, jnp.float32) if wide else x_BD.dtype
    rows_DF = lax.dynamic_slice_in_dim(w_DF, start, x_BD.shape[1], 0)
    return jnp.dot(x_BD, rows_DF, preferred_element_type=dtype)
