"""ReduceScatters in the forms that libtpu keeps.

What it cannot scatter it sums whole on every device and cuts then: twice the bytes. By compiling
each form (libtpu 0.0.42.1, v4 to v6e; docs/lab/log.md of 2026-11-26) it scatters

- over one group of devices that is not all of the slice, so over one mesh axis after the other,
  each of which leaves less for the next, and not over several at once;
- what has no leading dim of size 1: `[1, T, D]` along T is summed whole, `[T, D]` is not;
- pieces of whole tiles: of few rows only where the columns are a power of two (`ROWS`).

On GPUs one exchange over all axes is the faster one (NCCL), so nothing is taken apart there.
"""

from collections.abc import Sequence

import jax
from jax import lax

ROWS = 64
"""Rows of a piece from which on any number of columns is scattered; along a ring of devices 16 do,
over two axes of a torus 64."""


def scattered(x: jax.Array, dim: int, names: Sequence[str], *, at_once: bool = False) -> jax.Array:
    """x summed over mesh axes and cut along `dim` by them, the first outermost; in `shard_map`."""
    if at_once:
        return lax.psum_scatter(x, tuple(names), scatter_dimension=dim, tiled=True)
    ones = next((i for i, n in enumerate(x.shape[:dim]) if n > 1), dim)
    shape, x = x.shape[:ones], x.reshape(x.shape[ones:])
    for name in names:
        x = lax.psum_scatter(x, name, scatter_dimension=dim - ones, tiled=True)
    return x.reshape(*shape, *x.shape)


def blocks(rows: int, columns: int) -> list[int]:
    """The columns of a matrix in the parts that pieces of so many rows are scattered in.

    >>> blocks(8, 14336), blocks(64, 14336)
    ([8192, 4096, 2048], [14336])
    """
    if rows >= ROWS:
        return [columns]
    return [1 << bit for bit in reversed(range(columns.bit_length())) if columns >> bit & 1]
