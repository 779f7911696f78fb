"""Adafactor without first moment: a matrix's second moments kept as row and column sums.

V ~ R C / mean(R) with R[rows], C[columns] the running means of g^2 over the other side (Shazeer and
Stern 2018, arXiv:1804.04235, algorithms 4 to 6). optax has it for one matrix per array, whose sides
are the two longest dims; here an array is a stack of layers and experts and a side may be several
dims (heads and their width), so the sides follow from the parameter table. f32 whatever the plan's
moments.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

DECAY = 0.8
"""b2 of step t is 1 - t^-0.8 (section 7.2)."""
EPSILON = 1e-30
CLIP = 1.0
"""Root mean square of an update at most (section 6)."""

Sides = tuple[tuple[int, ...], tuple[int, ...]] | None
"""The dims of an array that are a matrix's rows and its columns; None for a vector."""


class FactoredMoments(NamedTuple):
    """Steps taken; trees like the parameters of row means, of column means, and of whole moments,
    None where a leaf has the other kind."""

    steps: jax.Array
    rows: Any
    columns: Any
    whole: Any


def scale_by_adafactor(sides: Callable[[Any], Any]) -> optax.GradientTransformation:
    """g -> g / sqrt(V), clipped to a root mean square of 1 per matrix; `sides` gives a tree of
    `Sides` (as leaves) for a tree of parameters.

    Where a mesh pads a dim, the padding counts in that mean; the factors do not change by it.
    """

    def init(params: Any) -> FactoredMoments:
        def zeros(w: jax.Array, at: Sides, side: int) -> jax.Array | None:
            return None if at is None else jnp.zeros_like(w.sum(at[1 - side]))

        leaves, tree, ats = _flat(params, sides)
        rows, columns = (
            [zeros(w, at, side) for w, at in zip(leaves, ats, strict=True)] for side in (0, 1)
        )
        whole = [
            jnp.zeros_like(w) if at is None else None for w, at in zip(leaves, ats, strict=True)
        ]
        made = (tree.unflatten(part) for part in (rows, columns, whole))
        return FactoredMoments(jnp.zeros((), jnp.int32), *made)

    def update(grads: Any, state: FactoredMoments, params: Any = None) -> Any:
        count = state.steps + 1
        keep = 1.0 - count.astype(jnp.float32) ** -DECAY
        leaves, tree, ats = _flat(grads, sides)
        kept = (tree.flatten_up_to(part) for part in state[1:])
        done = [
            _vector(g, whole, keep) if at is None else _matrix(g, at, rows, columns, keep)
            for g, at, rows, columns, whole in zip(leaves, ats, *kept, strict=True)
        ]
        updates, *moments = (tree.unflatten(part) for part in zip(*done, strict=True))
        return updates, FactoredMoments(count, *moments)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


def _flat(tree: Any, sides: Callable[[Any], Any]) -> tuple[list[Any], Any, list[Sides]]:
    leaves, made = jax.tree.flatten(tree)
    return leaves, made, made.flatten_up_to(sides(tree))


def _matrix(
    g: jax.Array, at: tuple[tuple[int, ...], tuple[int, ...]], rows: Any, columns: Any, keep: Any
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    """The update of a matrix, or a stack of them, and its new factors."""
    on_rows, on_columns = at
    square = jnp.square(g) + EPSILON
    rows = keep * rows + (1 - keep) * square.mean(on_columns)
    columns = keep * columns + (1 - keep) * square.mean(on_rows)
    R, C = jnp.expand_dims(rows, on_columns), jnp.expand_dims(columns, on_rows)
    scale = jax.lax.rsqrt(R / R.mean(on_rows, keepdims=True)) * jax.lax.rsqrt(C)
    return _clipped(g * scale, on_rows + on_columns), rows, columns, None


def _vector(g: jax.Array, whole: Any, keep: Any) -> tuple[jax.Array, None, None, jax.Array]:
    whole = keep * whole + (1 - keep) * (jnp.square(g) + EPSILON)
    # The last dim is the vector; those before it, if any, stack layers.
    return _clipped(g * jax.lax.rsqrt(whole), (g.ndim - 1,)), None, None, whole


def _clipped(u: jax.Array, dims: tuple[int, ...]) -> jax.Array:
    rms = jnp.sqrt(jnp.square(u).mean(dims, keepdims=True))
    return u / jnp.maximum(1.0, rms / CLIP)
