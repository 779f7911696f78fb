"""One layer on one device: every op against a formula of its own."""

from dataclasses import replace

import pytest
from tests.planner.steps import (
    EXPERTS_PER_TOKEN,
    FE,
    MLP,
    D,
    E,
    F,
    H,
    K,
    N,
    dense,
    moe,
    rows_of,
    step,
)

from shardwise.models import load_model
from shardwise.models.specs import Extra
from shardwise.planner.step.layer import backward_layer, chain, forward_layer
from shardwise.work import Work

TOKENS = 4 * 128


def forward(cfg, shape, group=0):
    rows = rows_of(cfg, group)
    return forward_layer(cfg, cfg.groups[group], rows, shape.layer_shape)


def by_name(ops):
    return {o.name: o for o in ops}


def test_the_ops_of_a_dense_layer_in_order():
    names = [o.name for o in forward(dense(), step())]
    assert names == [
        "attention.norm",
        "attention.q",
        "attention.k",
        "attention.v",
        "attention.rotary",
        "attention.core",
        "attention.o",
        "mlp.norm",
        "mlp.gate",
        "mlp.up",
        "mlp.activation",
        "mlp.down",
    ]


def test_every_op_waits_for_the_one_before():
    ops = forward(dense(), step(tensor=2, context=2))
    assert [o.after for o in ops] == [(), *((o.id,) for o in ops[:-1])]


def test_convolutions_of_an_attention_layer_read_and_write_their_channels():
    cfg = dense()
    conv = Extra(name="attention.conv_k", dims=(("K", K), ("H", H), ("W", 4)), role="conv")
    own = replace(cfg, groups=(replace(cfg.groups[0], extras=(conv,)),))
    op = by_name(forward(own, step()))["attention.conv"]
    assert op.flops == {"bf16": 2 * 4 * K * H * TOKENS}
    assert op.hbm_bytes == 2 * 2 * K * H * TOKENS


def test_matmul_flops_and_bytes():
    ops = by_name(forward(dense(), step()))
    for name, k, n in [
        ("attention.q", D, N * H),
        ("attention.k", D, K * H),
        ("attention.o", N * H, D),
        ("mlp.gate", D, F),
        ("mlp.down", F, D),
    ]:
        o = ops[name]
        assert o.flops == {"bf16": 2 * TOKENS * k * n}
        assert o.hbm_bytes == 2 * (TOKENS * k + k * n + TOKENS * n)
        assert (o.matmul.m, o.matmul.k, o.matmul.n, o.matmul.batch) == (TOKENS, k, n, 1)


def test_tensor_cuts_the_side_that_holds_heads_or_d_ff():
    ops = by_name(forward(dense(), step(tensor=2)))
    assert (ops["attention.q"].matmul.k, ops["attention.q"].matmul.n) == (D, N * H / 2)
    assert (ops["attention.o"].matmul.k, ops["attention.o"].matmul.n) == (N * H / 2, D)
    assert (ops["mlp.up"].matmul.k, ops["mlp.up"].matmul.n) == (D, F / 2)
    assert (ops["mlp.down"].matmul.k, ops["mlp.down"].matmul.n) == (F / 2, D)
    assert ops["mlp.down"].matmul.m == TOKENS


def test_kv_heads_are_replicated_beyond_their_number():
    """Two KV heads over tensor=8: each device keeps one of them, four times as much as 1/8."""
    ops = by_name(forward(dense(), step(tensor=8)))
    assert ops["attention.k"].matmul.n == H
    assert ops["attention.q"].matmul.n == N * H / 8


def test_d_ff_is_padded_where_tensor_does_not_divide_it():
    cfg = dense(intermediate_size=161)
    assert by_name(forward(cfg, step(tensor=2)))["mlp.up"].matmul.n == 81


def test_flash_attention_counts_half_the_scores_and_streams_q_k_v_o():
    core = by_name(forward(dense(), step()))["attention.core"]
    assert core.flops == {"bf16": 4 * TOKENS * (128 / 2) * N * H}
    assert core.hbm_bytes == 2 * TOKENS * (2 * N * H + 2 * K * H)


def test_context_gathers_keys_and_values_of_the_whole_sequence():
    ops = by_name(forward(dense(), step(context=4)))
    wire = ops["attention.kv"].collective
    assert (wire.kind, wire.axes) == ("all_gather", ("context",))
    assert wire.bytes == TOKENS * 2 * K * H * 2  # all tokens, K and V, bf16
    assert ops["attention.core"].flops == {"bf16": 4 * TOKENS / 4 * (128 / 2) * N * H}
    assert ops["mlp.up"].matmul.m == TOKENS / 4


