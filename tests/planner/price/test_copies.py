"""Copies in memory that software makes of logits, weights, gradients and tokens on their way."""

from dataclasses import replace

import pytest
from tests.planner.steps import LAYER, D, E, F, L, V, dense, moe, step

from shardwise.hardware import parse_slice
from shardwise.models import from_hf
from shardwise.models.activations import Activation
from shardwise.planner.price.memory import train_memory
from shardwise.planner.price.plan import memory_facts
from shardwise.planner.step.strategies.remat import bytes_of, kept_activations
from shardwise.plans import TrainDtypes

TOKENS = 4 * 128


def at(cfg, point, **choices):
    found = dict(train_memory(cfg, step(**choices)).points)[point]
    return {kind: float(size) for kind, size in found.items()}


def capped():
    return replace(dense(), capped_logits=True)


@pytest.mark.parametrize(
    ("choices", "more"),
    [
        ({"stack": "fsdp"}, 2),
        ({"stack": "fsdp", "library": "litgpt"}, 2),
        ({"stack": "fsdp", "compiled": True}, 0),
        ({"stack": "xla"}, 0),
    ],
)
def test_what_the_gradient_of_capped_logits_reads_is_kept(choices, more):
    """The result of the tanh in 16 bits, where no kernel makes it again."""
    plain, mine = (at(cfg, "loss", choices=choices)["transient"] for cfg in (dense(), capped()))
    assert mine - plain == more * TOKENS * V


def test_a_compiler_for_gpus_stores_it_too():
    shape = replace(step(choices={"stack": "xla"}), loss_stored=True)
    plain, mine = (dict(train_memory(c, shape).points)["loss"] for c in (dense(), capped()))
    assert float(mine["transient"] - plain["transient"]) == 2 * TOKENS * V


@pytest.mark.parametrize(
    ("kind", "said", "found"),
    [
        ("gemma2", {}, True),
        ("gemma2", {"final_logit_softcapping": None}, False),
        ("llama", {}, False),
        ("llama", {"final_logit_softcapping": 30.0}, True),
    ],
)
def test_which_logits_are_capped(kind, said, found):
    assert from_hf(_config(kind, said), name=kind).capped_logits == found


def _config(kind, said):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return {"model_type": kind, "vocab_size": 512, **sizes, **heads, **said}


def test_hybridep_has_room_for_all_tokens_of_its_devices_both_ways():
    """Each token with an f32 weight of every expert, in the backward pass and at the loss."""
    for point in ("backward", "loss"):
        one, other = (
            at(moe(), point, expert=4, choices={"dispatcher": name})["transient"]
            for name in ("hybridep", "deepep")
        )
        assert one - other == 2 * 4 * TOKENS * (2 * D + 4 * E)


def test_one_device_exchanges_nothing():
    names = "hybridep", "deepep"
    one, other = (at(moe(), "backward", choices={"dispatcher": name}) for name in names)
    assert one == other


@pytest.mark.parametrize(
    ("param", "compute", "stack", "copied"),
    [
        ("bf16", "fp8", "megatron", True),
        ("fp8", "fp8", "megatron", False),
        ("bf16", "bf16", "megatron", False),
        ("bf16", "fp8", "fsdp", False),
    ],
)
def test_frozen_weights_have_quantised_copies(param, compute, stack, copied):
    """Transformer Engine's products of frozen matrices in 16 bits keep what they read."""
    dtypes = TrainDtypes(param=param, compute=compute)
    params = at(dense(), "backward", dtypes=dtypes, choices={"stack": stack, "lora_rank": 4})
    whole = at(dense(), "backward", dtypes=dtypes, choices={"stack": stack})["params"]
    mine = params["params"] - whole
    assert (mine > L * 3 * D * F) == copied  # at least the matrices of the MLPs, a byte each


def automodel(point, library, **choices):
    chosen = {"stack": "fsdp", "library": library, "gradient_reduce": "per_step"}
    dtypes = TrainDtypes(param="bf16", grad="bf16", master="none")
    return at(dense(), point, dtypes=dtypes, fsdp=4, microbatches=2.0, choices=chosen | choices)


def test_gradients_that_wait_whole_are_summed_in_f32():
    """The quarter that is stored stays in bf16; no microbatch's own lie beside the sum."""
    mine, plain = (automodel("backward", name)["gradients"] for name in ("automodel", "plain"))
    assert mine == pytest.approx(plain * (1 / 4 + 2 * 3 / 4))
    own = [
        automodel("gradients", name)["transient"] - automodel("backward", name)["transient"]
        for name in ("automodel", "plain")
    ]
    assert own == [0, plain]


def kept(library, cfg=None, **choices):
    shape = step(choices={"stack": "fsdp", "library": library, **choices})
    cfg = cfg or moe()
    return kept_activations(cfg, cfg.groups[0], shape), shape


def test_a_kernel_of_the_experts_activation_keeps_its_inputs():
    (plain, _), (mine, _) = kept("plain"), kept("automodel")
    gone = {a.name for a in plain} - {a.name for a in mine}
    assert gone == {"experts activated", *(n for n in gone if n.endswith("down output"))}
    assert len(gone) == 2


def test_the_inputs_of_an_activation_in_fp8_are_half_as_large():
    def gates(found: tuple[Activation, ...]) -> list[Activation]:
        return [a for a in found if a.kind in ("mlp_in", "mlp_gate")]

    (plain, shape), (mine, _) = (kept(name, dense()) for name in ("plain", "mlperf_nemo"))
    assert bytes_of(gates(plain), shape) == 2 * bytes_of(gates(mine), shape) > 0


def test_a_loss_in_pieces_takes_what_the_stream_takes():
    """Logits and gradient of D tokens' worth rather than V."""
    fused = {"stack": "fsdp", "fused_loss": True}
    plain, mine = (
        at(dense(), "loss", choices={**fused, "library": name})["transient"]
        for name in ("plain", "liger")
    )
    assert plain - mine == 2 * 2 * TOKENS * (V - D)


def test_a_frozen_head_has_no_gradient():
    all_of, mine = (
        at(dense(), "loss", fsdp=4, choices={"stack": "fsdp", "frozen": frozen})["transient"]
        for frozen in ((), ("embedding", "lm_head"))
    )
    assert all_of - mine == 2 * (V - 1) * D * 3 / 4  # a norm's is the largest now


@pytest.mark.parametrize(
    ("overlap", "rings"), [(None, True), (("data", "tensor"), True), (("data",), False)]
)
def test_a_plan_that_overlaps_no_tensor_has_no_rings(overlap, rings):
    choices = replace(step(), stack="xla", overlap=overlap)
    assert memory_facts(choices, parse_slice("v5e:4x4").chip)["rings"] == rings


def test_matrices_that_are_gathered_one_by_one():
    """The largest is an MLP's, D F; else two layers are there, and the gradient of one."""
    names = "megatron_zero3", "plain"
    mine, plain = (
        at(dense(), "backward", fsdp=4, choices={"stack": "fsdp", "library": name})["transient"]
        for name in names
    )
    assert plain - mine == pytest.approx(2 * 3 / 4 * (3 * LAYER - 2 * D * F))


def test_a_softmax_in_16_bits_keeps_no_copy_in_f32():
    choices = {"attention_kernel": "scores", "compiled": False}
    (plain, _), (mine, _) = (kept(name, dense(), **choices) for name in ("plain", "megatron_zero3"))
    assert {a.name for a in plain} - {a.name for a in mine} == {"attention probabilities, f32"}
