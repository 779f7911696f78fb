"""The mesh behind the groups: what any mesh's collectives show of it."""

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from shardwise.profiler.hlo import mesh_axes, recover_mesh
from shardwise.sharding import Mesh


def groups_over(sizes, chosen):
    """The groups of the axes `chosen` of a mesh of these sizes, ids in row-major order."""
    mesh = Mesh(tuple((f"x{i}", n) for i, n in enumerate(sizes)))
    groups = {}
    for id, place in enumerate(mesh.devices()):
        key = tuple(p for i, p in enumerate(place) if i not in chosen)
        groups.setdefault(key, []).append(id)
    return tuple(map(tuple, groups.values()))


@given(st.lists(st.integers(2, 4), min_size=1, max_size=4), st.data())
def test_groups_are_whole_axes_of_the_mesh_that_they_recover(sizes, data):
    axes = st.sets(st.integers(0, len(sizes) - 1), min_size=1)
    every = [groups_over(sizes, chosen) for chosen in data.draw(st.lists(axes, max_size=3))]
    mesh = recover_mesh(every, prod(sizes))
    assert mesh.size == prod(sizes)
    assert all(mesh_axes(groups, mesh).whole for groups in every)


def test_every_axis_shown_alone_recovers_the_mesh():
    every = [groups_over((2, 3, 4), {i}) for i in range(3)]
    assert str(recover_mesh(every, 24)) == "a0=2,a1=3,a2=4"


def test_groups_that_are_no_axes_are_left_out():
    assert str(recover_mesh([((0, 1, 3), (2, 4, 5))], 6)) == "a0=6"
    assert str(recover_mesh([], 8)) == "a0=8"
