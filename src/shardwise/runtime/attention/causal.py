"""Plain causal attention by the best kernel here: what calibration times."""

import jax
import jax.numpy as jnp

from shardwise.runtime.attention.best import best_attention
from shardwise.runtime.attention.scoring import Scoring


def causal_attention(x_BTNH: jax.Array) -> jax.Array:
    """Causal attention [B, T, N, H] of queries that are keys and values too."""
    batch, length, _, width = x_BTNH.shape
    positions_BT = jnp.broadcast_to(jnp.arange(length), (batch, length))
    scoring = Scoring(
        scale=width**-0.5,
        softcap=None,
        window=None,
        chunk=None,
        in_order=True,
        q_positions_BT=positions_BT,
        k_positions_BS=positions_BT,
    )
    return best_attention(x_BTNH, x_BTNH, x_BTNH, scoring)
