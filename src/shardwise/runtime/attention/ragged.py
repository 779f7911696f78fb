"""Attention to pages by JAX's Pallas kernel for TPUs, where it serves (`plans/paged_kernel.py`).

It takes a token's keys and values side by side, [P, S, 2 K, H] with the key and then the value of
each head; all layers are one array of L P pages, so that no layer is taken out of it. To it a row
that decodes is a sequence, and so is each block of a prompt.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

from shardwise.runtime.attention.scoring import Scoring

KEYS_AT_ONCE = 512
"""Tokens whose keys and values are in on-chip memory at once, twice over; v4 has 16 MiB of it."""
QUERIES_AT_ONCE = 32


class RaggedRows(NamedTuple):
    """R sequences whose tokens stand one after the other: how many places the last token of each
    sees, itself among them; their tables; where their tokens begin, and the last one's end."""

    lengths_R: jax.Array
    table_RM: jax.Array
    starts_R1: jax.Array


def ragged_attention(
    q_XNH: jax.Array,
    pages_LPSXH: jax.Array,
    layer: Any,
    rows: RaggedRows,
    scoring: Scoring,
    kernel: Any = ragged_paged_attention,
) -> jax.Array:
    """The attention [X, N, H] of a step's tokens to keys and values that are in their pages;
    `kernel` is JAX's, or what stands for it in tests."""
    count, size = pages_LPSXH.shape[1:3]
    R, M = rows.table_RM.shape
    return kernel(
        q_XNH,
        pages_LPSXH.reshape(-1, *pages_LPSXH.shape[2:]),
        rows.lengths_R,
        rows.table_RM + jnp.asarray(layer, jnp.int32) * count,
        rows.starts_R1,
        jnp.full(1, R, jnp.int32),
        sm_scale=scoring.scale,
        sliding_window=scoring.window,
        soft_cap=scoring.softcap,
        num_kv_pages_per_block=min(M, max(1, KEYS_AT_ONCE // size)),
        num_queries_per_block=min(q_XNH.shape[0], QUERIES_AT_ONCE),
    )
