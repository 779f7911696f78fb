"""Ring attention: Q[B, T_c, N, H] stays, K and V[B, S_c, K, H] go once round the ring of an axis.

Every device adds the block it holds to its softmax under way while the next block is on the wire,
so that no device ever holds more than two blocks of keys. Positions travel with their keys, and
tell each device which tiles it may skip. Backward, keys and values go round again and the sums of
their gradients follow one hop behind: each is sent on while the next block's are computed, and the
last hop brings it home.

Under a causal mask and blocks in order, the device with the last block computes |c| times what the
first does; `zigzag.py` deals the tokens so that all compute the same. A window over blocks in order
stops the ring early: ceil((W - 1) / T_c) hops reach everything that anyone sees.

Bytes sent per device: hops x B S_c K (H + U) forward, and the same with dk and dv (wide) backward.
Source: Liu, Zaharia and Abbeel, arXiv 2310.01889; the merge is that of `flash.py`.
"""

from functools import partial

import jax
from jax import ad_checkpoint, lax

from shardwise.runtime.attention.flash import (
    BLOCK_S,
    BLOCK_T,
    Backward,
    Sums,
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
from shardwise.runtime.attention.tiles import Columns, Rows, Rule, arrange
from shardwise.runtime.attention.varying import varying
from shardwise.runtime.collective_matmul.ring import hop


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
        # Where blocks in order meet, the places within them say nothing.
        _out_of_order(scoring),
        block_T=block_T,
        block_S=block_S,
    )
    rows, columns = (varying(x, frozenset({axis})) for x in (rows, columns))
    out_BKGTU, lse_BKGT = _ring(rule, axis, hops, rows, columns)
    return finish(out_BKGTU, lse_BKGT, scoring.sinks_N, q_BTNH.shape[1])
