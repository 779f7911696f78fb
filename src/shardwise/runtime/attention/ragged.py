"""Attention to pages by JAX's Pallas kernel for TPUs, where it serves (`plans/paged_kernel.py`).

It takes a token's keys and values side by side, [P, S, 2 K, H] with the key and then the value of
each head, for such K alone as fill tiles. So a page has its heads in G groups of J, [L, P, G, S, 2
J, H], which is one array of L P G pages to the kernel: no layer is taken out of it. A row that
decodes is a sequence to it, and so is each block of a prompt, once for each group.
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
    pages_LPGSJH: jax.Array,
    layer: Any,
    rows: RaggedRows,
    scoring: Scoring,
    kernel: Any = ragged_paged_attention,
) -> jax.Array:
    """The attention [X, N, H] of a step's tokens to keys and values that are in their pages;
    `kernel` is JAX's, or what stands for it in tests."""
    P, G, S = pages_LPGSJH.shape[1:4]
    X, N, H = q_XNH.shape
    R, M = rows.table_RM.shape
    groups_G1 = jnp.arange(G, dtype=jnp.int32)[:, None]
    table_GRM = page_of(layer, rows.table_RM, P, G)[None] + groups_G1[:, :, None]
    starts_GR = rows.starts_R1[None, :-1] + groups_G1 * X
    out = kernel(
        q_XNH.reshape(X, G, N // G, H).swapaxes(0, 1).reshape(G * X, N // G, H),
        pages_LPGSJH.reshape(-1, *pages_LPGSJH.shape[3:]),
        jnp.tile(rows.lengths_R, G),
        table_GRM.reshape(-1, M),
        jnp.append(starts_GR.reshape(-1), jnp.int32(G * X)),
        jnp.full(1, G * R, jnp.int32),
        sm_scale=scoring.scale,
        sliding_window=scoring.window,
        soft_cap=scoring.softcap,
        num_kv_pages_per_block=min(M, max(1, KEYS_AT_ONCE // S)),
        num_queries_per_block=min(G * X, QUERIES_AT_ONCE),
    )
    return out.reshape(G, X, N // G, H).swapaxes(0, 1).reshape(X, N, H)


def page_of(layer: Any, pages: jax.Array, count: int, groups: int) -> jax.Array:
    """The number among all layers' pages of the first group of a page, of `count` a layer."""
    return (jnp.asarray(layer, jnp.int32) * count + pages) * groups
