"""Inputs of attention by name of a feature, and the difference between two trees of results.

Imported by tests that run in children with several devices, so it imports JAX itself.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.runtime.attention import Scoring, dense_attention
from shardwise.runtime.attention.tiles import arrange, visible_tiles

FEATURES = (
    "causal",
    "in order",
    "window",
    "window in order",
    "chunk",
    "soft cap",
    "sinks",
    "packed",
    "packed in order",
    "all",
    "everything visible",
    "blind rows",
    "key lengths",
)


def positions_in(segments_BT):
    """Positions that count from 0 in every document of a packed row."""
    row = np.arange(segments_BT.shape[1])
    starts = np.array([[np.flatnonzero(s == x)[0] for x in s] for s in segments_BT])
    return row - starts


def scoring_for(feature, B, T, N, seed=0):
    """The Scoring of a feature for B rows of T tokens and N heads."""
    random = np.random.default_rng(seed)
    rows = np.broadcast_to(np.arange(T), (B, T))
    plain = Scoring(
        scale=0.4,
        softcap=None,
        window=None,
        chunk=None,
        q_positions_BT=jnp.asarray(rows),
        k_positions_BS=jnp.asarray(rows),
    )
    segments = np.sort(random.integers(0, 4, (B, T)), axis=1)
    packed = {"q_segments_BT": jnp.asarray(segments), "k_segments_BS": jnp.asarray(segments)}
    places = jnp.asarray(positions_in(segments))
    packed |= {"q_positions_BT": places, "k_positions_BS": places}
    sinks = {"sinks_N": jnp.asarray(random.normal(size=N))}
    zero = jnp.zeros((B, T), jnp.int32)
    lengths = random.integers(T // 2, T, (B, 1))
    changes = {
        "causal": {},
        "in order": {"in_order": True},
        "window": {"window": T // 5},
        "window in order": {"window": T // 5, "in_order": True},
        "chunk": {"chunk": T // 3},
        "soft cap": {"softcap": 1.5},
        "sinks": sinks,
        "packed": packed,
        "packed in order": packed | {"in_order": True},
        "all": packed | sinks | {"softcap": 1.5, "window": T // 6, "in_order": True},
        "everything visible": {"q_positions_BT": zero, "k_positions_BS": zero},
        "blind rows": {"k_positions_BS": jnp.asarray(rows + T // 3)},
        "key lengths": {"k_positions_BS": jnp.asarray(np.where(rows < lengths, rows, T))},
    }
    return replace(plain, **changes[feature])


def inputs(B, T, N, K, H, U, dtype=np.float32, seed=0):
    """q, k, v and the weights of a linear loss."""
    random = np.random.default_rng(seed)
    shapes = ((B, T, N, H), (B, T, K, H), (B, T, K, U), (B, T, N, U))
    return [jnp.asarray(random.normal(size=shape).astype(dtype)) for shape in shapes]


@partial(jax.jit, static_argnums=0)
def values_and_gradients(kernel, arrays, scoring):
    """The output, and the gradients of a linear loss by q, k, v and the sinks; compiled once for
    all cases of a kernel that differ in numbers alone."""
    return _with_gradients(kernel, arrays, scoring)


def reference(arrays, scoring):
    """`values_and_gradients` of the dense kernel, op by op: compiled once for all cases."""
    return _with_gradients(dense_attention, arrays, scoring)


def _with_gradients(kernel, arrays, scoring):
    q, k, v, weights = arrays
    sinks = scoring.sinks_N
    parts = (q, k, v) if sinks is None else (q, k, v, sinks.astype(q.dtype))

    def loss(*parts):
        used = scoring if sinks is None else replace(scoring, sinks_N=parts[3])
        out = kernel(*parts[:3], used)
        return (out * weights).sum(), out

    every = tuple(range(len(parts)))
    (_, out), gradients = jax.value_and_grad(loss, every, has_aux=True)(*parts)
    return (out, *gradients)


def difference(got, want):
    """The largest of the norm-wise relative errors of some arrays."""
    pairs = zip(got, want, strict=True)
    return max(float(jnp.linalg.norm(g - w) / jnp.linalg.norm(w)) for g, w in pairs)


def count_tiles(s: Scoring, *, block_T: int, block_S: int) -> jax.Array | int:
    """How many tiles a device computes for these positions: the work of attention, in tiles."""
    B, T = s.q_positions_BT.shape
    none = jnp.zeros((B, T, 1, 1), jnp.float32)
    keys = jnp.zeros((B, s.k_positions_BS.shape[1], 1, 1), jnp.float32)
    rows, columns, rule = arrange(none, keys, keys, s, block_T=block_T, block_S=block_S)
    return visible_tiles(rule, rows, columns)[1]
