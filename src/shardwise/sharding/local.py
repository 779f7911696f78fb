"""What each device holds of a laid-out array: shapes, blocks, copies and bytes.

`sizes` maps a dim's name to its length; it may hold dims of other arrays too. A dim that does not
divide is refused: JAX takes no uneven inputs, so the caller pads with `padded`, in sight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from shardwise.errors import BadRequest, Remark, check_known
from shardwise.sharding.layout import Dim, Layout
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.notation import read_assignments
from shardwise.units import dtype_bytes, parse_count
from shardwise.work import Quantity

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Padded:
    """Sizes that divide, and one sentence per dim that had to grow."""

    sizes: Sizes
    notes: tuple[str, ...]


def sizes_of(layout: Layout, shape: Sequence[int]) -> dict[str, int]:
    """Pair the dims with a shape; raises BadRequest unless there is one size per dim.

    >>> sizes_of(Layout.parse("A[I_X, J]"), (8, 4))
    {'I': 8, 'J': 4}
    """
    if len(shape) != len(layout.dims):
        dims = ", ".join(layout.letters)
        problem = f"'{layout}' has {len(layout.dims)} dims but {len(shape)} sizes were given"
        raise BadRequest(f"{problem}; give one for each of {dims}")
    return dict(zip(layout.letters, shape, strict=True))


MOST_SIZE = 1e15
"""Of one dim."""


def parse_sizes(text: str) -> dict[str, int]:
    """Read `I=8192,J=16Ki`; raises BadRequest for anything that is not a whole positive size."""
    sizes: dict[str, int] = {}
    for name, value in read_assignments(text, "dims", "sizes like I=8192,J=16Ki"):
        size = parse_count(value, f"size of dim {name}")
        if size > MOST_SIZE:
            raise BadRequest(f"dim '{name}' has size {size:g}; at most {MOST_SIZE:g} makes sense")
        if size != int(size):
            raise BadRequest(f"dim '{name}' has size {value}; a size is a whole number")
        if name in sizes:
            raise BadRequest(f"dim '{name}' has two sizes in '{text}'; remove one")
        sizes[name] = int(size)
    return sizes


def check_mesh(layout: Layout, mesh: Mesh) -> None:
    """Raise BadRequest, with the nearest names, if the layout uses an axis that the mesh lacks."""
    for axis in (*layout.axes, *layout.unreduced):
        check_known("mesh axis", axis, mesh, f"'{layout}' is laid out on mesh {mesh}")


def shards(layout: Layout, degrees: Mapping[str, Quantity]) -> Quantity:
    """Number of different blocks: the product of the degrees of all cutting axes.

    `degrees` may be a Mesh or hold arrays over candidate meshes. Every axis must be in it.
    """
    return prod((degrees[axis] for axis in layout.axes), start=1)


def global_shape(layout: Layout, sizes: Sizes) -> tuple[int, ...]:
    """The whole array's shape."""
    return tuple(_size(layout, dim, sizes) for dim in layout.dims)


def local_shape(layout: Layout, sizes: Sizes, mesh: Mesh) -> tuple[int, ...]:
    """One device's block: each size divided by the degrees of the axes that cut it.

    >>> local_shape(Layout.parse("A[I_XY, J]"), {"I": 128, "J": 2048}, Mesh.parse("X=2,Y=8,Z=2"))
    (8, 2048)
    """
    check_mesh(layout, mesh)
    return tuple(_local(layout, dim, sizes, mesh) for dim in layout.dims)


