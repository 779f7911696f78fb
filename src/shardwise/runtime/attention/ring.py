"""Ring attention: Q[B, T_c, N, H] stays, K and V[B, S_c, K, H] go once round the ring of an axis.

Every device adds the block it holds to its softmax under way while the next block is on the wire,
so that no device ever holds more than two blocks of keys. Positions travel with their keys, and
tell each device which tiles it may skip. Backward, keys and values go round again and the sums of
their gradients follow one hop behind: each is sent on while the next block's are computed, and the
last hop brings it home.

Under a causal mask and blocks in order, the device with the last block computes |c| times what the
first does; `zigzag.py` deals the tokens so that all compute the same. A window over blocks in order
stops the ring early: ceil((W - 1) / S_c) hops reach everything that anyone sees.

Bytes sent per device: hops x B S_c K (H + U) forward, and the same with dk and dv (wide) backward.
Source: Liu, Zaharia and Abbeel, arXiv 2310.01889; the merge is that of `flash.py`.
"""

from dataclasses import replace

import jax
from jax import ad_checkpoint, lax

from shardwise.runtime.attention.flash import (
    BLOCK_S,
    BLOCK_T,
    FlashBackward,
    GradSums,
    accumulate,
    cotangents,
    delta_of,
    empty,
    finish,
    normalised,
    pull_back,
    zeros,
)
from shardwise.runtime.attention.scoring import Scoring
from shardwise.runtime.attention.tiles import KeyColumns, MaskRule, Rows, arrange, share_seen
from shardwise.runtime.attention.varying import varying
from shardwise.runtime.collective_matmul import hop


def ring_attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKU: jax.Array,
    scoring: Scoring,
    *,
    axis: str,
    block_T: int = BLOCK_T,
    block_S: int = BLOCK_S,
) -> jax.Array:
    """Attention of this device's queries to the keys of the whole ring. Inside `shard_map`.

    Local shapes: q [B, T/|c|, N, H], k and v [B, S/|c|, K, H or U], out [B, T/|c|, N, U]; the
    scoring holds this device's own positions and segments, [B, T/|c|] and [B, S/|c|].
    """
    hops = _hops(scoring, k_BSKH.shape[1], lax.axis_size(axis))
    rows, columns, rule = arrange(
        q_BTNH,
        k_BSKH,
        v_BSKU,
        # A place within a block says nothing about keys of another block.
        replace(scoring, in_order=False),
        block_T=block_T,
        block_S=block_S,
        share=_share(scoring, k_BSKH.shape[1], hops, block_S),
    )
    rows, columns = (varying(x, frozenset({axis})) for x in (rows, columns))
    out_BKGTU, lse_BKGT = _ring(rule, axis, hops, rows, columns)
    return finish(out_BKGTU, lse_BKGT, scoring.sinks_N, q_BTNH.shape[1])


def _hops(s: Scoring, block: int, places: int) -> int:
    """How far keys must travel: all round, unless a window over blocks in order ends before."""
    reach = s.window if s.window is not None else s.chunk
    if not s.in_order or reach is None:
        return places - 1
    return min(places - 1, -(-(reach - 1) // block))


def _share(s: Scoring, block: int, hops: int, block_S: int) -> float:
    """The tiles of a hop that a device computes: half where tokens are dealt; of blocks in order,
    as the last one has it, all, or those of a window spread over the hops."""
    reach = s.window if s.window is not None else s.chunk
    return share_seen(reach, (hops + 1) * block, block_S, 1.0 if s.in_order else 0.5)


def _values(
    rule: MaskRule, axis: str, hops: int, rows: Rows, columns: KeyColumns
) -> tuple[jax.Array, jax.Array]:
    def step(carry, _):
        state, here = carry
        coming = _hop(here, axis)
        return (accumulate(rule, rows, here, state), coming), None

    (state, last), _ = lax.scan(step, (empty(rows, columns), columns), length=hops)
    return normalised(accumulate(rule, rows, last, state), columns.v_BKSU.dtype)


def _ring_forward(rule: MaskRule, axis: str, hops: int, rows: Rows, columns: KeyColumns):
    found = _values(rule, axis, hops, rows, columns)
    out, lse = (ad_checkpoint.checkpoint_name(x, "attention") for x in found)
    return (out, lse), (rows, columns, out, lse)


def _ring_backward(rule: MaskRule, axis: str, hops: int, kept, gradients):
    rows, columns, out, lse = kept
    back = FlashBackward(gradients[0], lse, delta_of(out, *gradients))
    none = zeros(rows, columns)

    def meet(here: KeyColumns, before: GradSums) -> GradSums:
        """This device's share of the gradients of a block, added to what came with the block."""
        arriving = _hop((before.dk, before.dv), axis)
        mine = pull_back(rule, rows, here, back, GradSums(before.dq, none.dk, none.dv))
        return GradSums(mine.dq, arriving[0] + mine.dk, arriving[1] + mine.dv)

    def step(carry, _):
        sums, here = carry
        coming = _hop(here, axis)
        return (meet(here, sums), coming), None

    # The first block is this device's own and nothing came with it; the last goes no further.
    sums = pull_back(rule, rows, columns, back, none)
    if hops:
        carry = (sums, _hop(columns, axis))
        (sums, last), _ = lax.scan(step, carry, length=hops - 1)
        sums = meet(last, sums)
        sums = GradSums(sums.dq, *_hop((sums.dk, sums.dv), axis, -hops))
    return cotangents(sums, rows, columns)


_ring = jax.custom_vjp(_values, nondiff_argnums=(0, 1, 2))
_ring.defvjp(_ring_forward, _ring_backward)


def _hop(tree, axis: str, by: int = 1):
    return jax.tree.map(lambda x: hop(x, axis, by), tree)
