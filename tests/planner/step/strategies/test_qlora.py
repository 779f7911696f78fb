"""Adapters on some matrices, and frozen matrices that are stored quantised."""

import pytest
from tests.planner.steps import ATTENTION, LAYER, MLP, PARAMS, D, F, H, K, L, N, V, dense, moe, step

from shardwise.planner.price.memory import train_memory
from shardwise.planner.price.working import gathered_bytes
from shardwise.planner.step.parts import tensors_of
from shardwise.planner.step.strategies.lora import adapters, kept_beside
from shardwise.planner.step.strategies.remat import kept_activations
from shardwise.planner.step.work import train_work

TOKENS = 4 * 128
RANK = 4
MATRICES = ATTENTION + MLP
"""Elements of a layer's matrices."""
QV = 2 * D + N * H + K * H
"""Sides of the matrices of queries and values."""
NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Half a byte, a byte per 64 for the scale, and an f32 per 256 scales."""


def lora(remat="block", **choices):
    return step(remat=remat, choices={"lora_rank": RANK, **choices})


def state(shape):
    return {k: float(v) for k, v in dict(train_memory(dense(), shape).points)["backward"].items()}


def test_targets_have_adapters_and_no_other_matrix():
    rows = adapters(tensors_of(dense(), step()).rows, RANK, ("q", "v"))
    assert sum(r.params for r in rows) == L * RANK * QV
    whole = adapters(tensors_of(dense(), step()).rows, RANK, ("attention", "mlp_dense"))
    assert {r.name for r in whole} == {r.name for r in tensors_of(dense(), lora()).rows[-14:]}


def test_nf4_holds_half_a_byte_and_its_scales():
    """The matrices of the layers alone: norms, embedding, head and adapters stay in 16 bits."""
    plain, packed = state(lora()), state(lora(quantize="nf4"))
    assert plain["params"] - packed["params"] == pytest.approx(L * MATRICES * (2 - NF4))
    for kind in ("gradients", "optimizer"):
        assert packed[kind] == plain[kind]


def test_int8_holds_a_byte_and_a_scale_per_output():
    outputs = N * H + 2 * K * H + D + 2 * F + D
    packed = state(lora(quantize="int8"))["params"]
    assert state(lora())["params"] - packed == pytest.approx(L * (MATRICES - 4 * outputs))


@pytest.mark.parametrize("kind", ["gptq", "awq"])
def test_a_checkpoint_in_4_bits_has_a_scale_and_a_zero_per_group(kind):
    packed = state(lora(quantize=kind))["params"]
    bytes_each = 0.5 + 2.5 / 128
    assert state(lora())["params"] - packed == pytest.approx(L * MATRICES * (2 - bytes_each))


def test_a_quantised_matrix_is_unpacked_before_every_product():
    """Forward and for dX: read packed, written in 16 bits; with a block that runs again once
    more. The products themselves stay as they are."""
    once = L * MATRICES * (NF4 + 2)
    for remat, times in (("none", 2), ("block", 3)):
        work = train_work(dense(), lora(quantize="nf4", remat=remat))
        plain = train_work(dense(), lora(remat=remat))
        unpacked = work.where(lambda o: o.name.startswith("unpack."))
        again = sum(r.size for r in tensors_of(dense(), step()).rows if r.name == "mlp.down")
        less = L * again * (NF4 + 2) if remat == "block" else 0.0  # nobody needs its result
        assert float(unpacked.hbm_bytes()) == pytest.approx(times * once - less)
        assert float(work.flops()) == pytest.approx(float(plain.flops()))


def test_one_matrix_lies_unpacked_at_a_time():
    shape = lora(quantize="nf4")
    assert float(gathered_bytes(tensors_of(dense(), shape), shape, 1.0)) == 2 * D * F


def test_quantised_matrices_travel_packed():
    def gathered(**choices):
        work = train_work(dense(), step(fsdp=2, choices={"lora_rank": RANK, **choices}))
        return float(work.collective_bytes("all_gather"))

    passes = 2
    less = passes * L * MATRICES * (2 - NF4)
    assert gathered() - gathered(quantize="nf4") == pytest.approx(less)


def kept(cfg, shape):
    return {a.name for a in kept_activations(cfg, cfg.groups[0], shape)}


def test_what_only_frozen_matrices_read_is_not_kept():
    whole, some = kept(dense(), lora(remat="none")), kept(dense(), lora(lora_targets=("q",)))
    assert {"attention norm output", "mlp norm output", "mlp product"} <= whole
    assert "attention norm output" in some
    assert not {"mlp norm output", "mlp product"} & some
    assert "attention.q adapter" in some


def test_grouped_products_of_experts_keep_their_inputs():
    inputs = {"dispatched tokens", "experts product"}
    assert inputs <= kept(moe(), lora(remat="none")) & kept(moe(), step())


def test_a_library_that_keeps_quantised_inputs():
    shape = lora(lora_targets=("q",), quantize="nf4", library="lit_gpt", stack="fsdp")
    assert {"mlp norm output", "mlp product", "queries and keys"} <= kept(dense(), shape)


def test_layers_of_transformers_keep_the_inputs_of_norms_in_f32():
    plain, wide = (
        step(remat="none", choices={"stack": "fsdp", "library": name})
        for name in ("plain", "transformers")
    )
    copies = {a.name: a for a in kept_activations(dense(), dense().groups[0], wide)}
    assert copies["norm inputs"].bytes_per_token(2) == 2 * D * 4
    assert "stream after mixer" not in copies
    assert "norm inputs" not in kept(dense(), plain)


def test_the_loss_of_transformers_holds_the_output_beside_its_own():
    """Four f32 arrays of the logits, where the others have three's worth."""
    kinds = {
        name: dict(train_memory(dense(), step(choices={"stack": "fsdp", "library": name})).points)
        for name in ("plain", "transformers")
    }
    loss = {name: float(points["loss"]["transient"]) for name, points in kinds.items()}
    assert loss["transformers"] - loss["plain"] == 4 * TOKENS * V
    more = kinds["transformers"]["optimizer"]["transient"]
    assert float(more) == 4 * PARAMS  # the square roots of the second moments, in f32


