"""Bytes per device of a step, by kind, against counts x bytes per parameter."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.planner.steps import (
    ENDS,
    EXPERTS_PER_TOKEN,
    FE,
    LAYER,
    MLP,
    NORMS,
    PARAMS,
    D,
    E,
    F,
    H,
    K,
    L,
    N,
    V,
    dense,
    moe,
    step,
)

from shardwise.hardware import parse_slice
from shardwise.models import load_model, params_total
from shardwise.planner.price.memory import checkpoint_bytes, train_memory
from shardwise.planner.price.plan import memory_facts
from shardwise.planner.price.working import layer_bytes
from shardwise.planner.step.work import train_work
from shardwise.plans import TrainDtypes

TOKENS = 4 * 128


def kinds(cfg, shape, point="backward"):
    return {k: float(v) for k, v in dict(train_memory(cfg, shape).points)[point].items()}


def test_state_of_mixed_precision_adam():
    """bf16 parameters and gradients, f32 master and two f32 moments: 2 + 2 + 12 bytes."""
    got = kinds(dense(), step())
    assert got["params"] == 2 * PARAMS
    assert got["gradients"] == 2 * PARAMS
    assert got["optimizer"] == 12 * PARAMS


def test_the_book_keeps_ten_bytes_per_parameter():
    """bf16 parameters and f32 moments without a master copy (ch. 5.1.1): 70B is 700 GB."""
    cfg = load_model("llama-3-70b")
    got = kinds(cfg, step(dtypes=TrainDtypes(master="none"), length=8192))
    assert got["params"] + got["optimizer"] == 10 * params_total(cfg)


@pytest.mark.parametrize("axis", ["fsdp", "context"])
def test_storage_axes_divide_all_state(axis):
    got = kinds(dense(), step(**{axis: 4}))
    assert got["params"] + got["gradients"] + got["optimizer"] == pytest.approx(16 * PARAMS / 4)


@pytest.mark.parametrize(("zero", "gradients", "optimizer"), [(0, 1, 1), (1, 1, 4), (2, 4, 4)])
def test_zero_divides_over_replicas(zero, gradients, optimizer):
    got = kinds(dense(), step(zero=zero, data=2, replica=2))
    assert got["params"] == 2 * PARAMS
    assert got["gradients"] == pytest.approx(2 * PARAMS / gradients)
    assert got["optimizer"] == pytest.approx(12 * PARAMS / optimizer)


def test_tensor_divides_matrices_and_not_norms():
    norms = L * NORMS + D
    got = kinds(dense(), step(tensor=2))["params"]
    assert got == pytest.approx(2 * ((PARAMS - norms) / 2 + norms))


@pytest.mark.parametrize(("stack", "share"), [("xla", 1), ("megatron", 1 / 2)])
def test_replicated_kv_heads_are_paid_for(stack, share):
    """Two KV heads over tensor=8: k and v lie on every device whole in JAX, elsewhere as one head,
    not a quarter of one."""
    norms, kv = L * NORMS + D, L * 2 * D * K * H
    got = kinds(dense(), step(tensor=8, choices={"stack": stack}))["params"]
    assert got == pytest.approx(2 * ((PARAMS - norms - kv) / 8 + kv * share + norms))


def test_experts_divide_over_expert_and_the_rest_counts_it_as_fsdp():
    got = kinds(moe(), step(expert=4, fsdp=2))["params"]
    everything = PARAMS - L * MLP + L * (D * E + 3 * E * D * FE)
    assert got == pytest.approx(2 * everything / 8)


def test_stages_hold_their_layers_and_one_end():
    """Embedding and head lie on the first and the last stage; the larger of them counts."""
    got = kinds(dense(), step(stage=3, microbatches=3.0))["params"]
    assert got == pytest.approx(2 * (LAYER + V * D))
    together = kinds(dense(), step())["params"]
    assert together == 2 * (L * LAYER + ENDS)


def test_a_tied_head_is_stored_once():
    got = kinds(dense(tie_word_embeddings=True), step())["params"]
    assert got == 2 * (PARAMS - V * D)


@settings(max_examples=40)
@given(
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1.0, 2.0, 8.0]),
    st.booleans(),
)
def test_block_checkpoints_are_two_bytes_of_every_layer_input(tensor, context, sequences, parallel):
    """L B T D x 2 bytes (ch. 4.4.2), cut by context, and by tensor under sequence parallelism."""
    shape = step(
        tensor=tensor,
        context=context,
        sequences=sequences,
        remat="block",
        sequence_parallel=parallel,
    )
    shards = context * (tensor if parallel else 1)
    assert checkpoint_bytes(dense(), shape) == pytest.approx(L * sequences * 128 * D * 2 / shards)


def test_a_first_stage_keeps_a_microbatch_for_every_stage():
    """1F1B: as many microbatches in flight as stages, each of a third of the layers."""
    one = L * TOKENS * D * 2
    assert checkpoint_bytes(
        dense(), step(stage=3, microbatches=8.0, remat="block")
    ) == pytest.approx(one)
    few = checkpoint_bytes(dense(), step(stage=3, microbatches=1.0, remat="block"))
    assert few == pytest.approx(one / 3)


def test_offload_keeps_two_layers_on_the_chip():
    assert checkpoint_bytes(dense(), step(remat="offload")) == pytest.approx(2 * TOKENS * D * 2)


def test_policies_keep_less_and_less():
    sizes = [
        float(checkpoint_bytes(dense(), step(remat=remat)))
        for remat in ("none", "matmul_outputs", "block", "offload")
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


def test_matmul_outputs_of_a_dense_layer():
    """Block input, q, k, v, o, gate, up: D + NH + 2KH + D + 2F elements per token. Nothing but the
    sum into the stream reads down's, and XLA drops it; op by op it stays."""
    shape = step(remat="matmul_outputs")
    width = D + N * H + 2 * K * H + D + 2 * F
    assert checkpoint_bytes(dense(), shape) == pytest.approx(L * TOKENS * width * 2)
    eager = step(remat="matmul_outputs", choices={"stack": "fsdp"})
    assert checkpoint_bytes(dense(), eager) == pytest.approx(L * TOKENS * (width + D) * 2)


