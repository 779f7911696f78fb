"""Ulysses attention: from a part of the tokens to a part of the heads and back, by AllToAll.

    Q[B, T_c, N, H] -> Q[B, T, N_c, H], K and V likewise; attention; Out[B, T, N_c, U] ->
    Out[B, T_c, N, U]

Each device then has whole rows for its heads, so that any kernel can follow and a causal mask is
balanced by itself. The degree is bounded by the heads: |c| must divide N. Where |c| does not divide
K, each KV head is sent r = lcm(K, |c|) / K times, so that no device lacks one that it reads; the
gradients of the copies are summed. Bytes per group: B (T N (H + U) + r S K (H + U)) forward.
Source: DeepSpeed-Ulysses, arXiv 2309.14509.
"""

from dataclasses import replace
from math import lcm

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.errors import BadRequest
from shardwise.runtime.attention.all_gather import gathered
from shardwise.runtime.attention.flash import flash_attention
from shardwise.runtime.attention.scoring import Kernel, Scoring


def ulysses_attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKU: jax.Array,
    scoring: Scoring,
    *,
    axis: str,
    kernel: Kernel = flash_attention,
) -> jax.Array:
    """Attention of this device's queries to the keys of the whole axis. Inside `shard_map`.

    Shapes and scoring as for `ring_attention`, sinks of all N heads; `kernel` computes whole rows
    of N/|c| heads. Raises BadRequest unless |c| divides N.
    """
    places, N, K = lax.axis_size(axis), q_BTNH.shape[2], k_BSKH.shape[2]
    if N % places:
        rule = f"it must divide by the {places} devices of axis '{axis}'"
        remedy = "use another context method, or a smaller degree"
        raise BadRequest(f"{N} query heads cannot be sharded by Ulysses; {rule}, so {remedy}")
    copies = lcm(K, places) // K
    k_BSKH, v_BSKU = (jnp.repeat(x, copies, axis=2) for x in (k_BSKH, v_BSKU))
    whole = replace(
        scoring,
        q_positions_BT=gathered(scoring.q_positions_BT, axis),
        k_positions_BS=gathered(scoring.k_positions_BS, axis),
        q_segments_BT=gathered(scoring.q_segments_BT, axis),
        k_segments_BS=gathered(scoring.k_segments_BS, axis),
        sinks_N=_mine(scoring.sinks_N, axis),
    )
    q, k, v = (_exchange(x, axis, split=2, join=1) for x in (q_BTNH, k_BSKH, v_BSKU))
    return _exchange(kernel(q, k, v, whole), axis, split=1, join=2)


def _exchange(x: jax.Array, axis: str, *, split: int, join: int) -> jax.Array:
    return lax.all_to_all(x, axis, split_axis=split, concat_axis=join, tiled=True)


def _mine(sinks_N: jax.Array | None, axis: str) -> jax.Array | None:
    """The sinks of this device's heads."""
    if sinks_N is None:
        return None
    heads = sinks_N.shape[0] // lax.axis_size(axis)
    return lax.dynamic_slice_in_dim(sinks_N, lax.axis_index(axis) * heads, heads)
