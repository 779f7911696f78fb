"""Plan -> Layout: bytes divide as the planner divides them, notation and table agree."""

from math import prod

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.every import over_every

from shardwise.models import load_model, parameters, zoo_names
from shardwise.plans import activation_layout, parameter_layout
from shardwise.plans.laws import HEADS, uneven
from shardwise.plans.layouts import (
    UNEVEN,
    compute_share,
    gather_axes,
    is_expert,
    local_size,
    stored_share,
    tensor_letter,
    tensor_share,
)
from shardwise.plans.train import TrainPlan
from shardwise.sharding import Layout

ROWS = {
    model: {r.name: r for r in parameters(load_model(model))}
    for model in ("llama-3-8b", "mixtral-8x7b")
}
DENSE, MOE = ROWS["llama-3-8b"], ROWS["mixtral-8x7b"]
EVERY = {"fsdp": 4, "expert": 2, "context": 2, "tensor": 2}


def plan_of(mesh, **choices):
    return TrainPlan(
        model="llama-3-8b",
        model_hash="",
        slice="cpu",
        mesh=mesh,
        box=(prod(mesh.values()),),
        global_batch_sequences=64,
        sequence_length=8192,
        microbatches=1,
        layers_per_stage=(32 // mesh.get("stage", 1),) * mesh.get("stage", 1),
        **choices,
    )


@pytest.mark.parametrize(
    ("fsdp", "written"),
    [(512, "down[F, D_fsdp]"), (1024, "down[F_fsdp, D]"), (4096, "down[F, D_fsdp]")],
)
def test_a_matrix_out_of_a_block_is_cut_along_f_where_columns_are_few(fsdp, written):
    """D of 4,096 in 1,024 pieces has 4 columns each, F of 14,336 has 14 rows; 4,096 do not divide
    F, so that D stays cut."""
    assert str(parameter_layout(DENSE["mlp.down"], {"fsdp": fsdp})) == written
    assert str(parameter_layout(DENSE["mlp.up"], {"fsdp": fsdp})) == "up[D_fsdp, F]"


@pytest.mark.parametrize(
    ("name", "mesh", "written"),
    [
        ("attention.q", {"fsdp": 4, "tensor": 2}, "q[D_fsdp, N_tensor, H]"),
        ("attention.k", {"fsdp": 4, "tensor": 2}, "k[D_fsdp, K_tensor, H]"),
        ("attention.o", {"fsdp": 4, "tensor": 2}, "o[N_tensor, H, D_fsdp]"),
        ("mlp.down", {"fsdp": 4, "tensor": 2}, "down[F_tensor, D_fsdp]"),
        ("mlp.up", {"tensor": 2}, "up[D, F_tensor]"),
        ("mlp.up", {"fsdp": 4, "context": 2}, "up[D_{fsdp,context}, F]"),
        ("embedding", {"fsdp": 4, "tensor": 2}, "embedding[V_tensor, D_fsdp]"),
        ("norm.final", {"fsdp": 4, "tensor": 2}, "final[D_fsdp]"),
        ("mlp.up", {"data": 8, "replica": 2, "stage": 4}, "up[D, F]"),
        ("mlp.up", {"fsdp": 1}, "up[D, F]"),
    ],
)
def test_parameters_of_a_dense_model(name, mesh, written):
    """The book's W_in[D_X, F_Y] and W_out[F_Y, D_X] (ch. 5.1.3)."""
    layout = parameter_layout(DENSE[name], mesh)
    assert str(layout) == written
    assert Layout.parse(str(layout)) == layout


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("experts.up", "up[E_expert, D_{fsdp,context}, F_tensor]"),
        ("experts.down", "down[E_expert, F_tensor, D_{fsdp,context}]"),
        ("attention.q", "q[D_{fsdp,expert,context}, N_tensor, H]"),
        ("router", "router[D_{fsdp,expert,context}, E]"),
    ],
)
def test_experts_lie_apart_and_the_rest_counts_expert_as_fsdp(name, written):
    assert str(parameter_layout(MOE[name], EVERY)) == written


@settings(max_examples=60)
@given(
    st.sampled_from([*DENSE.values(), *MOE.values()]),
    st.fixed_dictionaries(
        {
            "fsdp": st.sampled_from([1, 2, 8]),
            "expert": st.sampled_from([1, 2, 4]),
            "context": st.sampled_from([1, 2]),
            "tensor": st.sampled_from([1, 2, 8]),
        }
    ),
)
def test_the_layout_stores_the_share_that_memory_counts(row, mesh):
    """Where everything divides, 1/share is the product of the axes in the Layout."""
    layout = parameter_layout(row, mesh)
    cut = prod(mesh[axis] for dim in layout.dims for axis in dim.axes)
    assert stored_share(row, mesh) == pytest.approx(1 / cut)
    gathered = prod(mesh[axis] for axis in gather_axes(row))
    assert compute_share(row, mesh) == pytest.approx(gathered / cut)


