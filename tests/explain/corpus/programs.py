"""Small JAX steps with one fault each that people have reported, and their cured twins.

Each function takes `s`, which makes abstract arrays on a mesh of two axes (`s.outer` cuts data,
`s.inner` widths), and whether it is to be faulty. It gives the step, its arguments and the options
of `jax.jit`. `corpus.toml` says by the same names who reported it, what they saw and what cured it;
`scripts/explain_corpus.py` compiles them.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

PROGRAMS: dict[str, Callable[..., Any]] = {}
lay = lax.with_sharding_constraint


class Arrays:
    """Abstract arrays on a mesh of two axes: `outer` cuts data, `inner` widths."""

    def __init__(self, mesh: Any) -> None:
        self.mesh = mesh
        self.outer, self.inner = mesh.axis_names

    def at(self, *spec: Any) -> Any:
        return jax.NamedSharding(self.mesh, jax.P(*spec))

    def __call__(self, shape: tuple[int, ...], *spec: Any, dtype: str = "bfloat16") -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.at(*spec))


def program(build: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[build.__name__] = build
    return build


def mlp(x: Any, up: Any, down: Any) -> Any:
    return jax.nn.relu(x @ up) @ down


@program
def involuntary_remat(s: Any, faulty: bool) -> Any:
    """Rows are cut by one axis and the last dim by the other; all of both then cut the middle."""
    B, T, D = 64, 2048, 2048
    both = (s.outer, s.inner)

    def step(a: Any, b: Any, c: Any) -> Any:
        d = a + b
        if not faulty:
            d = lay(d, s.at(s.inner, s.outer, None))
        return c + jnp.tanh(lay(d, s.at(None, both, None)))

    cut = s((B, T, D), s.inner, None, s.outer)
    return step, (cut, cut, s((B, T, D), None, both, None)), {}


@program
def uneven_constraint(s: Any, faulty: bool) -> Any:
    """Rows that the axes do not divide: they are padded, and lie whole where they go out."""
    T, D, F = 16380 if faulty else 16384, 4096, 2048
    both = (s.outer, s.inner)

    def step(x: Any, w: Any) -> Any:
        h = lay(jnp.tanh(x), s.at(both, None))
        return jax.nn.relu(h @ w)

    return step, (s((T, D), None, both), s((D, F))), {}


def _adam(state: Any, gradients: Any) -> Any:
    w, mu, nu = state["w"], state["mu"], state["nu"]
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, gradients)
    nu = jax.tree.map(lambda n, g: 0.99 * n + 0.01 * g * g, nu, gradients)
    w = jax.tree.map(lambda w, m, n: w - 1e-3 * m / (jnp.sqrt(n) + 1e-8), w, mu, nu)
    return {"w": w, "mu": mu, "nu": nu}


def _train(s: Any, stored: Any, tokens: int, rounds: int = 0) -> Any:
    D, F = 4096, 32768

    def loss(w: Any, x: Any) -> Any:
        y = mlp(x, w["up"].astype(x.dtype), w["down"].astype(x.dtype))
        return jnp.square(y.astype(jnp.float32)).mean()

    def one(state: Any, x: Any) -> Any:
        return _adam(state, jax.grad(loss)(state["w"], x)), None

    def step(state: Any, x: Any) -> Any:
        return lax.scan(one, state, x)[0] if rounds else one(state, x)[0]

    kept = {"up": s((D, F), *stored, dtype="float32"), "down": s((F, D), *stored, dtype="float32")}
    shape, cut = ((rounds, tokens, D), (None, s.outer)) if rounds else ((tokens, D), (s.outer,))
    return step, ({"w": kept, "mu": kept, "nu": kept}, s(shape, *cut))


@program
def undonated_state(s: Any, faulty: bool) -> Any:
    """Weights and moments of Adam come in and go out, and lie twice in memory."""
    step, args = _train(s, (s.outer, s.inner), 4096)
    return step, args, {} if faulty else {"donate_argnums": 0}


@program
def undonated_state_of_rounds(s: Any, faulty: bool) -> Any:
    """Two optimizer steps in one program: the state is copied before the loop writes into it."""
    step, args = _train(s, (s.outer, s.inner), 2048, 2)
    return step, args, {} if faulty else {"donate_argnums": 0}


@program
def sequence_cut_cache(s: Any, faulty: bool) -> Any:
    """A cache cut along its tokens, though there are heads to cut: the softmax runs over the
    network and every device is asked to write the new token."""
    B, S, K, G, H = 16, 8192, 8, 4, 128

    def step(cache: Any, q: Any, new: Any, length: Any) -> Any:
        put = lambda c, n: lax.dynamic_update_slice(c, n, (0, length, 0, 0))  # noqa: E731
        cache = jax.tree.map(lambda c, n: lay(put(c, n), s.at(*at)), cache, new)
        scores = jnp.einsum("BKGH,BSKH->BKGS", q, cache["k"], preferred_element_type=jnp.float32)
        scores = jnp.where(jnp.arange(S) <= length, scores, -1e30)
        p = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
        return cache, jnp.einsum("BKGS,BSKH->BKGH", p, cache["v"])

    at = (s.outer, s.inner) if faulty else (s.outer, None, s.inner)
    cache = {name: s((B, S, K, H), *at) for name in "kv"}
    new = {name: s((B, 1, K, H), s.outer, None, s.inner) for name in "kv"}
    q = s((B, K, G, H), s.outer, s.inner)
    return step, (cache, q, new, s((), dtype="int32")), {"donate_argnums": 0}


@program
def promoted(s: Any, faulty: bool) -> Any:
    """A scale out of NumPy is a float32 array: all that follows is float32."""
    T, D, F = 8192, 2048, 8192
    scale = np.full((D,), 0.5, np.float32)

    def step(x: Any, up: Any, down: Any) -> Any:
        h = x * (scale if faulty else scale.astype(x.dtype))
        return mlp(h, up, down)

    return step, (s((T, D), s.outer), s((D, F), None, s.inner), s((F, D), s.inner, None)), {}


@program
def one_hot_lookup(s: Any, faulty: bool) -> Any:
    """Embeddings by a product with ones and zeros."""
    V, D, F, T = 32768, 1024, 4096, 16384

    def step(table: Any, w: Any, tokens: Any) -> Any:
        x = jax.nn.one_hot(tokens, V, dtype=table.dtype) @ table if faulty else table[tokens]
        return jax.nn.relu(lay(x, s.at(s.outer, None)) @ w)

    args = (s((V, D), None, None), s((D, F), None, s.inner), s((T,), s.outer, dtype="int32"))
    return step, args, {}


@program
def gathered_twice(s: Any, faulty: bool) -> Any:
    """Stored weights are gathered where they are used, at two places of one pass."""
    V, D, T = 32768, 2048, 4096

    def step(table: Any, x: Any, y: Any) -> Any:
        first = lay(table, s.at(None, None))
        one = jnp.tanh(x @ first)
        if faulty:
            table = lax.optimization_barrier((table, one))[0]
            first = lay(table, s.at(None, None))
        return one.sum(axis=1) + jnp.tanh(y @ first).sum(axis=1)

    cut = (s.outer, s.inner)
    return step, (s((D, V), cut), s((T, D), cut), s((T, D), cut)), {}


@program
def there_and_back(s: Any, faulty: bool) -> Any:
    """An array is cut another way for one elementwise function, and back."""
    T, D, F = 16384, 4096, 4096

    def step(x: Any, w: Any) -> Any:
        h = lay(x, s.at((s.outer, s.inner), None)) if faulty else x
        h = lay(jax.nn.gelu(h), s.at(s.outer, s.inner))
        return lay(h @ w, s.at(s.outer, None))

    return step, (s((T, D), s.outer, s.inner), s((D, F), s.inner, None)), {}


@program
def summed_whole(s: Any, faulty: bool) -> Any:
    """Sums are made whole on every device, which then takes its piece."""
    T, D, F = 8192, 4096, 4096
    n = s.mesh.shape[s.inner]

    def block(x: Any, w: Any) -> Any:
        part = jnp.tanh(x @ w)
        if not faulty:
            return lax.psum_scatter(part, s.inner, scatter_dimension=1, tiled=True)
        whole = lax.optimization_barrier(lax.psum(part, s.inner))
        at = lax.axis_index(s.inner) * (whole.shape[1] // n)
        return lax.dynamic_slice_in_dim(whole, at, whole.shape[1] // n, 1)

    inside = jax.shard_map(
        block,
        mesh=s.mesh,
        in_specs=(jax.P(s.outer, s.inner), jax.P(s.inner, None)),
        out_specs=jax.P(s.outer, s.inner),
        check_vma=False,
    )
    return inside, (s((T, F), s.outer, s.inner), s((F, D), s.inner, None)), {}


@program
def summed_every_round(s: Any, faulty: bool) -> Any:
    """Gradients are summed over the devices in every microbatch, not once after the last."""
    D, F, T, rounds = 2048, 8192, 512, 8

    def loss(w: Any, x: Any) -> Any:
        return jnp.square(mlp(x, *w).astype(jnp.float32)).mean()

    def block(w: Any, x: Any) -> Any:
        def add(total: Any, x: Any) -> Any:
            g = jax.grad(loss)(w, x)
            g = jax.tree.map(lambda g: lax.psum(g, both), g) if faulty else g
            return jax.tree.map(lambda t, g: t + g.astype(jnp.float32) / rounds, total, g), None

        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.float32), w)
        total, _ = lax.scan(add, zeros, x)
        return total if faulty else jax.tree.map(lambda g: lax.psum(g, both), total)

    both = (s.outer, s.inner)
    inside = jax.shard_map(
        block,
        mesh=s.mesh,
        in_specs=(jax.P(), jax.P(None, both)),
        out_specs=jax.P(),
        check_vma=False,
    )
    return inside, ((s((D, F)), s((F, D))), s((rounds, 8 * T, D), None, both)), {}


@program
def equal_sum(s: Any, faulty: bool) -> Any:
    """A psum of what every device already has."""
    T, D, F = 8192, 2048, 4096

    def block(x: Any, w: Any) -> Any:
        y = jnp.tanh(x @ w)
        return lax.psum(y, s.inner) / s.mesh.shape[s.inner] if faulty else y

    inside = jax.shard_map(
        block,
        mesh=s.mesh,
        in_specs=(jax.P(s.outer, None), jax.P(None, None)),
        out_specs=jax.P(s.outer, None),
        check_vma=False,
    )
    return inside, (s((T, D), s.outer), s((D, F))), {}


@program
def repeated_heads(s: Any, faulty: bool) -> Any:
    """Keys and values are repeated to as many heads as the queries have."""
    B, S, K, G, H = 16, 8192, 8, 8, 128

    def step(k: Any, v: Any, q: Any) -> Any:
        if faulty:
            k, v = (jnp.repeat(c, G, axis=2) for c in (k, v))
            scores = jnp.einsum("BNH,BSNH->BNS", q, k, preferred_element_type=jnp.float32)
            p = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
            return jnp.einsum("BNS,BSNH->BNH", p, v)
        q = q.reshape(B, K, G, H)
        scores = jnp.einsum("BKGH,BSKH->BKGS", q, k, preferred_element_type=jnp.float32)
        p = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
        return jnp.einsum("BKGS,BSKH->BKGH", p, v).reshape(B, K * G, H)

    cache = s((B, S, K, H), s.outer, None, s.inner)
    return step, (cache, cache, s((B, K * G, H), s.outer, s.inner)), {}


@program
def gathered_every_round(s: Any, faulty: bool) -> Any:
    """Weights stored in pieces are gathered in every microbatch."""
    D, F, T, rounds = 2048, 8192, 512, 8
    both = (s.outer, s.inner)

    def step(w: Any, x: Any) -> Any:
        whole = w if faulty else jax.tree.map(lambda w: lay(w, s.at(None, None)), w)

        def one(total: Any, x: Any) -> Any:
            up, down = jax.tree.map(lambda w: lay(w, s.at(None, None)), whole)
            return total + mlp(lay(x, s.at(both, None)), up, down).sum(0, dtype=jnp.float32), None

        return lax.scan(one, jnp.zeros((D,), jnp.float32), x)[0]

    weights = s((D, F), both, None), s((F, D), both, None)
    return step, (weights, s((rounds, 8 * T, D), None, both)), {}


# Clean programs: none of them has a fault worth 2 % of its step.


def _norm(x: Any) -> Any:
    square = jnp.square(x.astype(jnp.float32)).mean(-1, keepdims=True)
    return x * lax.rsqrt(square + 1e-6).astype(x.dtype)


@program
def clean_tensor_block(s: Any, _: bool) -> Any:
    """A block of a transformer, cut by heads and widths."""
    B, T, D, N, H, F = 8, 2048, 4096, 32, 128, 16384

    def step(w: Any, x: Any) -> Any:
        y = _norm(x)
        q, k, v = (jnp.einsum("BTD,DNH->BTNH", y, w[name]) for name in "qkv")
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = lay(x + jnp.einsum("BTNH,NHD->BTD", out, w["o"]), s.at(s.outer, None, None))
        return x + jax.nn.gelu(_norm(x) @ w["up"]) @ w["down"]

    heads = {name: s((D, N, H), None, s.inner, None) for name in "qkv"}
    widths = {"up": s((D, F), None, s.inner), "down": s((F, D), s.inner, None)}
    w = {**heads, "o": s((N, H, D), s.inner, None, None), **widths}
    return step, (w, s((B, T, D), s.outer)), {}


@program
def clean_decode(s: Any, _: bool) -> Any:
    """A token for each of many requests, over a cache that is cut by heads and donated."""
    B, S, D, K, G, H = 64, 4096, 4096, 8, 4, 128

    def step(cache: Any, w: Any, x: Any, length: Any) -> Any:
        q = jnp.einsum("BD,DKGH->BKGH", x, w["q"])
        put = lambda c, n: lax.dynamic_update_slice(c, n[:, None], (0, length, 0, 0))  # noqa: E731
        k, v = (jnp.einsum("BD,DKH->BKH", x, w[name]) for name in "kv")
        cache = {"k": put(cache["k"], k), "v": put(cache["v"], v)}
        scores = jnp.einsum("BKGH,BSKH->BKGS", q, cache["k"], preferred_element_type=jnp.float32)
        p = jax.nn.softmax(jnp.where(jnp.arange(S) <= length, scores, -1e30), axis=-1)
        out = jnp.einsum("BKGS,BSKH->BKGH", p.astype(q.dtype), cache["v"])
        return cache, x + jnp.einsum("BKGH,KGHD->BD", out, w["o"])

    cache = {name: s((B, S, K, H), s.outer, None, s.inner) for name in "kv"}
    w = {
        "q": s((D, K, G, H), None, s.inner),
        "k": s((D, K, H), None, s.inner),
        "v": s((D, K, H), None, s.inner),
        "o": s((K, G, H, D), s.inner),
    }
    return step, (cache, w, s((B, D), s.outer), s((), dtype="int32")), {"donate_argnums": 0}


@program
def clean_embedding(s: Any, _: bool) -> Any:
    """Rows of a table that is cut by its width."""
    V, D, F, T = 65536, 2048, 8192, 32768

    def step(table: Any, up: Any, down: Any, tokens: Any) -> Any:
        x = lay(table[tokens], s.at((s.outer, s.inner), None))
        return mlp(x, up, down)

    args = s((V, D)), s((D, F)), s((F, D)), s((T,), (s.outer, s.inner), dtype="int32")
    return step, args, {}


@program
def clean_exchange(s: Any, _: bool) -> Any:
    """Tokens that are exchanged for experts, multiplied and exchanged back."""
    E, C, D, F = 8, 1024, 2048, 8192
    both = (s.outer, s.inner)

    def block(x: Any, up: Any, down: Any) -> Any:
        there = lax.all_to_all(x, both, 0, 0, tiled=True)
        h = jax.nn.gelu(there.reshape(E * C, D) @ up[0])
        return lax.all_to_all((h @ down[0]).reshape(E, C, D), both, 0, 0, tiled=True)

    cut = jax.P(both)
    inside = jax.shard_map(block, mesh=s.mesh, in_specs=(cut, cut, cut), out_specs=cut)
    tokens = s((8 * E, C, D), both)
    return inside, (tokens, s((E, D, F), both), s((E, F, D), both)), {}
