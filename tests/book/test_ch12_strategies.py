"""Chapter 12, rooflines of training strategies on GPUs, and the configurations it audits."""

import pytest

from book.oracle import check, entry
from shardwise.book.rules.gpu import (
    alphas,
    expert_d_ff,
    expert_degree,
    few_groups_limit,
    pipeline_step,
    pipeline_transfer,
    sharp_limit,
    spanned_limit,
    tensor_limit_across,
)
from shardwise.book.rules.mlp import mlp_times
from shardwise.book.rules.training import data_limit, moe_limit, tensor_limit, utilisation
from shardwise.commands.pricing.plans import load_plan
from shardwise.hardware import load_chip
from shardwise.hardware.totals import link_both_ways
from shardwise.models import load_model, params_total


def alphas_of(name, numbers=None):
    """With the book's constants, or with numbers that an entry gives."""
    if numbers is None:
        return alphas(load_chip(name, constants="book"))
    return alphas(load_chip(name, set_=[f"{path}={n}" for path, n in numbers.items()]))


def level(e):
    i = e["inputs"]
    found = alphas_of(i["gpu"], i.get("set"))
    return getattr(found, i["level"])


H100 = alphas_of("h100")


# Thresholds -------------------------------------------------------------------------------------


@entry("rule.gpu.dp.node")
def test_data_parallel_in_a_node(e):
    check(e, data_limit(level(e)))


@entry("rule.gpu.dp.scaleout")
def test_data_parallel_beyond_a_node(e):
    check(e, data_limit(level(e)))


@entry("rule.gpu.dp.h800")
def test_data_parallel_on_h800(e):
    check(e, data_limit(level(e)))


@entry("head.gpu.h100_vs_v5p_dp")
def test_h100_beside_v5p(e):
    i = e["inputs"]
    tpu = load_chip(i["tpu"], constants="book")
    torus = tpu.peak("bf16") / link_both_ways(tpu)
    found = alphas_of(i["gpu"])
    check(e, [found.scale_out, found.node, *(data_limit(torus, m) for m in i["axes"])])


@entry("head.gpu.llama16k")
def test_least_batches(e):
    i = e["inputs"]
    rows = zip(i["chips"], i["gpus"], i["levels"], strict=True)
    check(e, [n * getattr(alphas_of(gpu, i["set"].get(gpu)), at) for n, gpu, at in rows])


@entry("rule.gpu.dp_moe")
def test_mixture_of_experts(e):
    i = e["inputs"]
    check(e, moe_limit(alphas_of(i["gpu"]).scale_out, i["E"], i["k"]))


@entry("rule.gpu.dp_2node")
def test_two_nodes(e):
    i = e["inputs"]
    check(e, few_groups_limit(alphas_of(i["gpu"]).scale_out, i["groups"]))


@entry("gpu.quiz5.q1")
def test_b200(e):
    """The quiz takes 2250e12, the vendor's peak; the book's table rounds it to 2.3e15."""
    found = alphas(load_chip(e["inputs"]["gpu"]))
    check(e, [found.node, found.scale_out])


@entry("gpu.quiz5.q2.3")
def test_tensor_limit_of_llama(e):
    i = e["inputs"]
    check(e, tensor_limit(alphas_of(i["gpu"]).node, i["F"]))


def test_gb200_scales_out_four_times_better():
    """Appendix A: 9 times the node egress for a B200's FLOPs: 2250e12 / 3600e9 = 625."""
    chip = load_chip("gb200", set_=["peak_flops.bf16=2250e12"])
    assert alphas(chip).scale_out == pytest.approx(625)
    assert alphas(chip).node == pytest.approx(2500)


