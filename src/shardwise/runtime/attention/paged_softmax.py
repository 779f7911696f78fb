"""The running softmax over pages as a Pallas kernel for TPUs: heads of any width, windows and
chunks, a scale for each token, and its statistics returned, so that parts of a cache can be joined.

A grid step is one block of pages of one row, each found by its number in scalar memory, while the
pages of the next step are on their way. A row's blocks follow one another, from the first that its
window sees to the last that it has filled; a row that sees nothing takes one block.

Heads lie side by side in a page, H lanes each, which need not be a tile's 128. So as many of them
as end on a tile's edge, `side`, are multiplied at once, with their queries in a block diagonal:

    q[J, side x G x Q, side x H] * k[S, J x side x H] -> scores[J, side x G x Q, S]

and of the products with values each head keeps its own part. A matrix unit takes as long for that
as for one head after the other while the rows are fewer than its lanes.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from shardwise.runtime.attention.scoring import Scoring, capped

LANES = 128
MOST_KEYS = 512
BLOCK_BYTES = 2**20
"""Of keys, and of values, that a step reads."""
ROOM = 6 * 2**20
"""What queries, scores and answers may take of on-chip memory; v4 has 16 MiB of it."""


class PageParts(NamedTuple):
    """Keys or values in pages [L, P, S, X], the H numbers of K heads side by side from the front;
    and the scales [L, P, K, S] of small numbers."""

    array_LPSX: jax.Array
    scales_LPKS: jax.Array | None


class RowTable(NamedTuple):
    """Where R rows lie: pages [R, M] of `size` places, of which this device has those from `first`
    on, in a layer; the position of each row's first token (negative: padding); and the blocks of
    `group` pages that each sees, from `begin_R` to before `end_R`."""

    pages_RM: jax.Array
    position_R: jax.Array
    begin_R: jax.Array
    end_R: jax.Array
    size: int
    group: int
    first: Any
    layer: Any


def pages_at_once(size: int, width: int, itemsize: int, most: int) -> int:
    """Pages of a block, of `width` numbers a place."""
    places = min(MOST_KEYS, BLOCK_BYTES // (width * itemsize))
    return int(np.clip(places // size, 1, most))


def queries_at_once(shape: tuple[int, ...], U: int, places: int) -> int:
    """Tokens of a row [R, Q, K, G, H] that are computed together, in as few parts as fit on-chip
    memory: it holds the scores of a block and their exponents, queries and answers twice over."""
    _, Q, K, G, H = shape
    side = side_by_side(K, (H, U))
    each = 4 * G * (3 * side * places + 2 * K * (side * (H + U) + LANES))
    while Q % 2 == 0 and Q * each > ROOM:
        Q //= 2
    return Q


def side_by_side(K: int, widths: tuple[int, ...]) -> int:
    """Heads whose widths together end on a tile's edge, or all of them."""
    found = (n for n in range(1, K + 1) if K % n == 0 and all(n * w % LANES == 0 for w in widths))
    return next(found, K)


