"""Sharded arrays and products in the book's notation, asked in numbers (ch. 3)."""

from collections.abc import Mapping, Sequence

from shardwise.errors import BadRequest
from shardwise.hardware import Slice, place
from shardwise.roofline.chip_roofline import Times
from shardwise.roofline.strategies import rings, seconds, times
from shardwise.sharding import (
    Einsum,
    Layout,
    Mesh,
    bytes_per_device,
    copies,
    local_shape,
    resolve,
    sizes_of,
)


def sharded_bytes(layout: Layout, shape: Sequence[int], mesh: Mesh, dtype: str = "bf16") -> float:
    """Bytes of an array that one device holds."""
    return bytes_per_device(layout, sizes_of(layout, shape), mesh, dtype)


def local_sizes(layout: Layout, shape: Sequence[int], mesh: Mesh) -> tuple[int, ...]:
    """The shape of an array's block on one device."""
    return local_shape(layout, sizes_of(layout, shape), mesh)


def layout_copies(layout: Layout, mesh: Mesh) -> int:
    """Devices that hold the same block: the axes of the mesh that the layout does not name."""
    return copies(layout, mesh)


def sharded_product_times(
    expression: str, slice: Slice, mesh: Mesh, sizes: Mapping[str, int], links: str = "slice"
) -> Times:
    """T_math and T_comms of the quickest program for a sharded product on a slice.

    `links` "slice" takes the axes as they lie there, lines where they do not wrap, "ring" every
    axis as a ring with V / W, which is how the book counts.
    """
    if links not in ("slice", "ring"):
        raise BadRequest(f"links is '{links}'; it is 'slice' or 'ring'")
    placement = place(slice, dict(mesh))
    cost = seconds(slice.chip, placement)
    best = resolve(Einsum.parse(expression), mesh, sizes, cost=cost).best
    if links == "ring":
        return times(best.program, slice.chip, rings(slice.chip, mesh))
    return times(best.program, slice.chip, placement.axes, mode="exact")
