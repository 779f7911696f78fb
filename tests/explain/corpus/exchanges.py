"""Faults of where arrays lie, of loops and of what is put together: each with its cured twin.

As in `programs.py`: a function takes the maker of abstract arrays and whether to be faulty.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from programs import Arrays, lay, program


@program
def given_back_another_way(s: Arrays, faulty: bool) -> Any:
    """A state that is cut by heads is asked for cut along another dim where it goes out."""
    B, N, H = 64, 16, 512

    def step(state: Any, x: Any) -> Any:
        decay = jax.nn.sigmoid(jnp.einsum("BNH,BNG->BNHG", x, x).astype(jnp.float32))
        return state * decay.astype(state.dtype)

    heads = (s.outer, s.inner, None, None)
    out = s.at(s.outer, None, s.inner, None) if faulty else s.at(*heads)
    args = s((B, N, H, H), *heads), s((B, N, H), s.outer, s.inner)
    return step, args, {"out_shardings": out}


@program
def gathered_logits(s: Arrays, faulty: bool) -> Any:
    """Logits of all words are gathered on every device, which takes the best of them."""
    B, D, V = 1024, 2048, 131072

    def step(x: Any, head: Any) -> Any:
        logits = jnp.matmul(x, head, preferred_element_type=jnp.float32)
        logits = lay(logits, s.at(s.outer, s.inner))
        if faulty:
            logits = lay(lax.optimization_barrier(logits), s.at(s.outer, None))
        return logits.max(axis=-1)

    return step, (s((B, D), s.outer), s((D, V), None, s.inner)), {}


@program
def width_across_slices(s: Arrays, faulty: bool) -> Any:
    """The axis of widths lies across the slices, whose network is the slow one."""
    T, D, F = 65536, 1024, 1024
    data, tensor = (s.inner, s.outer) if faulty else (s.outer, s.inner)

    def loss(w: Any, x: Any) -> Any:
        y = lay(jax.nn.relu(x @ w[0]) @ w[1], s.at(data, None))
        return jnp.square(y.astype(jnp.float32)).mean()

    return jax.grad(loss), ((s((D, F), None, tensor), s((F, D), tensor, None)), s((T, D), data)), {}


@program
def stacked_in_the_step(s: Arrays, faulty: bool) -> Any:
    """Layers that are stored one by one are stacked in every step, to be scanned over."""
    D, T, L = 4096, 1024, 8

    def one(x: Any, w: Any) -> Any:
        return jax.nn.relu(x @ w), None

    def step(ws: Any, x: Any) -> Any:
        return lax.scan(one, x, jnp.stack(ws) if faulty else ws)[0]

    both = (s.outer, s.inner)
    ws = [s((D, D)) for _ in range(L)] if faulty else s((L, D, D))
    return step, (ws, s((T, D), both)), {}


@program
def narrow_factors(s: Arrays, faulty: bool) -> Any:
    """A product with two thin factors beside each large one; the twin has them added to it."""
    T, D, F, r = 8192, 2048, 4096, 16

    def step(x: Any, w: Any, a: Any, b: Any) -> Any:
        if not faulty:
            return jax.nn.relu(x @ w)
        thin = lax.optimization_barrier(x @ a)
        return jax.nn.relu(x @ w + thin @ b)

    args = s((T, D), s.outer), s((D, F), None, s.inner), s((D, r)), s((r, F), None, s.inner)
    return step, args, {}


# Clean programs: none of them has a fault worth 2 % of its step.


@program
def clean_ragged_experts(s: Arrays, _: bool) -> Any:
    """Tokens sorted by expert and multiplied as they are, up and down."""
    E, T, D, F = 8, 4096, 2048, 4096
    both = (s.outer, s.inner)

    def block(x: Any, up: Any, down: Any, expert: Any) -> Any:
        order = jnp.argsort(expert)
        sizes = jnp.bincount(expert, length=E)
        h = jax.nn.gelu(lax.ragged_dot(x[order], up, sizes))
        return lax.ragged_dot(h, down, sizes)[jnp.argsort(order)]

    inside = jax.shard_map(
        block,
        mesh=s.mesh,
        in_specs=(jax.P(both), jax.P(), jax.P(), jax.P(both)),
        out_specs=jax.P(both),
        check_vma=False,
    )
    x, expert = s((8 * T, D), both), s((8 * T,), both, dtype="int32")
    return inside, (x, s((E, D, F)), s((E, F, D)), expert), {}


@program
def clean_adam(s: Arrays, _: bool) -> Any:
    """A donated state of weights and moments, cut over all devices, renewed by its gradients."""
    D, F = 4096, 32768
    both = ((s.outer, s.inner),)

    def step(state: Any, g: Any) -> Any:
        w, m, v = state
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return w - 1e-3 * m * lax.rsqrt(v + 1e-8), m, v

    w = s((D, F), *both, dtype="float32")
    return step, ((w, w, w), w), {"donate_argnums": 0}


@program
def clean_layers(s: Arrays, _: bool) -> Any:
    """Layers that are stored stacked and scanned over, their batch cut over all devices."""
    L, T, D, F = 4, 16384, 2048, 8192
    both = (s.outer, s.inner)

    def one(x: Any, w: Any) -> Any:
        return x + jax.nn.relu(x @ w[0]) @ w[1], None

    def step(w: Any, x: Any) -> Any:
        return lax.scan(one, x, w)[0]

    return step, ((s((L, D, F)), s((L, F, D))), s((T, D), both)), {}
