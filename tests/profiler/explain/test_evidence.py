"""HLO shardings in our notation."""

import pytest

from shardwise.profiler.explain.evidence import Argument, sharding_axes
from shardwise.sharding import Layout, Mesh

MESH = Mesh.parse("data=4,tensor=2")


@pytest.mark.parametrize(
    ("text", "cuts", "copies"),
    [
        ("{devices=[4,2]<=[8]}", (("data",), ("tensor",)), ()),
        ("{devices=[2,4]<=[4,2]T(1,0)}", (("tensor",), ("data",)), ()),
        ("{devices=[8,1]<=[8]}", (("data", "tensor"), ()), ()),
        ("{devices=[8,1]<=[4,2]T(1,0)}", (("tensor", "data"), ()), ()),
        ("{devices=[4,1,2]<=[8] last_tile_dim_replicate}", (("data",), ()), ("tensor",)),
        (
            "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}",
            ((), ("tensor",)),
            ("data",),
        ),
        ("{replicated}", ((), ()), ("data", "tensor")),
        ("", ((), ()), ("data", "tensor")),
    ],
)
def test_a_sharding_says_which_axes_cut_which_dim(text, cuts, copies):
    assert sharding_axes(text, 2, MESH) == (cuts, copies)


def test_axes_of_one_device_cut_nothing():
    mesh = Mesh.parse("data=4,stage=1,tensor=2")
    assert sharding_axes("{devices=[4,2]<=[8]}", 2, mesh) == ((("data",), ("tensor",)), ())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("state['params']['layers'][0]['mlp.up']", "up[I_data, J_{tensor,fsdp}]"),
        ("x", "x[I_data, J_{tensor,fsdp}]"),
        ("layers[0]", "A0[I_data, J_{tensor,fsdp}]"),
    ],
)
def test_an_argument_prints_in_our_notation(name, text):
    argument = Argument(
        name=name,
        dtype="bf16",
        dims=(8, 8),
        cuts=(("data",), ("tensor", "fsdp")),
        copies=(),
        donated=False,
        bytes=128.0,
    )
    assert argument.layout == text
    assert str(Layout.parse(text)) == text


def test_a_scalar_argument_has_no_dims():
    argument = Argument(
        name="state.step", dtype="s32", dims=(), cuts=(), copies=(), donated=False, bytes=4.0
    )
    assert argument.layout == "step[]"
