"""The running softmax over pages as a Pallas kernel for GPUs, by Triton.

A program of the grid has the queries of one row that read one KV head, and a part of the blocks of
places that the row sees: so many parts that every multiprocessor has work, whose statistics are
joined afterwards (flash-decoding). Each place of a block is found by the row's table, so that pages
of any size are read where they lie, once:

    place p of a row -> page table[p // here], its place p mod here,
                        position (p // here) size + first + p mod here

Triton's arrays have powers of two: heads of other widths, and rows of fewer than the 16 that its
products take, are filled up with zeros that are not read.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from shardwise.runtime.attention.paged_softmax import PageParts
from shardwise.runtime.attention.scoring import Scoring, capped

LEAST = 16
"""Rows of a product of Triton's."""
MOST_ROWS = 64
WIDEST = 256


class TritonTiles(NamedTuple):
    """Places of a block, warps of a program and blocks on their way at once; and programs of the
    grid at least, where there are blocks enough: two for each multiprocessor of an H100. There
    these read 2.70 TB/s, more programs 2.6, blocks of 32 places 2.3 to 2.7 (docs/lab/log.md)."""

    places: int = 64
    warps: int = 4
    stages: int = 3
    programs: int = 264


TILES = TritonTiles()


class RowPages(NamedTuple):
    """Where R rows lie: pages [R, M] of `size` places, of which this device has those from `first`
    on, in a layer; and the position of each row's first token (negative: padding)."""

    pages_RM: jax.Array
    position_R: jax.Array
    size: int
    first: Any
    layer: Any


def triton_queries(Q: int, G: int) -> int:
    """Tokens of a row that one program computes."""
    while Q % 2 == 0 and Q * G > MOST_ROWS:
        Q //= 2
    return Q


def triton_serves(heads: int, width: int, *, apart: bool) -> bool:
    """Whether the kernel reads a cache: keys and values apart, and `heads` that read one KV head,
    of at most `width` numbers, fit a program."""
    return apart and width <= WIDEST and heads <= 2 * MOST_ROWS


