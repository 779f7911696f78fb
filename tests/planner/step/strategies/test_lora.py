"""Adapters and frozen components: what is trained, moved and kept."""

import pytest
from tests.planner.steps import (
    ATTENTION,
    LAYER,
    MLP,
    PARAMS,
    D,
    F,
    H,
    K,
    L,
    N,
    V,
    dense,
    moe,
    over,
    step,
)

from shardwise.models import load_model, params_total
from shardwise.planner.price.memory import train_memory
from shardwise.planner.step.parts import tensors_of
from shardwise.planner.step.strategies.lora import adapters
from shardwise.planner.step.work import train_work

RANK = 4
WIDTHS = (D + N * H) * 2 + (D + K * H) * 2 + 3 * (D + F)
"""Sides of a layer's seven matrices: an adapter has RANK of each."""
TOKENS = 4 * 128


def lora(**degrees):
    return step(choices={"lora_rank": RANK}, **degrees)


def test_an_adapter_has_a_rank_of_both_sides():
    rows = adapters(tensors_of(dense(), step()).rows, RANK)
    assert sum(r.params for r in rows) == L * RANK * WIDTHS


def test_a_known_count_of_adapters():
    """Llama 2 7B, r = 16 on all linear layers: 39,976,960 trained parameters, as PEFT prints."""
    cfg = load_model("llama-2-7b")
    trained = sum(r.params for r in adapters(tensors_of(cfg, step()).rows, 16))
    assert trained == 39_976_960


def test_frozen_matrices_have_no_weight_gradient():
    """A matmul that is not trained runs twice, forward and for dX, not three times; embedding and
    head are frozen too. Adapters run three times."""
    base = 2 * TOKENS * (L * (ATTENTION + MLP) + D * V)
    small = 2 * TOKENS * L * RANK * WIDTHS
    work = train_work(dense(), lora())
    assert work.where(lambda o: o.op_class == "matmul").flops() == pytest.approx(
        2 * base + 3 * small
    )


def test_only_adapters_are_reduced_and_updated():
    trained = L * RANK * WIDTHS
    work = train_work(dense(), lora(data=2))
    assert over(work, "data").collective_bytes("reduce_scatter") == pytest.approx(2 * trained)
    kinds = dict(train_memory(dense(), lora()).points)["backward"]
    assert float(kinds["params"]) == 2 * (PARAMS + trained)
    assert float(kinds["gradients"]) == 2 * trained
    assert float(kinds["optimizer"]) == 12 * trained


def test_fsdp_gathers_what_is_frozen_and_scatters_what_is_not():
    trained = L * RANK * WIDTHS
    wires = over(train_work(dense(), lora(fsdp=2)), "fsdp")
    assert wires.collective_bytes("all_gather") == pytest.approx(
        2 * (PARAMS + L * LAYER + 2 * trained)
    )
    assert wires.collective_bytes("reduce_scatter") == pytest.approx(2 * trained)


def test_tensor_cuts_adapters_where_it_cuts_the_matrix():
    """B of up is cut by F, A of down too; the sides along D are whole."""
    work = train_work(dense(), lora(tensor=2))
    dims = {o.name: o.matmul for o in work.ops if o.phase == "forward" and o.matmul}
    assert (dims["mlp.up.lora_a"].k, dims["mlp.up.lora_a"].n) == (D, RANK)
    assert (dims["mlp.up.lora_b"].k, dims["mlp.up.lora_b"].n) == (RANK, F / 2)
    assert (dims["mlp.down.lora_a"].k, dims["mlp.down.lora_a"].n) == (F / 2, RANK)


def test_routed_experts_have_no_adapters():
    rows = adapters(tensors_of(moe(), step()).rows, RANK)
    assert rows
    assert not any("experts" in r.name for r in rows)


def test_frozen_components_keep_parameters_only():
    shape = step(choices={"frozen": ("embedding", "lm_head")})
    kinds = dict(train_memory(dense(), shape).points)["backward"]
    assert float(kinds["params"]) == 2 * PARAMS
    assert float(kinds["gradients"]) == 2 * (PARAMS - 2 * V * D)
    whole = train_work(dense(), step()).flops()
    assert whole - train_work(dense(), shape).flops() == pytest.approx(2 * TOKENS * D * V)
    assert params_total(dense()) == PARAMS
