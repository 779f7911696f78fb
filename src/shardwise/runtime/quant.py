"""Matmuls with weights as they are stored, and int8 weights with one scale per output channel."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import ModelConfig, Parameter, parameters


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
    """The parameter tree with every matmul weight and every table that is looked up in int8.

    Tables have one scale per row, which also is what a tied head needs: its output channels are
    the table's rows. Norms, biases and routers stay: few bytes, and the errors that cost most.
    """
    axes = {(row.group, row.name): _summed(row) for row in parameters(cfg)}

    def one(group: int | None, name: str, w: Any) -> Any:
        summed = axes.get((group, name), ())
        return quantise(w, summed) if summed else w

    layers = tuple(
        {name: one(group, name, w) for name, w in stack.items()}
        for group, stack in enumerate(params["layers"])
    )
    outside = {name: one(None, name, w) for name, w in params.items() if name != "layers"}
    return {**outside, "layers": layers}


def _summed(row: Parameter) -> tuple[int, ...]:
    """Axes of a row's array that one scale spans: those that a matmul sums over, the width of a
    looked-up row; none where the row stays as it is."""
    if row.component == "router" or row.role not in ("matmul", "lookup"):
        return ()
    first = 0 if row.group is None else 1
    letters = [letter for letter, _ in row.dims]
    contracted = letters[-1:] if row.role == "lookup" else row.contracts
    return tuple(first + i for i, letter in enumerate(letters) if letter in contracted)


def looked_up(w: Weight, rows: jax.Array, dtype: Any) -> jax.Array:
    """Rows of a table [V, D] in `dtype`; of an int8 one only those rows are made wide."""
    if not isinstance(w, Quantized):
        return w.astype(dtype)[rows]
    return (w.values[rows].astype(w.scale.dtype) * w.scale[rows]).astype(dtype)


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
        return product(spec, x, w, dtype)
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


def product(spec: str, x: jax.Array, w: Weight, dtype: Any = None) -> jax.Array:
    """einsum(spec, x, w); the weight is cast to the dtype of x, an int8 one scaled afterwards.
    `dtype` is what it adds up in, is scaled in and gives, that of x unless said.

    The summed dims of a scale have size 1 and the others stand last in the output, so it
    broadcasts: `BTD,DNH->BTNH` scales by [1, N, H].
    """
    if not isinstance(w, Quantized):
        return jnp.einsum(spec, x, w.astype(x.dtype), preferred_element_type=dtype)
    out = jnp.einsum(spec, x, w.values.astype(x.dtype), preferred_element_type=dtype)
    inputs, output = spec.split("->")
    letters = inputs.split(",")[1]
    kept = [i for i, letter in enumerate(letters) if letter in output]
    shape = {letters[i]: w.scale.shape[i] for i in kept}
    scale = w.scale.reshape([shape.get(letter, 1) for letter in output])
    return out * scale.astype(out.dtype)
