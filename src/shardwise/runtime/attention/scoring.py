"""What a score is and which keys a query sees: shared by every attention kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Kernel = Callable[[jax.Array, Any, Any, "Scoring"], jax.Array]
"""q [B, T, N, H], k [B, S, K, H], v [B, S, K, U], Scoring -> [B, T, N, U]; query head n reads
KV head n // (N/K). `dense_attention` takes k and v as an int8 cache has them (`Scaled`), too."""


class Scaled(NamedTuple):
    """Keys or values x = values * scale: int8 values [B, S, K, H], one scale [B, K, S] for each
    token and head."""

    values: jax.Array
    scale_BKS: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the values."""
        return self.values.shape

    def wide(self, dtype: Any) -> jax.Array:
        """The keys or values that both stand for."""
        scale_BSK1 = jnp.swapaxes(self.scale_BKS, 1, 2)[..., None].astype(jnp.float32)
        return (self.values.astype(jnp.float32) * scale_BSK1).astype(dtype)


ARRAYS = ["q_positions_BT", "k_positions_BS", "q_segments_BT", "k_segments_BS", "sinks_N"]
CHOICES = ["scale", "softcap", "window", "chunk", "in_order"]


@partial(jax.tree_util.register_dataclass, data_fields=ARRAYS, meta_fields=CHOICES)
@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """Scores are cap(scale * q.k), less what is not visible; weights their softmax.

    A key at position s is visible to a query at t where s <= t, in the same segment, and
    t - s < `window`, or in the same aligned block of `chunk`. `softcap` c means c tanh(x / c).
    `sinks_N` is one more score per head that takes weight and gives no value (gpt-oss).
    Positions are [B, T] and [B, S]; segments likewise, None where a row is one document. Keys that
    are only padding have a position after every query's, or a segment of their own; where all
    positions are 0 every query sees every key. A query that sees nothing gets 0.

    `in_order` is the caller's promise that keys and queries are the same tokens, whole rows of
    them, each row in the order of its positions, so that places in the row tell what is masked
    before anything runs. A packed row keeps it: positions that start again belong to another
    segment. Where the row is cut over devices it speaks of the whole row.
    """

    scale: float
    softcap: float | None
    window: int | None
    chunk: int | None
    in_order: bool = False
    q_positions_BT: jax.Array
    k_positions_BS: jax.Array
    q_segments_BT: jax.Array | None = None
    k_segments_BS: jax.Array | None = None
    sinks_N: jax.Array | None = None


def visible(s: Scoring) -> jax.Array:
    """Which keys each query sees, [B, T, S]."""
    seen_BTS = visible_places(s.q_positions_BT[:, :, None], s.k_positions_BS[:, None, :], s)
    if s.q_segments_BT is not None and s.k_segments_BS is not None:
        seen_BTS &= s.q_segments_BT[:, :, None] == s.k_segments_BS[:, None, :]
    return seen_BTS


def visible_places(q: jax.Array, k: jax.Array, s: Scoring) -> jax.Array:
    """Whether a query at place q sees a key at place k, segments aside."""
    seen = k <= q
    if s.window is not None:
        seen &= q - k < s.window
    if s.chunk is not None:
        seen &= q // s.chunk == k // s.chunk
    return seen


def capped(scores: jax.Array, cap: float | None) -> jax.Array:
    """c tanh(x / c), or x where there is no cap."""
    return scores if cap is None else cap * jnp.tanh(scores / cap)
