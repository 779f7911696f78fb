"""Steps as single tiled collectives: minor axes, permutations and predicted bytes."""

import pytest

from shardwise.errors import BadRequest
from shardwise.sharding import Layout, Mesh
from shardwise.sharding.lowering import lowered, permutation, predicted_collectives, small_sizes
from shardwise.sharding.steps import Program, ShardStep

MESH = Mesh.parse("X=2,Y=2,Z=2")


def step(kind, before, after, axes="", dim="", to_dim=""):
    layouts = (Layout.parse(before), Layout.parse(after))
    return ShardStep(
        kind=kind, inputs=layouts[:1], output=layouts[1], axes=tuple(axes), dim=dim, to_dim=to_dim
    )


def program(*steps, mesh=MESH):
    return Program(mesh=mesh, sizes={"I": 16, "J": 8}, dtype="f32", steps=steps)


@pytest.mark.parametrize(
    ("whole", "parts"),
    [
        (
            step("all_gather", "A[I_XY, J]", "A[I_X, J]", "Y", "I"),
            ["A[I_X, J] = AllGather_Y(A[I_XY, J])"],
        ),
        (
            step("all_gather", "A[I_XY, J]", "A[I_Y, J]", "X", "I"),
            [
                "A[I_YX, J] = Permute_XY(A[I_XY, J])",
                "A[I_Y, J] = AllGather_X(A[I_YX, J])",
            ],
        ),
        (
            step("reduce_scatter", "A[I_Y, J]{U_X}", "A[I_XY, J]", "X", "I"),
            [
                "A[I_YX, J] = ReduceScatter_X(A[I_Y, J]{U_X}, I)",
                "A[I_XY, J] = Permute_XY(A[I_YX, J])",
            ],
        ),
        (
            step("all_to_all", "A[I_XY, J_Z]", "A[I_Y, J_ZX]", "X", "I", "J"),
            [
                "A[I_YX, J_Z] = Permute_XYZ(A[I_XY, J_Z])",
                "A[I_Y, J_ZX] = AllToAll_X(A[I_YX, J_Z], I->J)",
            ],
        ),
        (
            step("slice", "A[I_Y, J]", "A[I_YX, J]", "X", "I"),
            ["A[I_YX, J] = Slice_X(A[I_Y, J])"],
        ),
    ],
)
def test_tiled_collectives_take_the_minor_axes(whole, parts):
    assert [str(s) for s in lowered(program(whole)).steps] == parts


def test_a_permute_moves_each_block_to_the_device_that_wants_it():
    swap = step("permute", "A[I_XY, J]", "A[I_YX, J]", "XY")
    assert permutation(swap, MESH) == ((0, 0), (1, 2), (2, 1), (3, 3))
    # I_X -> I_Y: device (x, y) gets block y, which (y, x) has.
    moved = step("permute", "A[I_X, J]", "A[I_Y, J]", "XY")
    assert permutation(moved, MESH) == ((0, 0), (1, 2), (2, 1), (3, 3))


def test_a_permute_over_too_few_axes_is_refused():
    swap = step("permute", "A[I_XY, J]", "A[I_YX, J]", "X")
    with pytest.raises(BadRequest, match="is not a permute over X; the blocks must"):
        permutation(swap, MESH)


def test_predicted_bytes():
    steps = (
        step("permute", "A[I_XY, J]", "A[I_YX, J]", "XYZ"),
        step("all_gather", "A[I_YX, J]", "A[I, J]", "YX", "I"),
        step("slice", "A[I, J]", "A[I, J_Z]", "Z", "J"),
    )
    found = predicted_collectives(program(*steps))
    # A block is [4, 8] float32; nothing moves along Z.
    assert [(c.kind, c.axes, c.bytes) for c in found] == [
        ("permute", ("X", "Y"), 128.0),
        ("all_gather", ("X", "Y"), 512.0),
    ]


def test_a_group_of_one_device_sends_nothing():
    gather = step("all_gather", "A[I_X, J]", "A[I, J]", "X", "I")
    assert predicted_collectives(program(gather, mesh=Mesh.parse("X=1,Y=2"))) == ()
    still = step("permute", "A[I_XY, J]", "A[I_YX, J]", "XY")
    mesh = Mesh.parse("X=1,Y=2")
    assert predicted_collectives(program(still, mesh=mesh)) == ()
    assert [s.kind for s in lowered(program(still, mesh=mesh)).steps] == ["slice"]


def test_small_sizes_divide_like_the_real_ones():
    swap = step("permute", "A[I_XY, J]", "A[I_YX, J]", "XY")
    mesh = Mesh.parse("X=3,Y=5")
    large = Program(mesh=mesh, sizes={"I": 150_000, "J": 7}, dtype="f32", steps=(swap,))
    assert small_sizes(large) == {"I": 60, "J": 7}