def test_a_compiler_makes_no_such_copies():
    one, other = (
        train_memory(dense(), step(choices={"stack": "fsdp", "library": name, "compiled": True}))
        for name in ("plain", "transformers")
    )
    assert float(one.peak()) == float(other.peak())


def loss_of(**choices):
    shape = step(**choices)
    return float(dict(train_memory(dense(), shape).points)["loss"]["transient"])


def test_compiled_layers_leave_the_loss_of_a_library_as_it_is():
    """The output's f32 logits live on beside three f32 arrays, where 16-bit ones stand in two."""
    compiled = {"stack": "fsdp", "compiled": True, "fused_loss": False}
    plain, kept_on = (
        loss_of(choices={**compiled, "library": name}) for name in ("plain", "prime_rl")
    )
    assert kept_on - plain == 4 * TOKENS * V
    fused = {"stack": "fsdp", "compiled": True}
    assert loss_of(choices={**fused, "library": "prime_rl"}) == loss_of(choices=fused)


def test_a_loss_in_16_bits_makes_no_copies_in_f32():
    """16-bit logits, log-probabilities and the gradients of both steps; others make 12 bytes."""
    for compiled in (False, True):
        choices = {"stack": "fsdp", "compiled": compiled, "fused_loss": False}
        wide, narrow = (loss_of(choices={**choices, "library": n}) for n in ("plain", "litgpt"))
        assert wide - narrow == (12 - 4 * 2) * TOKENS * V


def test_logits_that_are_gathered_over_tensor_are_whole_on_every_device():
    """Megatron: 4 bytes of f32 logits, turned into their 16-bit gradient; whole ones: 16-bit, and
    f32 log-probabilities and the gradients of both steps of the loss."""
    cut, whole = (
        loss_of(tensor=2, choices={"stack": "megatron", "library": name})
        for name in ("plain", "scaling")
    )
    assert whole - cut == (2 + 3 * 4) * TOKENS * V - (4 + 2) * TOKENS * V / 2


def test_keys_and_values_repeated_for_every_head_are_kept_so():
    more = 2 * (N - K) * H
    assert more > 0
    for compiled in (False, True):
        shape = step(
            remat="none", choices={"stack": "fsdp", "library": "litgpt", "compiled": compiled}
        )
        widths = {a.name: a.width for a in kept_activations(dense(), dense().groups[0], shape)}
        assert widths["repeated keys and values"] == more
        assert ("norm inputs" in widths) is not compiled


def test_what_is_kept_beside_adapters_is_of_the_layer():
    rows = [r for r in tensors_of(dense(), step()).rows if r.group == 0 and r.role == "matmul"]
    saved = kept_activations(dense(), dense().groups[0], step())
    names = [a.name for a in kept_beside(saved, rows, lora())]
    assert sum(name.endswith(" adapter") for name in names) == len(rows)
    assert LAYER >= MATRICES