def test_the_layer_in_flight_is_the_widest():
    """A model with a dense and a mixture layer needs room for the wider of the two."""
    cfg = load_model("deepseek-v3")
    shape = step(length=4096, remat="block")
    each = []
    for layer in cfg.groups:
        alone = _only(cfg, layer)
        each.append(float(layer_bytes(alone, shape)))
    assert len(set(each)) == 2
    assert float(layer_bytes(cfg, shape)) == max(each)


def _only(cfg, layer):
    from dataclasses import replace

    return replace(cfg, groups=(layer,), pattern=(0,))


def test_gathered_layers_are_transient():
    """XLA holds this layer whole in bf16, and one matrix's gradient; PyTorch's FSDP this layer and
    the next one, and one layer's gradients."""
    for stack, whole in (("xla", 2 * LAYER + 2 * D * F), ("fsdp", (2 * 2 + 2) * LAYER)):
        without, gathered = (
            kinds(dense(), step(sequences=0.5, choices={"stack": stack}, **mesh))["transient"]
            for mesh in ({}, {"fsdp": 8})
        )
        assert gathered - without == pytest.approx(whole * (1 - 1 / 8))


def test_what_tensor_gathers_and_sums_lies_whole_for_a_moment():
    """An MLP's input, the gradient of its output, and the sum that is scattered."""
    cfg = dense()
    apart, cut = (
        float(layer_bytes(cfg, step(tensor=2, sequence_parallel=parallel, remat="block")))
        for parallel in (False, True)
    )
    stream = TOKENS * D * 2
    recomputed = 2 * stream  # the stream after the mixer, and its gradient
    assert cut - apart == pytest.approx(3 * stream - recomputed / 2)


