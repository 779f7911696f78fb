"""Faults of what each device could compute alone, or not at all: each with its cured twin.

As in `programs.py`: a function takes the maker of abstract arrays and whether to be faulty.
"""

from typing import Any

import jax
import jax.numpy as jnp
from programs import Arrays, lay, program


@program
def windowed_scores(s: Arrays, faulty: bool) -> Any:
    """Attention to a window computes the scores of all tokens, and masks; the twin goes by
    blocks."""
    B, T, N, H, W = 4, 8192, 8, 128, 512
    heads = s((B, T, N, H), s.outer, None, s.inner)

    def attend(q: Any, k: Any, v: Any, seen: Any) -> Any:
        scores = jnp.einsum("...TNH,...SNH->...NTS", q, k, preferred_element_type=jnp.float32)
        p = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1).astype(q.dtype)
        return jnp.einsum("...NTS,...SNH->...TNH", p, v)

    def window(at: Any, of: Any) -> Any:
        return (at[:, None] >= of) & (at[:, None] - of < W)

    def step(q: Any, k: Any, v: Any) -> Any:
        if faulty:
            return attend(q, k, v, window(jnp.arange(T), jnp.arange(T)))
        blocks = [x.reshape(B, T // W, W, N, H) for x in (q, k, v)]
        before = [jnp.pad(x, ((0, 0), (1, 0), *((0, 0),) * 3))[:, :-1] for x in blocks[1:]]
        k2, v2 = (jnp.concatenate(pair, 2) for pair in zip(before, blocks[1:], strict=True))
        seen = window(jnp.arange(W) + W, jnp.arange(2 * W))
        return attend(blocks[0], k2, v2, seen).reshape(q.shape)

    return step, (heads, heads, heads), {}


@program
def turned_weight(s: Arrays, faulty: bool) -> Any:
    """The up-projection of a latent is cut along the latent, not along heads as the queries are."""
    B, N, H, R, S = 256, 128, 128, 512, 128

    def step(q: Any, latents: Any, up: Any) -> Any:
        q = jnp.einsum("BNH,NHR->BNR", q, up)
        scores = jnp.einsum("BNR,BSR->BNS", q, latents, preferred_element_type=jnp.float32)
        p = jax.nn.softmax(scores, axis=-1).astype(q.dtype)
        return lay(jnp.einsum("BNS,BSR->BNR", p, latents), s.at(s.outer, s.inner, None))

    cut = (None, None, s.inner) if faulty else (s.inner,)
    return step, (s((B, N, H), s.outer, s.inner), s((B, S, R), s.outer), s((N, H, R), *cut)), {}


@program
def alike_matrices(s: Arrays, faulty: bool) -> Any:
    """Newton-Schulz steps of many cut matrices; the twin has whole ones, each on one device."""
    D, n = 2048, s.mesh.size
    both = (s.outer, s.inner)

    def orthogonal(x: Any) -> Any:
        x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)
        for _ in range(5):
            a = x @ jnp.swapaxes(x, -1, -2)
            x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
        return x

    def step(momenta: Any) -> Any:
        if faulty:
            return [lay(orthogonal(x), s.at(both, None)) for x in momenta]
        whole = orthogonal(lay(jnp.stack(momenta), s.at(both, None, None)))
        return [lay(x, s.at(both, None)) for x in whole]

    return step, ([s((D, D), both, dtype="float32") for _ in range(n)],), {}
