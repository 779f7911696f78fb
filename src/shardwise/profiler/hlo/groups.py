"""Device groups of HLO collectives, and the logical mesh axes they run over.

Groups are written in three ways: out, `{{0,1},{2,3}}`; as a shape over a transposed iota,
`[2,4]<=[4,2]T(1,0)`: arange(8) reshaped to [4,2], transposed, reshaped to 2 groups of 4; and as
axes of the compiler's own mesh, `mesh['axis_0'=4,'axis_1'=2] {'axis_1'}`, whose device order may
follow (`device_ids=([2,4]T(1,0))`) and of which parts may be named, `'axis_0':(2)2`: within 2 parts
2 ways. Permutes name (source, target) pairs. Ids are positions in the mesh's device order, the last
axis fastest, as jit numbers its partitions.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

import numpy as np

from shardwise.errors import BadRequest, shown
from shardwise.profiler.hlo.numbers import MOST_DEVICES, integer, integers
from shardwise.sharding.mesh import Mesh
from shardwise.work import Sends

Groups = tuple[tuple[int, ...], ...]

_LIST = re.compile(r"\{([\d,\s]*)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:, device_ids=\((.*)\))? \{([^}]*)\}$")
_DEVICES = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_TILES = re.compile(r"devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_AXIS = re.compile(r"'?([^',=:]+)'?(?:=(\d+))?(?::\((\d+)\)(\d+))?")


class MeshAxes(NamedTuple):
    """The axes along which the members of a group differ, in mesh order.

    `whole` is False where a group is only a part of the devices along them (a subgroup of an axis).
    """

    axes: tuple[str, ...]
    whole: bool


@lru_cache(maxsize=1024)
def read_groups(text: str, devices: int) -> Groups:
    """Replica groups; none written means one group of all devices. Raises BadRequest.

    >>> read_groups("[2,4]<=[4,2]T(1,0)", 8)
    ((0, 2, 4, 6), (1, 3, 5, 7))
    >>> read_groups("mesh['axis_0'=2,'axis_1'=4] {'axis_1':(1)2}", 8)
    ((0, 2), (1, 3), (4, 6), (5, 7))
    """
    what = f"replica groups {shown(text)}"
    if named := _MESH.match(text.strip()):
        groups = _mesh_groups(named[1], named[2] or "", named[3], devices, what)
    elif iota := _IOTA.match(text.strip()):
        shape = integers(iota[1], what, least=1)
        ids = _iota(iota[2], iota[3], devices, what)
        if prod(shape) != ids.size:
            raise BadRequest(f"{what} are {prod(shape)} places for {ids.size} devices")
        groups = tuple(tuple(map(int, row)) for row in ids.reshape(shape[0], -1))
    else:
        groups = tuple(integers(group, what) for group in _LIST.findall(text) if group.strip())
        if _LIST.sub("", text).strip("{}, \n") or (not groups and re.sub(r"[{}\s]", "", text)):
            raise BadRequest(f"{what} cannot be read")
    groups = groups or (tuple(range(devices)),)
    every = [device for group in groups for device in group]
    if max(every) >= devices or len(set(every)) < len(every):
        raise BadRequest(
            f"{what} must name each device once, and no more than the program's {devices}"
        )
    return groups


def _iota(dims: str, order: str | None, devices: int, what: str) -> np.ndarray:
    """0, 1, ... in a shape, transposed where an order is given."""
    sizes = integers(dims, what, least=1)
    if prod(sizes) > devices or len(sizes) > 32:
        raise BadRequest(f"{what} are of more than the program's {devices} devices, or 32 dims")
    ids = np.arange(prod(sizes)).reshape(sizes)
    if not order:
        return ids
    permuted = integers(order, what)
    if sorted(permuted) != list(range(len(sizes))):
        raise BadRequest(f"{what} transpose by T({order}), which names not each dim once")
    return ids.transpose(permuted)


def _mesh_groups(axes: str, order: str, grouped: str, devices: int, what: str) -> Groups:
    sizes = {name: integer(size, what, least=1) for name, size, _, _ in _AXIS.findall(axes)}
    if prod(sizes.values()) > devices or len(sizes) > 32:
        raise BadRequest(f"{what} are of more than the program's {devices} devices, or 32 axes")
    ids = np.arange(prod(sizes.values()))
    if found := _DEVICES.match(order):
        ids = _iota(found[1], found[2], devices, what)
    elif order:
        ids = np.array(integers(order, what))
    if ids.size != prod(sizes.values()):
        raise BadRequest(f"{what} name {ids.size} devices for {prod(sizes.values())} places")
    ids = ids.reshape(list(sizes.values()))
    named = _AXIS.findall(grouped)
    members = [_member(sizes, name, before, size, what) for name, _, before, size in named]
    groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for at in np.ndindex(ids.shape):
        inside = tuple(at[axis] // stride % size for axis, stride, size in members)
        rest = list(at)
        for axis, stride, size in members:
            rest[axis] -= at[axis] // stride % size * stride
        groups.setdefault(tuple(rest), []).append((inside, int(ids[at])))
    return tuple(tuple(device for _, device in sorted(group)) for group in groups.values())


def _member(
    sizes: dict[str, int], name: str, before: str, size: str, what: str
) -> tuple[int, int, int]:
    """An axis or a part of one as (which axis, stride of the part within it, its size)."""
    if name not in sizes:
        raise BadRequest(f"{what} are over axis {shown(name)}, which their mesh lacks")
    outer = integer(before or "1", what, least=1)
    part = integer(size or str(sizes[name]), what, least=1)
    if sizes[name] % (outer * part):
        raise BadRequest(f"{what} cut axis '{name}' of {sizes[name]} into {outer} x {part}")
    return list(sizes).index(name), sizes[name] // (outer * part), part


def read_tiles(text: str, devices: int) -> np.ndarray | None:
    """The devices of an HLO sharding by the places of its tiles, `{devices=[2,1,4]<=[8]}`; None of
    one in another form. Raises BadRequest."""
    found = _TILES.search(text)
    if found is None:
        return None
    what = f"sharding {shown(text)}"
    tiles = integers(found[1], what, least=1)
    ids = _iota(found[2], found[3], devices, what)
    if prod(tiles) != ids.size or len(tiles) > 32:
        raise BadRequest(f"{what} has {prod(tiles)} tiles for {ids.size} devices, or over 32 dims")
    return ids.reshape(tiles)


@lru_cache(maxsize=1024)
def read_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """(source, target) pairs of a permute, `{{0,1},{1,0}}`. Raises BadRequest."""
    what = f"pairs {shown(text)}"
    pairs = []
    for pair in _LIST.findall(text):
        if pair.strip():
            found = integers(pair, what, most=MOST_DEVICES)
            if len(found) != 2:
                raise BadRequest(f"{what} must each be a source and a target")
            pairs.append((found[0], found[1]))
    if _LIST.sub("", text).strip("{}, \n"):
        raise BadRequest(f"{what} cannot be read")
    return tuple(pairs)


@lru_cache(maxsize=4096)
def mesh_axes(groups: Groups, mesh: Mesh) -> MeshAxes:
    """The axes that a collective with these groups (or pairs) runs over.

    >>> mesh_axes(((0, 4), (1, 5), (2, 6), (3, 7)), Mesh.parse("X=2,Y=4"))
    MeshAxes(axes=('X',), whole=True)
    """
    places = list(mesh.devices())
    varied: set[str] = set()
    whole = True
    for group in groups:
        members = {places[device] for device in group}
        seen = [{member[i] for member in members} for i in range(len(mesh))]
        varied |= {axis for axis, values in zip(mesh, seen, strict=True) if len(values) > 1}
        whole = whole and members == set(product(*seen))
    axes = tuple(axis for axis in mesh if axis in varied)
    size = prod(mesh[axis] for axis in axes)
    return MeshAxes(axes, whole and all(len(set(group)) == size for group in groups))


@lru_cache(maxsize=4096)
def ring_step(pairs: Groups, mesh: Mesh) -> int:
    """How many places along its one axis a permute moves, the shorter way round; 0 where its pairs
    move by different steps, along several axes, or exactly half way round.

    >>> ring_step(((0, 1), (1, 2), (2, 3), (3, 0)), Mesh.parse("X=4"))
    1
    >>> ring_step(((0, 3), (1, 0), (2, 1), (3, 2)), Mesh.parse("X=4"))
    -1
    """
    places = list(mesh.devices())
    steps = set()
    for source, target in pairs:
        moves = zip(places[source], places[target], mesh.values(), strict=True)
        steps.add(tuple((b - a) % size for a, b, size in moves))
    if len(steps) != 1:
        return 0
    moved = [(step, size) for step, size in zip(*steps, mesh.values(), strict=True) if step]
    if len(moved) != 1:
        return 0
    step, size = moved[0]
    return 0 if 2 * step == size else step if 2 * step < size else step - size


@lru_cache(maxsize=4096)
def sends_of(pairs: Groups, axes: tuple[str, ...], mesh: Mesh) -> Sends | None:
    """Who sends to whom among the devices of a group along a permute's axes; None for a shift by
    one place along one axis, which is a collective's own rule.

    The groups run at once, each on its own links: where they differ, the one that sends most and
    farthest stands for all.

    >>> sends_of(((0, 0), (1, 2), (2, 1), (3, 3)), ("X", "Y"), Mesh.parse("X=2,Y=2")).pairs
    ((1, 2), (2, 1))
    """
    if not axes or abs(ring_step(pairs, mesh)) == 1:
        return None
    places, sizes = list(mesh.devices()), dict(mesh)
    inside = [i for i, axis in enumerate(sizes) if axis in axes]
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for source, target in pairs:
        if source != target:
            group = tuple(c for i, c in enumerate(places[source]) if i not in inside)
            a, b = (_number(places[end], inside, sizes) for end in (source, target))
            groups.setdefault(group, []).append((a, b))
    most = max(groups.values(), key=lambda g: (len(g), sum(abs(a - b) for a, b in g)))
    return Sends(axes=tuple(a for a in sizes if a in axes), pairs=tuple(most))


def _number(place: Sequence[int], inside: Sequence[int], sizes: Mapping[str, int]) -> int:
    """A device's number in its group, the last axis fastest."""
    number, degrees = 0, list(sizes.values())
    for i in inside:
        number = number * degrees[i] + place[i]
    return number


