"""Matmuls with weights as they are stored: floats, or small numbers with scales beside them.

| kept in | values | a scale spans |
|---|---|---|
| int8 | -127 ... 127 | an output channel |
| fp8 | e4m3, up to 448 | an output channel |
| int4 | -7 ... 7 | 32 inputs of an output channel |

A scale that spans all inputs is applied to the output; of int4 the weight is made wide where it is
read, in the same loop.
"""

from collections.abc import Mapping
from math import gcd, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import ModelConfig, Parameter, parameters


class NarrowForm(NamedTuple):
    """Small numbers: their dtype, the largest, and how many inputs share a scale (0: all)."""

    dtype: Any
    most: float
    inputs: int = 0


NARROW: Mapping[str, NarrowForm] = {
    "int8": NarrowForm(jnp.int8, 127),
    "fp8": NarrowForm(jnp.float8_e4m3fn, 448),
    "int4": NarrowForm(jnp.int4, 7, 32),
}
"""By the names that plans use."""


class Quantized(NamedTuple):
    """A weight w = values * scale. A summed dim of the f32 scale has size 1, or one for each group
    of inputs."""

    values: jax.Array
    scale: jax.Array


Weight = jax.Array | Quantized


def quantise(w: jax.Array, summed: tuple[int, ...], kept: str = "int8") -> Quantized:
    """Symmetric: scale = max |w| / most over the `summed` axes, or over groups of inputs along the
    last of them.

    The error of an element is at most half its scale in integers, a 16th of itself in fp8 (3 bits
    behind the point; below 1/512 of the greatest it is more). Where all is zero the scale is 1.
    """
    form, wide = NARROW[kept], w.astype(jnp.float32)
    if form.inputs:
        axis = summed[-1]
        size = gcd(w.shape[axis], form.inputs)
        shape = (*w.shape[:axis], w.shape[axis] // size, size, *w.shape[axis + 1 :])
        most = jnp.abs(wide).reshape(shape).max(axis + 1)
    else:
        most = jnp.abs(wide).max(summed, keepdims=True)
    scale = jnp.where(most == 0, 1.0, most / form.most)
    ratio = wide / _spread(scale, w.shape)
    whole = jnp.issubdtype(form.dtype, jnp.integer)
    return Quantized((jnp.round(ratio) if whole else ratio).astype(form.dtype), scale)


def dequantise(w: Quantized, dtype: Any = jnp.float32) -> jax.Array:
    """The weight that the values and the scale stand for."""
    wide = w.values.astype(jnp.float32) * _spread(w.scale, w.values.shape)
    return wide.astype(dtype)


def scaled_last(w: Weight, summed: tuple[int, ...], dtype: Any) -> Weight:
    """A weight whose scale, if it has one, does not change along the axes that are summed; one
    with a scale for each group of inputs is made wide."""
    if isinstance(w, Quantized) and any(w.scale.shape[i] != 1 for i in summed):
        return dequantise(w, dtype)
    return w


def quantise_params(
    params: Mapping[str, Any], cfg: ModelConfig, kept: str = "int8"
) -> dict[str, Any]:
    """The parameter tree with every matmul weight and every table that is looked up in small
    numbers. Tables have scales of their own in every row, which also is what a tied head needs:
    its output channels are the table's rows. Norms, biases and routers stay: few bytes, and the
    errors that cost most.
    """
    axes = {(row.group, row.name): summed_axes(row) for row in parameters(cfg)}

    def one(group: int | None, name: str, w: Any) -> Any:
        summed = axes.get((group, name), ())
        return quantise(w, summed, kept) if summed else w

    layers = tuple(
        {name: one(group, name, w) for name, w in stack.items()}
        for group, stack in enumerate(params["layers"])
    )
    outside = {name: one(None, name, w) for name, w in params.items() if name != "layers"}
    return {**outside, "layers": layers}


def summed_axes(row: Parameter) -> tuple[int, ...]:
    """Axes of a row's array that a matmul sums over, the width of a looked-up row; none where the
    row stays as it is."""
    if row.component == "router" or row.role not in ("matmul", "lookup"):
        return ()
    first = 0 if row.group is None else 1
    letters = [letter for letter, _ in row.dims]
    contracted = letters[-1:] if row.role == "lookup" else row.contracts
    return tuple(first + i for i, letter in enumerate(letters) if letter in contracted)


def _spread(scale: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """A scale of groups once for each member, so that it broadcasts over `shape`."""
    for axis, (count, size) in enumerate(zip(scale.shape, shape, strict=True)):
        if 1 < count < size:
            scale = jnp.repeat(scale, size // count, axis, total_repeat_length=size)
    return scale


def looked_up(w: Weight, rows: jax.Array, dtype: Any) -> jax.Array:
    """Rows of a table [V, D] in `dtype`; of a quantised one only those rows are made wide."""
    if not isinstance(w, Quantized):
        return w.astype(dtype)[rows]
    return dequantise(Quantized(w.values[rows], w.scale[rows]), dtype)


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
    """einsum(spec, x, w); the weight is cast to the dtype of x, small numbers are scaled after it.
    `dtype` is what it adds up in, is scaled in and gives, that of x unless said.

    The summed dims of a scale have size 1 and the others stand last in the output, so it
    broadcasts: `BTD,DNH->BTNH` scales by [1, N, H].
    """
    inputs, output = spec.split("->")
    letters = inputs.split(",")[1]
    summed = tuple(i for i, letter in enumerate(letters) if letter not in output)
    w = scaled_last(w, summed, x.dtype)
    if not isinstance(w, Quantized):
        return jnp.einsum(spec, x, w.astype(x.dtype), preferred_element_type=dtype)
    out = jnp.einsum(spec, x, w.values.astype(x.dtype), preferred_element_type=dtype)
    kept = [i for i, letter in enumerate(letters) if letter in output]
    shape = {letters[i]: w.scale.shape[i] for i in kept}
    scale = w.scale.reshape([shape.get(letter, 1) for letter in output])
    return out * scale.astype(out.dtype)
