"""Matmuls with weights as they are stored, and int8 weights with one scale per output channel."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import ModelConfig, parameters


class Quantized(NamedTuple):
    """A weight w = values * scale: int8 values, f32 scale with the summed dims of size 1."""

    values: jax.Array
    scale: jax.Array


Weight = jax.Array | Quantized


def quantise(w: jax.Array, summed: tuple[int, ...]) -> Quantized:
    """Symmetric int8 per output channel: scale = max |w| / 127 over the `summed` axes.

    The error of an element is at most half its channel's scale. Channels of zeros get scale 1.
    """
    wide = w.astype(jnp.float32)
    most = jnp.abs(wide).max(summed, keepdims=True)
    scale = jnp.where(most == 0, 1.0, most / 127)
    return Quantized(jnp.round(wide / scale).astype(jnp.int8), scale)


def dequantise(w: Quantized, dtype: Any = jnp.float32) -> jax.Array:
    """The weight that the values and the scale stand for."""
    return (w.values.astype(jnp.float32) * w.scale).astype(dtype)


def quantise_params(params: Mapping[str, Any], cfg: ModelConfig) -> dict[str, Any]:
    """The parameter tree with every matmul weight of the stack in int8.

    Embedding, head, router and norms stay: few bytes, or the errors that cost most.
    """
    axes = {
        (row.group, row.name): tuple(
            1 + i for i, (letter, _) in enumerate(row.dims) if letter in row.contracts
        )
        for row in parameters(cfg)
        if row.role == "matmul" and row.group is not None and row.component != "router"
    }
    layers = tuple(
        {
            name: quantise(w, axes[group, name]) if (group, name) in axes else w
            for name, w in stack.items()
        }
        for group, stack in enumerate(params["layers"])
    )
    return {**params, "layers": layers}


def products(x: jax.Array, *factors: tuple[str, Weight]) -> tuple[jax.Array, ...]:
    """The `product` of x with each (spec, w)."""
    return tuple(product(spec, x, w) for spec, w in factors)


def row_products(x: jax.Array, *factors: tuple[str, Weight]) -> tuple[jax.Array, ...]:
    """The `row_product` of x with each (spec, w)."""
    return tuple(row_product(spec, x, w) for spec, w in factors)


def row_product(spec: str, x: jax.Array, w: Weight, dtype: Any = None) -> jax.Array:
    """`product` of x [B, T, ...] as one of two matrices, a row for each token; `dtype` is what it
    adds up in and gives.

    For arrays that no mesh axis cuts. Its gradient by w sums over one dim, not over B and T: for
    two XLA on CPUs (jaxlib 0.10.2) makes transposed copies of what it multiplies.
    """
    if isinstance(w, Quantized):
        return product(spec, x, w)
    inputs, output = spec.split("->")
    letters, names = inputs.split(",")
    shape = dict(zip(names, w.shape, strict=True))
    summed, kept = (prod(shape[n] for n in names if (n in letters) is s) for s in (True, False))
    first = names[0] in letters  # else the summed dims stand last, as in a tied embedding
    matrix = w.astype(x.dtype).reshape((summed, kept) if first else (kept, summed))
    numbers = (((1,), (0 if first else 1,)), ((), ()))
    rows = x.reshape(-1, summed)
    out = lax.dot_general(rows, matrix, numbers, preferred_element_type=dtype)
    return out.reshape(*x.shape[:2], *(shape[n] for n in output[2:]))


def product(spec: str, x: jax.Array, w: Weight) -> jax.Array:
    """einsum(spec, x, w) in the dtype of x; the weight is cast, an int8 one scaled afterwards.

    The summed dims of a scale have size 1 and the others stand last in the output, so it
    broadcasts: `BTD,DNH->BTNH` scales by [1, N, H].
    """
    if not isinstance(w, Quantized):
        return jnp.einsum(spec, x, w.astype(x.dtype))
    out = jnp.einsum(spec, x, w.values.astype(x.dtype))
    inputs, output = spec.split("->")
    letters = inputs.split(",")[1]
    kept = [i for i, letter in enumerate(letters) if letter in output]
    shape = {letters[i]: w.scale.shape[i] for i in kept}
    scale = w.scale.reshape([shape.get(letter, 1) for letter in output])
    return out * scale.astype(x.dtype)
