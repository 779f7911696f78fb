"""Ten more programs with one planted fault each, and their clean twins, for the tests of `explain`.

`python scripts/explain_programs_more.py FOLDER [NAME ...]` compiles them as
`scripts/explain_programs.py` does its own, into the same folder.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from explain_programs import PROGRAMS, Shapes, build, main
from jax.ad_checkpoint import checkpoint_name

__all__ = ["build"]
FIRST = frozenset(PROGRAMS)


def program(made: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[made.__name__] = made
    return made


@program
def duplicated_work(s: Shapes, faulty: bool) -> Any:
    """The tokens are not cut: every device of the outer axis multiplies all of them."""
    T, D, F = 8192, 2048 * s.scale, 8192

    def step(x: Any, w1: Any, w2: Any) -> Any:
        return jax.nn.relu(x @ w1) @ w2

    x = s((T, D)) if faulty else s((T, D), s.outer)
    return step, (x, s((D, F), None, s.inner), s((F, D), s.inner, None)), {}


@program
def ping_pong(s: Shapes, faulty: bool) -> Any:
    """An array is cut another way for one elementwise function, and cut back."""
    T, D, F = 16384, 2048 * s.scale, 4096

    def step(x: Any, w: Any) -> Any:
        h = x
        if faulty:
            h = s.lay(h, (s.outer, s.inner), None)
        h = jax.nn.gelu(h)
        h = s.lay(h, s.outer, s.inner)
        return s.lay(h @ w, s.outer, None)

    return step, (s((T, D), s.outer, s.inner), s((D, F), s.inner, None)), {}


def _decode(s: Shapes, at: tuple[Any, ...], used: tuple[Any, ...] | None, **more: Any) -> Any:
    """A step of attention over a cache that lies as `at`, read as `used`, and grows by a token."""
    B, S, K, G, H = 16, 8192 * s.scale, 8, 4, 128

    def step(cache: Any, q: Any, new: Any, length: Any) -> Any:
        put = lambda c, n: jax.lax.dynamic_update_slice(c, n, (0, length, 0, 0))  # noqa: E731
        cache = jax.tree.map(lambda c, n: s.lay(put(c, n), *at), cache, new)
        k, v = (s.lay(c, *used) if used else c for c in (cache["k"], cache["v"]))
        scores = jnp.einsum("BKGH,BSKH->BKGS", q, k, preferred_element_type=jnp.float32)
        shown = jnp.arange(S) <= length
        p = jax.nn.softmax(jnp.where(shown, scores, -1e30), axis=-1).astype(q.dtype)
        return cache, jnp.einsum("BKGS,BSKH->BKGH", p, v)

    heads = s.outer, s.inner
    batch, seq, kv = (*at, None, None, None)[:3]
    cache = {name: s((B, S, K, H), batch, seq, kv) for name in "kv"}
    new = {name: s((B, 1, K, H), s.outer, None, s.inner) for name in "kv"}
    q = s((B, K, G, H), *heads)
    return step, (cache, q, new, s((), dtype="int32")), more


@program
def undonated_cache(s: Shapes, faulty: bool) -> Any:
    """The cache that a step writes a token into is not donated: all of it is copied."""
    donated = {} if faulty else {"donate_argnums": 0}
    return _decode(s, (s.outer, None, s.inner), None, **donated)


@program
def gathered_cache(s: Shapes, faulty: bool) -> Any:
    """The cache is cut along its tokens and gathered to be read."""
    if faulty:
        return _decode(s, (s.outer, s.inner), (s.outer,), donate_argnums=0)
    return _decode(s, (s.outer, None, s.inner), None, donate_argnums=0)


@program
def replicated_cache(s: Shapes, faulty: bool) -> Any:
    """Every device of the inner axis holds and reads the cache of all heads."""
    B, S, N, H = 32, 131072 * s.scale, 16, 128

    def step(cache: Any, q: Any, new: Any, length: Any) -> Any:
        put = lambda c, n: jax.lax.dynamic_update_slice(c, n, (0, length, 0))  # noqa: E731
        cache = jax.tree.map(put, cache, new)
        scores = jnp.einsum("BNH,BSH->BNS", q, cache["k"], preferred_element_type=jnp.float32)
        shown = jnp.arange(S) <= length
        p = jax.nn.softmax(jnp.where(shown, scores, -1e30), axis=-1).astype(q.dtype)
        return cache, jnp.einsum("BNS,BSH->BNH", p, cache["v"])

    batch = s.outer if faulty else (s.outer, s.inner)
    cache = {name: s((B, S, H), batch) for name in "kv"}
    new = {name: s((B, 1, H), batch) for name in "kv"}
    q = s((B, N, H), s.outer, s.inner) if faulty else s((B, N, H), batch)
    return step, (cache, q, new, s((), dtype="int32")), {"donate_argnums": 0}


@program
def copied_weights(s: Shapes, faulty: bool) -> Any:
    """Three stored weights are laid side by side in every layer, to multiply by them at once."""
    L, D, F, B = 8, 2048, 8192 * s.scale, 64
    names = ("a", "b", "c")

    def step(w: Any, x: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            up = jnp.stack([w[n] for n in names], axis=1) if faulty else w["up"]
            h = s.lay(jnp.einsum("BD,DnF->BnF", x, up), None, None, inner)
            h = jax.nn.relu(h[:, 0]) * h[:, 1] + h[:, 2]
            return s.lay(x + h @ w["down"], None, None), None

        return jax.lax.scan(layer, x, w)[0]

    inner = (s.outer, s.inner)
    weights = {"down": s((L, F, D), None, inner)}
    if faulty:
        weights |= {n: s((L, D, F), None, None, inner) for n in names}
    else:
        weights["up"] = s((L, D, 3, F), None, None, None, inner)
    return step, (weights, s((B, D))), {}


@program
def callback(s: Shapes, faulty: bool) -> Any:
    """A value is handed to Python within the step, which waits for the answer."""
    T, D, F = 8192, 2048 * s.scale, 4096

    def look(h: Any) -> Any:
        return h

    def step(x: Any, w1: Any, w2: Any) -> Any:
        h = x @ w1
        if faulty:
            scale = jax.pure_callback(look, jax.ShapeDtypeStruct((), h.dtype), h[0, 0])
            h = h * scale
        return jax.nn.relu(h) @ w2

    return step, (s((T, D), s.outer), s((D, F), None, s.inner), s((F, D), s.inner, None)), {}


@program
def repeated_gather(s: Shapes, faulty: bool) -> Any:
    """The backward pass gathers the tokens of a layer again, which there was room to keep."""
    L, T, D, F = 8, 32768, 2048, 4096 * s.scale

    def block(x: Any, up: Any, down: Any) -> Any:
        whole = checkpoint_name(s.lay(x, s.outer, None), "whole")
        out = s.lay(jax.nn.gelu(whole @ up) @ down, s.outer, s.inner)
        return x + checkpoint_name(out, "out")

    def layer(x: Any, w: Any) -> Any:
        return block(jnp.tanh(block(x, w["up"], w["down"])), w["up2"], w["down2"]), None

    names = () if faulty else ("whole", "out")
    kept = jax.checkpoint_policies.save_only_these_names(*names)

    def loss(w: Any, x: Any) -> Any:
        y, _ = jax.lax.scan(jax.checkpoint(layer, policy=kept), x, w)
        return jnp.square(y.astype(jnp.float32)).mean()

    up, down = s((L, D, F), None, None, s.inner), s((L, F, D), None, s.inner, None)
    weights = {"up": up, "up2": up, "down": down, "down2": down}
    return jax.grad(loss), (weights, s((T, D), s.outer, s.inner)), {}


@program
def unused_gather(s: Shapes, faulty: bool) -> Any:
    """Logits of all tokens of a prompt, of which only the last token's are looked at: the compiler
    multiplies for those alone, and gathers the activations of all."""
    B, T, D, V = 8, 2048, 2048 * s.scale, 32768

    def step(x: Any, w: Any, head: Any) -> Any:
        x = x + jax.nn.relu(jnp.einsum("BTD,DF->BTF", x, w))
        if faulty:
            return x, jnp.einsum("BTD,DV->BTV", x, head)[:, -1]
        return x, jnp.einsum("BD,DV->BV", x[:, -1], head)

    head = s((D, V), None, s.inner)
    return step, (s((B, T, D), s.outer), s((D, D), None, s.inner), head), {}


@program
def one_hot(s: Shapes, faulty: bool) -> Any:
    """Rows of a table are taken by a product with ones and zeros."""
    V, D, F, T = 32768 * s.scale, 1024, 4096, 16384

    def step(table: Any, w: Any, tokens: Any) -> Any:
        x = jax.nn.one_hot(tokens, V, dtype=table.dtype) @ table if faulty else table[tokens]
        return jax.nn.relu(s.lay(x, s.outer, None) @ w)

    args = (s((V, D), None, None), s((D, F), None, s.inner), s((T,), s.outer, dtype="int32"))
    return step, args, {}


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        sys.argv[2:] or [name for name in PROGRAMS if name not in FIRST],
        "explain_programs_more:build",
    )
