"""Faults of serving steps: caches that grow or turn, weights widened in memory, tokens sent whole.

As in `programs.py`: a function takes the maker of abstract arrays and whether to be faulty.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from programs import Arrays, lay, program


@program
def grown_cache(s: Arrays, faulty: bool) -> Any:
    """A cache grows by a token with a concatenation, which copies all of it."""
    B, S, K, G, H = 16, 8192, 8, 4, 128

    def step(cache: Any, q: Any, new: Any, length: Any) -> Any:
        if faulty:
            kept = jnp.concatenate([cache[:, 1:], new], axis=1)
        else:
            kept = lax.dynamic_update_slice(cache, new, (0, length, 0, 0))
        scores = jnp.einsum("BKGH,BSKH->BKGS", q, kept, preferred_element_type=jnp.float32)
        scores = jnp.where(jnp.arange(S) <= length, scores, -1e30)
        p = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
        return kept, jnp.einsum("BKGS,BSKH->BKGH", p, kept)

    cut = (s.outer, None, s.inner)
    cache, new = s((B, S, K, H), *cut), s((B, 1, K, H), *cut)
    q = s((B, K, G, H), s.outer, s.inner)
    return step, (cache, q, new, s((), dtype="int32")), {"donate_argnums": 0}


@program
def widened_weights(s: Arrays, faulty: bool) -> Any:
    """int8 weights are made bf16 in memory before the product reads them."""
    B, D, F = 64, 4096, 16384

    def step(x: Any, w: Any, scale: Any) -> Any:
        if faulty:
            wide = lax.optimization_barrier(w.astype(x.dtype) * scale.astype(x.dtype))
            return jax.nn.relu(x @ wide)
        return jax.nn.relu((x @ w.astype(x.dtype)) * scale.astype(x.dtype))

    w = s((D, F), None, s.inner, dtype="int8")
    return step, (s((B, D), s.outer), w, s((F,), s.inner, dtype="float32")), {}


@program
def table_cut_by_rows(s: Arrays, faulty: bool) -> Any:
    """A table cut by its rows is looked up: each device takes its own and all are summed."""
    V, D, T = 65536, 4096, 16384

    def step(table: Any, tokens: Any) -> Any:
        return lay(table[tokens], s.at(s.outer, None if faulty else s.inner))

    table = s((V, D), s.inner, None) if faulty else s((V, D), None, s.inner)
    return step, (table, s((T,), s.outer, dtype="int32")), {}


@program
def tokens_of_all(s: Arrays, faulty: bool) -> Any:
    """Tokens are gathered on all devices for experts that need an eighth of them."""
    C, D, F = 512, 2048, 4096
    both = (s.outer, s.inner)
    n = 8

    def block(x: Any, up: Any) -> Any:
        if faulty:
            every = lax.optimization_barrier(lax.all_gather(x, both))
            at = lax.axis_index(both)
            mine = lax.dynamic_index_in_dim(every, at, 1, keepdims=False)
        else:
            mine = lax.all_to_all(x, both, 0, 0, tiled=True)
        return jax.nn.gelu(mine.reshape(n * C, D) @ up[0])

    cut = jax.P(both)
    inside = jax.shard_map(block, mesh=s.mesh, in_specs=(cut, cut), out_specs=cut, check_vma=False)
    return inside, (s((n * n, C, D), both), s((n, D, F), both)), {}


@program
def rows_one_by_one(s: Arrays, faulty: bool) -> Any:
    """A vmapped dynamic_update_slice is a scatter, which the compiler runs row after row."""
    B, S, H = 512, 2048, 128
    both = (s.outer, s.inner)

    def step(cache: Any, q: Any, new: Any, at: Any) -> Any:
        if faulty:
            put = lambda c, n, i: jax.lax.dynamic_update_slice(c, n, (i, 0))  # noqa: E731
            cache = jax.vmap(put)(cache, new, at)
        else:
            here = jnp.arange(S)[None, :, None] == at[:, None, None]
            cache = jnp.where(here, new, cache)
        scores = jnp.einsum("BH,BSH->BS", q, cache, preferred_element_type=jnp.float32)
        p = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
        return cache, jnp.einsum("BS,BSH->BH", p, cache)

    args = (s((B, S, H), both), s((B, H), both), s((B, 1, H), both), s((B,), both, dtype="int32"))
    return step, args, {"donate_argnums": 0}


@program
def summed_across_rows(s: Arrays, faulty: bool) -> Any:
    """Rows of the chosen experts are summed over a dim that lies along the rows of a tile."""
    R, D, T, K = 65536, 2048, 8192, 8
    both = (s.outer, s.inner)

    def block(y: Any, at: Any, w: Any) -> Any:
        if faulty:
            rows = y[at.reshape(-1)].reshape(*at.shape, D)
            return (rows.astype(jnp.float32) * w[..., None]).sum(1).astype(y.dtype)
        parts = [y[at[:, k]].astype(jnp.float32) * w[:, k, None] for k in range(K)]
        while len(parts) > 1:
            parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0].astype(y.dtype)

    inside = jax.shard_map(
        block, mesh=s.mesh, in_specs=jax.P(both), out_specs=jax.P(both), check_vma=False
    )
    n = s.mesh.size
    weights = s((n * T, K), both, dtype="float32")
    return inside, (s((n * R, D), both), s((n * T, K), both, dtype="int32"), weights), {}