def paged_softmax_triton(
    q_RQKGH: jax.Array,
    keys: PageParts,
    values: PageParts,
    table: RowPages,
    s: Scoring,
    *,
    U: int,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The greatest score [R, K, G, Q], the sum of exponents, and the sum of values [R, K, G, Q, U]
    of each query, in f32; queries are scaled already."""
    (R, Q, K, G, H), tiles = q_RQKGH.shape, TILES
    rows, wide_U = _filled(G * Q), _filled(U)
    places = table.pages_RM.shape[1] * keys.array_LPSX.shape[2]
    parts = min(-(-tiles.programs // (R * K)), -(-places // tiles.places))
    q_RKYH = q_RQKGH.transpose(0, 2, 3, 1, 4).reshape(R, K, G * Q, H)
    at = jnp.stack((jnp.asarray(table.layer), jnp.asarray(table.first))).astype(jnp.int32)
    given = [at, table.position_R.astype(jnp.int32), table.pages_RM.astype(jnp.int32)]
    given += [keys.array_LPSX, values.array_LPSX]
    given += [x for x in (keys.scales_LPKS, values.scales_LPKS) if x is not None]

    def each(*shape: int) -> Any:
        return pl.BlockSpec(
            (None, None, None, *shape), lambda r, k, part: (part, r, k, *[0] * len(shape))
        )

    def whole(x: jax.Array) -> Any:
        return pl.BlockSpec(x.shape, lambda *_: (0,) * x.ndim)

    f32, shape = jnp.float32, (parts, R, K, rows)
    top, total, out = pl.pallas_call(
        partial(
            _kernel,
            scoring=s,
            size=table.size,
            parts=parts,
            widths=(H, U),
            tokens=Q,
            places=tiles.places,
        ),
        grid=(R, K, parts),
        in_specs=[whole(q_RKYH), *map(whole, given)],
        out_specs=(each(rows), each(rows), each(rows, wide_U)),
        out_shape=(
            jax.ShapeDtypeStruct(shape, f32),
            jax.ShapeDtypeStruct(shape, f32),
            jax.ShapeDtypeStruct((*shape, wide_U), f32),
        ),
        compiler_params=triton.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpret,
        name=f"paged_softmax_{Q}x{G}_of_{H}_{U}",  # which `profiler/hlo/kernels.py` reads
    )(q_RKYH, *given)
    higher = top.max(0, keepdims=True)
    kept = jnp.exp(top - higher)
    total, out = (total * kept).sum(0), (out * kept[..., None]).sum(0)

    def told(x: jax.Array) -> jax.Array:
        return x[:, :, : G * Q].reshape(R, K, G, Q, *x.shape[3:])

    return told(higher[0]), told(total), told(out)[..., :U]


def _filled(n: int) -> int:
    """The power of two that has room for n rows or lanes of a product."""
    return max(LEAST, 1 << (n - 1).bit_length())


def _kernel(
    q_ref: Any,
    at_ref: Any,
    position_ref: Any,
    pages_ref: Any,
    k_ref: Any,
    v_ref: Any,
    *refs: Any,
    scoring: Scoring,
    size: int,
    parts: int,
    widths: tuple[int, int],
    tokens: int,
    places: int,
) -> None:
    *scales, top_ref, total_ref, out_ref = refs
    row, head, part = (pl.program_id(i) for i in range(3))
    rows, M, count, here = top_ref.shape[0], pages_ref.shape[1], k_ref.shape[1], k_ref.shape[2]
    layer, offset, position = at_ref[0], at_ref[1], position_ref[row]
    asked, H = q_ref.shape[2:]
    wide = _filled(H)
    lies = (jnp.arange(rows) < asked)[:, None] & (jnp.arange(wide) < H)[None]
    q_YH = triton.load(q_ref.at[row, head, pl.ds(0, rows), pl.ds(0, wide)], mask=lies, other=0)
    q_Y1 = (position + lax.rem(jnp.arange(rows, dtype=jnp.int32), jnp.int32(tokens)))[:, None]
    lowest, kept = jnp.finfo(jnp.float32).min, q_YH.dtype
    precision = lax.Precision.HIGHEST if kept == jnp.float32 else None
    dot = partial(lax.dot_general, preferred_element_type=jnp.float32, precision=precision)
    own_S = jnp.arange(places, dtype=jnp.int32)
    alone = here % places == 0  # a block is of one page

    def lying(b: Any) -> tuple[Any, Any, Any]:
        """Of a block the page in the table, the number of the page, and the first place in it; or
        of each place."""
        p = b * places if alone else b * places + own_S
        index, place = lax.div(p, jnp.int32(here)), lax.rem(p, jnp.int32(here))
        page = pages_ref[row, jnp.minimum(index, M - 1)]
        return index, jnp.clip(page, 0, count - 1), place

    def entries(ref: Any, page: Any, place: Any, width: int) -> jax.Array:
        wide = _filled(width)
        mask = None
        if wide != width:
            mask = jnp.broadcast_to((jnp.arange(wide) < width)[None], (places, wide))
        if alone:
            found = ref.at[layer, page, pl.ds(place, places), pl.ds(head * width, wide)]
        else:
            own_H = head * width + jnp.arange(wide, dtype=jnp.int32)
            at = (page[:, None], place[:, None], own_H[None])
            found = ref.at[layer, *(jnp.broadcast_to(x, (places, wide)) for x in at)]
        return triton.load(found, mask=mask, other=None if mask is None else 0).astype(kept)

    def scale(ref: Any, page: Any, place: Any) -> jax.Array:
        at = pl.ds(place, places) if alone else place
        return ref[layer, page, head, at].astype(jnp.float32)[None]

    def block(b: Any, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top_Y, total_Y, out_YU = state
        index, page, place = lying(b)
        k_1S = index * size + offset + place + (own_S if alone else 0)
        k_1S = k_1S[None]
        seen = (k_1S <= q_Y1) & (jnp.broadcast_to(index, (places,)) < M)[None]
        if scoring.window is not None:
            seen &= q_Y1 - k_1S < scoring.window
        if scoring.chunk is not None:
            seen &= k_1S >= q_Y1 - lax.rem(q_Y1, jnp.int32(scoring.chunk))
        k_SH = entries(k_ref, page, place, widths[0])
        v_SU = entries(v_ref, page, place, widths[1])
        by = [scale(ref, page, place) for ref in scales]
        scores_YS = dot(q_YH, k_SH, (((1,), (1,)), ((), ())))
        if by:
            scores_YS = scores_YS * by[0]
        scores_YS = jnp.where(seen, capped(scores_YS, scoring.softcap), lowest)
        higher_Y = jnp.maximum(top_Y, scores_YS.max(-1))
        weights_YS = jnp.where(seen, jnp.exp(scores_YS - higher_Y[:, None]), 0.0)
        less_Y = jnp.exp(top_Y - higher_Y)
        total_Y = total_Y * less_Y + weights_YS.sum(-1)
        if by:
            weights_YS = weights_YS * by[-1]
        added_YU = dot(weights_YS.astype(kept), v_SU, (((1,), (0,)), ((), ())))
        return higher_Y, total_Y, out_YU * less_Y[:, None] + added_YU

    begin, end = _blocks(position, tokens, size, here, M, places, scoring)
    each = lax.div(end - begin + parts - 1, jnp.int32(parts))
    begin = begin + part * each
    empty = (
        jnp.full((rows,), lowest, jnp.float32),
        jnp.zeros((rows,), jnp.float32),
        jnp.zeros(out_ref.shape, jnp.float32),
    )
    top, total, out = lax.fori_loop(begin, jnp.minimum(begin + each, end), block, empty)
    top_ref[...] = top
    total_ref[...] = total
    out_ref[...] = out


def _blocks(
    position: Any, tokens: int, size: int, here: int, M: int, places: int, s: Scoring
) -> tuple[Any, Any]:
    """The first block of places that any token of a row sees, and the one after the last."""
    first = jnp.int32(0)
    if s.window is not None:
        first = position - (s.window - 1)
    if s.chunk is not None:
        first = jnp.maximum(first, position - lax.rem(position, jnp.int32(s.chunk)))
    first_page = lax.div(jnp.maximum(first, 0), jnp.int32(size))
    end_page = jnp.minimum(lax.div(jnp.maximum(position + tokens - 1, 0), jnp.int32(size)) + 1, M)
    end = lax.div(end_page * here + places - 1, jnp.int32(places))
    return jnp.minimum(lax.div(first_page * here, jnp.int32(places)), end), end
