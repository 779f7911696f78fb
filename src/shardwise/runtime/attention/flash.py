"""Flash attention: the softmax is built up tile by tile, and no T x S matrix is ever kept.

Forward, for each query the greatest score so far m, the sum l = sum exp(s - m) and the sum
o = sum exp(s - m) v. A tile with a greater score rescales l and o by exp(m_old - m_new); at the end
the output is o / l and the log-sum-exp is m + log l. Backward, a tile's weights come back from its
scores and that one number per query, p = exp(s - lse); then with delta = sum_u dout * out

    dv = p^T dout,  dp = dout v^T,  ds = p * (dp - delta + dlse),
    dq = scale ds k,  dk = scale ds^T q

The products of a tile are of `block_T x block_S`: 4 B N H per score forward and 10 backward.
Kept for the backward pass: q, k, v, the output, and lse [B, N, T] in f32.
Source: Dao, FlashAttention-2, arXiv 2307.08691, algorithms 1 and 2; Milakov and Gimelshein,
arXiv 1805.02867, for the online softmax. Read `flash_attention`, then `accumulate`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import ad_checkpoint

from shardwise.runtime.attention.scoring import Scoring, capped
from shardwise.runtime.attention.tiles import (
    KeyColumns,
    MaskRule,
    Rows,
    add_block,
    arrange,
    block_of,
    over_tiles,
    put_block,
    seen,
    visible_tiles,
)
from shardwise.runtime.attention.varying import axes_of, varying
from shardwise.runtime.precision import wide

BLOCK_T, BLOCK_S = 256, 256
"""Of 128, 256 and 512 the fastest on two CPU cores for 1,024 to 4,096 tokens."""


class Softmax(NamedTuple):
    """A softmax under way: o [B, K, G, T, U], m and l [B, K, G, T], all wide."""

    out_BKGTU: jax.Array
    top_BKGT: jax.Array
    sum_BKGT: jax.Array


def flash_attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKU: jax.Array,
    scoring: Scoring,
    *,
    block_T: int = BLOCK_T,
    block_S: int = BLOCK_S,
) -> jax.Array:
    """softmax(cap(scale q k^T) + mask) v, [B, T, N, U] in the dtype of v, in memory linear in T.

    A kernel as `dense_attention` is, and equal to it; 4 H FLOPs per visible score forward where
    U = H, 10 H backward. Under `vmap` of positions nothing is skipped.
    """
    rows, columns, rule = arrange(q_BTNH, k_BSKH, v_BSKU, scoring, block_T=block_T, block_S=block_S)
    out_BKGTU, lse_BKGT = _flash(rule, rows, columns)
    return finish(out_BKGTU, lse_BKGT, scoring.sinks_N, q_BTNH.shape[1])


def finish(
    out_BKGTU: jax.Array, lse_BKGT: jax.Array, sinks_N: jax.Array | None, T: int
) -> jax.Array:
    """Back to [B, T, N, U], less the padding; a sink takes exp(sink) / (exp(lse) + exp(sink))."""
    B, K, G, _, U = out_BKGTU.shape
    if sinks_N is not None:
        sinks_KG1 = sinks_N.astype(lse_BKGT.dtype).reshape(1, K, G, 1)
        share_BKGT = jax.nn.sigmoid(lse_BKGT - sinks_KG1)
        shared_BKGTU = out_BKGTU.astype(share_BKGT.dtype) * share_BKGT[..., None]
        out_BKGTU = shared_BKGTU.astype(out_BKGTU.dtype)
    return out_BKGTU[:, :, :, :T].transpose(0, 3, 1, 2, 4).reshape(B, T, K * G, U)


def _values(rule: MaskRule, rows: Rows, columns: KeyColumns) -> tuple[jax.Array, jax.Array]:
    state = accumulate(rule, rows, columns, empty(rows, columns))
    return normalised(state, columns.v_BKSU.dtype)


def _flash_forward(rule: MaskRule, rows: Rows, columns: KeyColumns):
    # Named, so that a remat policy that keeps attention need not run the loop again for lse.
    out, lse = (ad_checkpoint.checkpoint_name(x, "attention") for x in _values(rule, rows, columns))
    return (out, lse), (rows, columns, out, lse)


def _flash_backward(rule: MaskRule, kept, gradients):
    rows, columns, out, lse = kept
    back = FlashBackward(gradients[0], lse, delta_of(out, *gradients))
    sums = pull_back(rule, rows, columns, back, zeros(rows, columns))
    return cotangents(sums, rows, columns)


_flash = jax.custom_vjp(_values, nondiff_argnums=(0,))
_flash.defvjp(_flash_forward, _flash_backward)


def empty(rows: Rows, columns: KeyColumns) -> Softmax:
    """The softmax over no keys. m is finite, so that exp(m - m) is never that of inf - inf."""
    heads_BKGT = rows.q_BKGTH.shape[:-1]
    dtype = wide(rows.q_BKGTH)
    state = Softmax(
        jnp.zeros((*heads_BKGT, columns.v_BKSU.shape[-1]), dtype),
        jnp.full(heads_BKGT, jnp.finfo(dtype).min / 2, dtype),
        jnp.zeros(heads_BKGT, dtype),
    )
    return varying(state, axes_of((rows, columns)))


def accumulate(rule: MaskRule, rows: Rows, columns: KeyColumns, state: Softmax) -> Softmax:
    """The softmax with these keys added, a tile at a time."""
    pairs_P2, count = visible_tiles(rule, rows, columns)

    def tile(p: jax.Array, state: Softmax) -> Softmax:
        i, j = pairs_P2[p, 0], pairs_P2[p, 1]
        scores, _ = _scores(rule, rows, columns, i, j)
        v_BKSU = block_of(columns.v_BKSU, 2, j, rule.block_S)
        out, top, total = (block_of(x, 3, i, rule.block_T) for x in state)
        new = jnp.maximum(top, scores.max(-1))
        shrink, weights = jnp.exp(top - new), jnp.exp(scores - new[..., None])
        out = out * shrink[..., None] + _dot("BKGTS,BKSU->BKGTU", weights, v_BKSU)
        blocks = (out, new, total * shrink + weights.sum(-1))
        return Softmax(*(put_block(x, 3, i, b) for x, b in zip(state, blocks, strict=True)))

    return over_tiles(rule, pairs_P2, count, tile, state)


def normalised(state: Softmax, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """The output and lse = m + log l; 0 and -inf for a query that saw nothing."""
    total = jnp.where(state.sum_BKGT > 0, state.sum_BKGT, 1)
    lse = jnp.where(state.sum_BKGT > 0, state.top_BKGT + jnp.log(total), -jnp.inf)
    return (state.out_BKGTU / total[..., None]).astype(dtype), lse


class FlashBackward(NamedTuple):
    """What a tile's backward pass reads of its queries besides q."""

    dout_BKGTU: jax.Array
    lse_BKGT: jax.Array
    delta_BKGT: jax.Array


