"""The ring of one mesh axis: blocks that go round it, and sums that are made on their way."""

from collections.abc import Callable, Iterator

import jax
from jax import lax

Start = jax.Array | int


def hop(x: jax.Array, axis: str, by: int) -> jax.Array:
    """Every device gives its block to the one `by` places further along the ring."""
    places = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + by) % places) for i in range(places)])


def place(axis: str, away: int) -> jax.Array:
    """The place on the ring that is `away` places after this device's."""
    return (lax.axis_index(axis) + away) % lax.axis_size(axis)


def arriving(
    x: jax.Array, axis: str, dim: int, *, bidirectional: bool
) -> Iterator[tuple[Start, jax.Array]]:
    """All blocks of a dim that the ring cuts, this device's first: (start in the whole dim, block).

    One direction: |Y| - 1 hops. Both: floor(|Y| / 2); where |Y| is even the block opposite is as
    far one way as the other, and a half comes each way.
    """
    places, size = lax.axis_size(axis), x.shape[dim]
    half = size // 2
    yield place(axis, 0) * size, x
    if not bidirectional or not half:
        for away in range(1, places):
            x = hop(x, axis, -1)
            yield place(axis, away) * size, x
        return
    after = before = x
    for away in range(1, (places - 1) // 2 + 1):
        after, before = hop(after, axis, -1), hop(before, axis, 1)
        yield place(axis, away) * size, after
        yield place(axis, -away) * size, before
    if places % 2 == 0:
        start = place(axis, places // 2) * size
        first = lax.slice_in_dim(after, 0, half, axis=dim)
        second = lax.slice_in_dim(before, half, size, axis=dim)
        yield start, hop(first, axis, -1)
        yield start + half, hop(second, axis, 1)


def travelling_sum(
    part: Callable[[Start, int], jax.Array], size: int, axis: str, dim: int, *, bidirectional: bool
) -> jax.Array:
    """The block, `size` long in `dim`, that this device keeps of a sum over the ring.

    `part(start, size)` makes this device's summand for a range of the whole dim. One direction:
    |Y| - 1 hops of a block. Both: floor(|Y| / 2); sums come from both sides and meet, and where |Y|
    is even the summand of the device opposite comes in halves, one each way.
    """
    places, half = lax.axis_size(axis), size // 2
    far = places // 2

    def own(away: int, start: int = 0, length: int = size) -> jax.Array:
        return part(place(axis, away) * size + start, length)

    if places == 1:
        return own(0)
    if not bidirectional or not half:
        out = own(1)
        for step in range(2, places + 1):
            out = hop(out, axis, -1) + own(step)
        return out
    down, up = own(-far), own(far)
    if places % 2 == 0:
        down, up = own(far, 0, half), own(far, half, size - half)
    for away in range(far - 1, 0, -1):
        down = _add(own(-away), hop(down, axis, -1), 0, dim)
        up = _add(own(away), hop(up, axis, 1), half, dim)
    out = _add(own(0), hop(down, axis, -1), 0, dim)
    return _add(out, hop(up, axis, 1), half, dim)


def _add(out: jax.Array, more: jax.Array, start: int, dim: int) -> jax.Array:
    """Add a whole block, or the half of one that begins at `start`."""
    if more.shape == out.shape:
        return out + more
    here = lax.slice_in_dim(out, start, start + more.shape[dim], axis=dim)
    return lax.dynamic_update_slice_in_dim(out, here + more, start, dim)