@pytest.mark.parametrize("parallel", [True, False])
def test_tensor_exchanges_around_each_block(parallel):
    """Gather before and scatter after a block, each of the block's whole activations; without
    sequence parallelism one all-reduce after it (Megatron-LM)."""
    ops = forward(dense(), step(tensor=2, sequence_parallel=parallel))
    wires = [o.collective for o in ops if o.collective]
    kinds = ["all_gather", "reduce_scatter"] * 2 if parallel else ["all_reduce"] * 2
    assert [w.kind for w in wires] == kinds
    assert {(w.axes, w.bytes) for w in wires} == {(("tensor",), TOKENS * D * 2)}


def test_norms_are_cut_by_tensor_only_under_sequence_parallelism():
    """Residual and norm fused: read two streams, write two, of the tokens a device holds."""
    for parallel, share in ((True, 2), (False, 1)):
        ops = by_name(forward(dense(), step(tensor=2, sequence_parallel=parallel)))
        assert ops["mlp.norm"].hbm_bytes == 4 * 2 * TOKENS / share * D


def test_the_activation_reads_both_halves_and_writes_one():
    o = by_name(forward(dense(), step(tensor=2)))["mlp.activation"]
    assert o.hbm_bytes == 3 * 2 * TOKENS * F / 2


def test_experts_multiply_the_tokens_routed_to_them():
    ops = by_name(forward(moe(), step()))
    for name in ("experts.gate", "experts.up", "experts.down"):
        o = ops[name]
        assert o.flops["bf16"] == pytest.approx(2 * TOKENS * EXPERTS_PER_TOKEN * D * FE)
        assert o.matmul.m * o.matmul.batch == pytest.approx(TOKENS * EXPERTS_PER_TOKEN)
    # 512 tokens hit every one of 8 experts.
    assert ops["experts.up"].matmul.batch == pytest.approx(E)
    assert ops["router"].flops["bf16"] == 2 * TOKENS * D * E


def test_few_tokens_read_only_the_experts_they_hit():
    """One token hits k of E experts; its FLOPs do not change."""
    ops = by_name(forward(moe(), step(sequences=1.0, length=1)))
    assert ops["experts.up"].matmul.batch == pytest.approx(EXPERTS_PER_TOKEN)
    assert ops["experts.up"].matmul.m == pytest.approx(1.0)
    assert ops["experts.up"].flops["bf16"] == pytest.approx(2 * EXPERTS_PER_TOKEN * D * FE)


def test_expert_parallelism_spreads_experts_and_keeps_flops():
    """A device of an expert group of 4 has 2 experts with the tokens of all 4 devices."""
    o = by_name(forward(moe(), step(expert=4)))["experts.up"]
    assert o.matmul.batch == pytest.approx(E / 4)
    assert o.matmul.m == pytest.approx(TOKENS * 4 * EXPERTS_PER_TOKEN / E)
    assert o.flops["bf16"] == pytest.approx(2 * TOKENS * EXPERTS_PER_TOKEN * D * FE)


@pytest.mark.parametrize(
    ("tensor", "parallel", "share"), [(1, True, 1), (2, True, 2), (2, False, 1)]
)
def test_expert_exchange_bytes(tensor, parallel, share):
    """Every token of the group goes to k experts: V = group tokens x k x D x 2 bytes."""
    ops = by_name(forward(moe(), step(expert=4, tensor=tensor, sequence_parallel=parallel)))
    for name in ("experts.dispatch", "experts.combine"):
        wire = ops[name].collective
        assert (wire.kind, wire.axes) == ("all_to_all", ("expert",))
        assert wire.bytes == 4 * TOKENS / share * EXPERTS_PER_TOKEN * D * 2


def test_backward_is_the_forward_reversed_and_transposed():
    ops = forward(dense(), step(tensor=2, context=2))
    back = backward_layer(ops)
    want = []
    for o in reversed(ops):
        want += [f"d {o.name}", *[f"dW {o.name}"] * (o.op_class == "matmul")]
    assert [o.name for o in back] == want
    assert back[0].after == ()
    assert [o.after for o in back[1:]] == [(o.id,) for o in back[:-1]]
    swap = {"all_gather": "reduce_scatter", "reduce_scatter": "all_gather"}
    backward = by_name(back)
    for o in ops:
        d = backward[f"d {o.name}"]
        assert d.phase == "backward"
        if o.collective:
            assert d.collective == replace(o.collective, kind=swap[o.collective.kind])