def test_logits_are_f32_and_their_gradient_is_written_by_eager_software_alone():
    """XLA makes the gradient inside the matmuls that read it (rings of 8 to 32 pieces aside)."""
    got = kinds(dense(), step(), "loss")["transient"]
    assert got == pytest.approx(4 * TOKENS * V)
    eager = kinds(dense(), step(choices={"stack": "fsdp"}), "loss")["transient"]
    assert eager == pytest.approx((2 * 4 + 2 * 2) * TOKENS * V)
    assert kinds(dense(), step(tensor=2), "loss")["transient"] == pytest.approx(got / 2)


def test_a_fused_loss_has_logits_and_gradient_as_the_matmuls_write_them():
    """In 16 bits each; where a vocabulary is cut, one more array in f32 where none is fused."""
    logits = TOKENS * V

    def at_loss(mesh, **choices):
        return kinds(dense(), step(**mesh, choices={"stack": "fsdp", **choices}), "loss")

    plain, fused, compiled = (
        at_loss({}, **choices)["transient"]
        for choices in ({}, {"fused_loss": True}, {"compiled": True})
    )
    assert plain - fused == (4 + 4 + 2 * 2 - 2 - 2) * logits
    assert fused == compiled
    assert at_loss({}, compiled=True, fused_loss=False)["transient"] == plain
    cut, half = (at_loss({"tensor": 2}, fused_loss=x)["transient"] for x in (False, True))
    assert cut - half == (16 - 4) * logits / 2


def test_a_compiler_keeps_nothing_elementwise():
    """An activation is made again of what it was made of, and what norms yield lies nowhere."""
    eager, compiled = (step(choices={"stack": "fsdp", "compiled": x}) for x in (False, True))
    assert checkpoint_bytes(dense(), compiled) < 0.9 * checkpoint_bytes(dense(), eager)
    assert layer_bytes(dense(), compiled) < layer_bytes(dense(), eager)


def test_logits_in_pieces_are_there_one_piece_at_a_time_and_made_again():
    whole, pieces = (step(choices={"logit_chunks": n}) for n in (1, 4))
    got = [kinds(dense(), shape, "loss")["transient"] for shape in (whole, pieces)]
    assert got == pytest.approx([4 * TOKENS * V, TOKENS * V])
    flops = [train_work(dense(), shape).flops() for shape in (whole, pieces)]
    assert flops[1] - flops[0] == pytest.approx(2 * TOKENS * D * V)


def test_where_the_loss_takes_more_than_there_is_the_matrix_is_gathered_again():
    """One of the two times that it is there, where a ring of 8 to 32 devices reads a stored
    gradient of the logits; else, op by op, and on GPUs, it stays."""
    cfg = dense(vocab_size=200_000)

    def at_loss(mesh, **about):
        return sum(kinds(cfg, replace(step(**mesh), **about), "loss").values())

    ring = {"fsdp": 8}
    usual, matrix = at_loss(ring), 2 * D * 200_000 * 7 / 8
    assert at_loss(ring, room=usual) == usual
    assert at_loss(ring, room=usual - 1) == pytest.approx(usual - matrix)
    for mesh, stored in ((ring, True), ({"fsdp": 2}, False), ({"fsdp": 8, "context": 2}, False)):
        whole = at_loss(mesh, loss_stored=stored)
        assert at_loss(mesh, loss_stored=stored, room=0.0) == whole


def test_a_compiler_that_makes_no_rings_stores_no_gradient_of_the_logits():
    """XLA, logits' gradient stored: matrix + it + logits; not stored: matrix + logits + its own."""
    cfg, ring = dense(vocab_size=200_000), {"fsdp": 8}
    stored, not_stored = (
        kinds(cfg, replace(step(**ring), rings=rings), "loss")["transient"]
        for rings in (True, False)
    )
    shape = step(**ring)
    gradient, own = 2 * shape.tokens * 200_000, 2 * D * 200_000 * 7 / 8
    assert stored - not_stored == pytest.approx(gradient - own)


