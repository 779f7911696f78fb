"""Saved activations against counts by hand; policies nest; recompute costs."""

from dataclasses import replace

import pytest
from tests.every import over_every

from shardwise.errors import BadRequest
from shardwise.models import load_model, zoo_names
from shardwise.models.activations import (
    activation_bytes,
    book_activation_bytes,
    recompute_flops_per_token,
    saved_activations,
    saved_scores,
)
from shardwise.models.flops import flops_by_op
from shardwise.models.remat import REMAT_POLICIES, remat_row
from shardwise.models.training_state import training_state


def kept(cfg, policy, group=0):
    saved = saved_activations(cfg, cfg.groups[group])
    return {a.name: a for a in saved if a.place(policy) != "recompute"}


def width(cfg, policy, group=0):
    return sum(a.width for a in kept(cfg, policy, group).values())


def test_llama_keeps_seven_matmul_outputs_and_the_block_input():
    cfg = load_model("llama-3-70b")
    D, F, N, K, H = 8192, 28672, 64, 8, 128
    assert len(kept(cfg, "matmul_outputs")) == remat_row("matmul_outputs").book_saved + 1
    assert width(cfg, "matmul_outputs") == D + (N + 2 * K) * H + D + 2 * F + D


def test_llama_without_remat():
    """Stream twice, two norms, Q, K, V, the attention's output, four F-wide, and statistics."""
    cfg = load_model("llama-3-70b")
    D, F, N, K, H = 8192, 28672, 64, 8, 128
    statistics = N + 2
    assert width(cfg, "none") == 4 * D + (2 * N + 2 * K) * H + 4 * F + statistics
    # About as many D-wide tensors as the book counts.
    assert width(cfg, "none") / D == pytest.approx(remat_row("none").book_saved, rel=0.02)


def test_block_keeps_the_input_on_the_device_and_offload_on_the_host():
    cfg = load_model("llama-3-70b")
    block = 80 * 8192 * 2 * 4096
    assert activation_bytes(cfg, "block", 4096) == block
    assert activation_bytes(cfg, "offload", 4096) == 0
    assert activation_bytes(cfg, "offload", 4096, place="host") == block
    assert activation_bytes(cfg, "block", 4096, place="host") == 0


def test_statistics_stay_in_f32():
    cfg = load_model("llama-3-70b")
    bf16, fp8 = (activation_bytes(cfg, "none", dtype=d) for d in ("bf16", "fp8"))
    assert 2 * fp8 - bf16 == 4 * 80 * (64 + 2)


def test_scores_that_are_written_out_keep_a_wide_softmax_twice():
    """PyTorch's softmax under autocast: 4 bytes, and 2 for the product with the values."""
    layer = load_model("llama-3-8b").groups[0]
    (narrow,) = saved_scores(layer, 1024.0)
    assert narrow.bytes_per_token(2) == 2 * 32 * 1024
    wide = saved_scores(layer, 1024.0, wide=True)
    assert sum(a.bytes_per_token(2) for a in wide) == 6 * 32 * 1024
    assert all(a.sharded for a in wide)


def test_tensor_cuts_heads_and_d_ff_only():
    saved = kept(load_model("llama-3-70b"), "none")
    assert {a.letter for a in saved.values()} == {"", "N", "K", "F"}
    assert saved["attention.k output"].letter == "K"
    assert saved["mlp product"].letter == "F"
    assert not saved["block input"].sharded


def test_experts_are_kept_k_times():
    cfg = load_model("mixtral-8x7b")
    saved = kept(cfg, "none")
    assert saved["experts.up output"].width == 2 * 14336
    assert saved["experts product"].width == 2 * 14336
    assert saved["dispatched tokens"].width == 2 * 4096
    assert saved["experts.down output"].width == 2 * 4096


def test_qk_norm_and_post_norms_need_their_inputs():
    assert "normed queries" in kept(load_model("qwen3-8b"), "none")
    assert "post_mlp norm input" in kept(load_model("gemma-2-9b"), "none")


@over_every(zoo_names())
def test_policies_shrink_for_every_model(name):
    cfg = load_model(name)
    sizes = [activation_bytes(cfg, policy) for policy in ("none", "matmul_outputs", "block")]
    assert sizes[0] > sizes[1] > sizes[2] > 0
    for group, layer in enumerate(cfg.groups):
        saved = saved_activations(cfg, layer)
        assert all(a.width > 0 for a in saved if a.name != "norm statistics"), name
        matmuls = [
            op for op in flops_by_op(cfg, 0) if op.op_class == "matmul" and op.group == group
        ]
        outputs = [
            a for a in saved if a.name.endswith(" output") and a.place("matmul_outputs") == "keep"
        ]
        assert len(outputs) == len(matmuls)


def test_the_books_count():
    assert book_activation_bytes(4e6, 64, 8192, 20) == 83886080000000
    saved = {policy: remat_row(policy).book_saved for policy in REMAT_POLICIES}
    assert saved == {"none": 20, "matmul_outputs": 7, "block": 1, "offload": 0}


def test_recompute_of_each_policy():
    cfg = load_model("llama-3-8b")
    ops = [op for op in flops_by_op(cfg, 8192) if op.group is not None]
    attention = sum(op.forward for op in ops if op.op_class == "attention")
    got = {policy: recompute_flops_per_token(cfg, policy, 8192) for policy in REMAT_POLICIES}
    assert got["none"] == 0
    assert got["matmul_outputs"] == attention
    assert got["block"] == got["offload"] == sum(op.forward for op in ops)


def test_a_longer_stack_keeps_more():
    cfg = load_model("llama-3-8b")
    more = replace(cfg, pattern=(*cfg.pattern, 0))
    grown = activation_bytes(more, "none") / activation_bytes(cfg, "none")
    assert grown == pytest.approx(33 / 32)


def test_unknown_policies_are_refused():
    with pytest.raises(BadRequest, match="unknown remat policy 'full'"):
        activation_bytes(load_model("llama-3-8b"), "full")
    with pytest.raises(BadRequest, match="did you mean 'block'"):
        recompute_flops_per_token(load_model("llama-3-8b"), "blocks", 4096)


def test_training_state_by_kind():
    assert training_state().total == 10
    mixed = training_state(grad="f32", master="f32") * 1e9
    assert (mixed.params, mixed.gradients, mixed.optimizer) == (2e9, 4e9, 12e9)
    assert mixed.total == 18e9
    with pytest.raises(BadRequest, match="unknown dtype"):
        training_state(moments="f31")