def padded(layout: Layout, sizes: Sizes, mesh: Mesh) -> Padded:
    """The smallest sizes, none below the given ones, that the mesh divides; with what was done."""
    check_mesh(layout, mesh)
    grown, notes = dict(sizes), []
    for dim in layout.dims:
        size, degree = _size(layout, dim, sizes), _degree(dim, mesh)
        grown[dim.name] = -(-size // degree) * degree
        if grown[dim.name] != size:
            said = f"{dim.name} padded from {size} to {grown[dim.name]}, {degree} ways"
            notes.append(Remark(said))
    return Padded(sizes=grown, notes=tuple(notes))


def copies(layout: Layout, mesh: Mesh) -> int:
    """How many devices hold the same block. Partial sums over an unreduced axis are no copies."""
    check_mesh(layout, mesh)
    used = (*layout.axes, *layout.unreduced)
    return prod(degree for axis, degree in mesh.items() if axis not in used)


def bytes_per_device(layout: Layout, sizes: Sizes, mesh: Mesh, dtype: str) -> float:
    """Bytes of one device's block (or partial sum): elements of the local shape x dtype bytes."""
    return prod(local_shape(layout, sizes, mesh)) * dtype_bytes(dtype)


def bytes_total(layout: Layout, sizes: Sizes, mesh: Mesh, dtype: str) -> float:
    """Bytes over all devices of the mesh, copies and partial sums included."""
    return bytes_per_device(layout, sizes, mesh, dtype) * mesh.size


def block(layout: Layout, sizes: Sizes, mesh: Mesh, device: Sequence[int]) -> tuple[slice, ...]:
    """The block that the device at these coordinates (in the mesh's axis order) holds, per dim.

    The first axis of a dim is the major one: along `I_XY` the block of I is x * |Y| + y (errata
    3.12). Raises BadRequest for coordinates that the mesh does not have.
    """
    shape = local_shape(layout, sizes, mesh)
    inside = len(device) == len(mesh) and all(
        0 <= at < degree for at, degree in zip(device, mesh.values(), strict=True)
    )
    if not inside:
        raise BadRequest(f"device {tuple(device)} is not on mesh {mesh}; give one index per axis")
    return _block(layout, shape, mesh, device)


def blocks(layout: Layout, sizes: Sizes, mesh: Mesh) -> dict[tuple[int, ...], tuple[slice, ...]]:
    """Which device holds which block: `block` of every device, the mesh's last axis fastest."""
    shape = local_shape(layout, sizes, mesh)
    return {device: _block(layout, shape, mesh, device) for device in mesh.devices()}


def _block(
    layout: Layout, shape: tuple[int, ...], mesh: Mesh, device: Sequence[int]
) -> tuple[slice, ...]:
    at = dict(zip(mesh, device, strict=True))
    starts = []
    for dim, length in zip(layout.dims, shape, strict=True):
        index = 0
        for axis in dim.axes:
            index = index * mesh[axis] + at[axis]
        starts.append(index * length)
    return tuple(slice(s, s + n) for s, n in zip(starts, shape, strict=True))


def _local(layout: Layout, dim: Dim, sizes: Sizes, mesh: Mesh) -> int:
    size, degree = _size(layout, dim, sizes), _degree(dim, mesh)
    if size % degree:
        cut = "*".join(f"{axis}={mesh[axis]}" for axis in dim.axes)
        larger = -(-size // degree) * degree
        problem = (
            f"dim '{dim.name}' of size {size} in '{layout}' does not divide by {degree} ({cut})"
        )
        raise BadRequest(f"{problem}; blocks must be equal, so pad to {larger}")
    return size // degree


def _size(layout: Layout, dim: Dim, sizes: Sizes) -> int:
    if dim.name not in sizes:
        remedy = f"give every dim one, such as {dim.name}=1024"
        raise BadRequest(f"dim '{dim.name}' of '{layout}' has no size; {remedy}")
    if sizes[dim.name] < 1:
        rule = "a size is a whole number of at least 1"
        raise BadRequest(f"dim '{dim.name}' of '{layout}' has size {sizes[dim.name]}; {rule}")
    return sizes[dim.name]


def _degree(dim: Dim, mesh: Mesh) -> int:
    return prod(mesh[axis] for axis in dim.axes)
