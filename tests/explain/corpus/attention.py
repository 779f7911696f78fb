"""Faults of attention, of what is chosen and of what is drawn: each with its cured twin.

As in `programs.py`: a function takes the maker of abstract arrays and whether to be faulty.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from programs import Arrays, lay, program


@program
def stored_mask(s: Arrays, faulty: bool) -> Any:
    """A mask of T x T for each request comes in as an array; the twin compares positions."""
    B, T, N, H = 16, 2048, 4, 128

    def step(q: Any, k: Any, v: Any, given: Any) -> Any:
        scores = jnp.einsum("BTNH,BSNH->BNTS", q, k, preferred_element_type=jnp.float32)
        scores = scores * H**-0.5
        if faulty:
            scores = scores + given
        else:
            at = jnp.arange(T) + given
            scores = jnp.where(at[:, None] >= at, scores, -1e30)
        p = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
        return jnp.einsum("BNTS,BSNH->BTNH", p, v)

    heads = s((B, T, N, H), s.outer, None, s.inner)
    bias = s((B, 1, T, T), s.outer, dtype="float32")
    return step, (heads, heads, heads, bias if faulty else s((), dtype="int32")), {}


@program
def sorted_whole(s: Arrays, faulty: bool) -> Any:
    """All logits are sorted for the best few."""
    B, D, V, few = 8192, 512, 32768, 8
    both = (s.outer, s.inner)

    def step(x: Any, head: Any) -> Any:
        logits = (x @ head).astype(jnp.float32)
        if faulty:
            order = jnp.argsort(logits, axis=-1, descending=True)[:, :few]
            return order, jnp.take_along_axis(logits, order, axis=-1)
        best, order = lax.top_k(logits, few)
        return order, best

    inside = jax.shard_map(
        step, mesh=s.mesh, in_specs=(jax.P(both), jax.P()), out_specs=jax.P(both), check_vma=False
    )
    return inside, (s((B, D), both), s((D, V))), {}


@program
def drawn_whole(s: Arrays, faulty: bool) -> Any:
    """The hardware's generator is not cut: every device draws the numbers of all."""
    T, D, F = 32768, 2048, 4096
    n = s.mesh.size

    def step(x: Any, w: Any, seed: Any) -> Any:
        h = jax.nn.relu(x @ w)
        if not faulty:
            seed = seed * n + lax.axis_index((s.outer, s.inner)).astype(seed.dtype)
        key = jax.random.key(seed, impl="unsafe_rbg")
        return jnp.where(jax.random.bernoulli(key, 0.9, h.shape), h / 0.9, 0).astype(h.dtype)

    inside = jax.shard_map(
        step,
        mesh=s.mesh,
        in_specs=(jax.P(s.outer), jax.P(None, s.inner), jax.P()),
        out_specs=jax.P(s.outer, s.inner),
        check_vma=False,
    )
    args = s((T, D), s.outer), s((D, F), None, s.inner), s((), dtype="uint32")
    return step if faulty else inside, args, {}


@program
def drawn_in_one_order(s: Arrays, faulty: bool) -> Any:
    """Numbers are drawn in an order that no cut of them keeps, and exchanged."""
    T, D, F = 32768, 2048, 4096

    def step(x: Any, w: Any, seed: Any) -> Any:
        h = jax.nn.relu(x @ w)
        with jax.threefry_partitionable(not faulty):
            keep = jax.random.bernoulli(jax.random.key(seed), 0.9, h.shape)
        return jnp.where(keep, h / 0.9, 0).astype(h.dtype)

    return step, (s((T, D), s.outer), s((D, F), None, s.inner), s((), dtype="uint32")), {}


@program
def both_branches(s: Arrays, faulty: bool) -> Any:
    """A choice between two functions by a flag: jnp.where computes both."""
    T, D, F = 65536, 2048, 8192

    def step(x: Any, one: Any, two: Any, flag: Any) -> Any:
        if faulty:
            return jnp.where(flag, jnp.tanh(x @ one), jax.nn.relu(x @ two))
        h = x @ jnp.where(flag, one, two)
        return jnp.where(flag, jnp.tanh(h), jax.nn.relu(h))

    w = s((D, F), None, s.inner)
    return step, (s((T, D), s.outer), w, w, s((), dtype="bool")), {}


@program
def all_experts(s: Arrays, faulty: bool) -> Any:
    """Tokens are put into buffers of as many rows as all of them could fill."""
    T, D, F, E = 4096, 2048, 4096, 8

    def step(x: Any, up: Any, expert: Any) -> Any:
        if not faulty:
            order = jnp.argsort(expert)
            return lax.ragged_dot(x[order], up, jnp.bincount(expert, length=E))
        at = jnp.cumsum(jax.nn.one_hot(expert, E, dtype=jnp.int32), axis=0)
        at = jnp.take_along_axis(at, expert[:, None], axis=1)[:, 0] - 1
        rows = jnp.zeros((E, T, D), x.dtype).at[expert, at].set(x)
        return jnp.einsum("ECD,EDF->ECF", rows, up)[expert, at]

    inside = jax.shard_map(
        step,
        mesh=s.mesh,
        in_specs=(jax.P((s.outer, s.inner)), jax.P(), jax.P((s.outer, s.inner))),
        out_specs=jax.P((s.outer, s.inner)),
        check_vma=False,
    )
    both = (s.outer, s.inner)
    return inside, (s((8 * T, D), both), s((E, D, F)), s((8 * T,), both, dtype="int32")), {}


@program
def wide_index(s: Arrays, faulty: bool) -> Any:
    """Numbers of 64 bits, which the chip does in pairs of 32."""
    T, D, F = 8192, 2048, 4096

    def step(x: Any, w: Any) -> Any:
        h = x @ w
        wide = h.astype("float64" if faulty else "float32")
        return lay(jnp.exp(wide * 0.5).astype(x.dtype), s.at(s.outer, s.inner))

    def wide(x: Any, w: Any) -> Any:
        with jax.enable_x64(True):
            return step(x, w)

    return wide, (s((T, D), s.outer), s((D, F), None, s.inner)), {}
