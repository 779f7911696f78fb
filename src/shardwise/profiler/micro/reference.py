"""One product, timed between other things: a measure of how busy the machine was meanwhile."""

import time
from collections.abc import Callable


def product_timer(n: int) -> Callable[[], float]:
    """A function that gives the seconds of one n x n x n product in float32 on one device, one of
    four of a program that was run once before."""
    import jax
    import jax.numpy as jnp

    w = jnp.full((n, n), 1e-3)
    run = jax.jit(lambda w: jax.lax.fori_loop(0, 4, lambda _, c: c @ w, w)).lower(w).compile()
    run(w).block_until_ready()

    def seconds() -> float:
        begun = time.perf_counter()
        run(w).block_until_ready()
        return (time.perf_counter() - begun) / 4

    return seconds