class GradSums(NamedTuple):
    """dq [B, K, G, T, H], dk [B, K, S, H] and dv [B, K, S, U] under way, all wide."""

    dq: jax.Array
    dk: jax.Array
    dv: jax.Array


def delta_of(out: jax.Array, dout: jax.Array, dlse: jax.Array) -> jax.Array:
    """sum_u dout * out - dlse, wide: what a query's weights share of every gradient."""
    dtype = dlse.dtype
    return (dout.astype(dtype) * out.astype(dtype)).sum(-1) - dlse


def zeros(rows: Rows, columns: KeyColumns) -> GradSums:
    """The gradients of no tile yet."""
    dtype = wide(rows.q_BKGTH)
    shapes = (rows.q_BKGTH.shape, columns.k_BKSH.shape, columns.v_BKSU.shape)
    sums = GradSums(*(jnp.zeros(shape, dtype) for shape in shapes))
    return varying(sums, axes_of((rows, columns)))


def pull_back(
    rule: MaskRule, rows: Rows, columns: KeyColumns, back: FlashBackward, sums: GradSums
) -> GradSums:
    """The gradients with these keys' tiles added; scores are made again from q and k."""
    pairs_P2, count = visible_tiles(rule, rows, columns)
    # A query that saw nothing has lse = -inf; its scores are masked, whatever stands here.
    lse_BKGT = jnp.where(jnp.isneginf(back.lse_BKGT), 0, back.lse_BKGT)

    def tile(p: jax.Array, sums: GradSums) -> GradSums:
        i, j = pairs_P2[p, 0], pairs_P2[p, 1]
        scores, slope = _scores(rule, rows, columns, i, j)
        q = block_of(rows.q_BKGTH, 3, i, rule.block_T)
        k, v = (block_of(x, 2, j, rule.block_S) for x in (columns.k_BKSH, columns.v_BKSU))
        dout, lse, delta = (
            block_of(x, 3, i, rule.block_T) for x in (back.dout_BKGTU, lse_BKGT, back.delta_BKGT)
        )
        weights = jnp.exp(scores - lse[..., None])
        dp = _dot("BKGTU,BKSU->BKGTS", dout, v)
        ds = weights * (dp - delta[..., None]) * slope
        return GradSums(
            add_block(sums.dq, 3, i, _dot("BKGTS,BKSH->BKGTH", ds, k)),
            add_block(sums.dk, 2, j, _dot("BKGTS,BKGTH->BKSH", ds, q)),
            add_block(sums.dv, 2, j, _dot("BKGTS,BKGTU->BKSU", weights, dout)),
        )

    return over_tiles(rule, pairs_P2, count, tile, sums)


def cotangents(sums: GradSums, rows: Rows, columns: KeyColumns) -> tuple[Rows, KeyColumns]:
    """The sums in the dtypes of q, k and v; positions and segments have none."""
    dq, dk, dv = (
        d.astype(x.dtype)
        for d, x in zip(sums, (rows.q_BKGTH, columns.k_BKSH, columns.v_BKSU), strict=True)
    )
    none: Any = None
    return Rows(dq, none, none), KeyColumns(dk, dv, none, none)


def _scores(
    rule: MaskRule, rows: Rows, columns: KeyColumns, i: jax.Array, j: jax.Array
) -> tuple[jax.Array, jax.Array | float]:
    """The scores of tile (i, j), -inf where masked, and their derivative by q.k."""
    q = block_of(rows.q_BKGTH, 3, i, rule.block_T)
    k = block_of(columns.k_BKSH, 2, j, rule.block_S)
    scores = capped(_dot("BKGTH,BKSH->BKGTS", q, k) * rule.scale, rule.softcap)
    slope = rule.scale
    if rule.softcap is not None:
        slope = rule.scale * (1 - (scores / rule.softcap) ** 2)
    mask = seen(rule, rows, columns, i, j)[:, None, None]
    return jnp.where(mask, scores, -jnp.inf), slope


def _dot(spec: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """A product that adds up wide; weights and their gradients are rounded to the tensor's dtype,
    which the matrix units multiply."""
    return jnp.einsum(spec, a.astype(b.dtype), b, preferred_element_type=wide(b))
