"""Matmuls that overlap their communication: each runs inside `jax.shard_map`, over one mesh axis.

Every function multiplies one block while the next is on the wire, by `ppermute`, one hop per step;
`bidirectional` uses both directions of the ring, which needs half the steps. They equal the plain
product with a collective before or after it (How To Scale Your Model, 3.4.1 and ch. 10; Wang et al.
2023). The book cuts D over the axis, the forms with `rows` cut the tokens, as sequence parallelism
does. No weights, no model.

- AllGather before: A[B_X, D_Y] * W[D, F_Y] -> Out[B_X, F_Y]. A block of A meets the rows of W that
  belong to it, and the products add up. With rows, A[B_X, T_Y, D] * W[D, F_Y] -> Out[B_X, T, F_Y]:
  a block gives the rows of Out that are its own.
- ReduceScatter after (exercise 10.2): Tmp[B_X, F_Y] * W[F_Y, D] -> Out[B_X, D_Y]. The sum for one
  block of D travels towards the device that keeps it, and every device on its way adds its product.
  With rows, Tmp[B_X, T, F_Y] * W[F_Y, D] -> Out[B_X, T_Y, D]: the sum for one block of rows.
- AllReduce after (exercise 10.1): A[B_X, D_Y] * W[D_Y, F] -> Out[B_X, F], a ReduceScatter, which
  overlaps by itself, and an AllGather: F is computed in tiles, of which one is gathered while the
  next is multiplied.
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.errors import BadRequest

Start = jax.Array | int


def hop(x: jax.Array, axis: str, by: int) -> jax.Array:
    """Every device gives its block to the one `by` places further along the ring."""
    places = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + by) % places) for i in range(places)])


def place(axis: str, away: int) -> jax.Array:
    """The place on the ring that is `away` places after this device's."""
    return (lax.axis_index(axis) + away) % lax.axis_size(axis)


def arriving(
    x: jax.Array, axis: str, dim: int, *, bidirectional: bool
) -> Iterator[tuple[Start, jax.Array]]:
    """All blocks of a dim that the ring cuts, this device's first: (start in the whole dim, block).

    One direction: |Y| - 1 hops. Both: floor(|Y| / 2); where |Y| is even the block opposite is as
    far one way as the other, and a half comes each way.
    """
    places, size = lax.axis_size(axis), x.shape[dim]
    half = size // 2
    yield place(axis, 0) * size, x
    if not bidirectional or not half:
        for away in range(1, places):
            x = hop(x, axis, -1)
            yield place(axis, away) * size, x
        return
    after = before = x
    for away in range(1, (places - 1) // 2 + 1):
        after, before = hop(after, axis, -1), hop(before, axis, 1)
        yield place(axis, away) * size, after
        yield place(axis, -away) * size, before
    if places % 2 == 0:
        start = place(axis, places // 2) * size
        first = lax.slice_in_dim(after, 0, half, axis=dim)
        second = lax.slice_in_dim(before, half, size, axis=dim)
        yield start, hop(first, axis, -1)
        yield start + half, hop(second, axis, 1)


def travelling_sum(
    part: Callable[[Start, int], jax.Array], size: int, axis: str, dim: int, *, bidirectional: bool
) -> jax.Array:
    """The block, `size` long in `dim`, that this device keeps of a sum over the ring.

    `part(start, size)` makes this device's summand for a range of the whole dim. One direction:
    |Y| - 1 hops of a block. Both: floor(|Y| / 2); sums come from both sides and meet, and where |Y|
    is even the summand of the device opposite comes in halves, one each way.
    """
    places, half = lax.axis_size(axis), size // 2
    far = places // 2

    def own(away: int, start: int = 0, length: int = size) -> jax.Array:
        return part(place(axis, away) * size + start, length)

    if places == 1:
        return own(0)
    if not bidirectional or not half:
        out = own(1)
        for step in range(2, places + 1):
            out = hop(out, axis, -1) + own(step)
        return out
    down, up = own(-far), own(far)
    if places % 2 == 0:
        down, up = own(far, 0, half), own(far, half, size - half)
    for away in range(far - 1, 0, -1):
        down = _add(own(-away), hop(down, axis, -1), 0, dim)
        up = _add(own(away), hop(up, axis, 1), half, dim)
    out = _add(own(0), hop(down, axis, -1), 0, dim)
    return _add(out, hop(up, axis, 1), half, dim)


def _add(out: jax.Array, more: jax.Array, start: int, dim: int) -> jax.Array:
    """Add a whole block, or the half of one that begins at `start`."""
    if more.shape == out.shape:
        return out + more
    here = lax.slice_in_dim(out, start, start + more.shape[dim], axis=dim)
    return lax.dynamic_update_slice_in_dim(out, here + more, start, dim)


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