def test_our_trainer_makes_no_rings_where_its_flags_say_so():
    def rings(stack, chip):
        return memory_facts(step(choices={"stack": stack}), parse_slice(chip).chip)["rings"]

    assert not rings("jax", "tpu7x:2x2x1")
    assert rings("xla", "tpu7x:2x2x1")
    assert rings("jax", "v5e:2x2")


def test_gpus_store_the_gradient_of_the_logits():
    """In 16 bits beside the logits in 32, which are gone when the matrix's gradient is made."""
    cfg = dense(vocab_size=200_000)
    tpu, gpu = (
        kinds(cfg, replace(step(), loss_stored=x), "loss")["transient"] for x in (False, True)
    )
    assert gpu - tpu == pytest.approx(2 * TOKENS * 200_000)


def test_the_peak_point_follows_what_is_large():
    """A huge vocabulary peaks at the loss, a small one in the backward pass."""
    wide = train_memory(dense(vocab_size=200_000), step(remat="block"))
    assert wide.peak_point()[0] == "loss"
    deep = train_memory(dense(vocab_size=50), step(remat="none"))
    assert deep.peak_point()[0] == "backward"
    for timeline in (wide, deep):
        name, contents = timeline.peak_point()
        assert timeline.peak() == pytest.approx(sum(float(v) for v in contents.values()))
        assert name in dict(timeline.points)


def test_gradients_of_a_loop_over_layers_are_whole_before_they_are_cut_over_replicas():
    """One microbatch under ZeRO-2 takes what ZeRO-1 does, until the update; of several the sum is
    in pieces and the last one whole."""
    one, pieces = (kinds(dense(), step(data=4, zero=zero)) for zero in (1, 2))
    assert sum(pieces.values()) == pytest.approx(sum(one.values()))
    several = kinds(dense(), step(data=4, zero=2, microbatches=2))
    assert sum(several.values()) - sum(one.values()) == pytest.approx(2 * PARAMS / 4)


def test_nothing_is_kept_through_the_optimizer():
    got = kinds(dense(), step(), "optimizer")
    assert got["checkpoints"] == got["transient"] == 0


def test_towers_are_left_out():
    cfg = load_model("qwen3-vl-8b")
    towers = sum(t.repeats * np.prod(t.shape) for tower in cfg.towers for t in tower.tensors)
    assert towers > 0
    got = kinds(cfg, step(length=4096))["params"]
    assert got == pytest.approx(2 * (params_total(cfg) - towers))


def test_columns_are_as_scalars():
    degrees = {"fsdp": [1, 4, 2], "tensor": [1, 1, 2], "stage": [1, 1, 3]}
    columns = step(
        microbatches=np.array([1.0, 4.0, 3.0]),
        stage_share=1 / np.array(degrees["stage"]),
        remat="block",
    )
    from dataclasses import replace

    columns = replace(columns, degrees={a: np.array(d, float) for a, d in degrees.items()})
    together = train_memory(moe(), columns).peak()
    for i, microbatches in enumerate((1.0, 4.0, 3.0)):
        mesh = {a: d[i] for a, d in degrees.items() if d[i] > 1}
        alone = train_memory(moe(), step(microbatches=microbatches, remat="block", **mesh)).peak()
        assert together[i] == pytest.approx(float(alone))


def test_the_memory_of_experts_in_flight_follows_the_routed_tokens():
    """What a mixture layer keeps grows with k, not with the number of experts; an exchange holds
    the k slots of every token coming in and going out."""
    assert EXPERTS_PER_TOKEN == 2
    base = float(layer_bytes(moe(), step()))
    buffers = 2 * TOKENS * EXPERTS_PER_TOKEN * D * 2
    assert float(layer_bytes(moe(), step(expert=4))) == pytest.approx(base + buffers)
