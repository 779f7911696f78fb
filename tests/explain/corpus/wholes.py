"""Faults of what is summed, gathered or handed back whole: each with its cured twin.

As in `programs.py`: a function takes the maker of abstract arrays and whether to be faulty.
"""

from typing import Any

import jax
import jax.numpy as jnp
from programs import Arrays, lay, program


@program
def summed_scores(s: Arrays, faulty: bool) -> Any:
    """A cut width is split into (size, heads), so that the scores are sums over devices; the twin
    has the heads first."""
    B, T, N, H = 16, 2048, 16, 128

    def heads(x: Any) -> Any:
        if faulty:
            return jnp.swapaxes(x.reshape(B, T, H, N), 2, 3)
        return x.reshape(B, T, N, H)

    def step(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("BTNH,BSNH->BNTS", heads(q), heads(k)) * H**-0.5
        p = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(q.dtype)
        return jnp.einsum("BNTS,BSNH->BTNH", p, heads(v))

    return step, (s((B, T, N * H), s.outer, None, s.inner),) * 3, {}


@program
def given_back_whole(s: Arrays, faulty: bool) -> Any:
    """Weights that are cut by their width are asked for whole where they go out."""
    D, F, T = 4096, 16384, 4096

    def step(w: Any, x: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.square((x @ w).astype(jnp.float32)).mean())(w)
        return w - 1e-3 * gradient

    w = s((D, F), None, s.inner)
    out = s.at(None, None) if faulty else s.at(None, s.inner)
    return step, (w, s((T, D), s.outer)), {"donate_argnums": 0, "out_shardings": out}


@program
def constrained_whole(s: Arrays, faulty: bool) -> Any:
    """A constraint asks for whole logits, between a product and a loss of pieces."""
    T, D, V = 16384, 1024, 16384

    def loss(head: Any, x: Any, labels: Any) -> Any:
        logits = x @ head
        logits = lay(logits, s.at(None, None) if faulty else s.at(s.outer, s.inner))
        logp = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        return -jnp.take_along_axis(logp, labels[:, None], axis=-1).mean()

    args = s((D, V), None, s.inner), s((T, D), s.outer), s((T,), s.outer, dtype="int32")
    return jax.grad(loss, argnums=(0, 1)), args, {}
