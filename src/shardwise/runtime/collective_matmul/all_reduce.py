"""AllReduce collective matmul: A[B_X, D_Y] * W[D_Y, F] -> Out[B_X, F].

An AllReduce is a ReduceScatter and an AllGather. The first half overlaps with the products by
itself; for the second, F is computed in tiles: one tile is gathered while the next is multiplied.
Source: How To Scale Your Model, ch. 10, exercise 10.1.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.errors import BadRequest
from shardwise.runtime.collective_matmul.reduce_scatter import (
    matmul_reduce_scatter,
    matmul_reduce_scatter_bidirectional,
)


def matmul_all_reduce(x_BD: jax.Array, w_DF: jax.Array, *, axis: str, tiles: int = 2) -> jax.Array:
    """One direction. Inside `shard_map`.

    Local shapes: x [B, D], w [D, F], out [B, F], where B and D are this device's own. Raises
    BadRequest unless F divides by tiles x |Y|.
    """
    return _tiled(matmul_reduce_scatter, x_BD, w_DF, axis, tiles)


def matmul_all_reduce_bidirectional(
    x_BD: jax.Array, w_DF: jax.Array, *, axis: str, tiles: int = 2
) -> jax.Array:
    """Both directions; otherwise as `matmul_all_reduce`."""
    return _tiled(matmul_reduce_scatter_bidirectional, x_BD, w_DF, axis, tiles)


def _tiled(
    scatter: Callable[..., jax.Array], x_BD: jax.Array, w_DF: jax.Array, axis: str, tiles: int
) -> jax.Array:
    places, size_F = lax.axis_size(axis), w_DF.shape[1]
    if size_F % (tiles * places):
        rule = f"it must divide by {tiles} tiles x {places} devices of axis '{axis}'"
        raise BadRequest(f"output dim F of size {size_F} cannot be cut; {rule}, so pad F")
    out_BF = []
    for tile_DF in jnp.split(w_DF, tiles, axis=1):
        part_BF = scatter(x_BD, tile_DF, axis=axis)
        out_BF.append(lax.all_gather(part_BF, axis, axis=1, tiled=True, to="invarying"))
    return jnp.concatenate(out_BF, axis=1)
