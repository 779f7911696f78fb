"""What each device holds: shapes, blocks, copies and bytes."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from shardwise.errors import BadRequest
from shardwise.sharding import (
    Dim,
    Layout,
    Mesh,
    block,
    blocks,
    bytes_per_device,
    bytes_total,
    copies,
    global_shape,
    local_shape,
    padded,
    parse_sizes,
    shards,
    sizes_of,
)

MESH = Mesh.parse("X=2,Y=8,Z=2")


@st.composite
def cases(draw):
    """A mesh, a layout over some of its axes, and sizes."""
    degrees = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    mesh = Mesh.of(dict(zip("XYZ", degrees, strict=False)))
    homes = {a: draw(st.integers(0, 3)) for a in draw(st.permutations(list(mesh)))}
    dims = tuple(Dim(n, tuple(a for a, h in homes.items() if h == i)) for i, n in enumerate("IJ"))
    unreduced = tuple(a for a, h in homes.items() if h == 2)
    layout = Layout(name="A", dims=dims, unreduced=unreduced)
    sizes = {name: draw(st.integers(1, 40)) for name in "IJ"}
    return layout, mesh, sizes


@given(cases())
def test_blocks_tile_the_array_as_often_as_there_are_copies(case):
    layout, mesh, sizes = case
    sizes = padded(layout, sizes, mesh).sizes
    held = np.zeros(global_shape(layout, sizes), int)
    for device, here in blocks(layout, sizes, mesh).items():
        assert here == block(layout, sizes, mesh, device)
        assert held[here].shape == local_shape(layout, sizes, mesh)
        held[here] += 1
    partial_sums = np.prod([mesh[axis] for axis in layout.unreduced], initial=1)
    assert (held == copies(layout, mesh) * partial_sums).all()
    whole = held.size * 2.0
    assert bytes_total(layout, sizes, mesh, "bf16") == whole * copies(layout, mesh) * partial_sums
    assert bytes_per_device(layout, sizes, mesh, "bf16") * shards(layout, mesh) == whole


@given(cases())
def test_padding_is_the_least_that_divides(case):
    layout, mesh, sizes = case
    grown = padded(layout, sizes, mesh)
    for dim in layout.dims:
        degree = np.prod([mesh[axis] for axis in dim.axes], initial=1)
        assert grown.sizes[dim.name] % degree == 0
        assert 0 <= grown.sizes[dim.name] - sizes[dim.name] < degree
    assert len(grown.notes) == sum(grown.sizes[n] != sizes[n] for n in sizes)
    assert padded(layout, grown.sizes, mesh).notes == ()


def test_the_books_pop_quiz():
    """Chapter 3.1.1: int8[128, 2048] as A[I_XY, J] on 2 x 8 x 2: 16 KiB each, 512 KiB in all."""
    layout = Layout.parse("A[I_XY, J]")
    sizes = sizes_of(layout, (128, 2048))
    assert local_shape(layout, sizes, MESH) == (8, 2048)
    assert bytes_per_device(layout, sizes, MESH, "int8") == 16384
    assert bytes_total(layout, sizes, MESH, "int8") == 512 * 1024
    assert copies(layout, MESH) == 2


def test_the_first_axis_is_the_major_one():
    """Errata 3.12: X is the major axis of I_XY."""
    mesh = Mesh.parse("X=2,Y=2")
    xy = blocks(Layout.parse("A[I_XY]"), {"I": 4}, mesh)
    yx = blocks(Layout.parse("A[I_YX]"), {"I": 4}, mesh)
    assert [s[0].start for s in xy.values()] == [0, 1, 2, 3]
    assert {d: s[0].start for d, s in yx.items()} == {(0, 0): 0, (0, 1): 2, (1, 0): 1, (1, 1): 3}


def test_an_unreduced_array_is_whole_on_every_device_but_has_no_copies():
    layout, mesh = Layout.parse("C[I, K]{U_X}"), Mesh.parse("X=4,Y=2")
    sizes = {"I": 8, "K": 8}
    assert local_shape(layout, sizes, mesh) == (8, 8)
    assert copies(layout, mesh) == 2
    assert bytes_total(layout, sizes, mesh, "f32") == 8 * 8 * 4 * 8


def test_shards_broadcasts_over_candidate_meshes():
    degrees = {"fsdp": np.array([1, 2, 4]), "tensor": np.array([8, 4, 2])}
    count = shards(Layout.parse("w[D_fsdp, F_tensor]"), degrees)
    assert np.array_equal(count, [8, 8, 8])


def test_uneven_dims_are_refused_with_the_size_to_pad_to():
    layout, mesh = Layout.parse("A[I_XY, J]"), Mesh.parse("X=4,Y=2")
    with pytest.raises(BadRequest) as caught:
        local_shape(layout, {"I": 12, "J": 3}, mesh)
    assert str(caught.value) == (
        "dim 'I' of size 12 in 'A[I_XY, J]' does not divide by 8 (X=4*Y=2); "
        "blocks must be equal, so pad to 16"
    )
    grown = padded(layout, {"I": 12, "J": 3}, mesh)
    assert grown.sizes == {"I": 16, "J": 3}
    assert grown.notes == ("I padded from 12 to 16, 8 ways",)


def test_parse_sizes():
    assert parse_sizes("I=8192, J=16Ki") == {"I": 8192, "J": 16384}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: sizes_of(Layout.parse("A[I, J]"), (1, 2, 3)),
            r"'A\[I, J\]' has 2 dims but 3 sizes were given; give one for each of I, J",
        ),
        (
            lambda: local_shape(Layout.parse("A[I_X, J]"), {"I": 8}, MESH),
            r"dim 'J' of 'A\[I_X, J\]' has no size; give every dim one, such as J=1024",
        ),
        (
            lambda: global_shape(Layout.parse("A[I]"), {"I": 0}),
            r"dim 'I' of 'A\[I\]' has size 0; a size is a whole number of at least 1",
        ),
        (
            lambda: copies(Layout.parse("A[I_tensor]"), Mesh.parse("fsdp=2,tensr=2")),
            r"unknown mesh axis 'tensor'; did you mean 'tensr'\? \('A\[I_tensor\]' is laid out on",
        ),
        (
            lambda: block(Layout.parse("A[I_X]"), {"I": 8}, MESH, (0, 0, 2)),
            r"device \(0, 0, 2\) is not on mesh X=2,Y=8,Z=2; give one index per axis",
        ),
        (
            lambda: block(Layout.parse("A[I_X]"), {"I": 8}, MESH, (0, 0)),
            r"device \(0, 0\) is not on mesh",
        ),
        (lambda: parse_sizes("I=8.5"), "dim 'I' has size 8.5; a size is a whole number"),
        (lambda: parse_sizes("I=4,I=8"), "dim 'I' has two sizes in 'I=4,I=8'; remove one"),
        (lambda: parse_sizes("I=-4"), "size of dim I '-4' must be positive and finite"),
        (lambda: parse_sizes("I"), "dims 'I' cannot be read at 'I'; write sizes like I=8192"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(BadRequest, match=message):
        call()
