"""Products with the weights of a block, and their biases.

They go through two hooks of `Options`, so that a strategy may send x while it multiplies.
"""

from collections.abc import Mapping

import jax

from shardwise.runtime.call import Call

Params = Mapping[str, jax.Array]


def into(p: Params, specs: Mapping[str, str], x: jax.Array, call: Call) -> tuple[jax.Array, ...]:
    """x times several weights, by the einsum of each name, plus their biases where there are."""
    factors = [(spec, p[name]) for name, spec in specs.items()]
    outs = call.options.into(x, *factors)
    return tuple(biased(p, name, out) for name, out in zip(specs, outs, strict=True))


def out_of(p: Params, name: str, spec: str, x: jax.Array, call: Call) -> jax.Array:
    """x times the weight that leads back to the stream, plus its bias."""
    return biased(p, name, call.options.out_of(spec, x, p[name]))


def biased(p: Params, name: str, out: jax.Array) -> jax.Array:
    """A product plus the bias of its weight, which has the last dims of it."""
    bias = p.get(f"{name}.bias")
    if bias is None:
        return out
    return out + bias.astype(out.dtype).reshape((1,) * (out.ndim - bias.ndim) + bias.shape)