@over_every(zoo_names())
def test_every_array_of_the_zoo_has_a_layout(name):
    """Single numbers among them, such as the gates of cross-attention, which nothing cuts."""
    for row in parameters(load_model(name)):
        layout = parameter_layout(row, EVERY)
        assert len(layout.dims) == len(row.dims)
        assert row.dims or not layout.axes


@pytest.mark.parametrize(
    ("mesh", "parallel", "written"),
    [
        ({"fsdp": 4, "tensor": 2}, True, "x[B_fsdp, T_tensor, D]"),
        ({"fsdp": 4, "tensor": 2}, False, "x[B_fsdp, T, D]"),
        (
            {"replica": 2, "data": 2, "fsdp": 2, "expert": 2, "context": 2, "tensor": 2},
            True,
            "x[B_{replica,data,fsdp,expert}, T_{context,tensor}, D]",
        ),
        ({"stage": 4}, True, "x[B, T, D]"),
        ({}, True, "x[B, T, D]"),
    ],
)
def test_activations_between_blocks(mesh, parallel, written):
    plan = plan_of(mesh, sequence_parallel=parallel)
    layout = activation_layout("block_input", plan)
    assert layout is not None
    assert str(layout) == written
    assert Layout.parse(str(layout)) == layout


def test_which_letter_tensor_cuts():
    letters = {name: tensor_letter(row) for name, row in MOE.items()}
    assert letters["attention.q"] == letters["attention.o"] == "N"
    assert letters["attention.k"] == letters["attention.v"] == "K"
    assert letters["experts.up"] == letters["experts.down"] == "F"
    assert letters["embedding"] == letters["lm_head"] == "V"
    assert letters["router"] == letters["norm.mlp"] == ""
    assert [n for n, row in MOE.items() if is_expert(row)] == [
        "experts.gate",
        "experts.up",
        "experts.down",
    ]


def test_latent_attention_cuts_heads_and_replicates_latents():
    rows = {r.name: r for r in parameters(load_model("deepseek-v3")) if r.group == 0}
    assert tensor_letter(rows["attention.q_up"]) == tensor_letter(rows["attention.k_up"]) == "N"
    assert tensor_letter(rows["attention.kv_down"]) == ""
    assert tensor_share(rows["attention.kv_down"], 8) == 1.0


@pytest.mark.parametrize(
    ("name", "tensor", "share"),
    [
        ("attention.q", 8, 1 / 8),
        ("attention.k", 8, 1 / 8),
        ("attention.k", 16, 1 / 8),  # eight KV heads: two devices keep the same one
        ("mlp.up", 3, 4779 / 14336),  # 14336 / 3 rounded up
        ("norm.mlp", 8, 1.0),
    ],
)
def test_what_does_not_divide_is_padded_or_replicated(name, tensor, share):
    assert tensor_share(DENSE[name], tensor) == pytest.approx(share)


@pytest.mark.parametrize(("tensor", "share"), [(4, 1 / 4), (8, 1 / 8), (16, 1.0), (3, 1.0)])
def test_jax_keeps_all_kv_heads_where_tensor_does_not_divide_them(tensor, share):
    assert tensor_share(DENSE["attention.k"], tensor, whole_heads=True) == pytest.approx(share)


def test_local_size_rounds_up():
    assert local_size(100, 8) == 13
    assert local_size(96, 8) == 12


@pytest.mark.parametrize(
    ("letter", "size", "degree", "said"),
    [
        (
            "N",
            32,
            3,
            "mesh axis 'tensor' of 3 does not divide N=32 query heads; the nearest that do: 2 or 4",
        ),
        (
            "N",
            12,
            5,
            "mesh axis 'tensor' of 5 does not divide N=12 query heads; the nearest that do: 4 or 6",
        ),
        (
            "E",
            8,
            16,
            "mesh axis 'tensor' of 16 does not divide E=8 experts; the nearest that do: 8",
        ),
    ],
)
def test_dims_that_are_refused_name_the_nearest_degrees(letter, size, degree, said):
    assert UNEVEN[letter] == "refuse"
    assert uneven(letter, size, "tensor", degree) == said


def test_other_uneven_dims_are_padded_or_replicated():
    assert (UNEVEN["F"], UNEVEN["K"]) == ("pad", "replicate")
    assert HEADS.problem(load_model("llama-3-8b"), {"tensor": 8}) is None