def recover_mesh(every: Iterable[Sequence[Sequence[int]]], devices: int) -> Mesh:
    """The coarsest mesh, axes a0, a1, ... outermost first, that the groups and pairs fit.

    A group of an axis with stride s and size n starts and ends at the places s and s n of the mixed
    radix of device ids; all such places, if they divide each other, are the edges of the axes.
    Groups that are no such digits are left out.

    >>> str(recover_mesh([((0, 4), (1, 5)), ((0, 1, 2, 3),)], 8))
    'a0=2,a1=4'
    """
    edges = {1, devices}
    for groups in every:
        for group in groups[:1]:
            edges |= _edges(group)
    kept = [1]
    for edge in sorted(edges - {1}):
        if edge % kept[-1] == 0 and devices % edge == 0:
            kept.append(edge)
    sizes = [high // low for low, high in pairwise(kept)]
    return Mesh(tuple((f"a{i}", size) for i, size in enumerate(reversed(sizes))))


def _edges(group: Sequence[int]) -> set[int]:
    """Where the digits begin and end in which the members of a group differ."""
    members = sorted(member - min(group) for member in group)
    edges: set[int] = set()
    while len(members) > 1:
        stride = members[1]
        size = next((n for n, m in enumerate(members) if m != n * stride), len(members))
        edges |= {stride, stride * size}
        members = members[::size]
        if size < 2 or (len(members) > 1 and members[1] % (stride * size)):
            return set()
    return edges