def test_backward_factors():
    """dX and dW are two matmuls of the forward's size; attention makes five products for two, as
    flash attention keeps no scores (FlashAttention-2, section 3.1)."""
    ops = by_name(forward(dense(), step()))
    back = by_name(backward_layer(forward(dense(), step())))
    for name, factor in [("d mlp.up", 1), ("dW mlp.up", 1), ("d attention.core", 2.5)]:
        assert back[name].flops["bf16"] == factor * ops[name.split()[1]].flops["bf16"]
    assert back["d mlp.norm"].hbm_bytes == 2 * ops["mlp.norm"].hbm_bytes


def test_gradients_of_a_matmul_have_dims_and_phases_of_their_own():
    """dX[T, D] = dY[T, F] W^T[F, D]; dW[D, F] = X^T[D, T] dY[T, F], which may run later."""
    back = by_name(backward_layer(forward(dense(), step())))
    inputs, weights = back["d mlp.up"], back["dW mlp.up"]
    assert (inputs.matmul.m, inputs.matmul.k, inputs.matmul.n) == (TOKENS, F, D)
    assert (weights.matmul.m, weights.matmul.k, weights.matmul.n) == (D, TOKENS, F)
    assert (inputs.phase, weights.phase) == ("backward", "weight")


def test_an_empty_chain():
    assert chain([]) == ()


def test_wide_dtypes_of_a_step():
    """fp8 matmuls keep bf16 activations; weights move in fp8."""
    from shardwise.plans import TrainDtypes

    ops = by_name(forward(dense(), step(dtypes=TrainDtypes(compute="fp8"))))
    o = ops["mlp.up"]
    assert set(o.flops) == {"fp8"}
    assert o.hbm_bytes == D * F + 2 * (TOKENS * D + TOKENS * F)


@pytest.mark.parametrize(
    "model",
    ["llama-3-8b", "deepseek-v3", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b", "gemma-2-9b"],
)
def test_every_matmul_row_of_a_layer_becomes_one_op(model):
    """Nothing of the parameter table is left out or counted twice, whatever the architecture."""
    cfg = load_model(model)
    for group, layer in enumerate(cfg.groups):
        rows = rows_of(cfg, group)
        ops = forward_layer(cfg, layer, rows, step(length=4096).layer_shape)
        matmuls = [o for o in ops if o.op_class == "matmul"]
        assert sorted(o.name for o in matmuls) == sorted(r.name for r in rows)
        want = sum(2 * r.size * float(r.active) for r in rows) * 4 * 4096
        assert Work(tuple(matmuls)).flops() == pytest.approx(want)
        assert not Work(ops).unknown()


def test_the_mlp_of_a_dense_layer_is_six_d_f():
    ops = [o for o in forward(dense(), step()) if o.name in ("mlp.gate", "mlp.up", "mlp.down")]
    assert Work(tuple(ops)).flops() == 2 * TOKENS * MLP == 6 * TOKENS * D * F


def test_fp8_leaves_head_and_router_in_16_bits():
    from shardwise.planner.step.work import train_work
    from shardwise.plans import TrainDtypes

    work = train_work(moe(), step(dtypes=TrainDtypes(compute="fp8")))
    dtypes = {o.name: set(o.flops) for o in work.ops if o.phase == "forward" and o.flops}
    assert dtypes["router"] == dtypes["lm_head"] == dtypes["attention.core"] == {"bf16"}
    assert dtypes["experts.up"] == dtypes["attention.q"] == {"fp8"}


def test_a_ring_of_blocks_merges_its_answers_where_the_kernel_meets_one_at_a_time():
    """Per hop 9 passes over queries and output, 3 over keys and values (`ring_kernel.py`)."""
    choices = {"stack": "jax", "context_method": "ring"}
    ops = by_name(forward(dense(), step(context=4, tensor=2, choices=choices)))
    local = TOKENS / 4 * 2 * H * 2
    assert ops["attention.merges"].hbm_bytes == 3 * local * (9 * N / 2 + 3 * K / 2)
    for other in ({"stack": "xla"}, {"context_method": "all_gather"}):
        names = by_name(forward(dense(), step(context=4, choices={**choices, **other})))
        assert "attention.merges" not in names
    assert "attention.merges" not in by_name(forward(dense(), step(tensor=2, choices=choices)))


def test_gathered_keys_of_dealt_rows_are_put_in_order():
    """Read and written once (`all_gather.py`)."""
    choices = {"stack": "jax", "context_method": "all_gather"}
    ops = by_name(forward(dense(), step(context=4, tensor=2, choices=choices)))
    assert ops["attention.order"].hbm_bytes == 2 * TOKENS * 2 * H * 2 * K / 2
    assert "attention.core.tiles" not in {o.id for o in ops.values()}
    plain = by_name(forward(dense(), step(context=4, choices={**choices, "stack": "xla"})))
    assert "attention.order" not in plain