def paged_softmax(
    q_RQKGH: jax.Array,
    keys: PageParts,
    values: PageParts,
    table: RowTable,
    s: Scoring,
    *,
    U: int,
    asked: int,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The greatest score [R, K, G, Q], the sum of exponents, and the sum of values [R, K, G, Q, U]
    of each query, in f32; queries are scaled already. `asked` are the numbers of a head's key and
    value that the caller reads, of which the stated FLOPs are. Where keys and values are one array,
    a latent cache, the first U numbers are the value."""
    R, Q, K, G, H = q_RQKGH.shape
    same = values.array_LPSX is keys.array_LPSX
    side = side_by_side(K, (H, U))
    J, rows = K // side, side * G * Q
    q_RJaxH = q_RQKGH.transpose(0, 2, 3, 1, 4).reshape(R, J, side, G * Q, H)
    eye_aa = jnp.eye(side, dtype=q_RQKGH.dtype)[None, None, :, None, :, None]
    q_RJYZ = (q_RJaxH[..., None, :] * eye_aa).reshape(R, J, rows, side * H)
    here, group, count = keys.array_LPSX.shape[2], table.group, keys.array_LPSX.shape[1]
    steps = _steps(table)
    offsets = np.arange(group)[:, None] * table.size + np.arange(here)[None]
    ahead = np.tile(np.arange(Q), side * G)[:, None]
    held = [keys] if same else [keys, values]
    narrow = keys.scales_LPKS is not None
    scales = [_scales_of(part, table) for part in held if part.scales_LPKS is not None]
    owner = np.arange(J * side).repeat(G * Q).reshape(J, rows, 1) == np.arange(K)

    def page(i: int) -> Any:
        def index(w: Any, row_W: Any, block_W: Any, pages: Any, _begin: Any, _pos: Any, at: Any):
            M = table.pages_RM.shape[1]
            place = row_W[w] * M + jnp.minimum(block_W[w] * group + i, M - 1)
            return at[0], jnp.clip(pages[place], 0, count - 1), 0, 0

        return index

    def own(w: Any, row_W: Any, *_: Any) -> Any:
        return row_W[w], 0, 0, 0

    def fixed(*_: Any) -> Any:
        return 0, 0

    ins = [
        pl.BlockSpec((1, J, rows, side * H), own),
        pl.BlockSpec((1, group * here), fixed),
        pl.BlockSpec((rows, 1), fixed),
        *(
            pl.BlockSpec((1, 1, here, part.array_LPSX.shape[-1]), page(i))
            for part in held
            for i in range(group)
        ),
    ]
    given = [q_RJYZ, jnp.asarray(offsets.reshape(1, -1)), jnp.asarray(ahead)]
    given += [part.array_LPSX for part in held for _ in range(group)]
    if narrow:
        at = pl.BlockSpec((1, K, group * here), lambda w, row, block, *_: (row[w], 0, block[w]))
        ins += [pl.BlockSpec((J, rows, K), lambda *_: (0, 0, 0)), *([at] * len(scales))]
        given += [jnp.asarray(owner, jnp.bfloat16), *scales]
    f32 = jnp.float32
    kernel = partial(_kernel, scoring=s, group=group, span=group * table.size, same=same)
    out_RJYV, stats_RJYW = pl.pallas_call(
        kernel,
        out_shape=(
            jax.ShapeDtypeStruct((R, J, rows, side * U), f32),
            jax.ShapeDtypeStruct((R, J, rows, LANES), f32),
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=6,
            grid=(steps.total,),
            in_specs=ins,
            out_specs=(
                pl.BlockSpec((1, J, rows, side * U), own),
                pl.BlockSpec((1, J, rows, LANES), own),
            ),
        ),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        cost_estimate=_cost(q_RJYZ.shape, held, table, s, Q, asked),
        interpret=interpret,
        name="paged_softmax",
    )(
        steps.row_W,
        steps.block_W,
        table.pages_RM.reshape(-1).astype(jnp.int32),
        table.begin_R,
        table.position_R,
        jnp.stack((jnp.asarray(table.layer), jnp.asarray(table.first))).astype(jnp.int32),
        *given,
    )
    out = out_RJYV.reshape(R, J, side, G, Q, side, U)
    out = jnp.einsum("RJaGQaU->RJaGQU", out) if side > 1 else out[..., 0, :]
    top, total = (stats_RJYW[..., i].reshape(R, K, G, Q) for i in (0, 1))
    return top, total, out.reshape(R, K, G, Q, U)


class GridSteps(NamedTuple):
    """Of the grid's steps whose row each is and which block of its pages, and their count."""

    row_W: jax.Array
    block_W: jax.Array
    total: jax.Array


def _steps(table: RowTable) -> GridSteps:
    R, M = table.pages_RM.shape
    steps_W1 = jnp.arange(R * -(-M // table.group), dtype=jnp.int32)[:, None]
    ends_R = jnp.cumsum(table.end_R - table.begin_R, dtype=jnp.int32)
    row_W = jnp.minimum((steps_W1 >= ends_R[None]).sum(1, dtype=jnp.int32), R - 1)
    before_R = ends_R - table.end_R  # of a row, its steps begin at `before` + its own first block
    own_WR = row_W[:, None] == jnp.arange(R, dtype=jnp.int32)[None]
    block_W = steps_W1[:, 0] - jnp.where(own_WR, before_R[None], 0).sum(1, dtype=jnp.int32)
    return GridSteps(row_W, block_W, ends_R[-1])


def _scales_of(part: PageParts, table: RowTable) -> jax.Array:
    """The scales of each row's places, [R, K, M S] in whole blocks: few bytes beside the pages."""
    assert part.scales_LPKS is not None
    pages_RM = jnp.pad(table.pages_RM, ((0, 0), (0, -table.pages_RM.shape[1] % table.group)))
    found_RMKS = part.scales_LPKS.at[table.layer, pages_RM].get(mode="clip")
    R, _, K, _ = found_RMKS.shape
    return jnp.moveaxis(found_RMKS, 2, 1).reshape(R, K, -1)


def _kernel(
    row_W: Any,
    block_W: Any,
    _pages: Any,
    begin_R: Any,
    position_R: Any,
    at: Any,
    q_ref: Any,
    offsets_ref: Any,
    ahead_ref: Any,
    *refs: Any,
    scoring: Scoring,
    group: int,
    span: int,
    same: bool,
) -> None:
    *inputs, out_ref, stats_ref = refs
    step = pl.program_id(0)
    row, block = row_W[step], block_W[step]
    J, rows, width = q_ref.shape[1:]
    lowest = jnp.finfo(jnp.float32).min
    is_top = lax.broadcasted_iota(jnp.int32, (rows, LANES), 1) == 0

    @pl.when(block == begin_R[row])
    def _() -> None:
        out_ref[...] = jnp.zeros(out_ref.shape, jnp.float32)
        for j in range(J):
            stats_ref[0, j] = jnp.where(is_top, lowest, 0.0)

    q_1 = position_R[row] + ahead_ref[...]
    k_1S = block * span + at[1] + offsets_ref[...]
    seen = k_1S <= q_1
    if scoring.window is not None:
        seen &= q_1 - k_1S < scoring.window
    if scoring.chunk is not None:
        seen &= k_1S >= q_1 - lax.rem(q_1, jnp.int32(scoring.chunk))
    kept = q_ref.dtype
    precision = lax.Precision.HIGHEST if kept == jnp.float32 else None
    dot = partial(lax.dot_general, preferred_element_type=jnp.float32, precision=precision)

    def read(pages: Any) -> jax.Array:
        return jnp.concatenate([ref[0, 0].astype(kept) for ref in pages], axis=0)

    k_SX = read(inputs[:group])
    v_SX = k_SX if same else read(inputs[group : 2 * group])
    owners = inputs[(1 if same else 2) * group :]  # of small numbers, and then their scales
    side_U = out_ref.shape[-1]
    for j in range(J):
        k_S = k_SX[:, j * width : (j + 1) * width]
        v_S = v_SX[:, j * side_U : (j + 1) * side_U]
        scores = dot(q_ref[0, j], k_S, (((1,), (1,)), ((), ())))
        by = [dot(owners[0][j], ref[0], (((1,), (0,)), ((), ()))) for ref in owners[1:]]
        if by:
            scores = scores * by[0]
        scores = jnp.where(seen, capped(scores, scoring.softcap), lowest)
        before = stats_ref[0, j]
        top_1, total_1 = before[:, :1], before[:, 1:2]
        higher_1 = jnp.maximum(top_1, scores.max(-1, keepdims=True))
        weights = jnp.where(seen, jnp.exp(scores - higher_1), 0.0)
        less_1 = jnp.exp(top_1 - higher_1)
        total_1 = total_1 * less_1 + weights.sum(-1, keepdims=True)
        if by:
            weights = weights * by[-1]
        added = dot(weights.astype(kept), v_S, (((1,), (0,)), ((), ())))
        out_ref[0, j] = out_ref[0, j] * less_1 + added
        stats_ref[0, j] = jnp.where(is_top, higher_1, total_1)


def _cost(
    shape: tuple[int, ...],
    held: list[PageParts],
    table: RowTable,
    s: Scoring,
    Q: int,
    asked: int,
) -> pl.CostEstimate:
    """FLOPs of the `asked` numbers of a head's key and value, without the zeros of the block
    diagonal. Where every table is full: a row of one token sees all its places, or a window's; rows
    of more are taken for one chunk of a prompt that ends where its table ends."""
    (R, J, rows, _), (_, M) = shape, table.pages_RM.shape
    here = held[0].array_LPSX.shape[2]
    seen = R * M * table.size
    if Q > 1:
        seen -= min(Q * R * (R - 1) // 2, seen // 2)
    reach = s.window or s.chunk
    if reach is not None:
        seen = min(seen, R * (reach + Q))
    seen = seen * here // table.size
    place = sum(part.array_LPSX.shape[-1] * part.array_LPSX.dtype.itemsize for part in held)
    return pl.CostEstimate(
        flops=2 * J * rows * asked * seen,
        transcendentals=J * rows * seen,
        bytes_accessed=seen * place,
    )