def test_rules_beside_the_entries():
    """Worked numbers of the chapter that no entry carries."""
    assert sharp_limit(H100.node) == 1100
    assert tensor_limit_across(H100.scale_out, 28000, 8) == pytest.approx(19.3, abs=0.02)
    # 8-way pipelining x 8-way tensor: 990e12 / 3200e9.
    assert spanned_limit(H100.scale_out, 8) == pytest.approx(309.375)
    # Wide experts: F > 8 alpha = 19,800 far beyond dk chips, alpha (Z - 8) / k up to Z = dk.
    assert expert_d_ff(H100.scale_out, 8, 1e9, 8) == pytest.approx(19_800, rel=1e-6)
    assert expert_d_ff(H100.scale_out, 8, 16, 8) == pytest.approx(2475)
    assert expert_d_ff(H100.scale_out, 8, 8, 8) == 0
    assert expert_degree(H100.scale_out, 8, 2475, 8) == pytest.approx(16)
    assert expert_degree(H100.scale_out, 8, 20_000, 8) == float("inf")


def test_thresholds_are_where_math_equals_communication():
    """The closed rules against the times they come from."""
    chip = load_chip("h100", constants="book")
    sizes = {"d_model": 8192, "d_ff": 28672, "peak_flops": chip.peak("bf16"), "fsdp": 64}

    def at(tokens, **how):
        times = mlp_times(
            batch_tokens=64 * tokens, bandwidth=400e9, phase="backward", **sizes, **how
        )
        return times.ratio()

    assert at(H100.scale_out) == pytest.approx(1)
    sparse = moe_limit(H100.scale_out, 128, 4)
    assert at(sparse, experts=128, experts_per_token=4) == pytest.approx(1)


def test_pipelining_is_nearly_free_but_waits_for_its_gradients():
    sent = pipeline_transfer(
        batch_tokens=4096 * 16, d_model=8192, stages=4, microbatches=8, bandwidth=400e9
    )
    assert sent == pytest.approx(10 * 2 * 4096 * 16 * 8192 / (400e9 * 8))
    step = {"forward": 1.0, "backward": 2.0, "stages": 2, "microbatches": 2}
    assert pipeline_step(**step) == 9
    assert pipeline_step(**step, reduction=5) == 12
    assert pipeline_step(**step, reduction=5, overlapped=False) == 14
    assert pipeline_step(**step, reduction=1) == 9


# Configurations ---------------------------------------------------------------------------------


def plan_of(name):
    return load_plan(f"audit:{name}")


def row(e):
    """Devices and tokens of the shipped plan; utilisation at the measured rate of the entry."""
    i, plan = e["inputs"], plan_of(e["inputs"]["audit"])
    cfg, chips = load_model(plan.model), plan.devices
    assert (cfg.d_model, cfg.layers) == (i["hidden"], i["layers"])
    assert {a: plan.degree(a) for a in ("tensor", "stage", "data")} == {
        "tensor": i["tp"],
        "stage": i["pp"],
        "data": i["dp"],
    }
    total = chips * i["tflops"] * 1e12
    peak = load_chip("h100", constants="book").peak("bf16")
    check(e, [chips, plan.tokens / chips, utilisation(total, chips, peak), total / 1e15])
    named = float(i["audit"].removeprefix("megatron-").removesuffix("b")) * 1e9
    assert params_total(cfg) == pytest.approx(named, rel=0.03)


@entry("table.gpu.megatron.1.7B")
def test_megatron_2b(e):
    row(e)


@entry("table.gpu.megatron.7.1B")
def test_megatron_7b(e):
    row(e)


@entry("table.gpu.megatron.16B")
def test_megatron_16b(e):
    row(e)


@entry("table.gpu.megatron.32B")
def test_megatron_32b(e):
    row(e)


@entry("table.gpu.megatron.119B")
def test_megatron_119b(e):
    row(e)


@entry("table.gpu.megatron.177B")
def test_megatron_177b(e):
    row(e)


@entry("table.gpu.megatron.314B")
def test_megatron_314b(e):
    row(e)


@entry("gpu.quiz5.q3")
def test_tokens_and_thresholds(e):
    plans = [plan_of(name) for name in e["inputs"]["audits"]]
    per_chip = [plan.tokens / plan.devices for plan in plans]
    nodes = [plan.degree("tensor") * plan.degree("stage") / 8 for plan in plans]
    limits = [spanned_limit(H100.scale_out, n) for n in nodes]
    check(e, [*per_chip, *limits[1:]])
    assert limits[0] == 2475
    assert all(have > need for have, need in zip(per_chip, limits, strict=True))
