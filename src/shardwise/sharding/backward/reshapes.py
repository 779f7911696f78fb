"""Reshapes of local blocks: how the cuts of a dim go over to the dims that it splits into.

A block of N = K * M is contiguous, so it is a block of (K, M) only if the cuts fill K before they
reach M (book 7.3.3: `N_YZ` is `K_Y, M_Z` because Y has as many devices as there are KV heads).
"""

from collections.abc import Sequence
from dataclasses import replace

from shardwise.errors import BadRequest
from shardwise.sharding.layout import Dim, Layout
from shardwise.sharding.local import Sizes
from shardwise.sharding.mesh import Mesh


def local_reshape(before: Layout, after: Layout, sizes: Sizes, mesh: Mesh) -> tuple[Layout, Layout]:
    """The layouts between which the local reshape runs, so that `before` moves there and on.

    The array moves before the reshape where the wanted cuts can be named in its old dims, else
    after it; where neither can, the reshaped dims are gathered.
    """
    reduced = replace(before, unreduced=())
    back = _carry(after, before, sizes, mesh)
    if back is not None:
        return back, after
    there = _carry(reduced, after, sizes, mesh)
    if there is not None:
        return reduced, there
    old, _ = _changed(before, after)
    whole = replace(reduced, dims=tuple(Dim(d.name) if d.name in old else d for d in before.dims))
    there = _carry(whole, after, sizes, mesh)
    assert there is not None
    return whole, there


def _carry(source: Layout, goal: Layout, sizes: Sizes, mesh: Mesh) -> Layout | None:
    """The dims of `goal` with the cuts of `source`, or None where the blocks differ."""
    old, new = _changed(source, goal)
    if len(old) == 1:
        cuts = _split(source.dim(old[0]).axes, new, sizes, mesh)
    else:
        cuts = _merge([source.dim(name) for name in old], new[0], sizes, mesh)
    if cuts is None:
        return None
    same = {dim.name: dim.axes for dim in source.dims if dim.name not in old}
    dims = tuple(Dim(name, (same | cuts)[name]) for name in goal.letters)
    return Layout(name=goal.name, dims=dims)


def _split(
    axes: Sequence[str], names: Sequence[str], sizes: Sizes, mesh: Mesh
) -> dict[str, tuple[str, ...]] | None:
    cuts: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    rest, left = list(axes), 1
    for name in names:
        left = _size(name, sizes)
        while rest and left % mesh[rest[0]] == 0:
            left //= mesh[rest[0]]
            cuts[name] += (rest.pop(0),)
        if left > 1:
            break
    return None if rest else cuts


def _merge(
    dims: Sequence[Dim], name: str, sizes: Sizes, mesh: Mesh
) -> dict[str, tuple[str, ...]] | None:
    axes: tuple[str, ...] = ()
    full = True
    for dim in dims:
        if dim.axes and not full:
            return None
        axes += dim.axes
        left = _size(dim.name, sizes)
        for axis in dim.axes:
            left //= mesh[axis]
        full = full and left == 1
    return {name: axes}


def _changed(source: Layout, goal: Layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The dims that differ between the two, once the same ones at both ends are taken off."""
    a, b = list(source.letters), list(goal.letters)
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    if 1 not in (len(a), len(b)) or not a or not b:
        rule = "a reshape splits one dim or merges neighbours into one"
        raise BadRequest(f"'{source}' cannot be reshaped to '{goal}'; {rule}")
    return tuple(a), tuple(b)


def _size(name: str, sizes: Sizes) -> int:
    if name not in sizes:
        rule = f"a reshape needs the sizes of its dims, such as {name}=8"
        raise BadRequest(f"dim '{name}' has no size; {rule}")
    return sizes[name]
