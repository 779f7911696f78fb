"""Faults of training steps: what is made again, kept, exchanged wide or in small pieces.

As in `programs.py`: a function takes the maker of abstract arrays and whether to be faulty.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from programs import Arrays, lay, program


@program
def wrong_one_kept(s: Arrays, faulty: bool) -> Any:
    """What is kept for the backward pass is not the product, which is made again for its own."""
    D, F, T, L = 2048, 8192, 16384, 4
    both = (s.outer, s.inner)

    def layer(x: Any, w: Any) -> Any:
        h = x @ w[0]
        if faulty:
            return x + checkpoint_name(jax.nn.gelu(h), "kept") @ w[1], None
        return x + jax.nn.gelu(checkpoint_name(h, "kept")) @ w[1], None

    def loss(w: Any, x: Any) -> Any:
        kept = jax.checkpoint_policies.save_only_these_names("kept")
        last = lax.scan(jax.checkpoint(layer, policy=kept), x, w)[0]
        return jnp.square(last.astype(jnp.float32)).mean()

    return jax.grad(loss), ((s((L, D, F)), s((L, F, D))), s((T, D), both)), {}


@program
def small_sums(s: Arrays, faulty: bool) -> Any:
    """Many small arrays are summed one by one, each after the other."""
    D, F, T, n = 1024, 1024, 4096, 24
    both = (s.outer, s.inner)

    def block(x: Any, ws: Any, scales: Any) -> Any:
        total = [jnp.square(x * scale).sum(0) for scale in scales]
        if faulty:
            sums: list[Any] = []
            for part in total:
                if sums:
                    part = lax.optimization_barrier((part, sums[-1]))[0]
                sums.append(lax.psum(part, both))
        else:
            sums = list(lax.psum(tuple(total), both))
        return jnp.tanh(x @ ws) * sum(sums)

    inside = jax.shard_map(
        block,
        mesh=s.mesh,
        in_specs=(jax.P(both), jax.P(), jax.P()),
        out_specs=jax.P(both),
        check_vma=False,
    )
    return inside, (s((T, D), both), s((D, F)), s((n, D))), {}


@program
def drifting_state(s: Arrays, faulty: bool) -> Any:
    """A donated state comes back in another dtype, so that it cannot lie where it lay."""
    D, F = 8192, 16384

    def step(state: Any, gradient: Any) -> Any:
        w, m = state
        m = 0.9 * m + 0.1 * gradient
        w = w - 1e-3 * m
        return (w, m) if faulty else jax.tree.map(lambda n, o: n.astype(o.dtype), (w, m), state)

    both = ((s.outer, s.inner),)
    w = s((D, F), *both)
    return step, ((w, w), s((D, F), *both, dtype="float32")), {"donate_argnums": 0}


@program
def gathered_wide(s: Arrays, faulty: bool) -> Any:
    """Weights are made int8 and gathered; the compiler gathers float32 and makes it int8 behind."""
    D, F, T = 4096, 16384, 512
    both = (s.outer, s.inner)

    def step(w: Any, x: Any) -> Any:
        scale = jnp.abs(w).max().astype(jnp.float32) / 127
        few = jnp.round(w.astype(jnp.float32) / scale).astype(jnp.int8)
        few = few if faulty else lax.optimization_barrier(few)
        y = x @ lay(few, s.at(None, None)).astype(x.dtype)
        return jax.nn.relu(y * scale.astype(x.dtype))

    return step, (s((D, F), both), s((8 * T, D), both)), {}


@program
def summed_wide(s: Arrays, faulty: bool) -> Any:
    """Gradients of bf16 are made float32 before they are summed over the network."""
    T, D, F = 4096, 4096, 4096

    def block(w: Any, x: Any, dy: Any) -> Any:
        g = lax.optimization_barrier(x.T @ dy)
        if faulty:
            return w - 1e-3 * lax.psum(g.astype(jnp.float32), s.outer)
        return w - 1e-3 * lax.psum(g, s.outer).astype(jnp.float32)

    inside = jax.shard_map(
        block,
        mesh=s.mesh,
        in_specs=(jax.P(None, s.inner), jax.P(s.outer), jax.P(s.outer, s.inner)),
        out_specs=jax.P(None, s.inner),
        check_vma=False,
    )
    w = s((D, F), None, s.inner, dtype="float32")
    args = w, s((T, D), s.outer), s((T, F), s.outer, s.inner)
    return inside, args, {"donate_argnums": 0}


@program
def same_elementwise(s: Arrays, faulty: bool) -> Any:
    """Adam over weights and moments that lie whole on all devices: each does all of it."""
    D, F = 4096, 8192
    cut = () if faulty else ((s.outer, s.inner),)

    def step(w: Any, m: Any, g: Any) -> Any:
        m = 0.9 * m + 0.1 * g
        return w - 1e-3 * jnp.tanh(m), m

    w = s((D, F), *cut, dtype="float32")
    return step, (w, w, w), {"donate_argnums": (0, 1)}


@program
def logits_of_all(s: Arrays, faulty: bool) -> Any:
    """Logits of all tokens lie in memory together; the twin makes them in pieces."""
    T, D, V, pieces = 131072, 4096, 32768, 4
    both = (s.outer, s.inner)

    def of_some(x: Any, head: Any, labels: Any) -> Any:
        logits = jnp.matmul(x, head, preferred_element_type=jnp.float32)
        at = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
        return at - jax.nn.logsumexp(logits, axis=-1)

    def block(x: Any, head: Any, labels: Any) -> Any:
        if faulty:
            return of_some(x, head, labels)
        parts = x.reshape(pieces, -1, D), labels.reshape(pieces, -1)
        return lax.map(lambda part: of_some(part[0], head, part[1]), parts).reshape(-1)

    inside = jax.shard_map(
        block,
        mesh=s.mesh,
        in_specs=(jax.P(both), jax.P(), jax.P(both)),
        out_specs=jax.P(both),
        check_vma=False,
    )
    return inside, (s((T, D), both), s((D, V)), s((T,), both, dtype="int32")), {}


@program
def offloaded_late(s: Arrays, faulty: bool) -> Any:
    """Moments that lie on the host are fetched, renewed and sent back with nothing beside."""
    D, F = 2048, 8192
    cut = ((s.outer, s.inner),)
    host = s.at(*cut).with_memory_kind("pinned_host")

    def step(w: Any, m: Any, g: Any) -> Any:
        near = jax.device_put(m, s.at(*cut).with_memory_kind("device")) if faulty else m
        near = 0.9 * near + 0.1 * g
        w = w - 1e-3 * near
        return w, jax.device_put(near, host) if faulty else near

    w = s((D, F), *cut, dtype="float32")
    m = jax.ShapeDtypeStruct((D, F), "float32", sharding=host) if faulty else w
    return step, (w, m, w), {"donate_argnums": (0, 1)}


@program
def made_in_every_round(s: Arrays, faulty: bool) -> Any:
    """Weights are scaled by their norms in every round of a loop, which changes none of them."""
    D, F, T, rounds = 4096, 8192, 256, 8

    def scaled(w: Any) -> Any:
        wide = w.astype(jnp.float32)
        made = wide * lax.rsqrt(jnp.square(wide).sum(0, keepdims=True))
        return lax.optimization_barrier(made.astype(w.dtype))

    def step(w: Any, xs: Any) -> Any:
        first = w if faulty else scaled(w)

        def one(total: Any, x: Any) -> Any:
            now = scaled(lax.optimization_barrier((w, total))[0]) if faulty else first
            return total + jax.nn.relu(x @ now).sum(0, dtype=jnp.float32), None

        return lax.scan(one, jnp.zeros((F,), jnp.float32), xs)[0]

    cut = (None, (s.outer, s.inner))
    return step, (s((D, F), *cut), s((rounds, 8 * T, D))), {}


@program
def gradient_of_all(s: Arrays, faulty: bool) -> Any:
    """The gradient of a cut array leaves the step whole: summed where it could be scattered."""
    D, F, T = 4096, 4096, 4096

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.square((x @ w).astype(jnp.float32)).mean()

        gradient = jax.grad(loss)(w)
        return lay(gradient, s.at(None, None) if faulty else s.at(s.outer, None))

    return step, (s((D, F), s.outer), s((4 * T, D), s.outer)), {}
