"""All-gather attention: Q[B, T_c, N, H] stays, K and V[B, S_c, K, H] are gathered over an axis.

One AllGather each of k and v before, one ReduceScatter each of their gradients after the backward
pass; nothing overlaps by itself, but any kernel can follow and masks of any shape cost nothing
more. Memory for keys and values is that of the whole row. With the tokens dealt as in `zigzag.py`
all devices compute the same.
Source: Llama 3, arXiv 2407.21783, section 3.3.2.
"""

from dataclasses import replace
from typing import overload

import jax
from jax import lax

from shardwise.runtime.attention.flash import flash_attention
from shardwise.runtime.attention.scoring import Kernel, Scoring


def all_gather_attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKU: jax.Array,
    scoring: Scoring,
    *,
    axis: str,
    kernel: Kernel = flash_attention,
) -> jax.Array:
    """Attention of this device's queries to the keys of the whole axis. Inside `shard_map`.

    Shapes and scoring as for `ring_attention`; `kernel` computes what is left on one device.
    """
    whole = replace(
        scoring,
        in_order=scoring.in_order and lax.axis_size(axis) == 1,
        k_positions_BS=gathered(scoring.k_positions_BS, axis),
        k_segments_BS=gathered(scoring.k_segments_BS, axis),
    )
    return kernel(q_BTNH, gathered(k_BSKH, axis), gathered(v_BSKU, axis), whole)


@overload
def gathered(x: jax.Array, axis: str) -> jax.Array: ...
@overload
def gathered(x: None, axis: str) -> None: ...
def gathered(x: jax.Array | None, axis: str) -> jax.Array | None:
    """The blocks of dim 1 of all devices of the axis, in order; the gradient's are summed back."""
    return None if x is None else lax.all_gather(x, axis, axis=1, tiled=True)
