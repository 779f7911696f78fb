"""Hops on the ring of one mesh axis, and the place on it that is some hops away."""

import jax
from jax import lax


def hop(x: jax.Array, axis: str, by: int) -> jax.Array:
    """Every device gives its block to the one `by` places further along the ring."""
    places = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + by) % places) for i in range(places)])


def place(axis: str, away: int) -> jax.Array:
    """The place on the ring that is `away` places after this device's."""
    return (lax.axis_index(axis) + away) % lax.axis_size(axis)
