"""Mesh: order, size, text, and the text of every refusal."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from shardwise.errors import BadRequest
from shardwise.sharding import Mesh

AXES = st.one_of(st.sampled_from("XYZ"), st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True))
MESHES = st.dictionaries(AXES, st.integers(1, 10**6), min_size=1, max_size=4).map(Mesh.of)


@given(MESHES)
def test_a_mesh_round_trips(mesh):
    assert Mesh.parse(str(mesh)) == mesh
    assert hash(Mesh.parse(str(mesh))) == hash(mesh)
    assert Mesh.of(mesh) == mesh


def test_a_mesh_is_an_ordered_mapping():
    mesh = Mesh.parse(" X=4, fsdp = 2 ")
    assert list(mesh) == ["X", "fsdp"]
    assert dict(mesh) == {"X": 4, "fsdp": 2}
    assert mesh.size == 8
    assert mesh.degree("fsdp") == 2
    assert Mesh.parse("X=4,Y=2") != Mesh.parse("Y=2,X=4")


def test_numpy_degrees_become_plain():
    mesh = Mesh.of({"X": np.int64(4)})
    assert type(mesh["X"]) is int
    assert mesh == Mesh.parse("X=4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("X=0", "mesh axis 'X' has degree 0; a degree is a whole number of at least 1"),
        ("X=-4", "mesh axis 'X' has degree -4; a degree is a whole number of at least 1"),
        ("X=2.5", "mesh axis 'X' has degree '2.5'; a degree is a whole number of at least 1, as"),
        ("X=4,X=2", "mesh axis 'X' appears twice in 'X=4,X=2'; an axis has one degree, so remove"),
        ("XY=4", r"mesh axis 'XY' is not an axis name; an axis is one capital letter \(X\) or"),
        ("X4", "mesh 'X4' cannot be read at 'X4'; write axes and degrees like X=4,Y=2"),
        ("X=4,,Y=2", "mesh 'X=4,,Y=2' cannot be read at ''; write axes and degrees"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(BadRequest, match=message):
        Mesh.parse(text)


def test_an_unknown_axis_gets_the_nearest_names():
    mesh = Mesh.parse("fsdp=4,tensor=2")
    with pytest.raises(BadRequest) as caught:
        mesh.degree("tensr")
    assert str(caught.value) == (
        "unknown mesh axis 'tensr'; did you mean 'tensor'? (the mesh is fsdp=4,tensor=2)"
    )


def test_devices_of_a_huge_axis_come_one_at_a_time():
    devices = Mesh.parse("X=999999999,Y=2").devices()
    assert [next(devices) for _ in range(3)] == [(0, 0), (0, 1), (1, 0)]
