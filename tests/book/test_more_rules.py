"""Rules that no number of the book asks for, by hand; each as `shardwise book rule` gives it."""

import json
import shlex

import pytest
from tests.apps.commands import run

from shardwise.book import RULES, entries

CASES = {
    # v5e: 1.97e14 against 8.2e11 bytes/s at 10 FLOPs per byte.
    "attainable_flops --on v5e --set intensity=10": 8.2e12,
    "matmul_flops_exact --set m=2 --set k=3 --set n=4": 2 * 4 * 5,
    "padded_flops --on v5e --set m=9 --set k=100 --set n=200": 2 * 16 * 128 * 256,
    "level_bandwidth --on v5e --set level=host": 1.6e10,
    "axis_alpha --on v5p": 2550,
    "axis_alpha --on h100 --set level=scale_out": 2475,
    "torus_alpha --on v5p --set axes=3": 850,
    # 100 chips, a day, 4.2 dollars.
    "chip_cost --set chips=100 --set hours=24 --set usd_per_chip_hour=4.2": 10080,
    "hosts --on v5e --set chips=20": 3,
    # A v5e pod: 16 links in each of two places; a 4x4 has one place; 8 H100: 4 x 450e9.
    "slice_bisection --set slice=v5e:16x16": 2 * 16 * 4.5e10,
    "slice_bisection --set slice=v5e:4x4": 4 * 4.5e10,
    "slice_bisection --set slice=h100:8": 1.8e12,
    "slice_bisection --set slice=4*h100:8": 8e11,
    "alus --on h100": 132 * 128,
    "run_mfu --set params=37e9 --set tokens=14.8e12 --set chips=2048 "
    "--set seconds=4904296.875 --set peak_flops=1.513e15": 0.21620665502719955,
    # N alpha / M; N alpha^2 / (M_X M_Y F), and four times that.
    "least_batch --on v5p --set strategy=fsdp --set chips=8960 --set axes=3": 8960 * 850,
    "least_batch --on v5p --set strategy=fsdp+tensor --set chips=8960 --set axes=2 "
    "--set d_ff=28672": 8960 * 2550**2 / (2 * 28672),
    "least_batch --on v5p --set strategy=fsdp+tensor --set chips=8960 --set axes=2 "
    "--set d_ff=28672 --edition first": 4 * 8960 * 2550**2 / (2 * 28672),
    # X^2 / 2 - 4 X + 8 = 0 at X = 4: F = 2, N = 2, B = 8, alpha = 2, M_X = 2.
    "x_balanced --set batch_tokens=8 --set d_ff=2 --set chips=2 --set alpha=2": 4,
    # 30 dollars an hour at 1000 tokens/s.
    "token_cost --set usd_per_hour=36 --set tokens_per_second=1000": 1e-5,
    "weight_stationary_degree --set chips=128": 4,
    "weight_stationary_seconds --set batch=1 --set d_model=100 --set chips=4 "
    "--set bandwidth=50 --set f_over_d=2": 8,
    "sharp_limit --set alpha=2200": 1100,
    "sharp_saving --set chips=8": 1.75,
    "tensor_limit_across --set alpha=2475 --set d_ff=24750 --set domain=8": 18,
    "expert_d_ff --set alpha=2475 --set experts_per_token=8 --set degree=16 --set domain=8": 2475,
    "expert_degree --set alpha=2475 --set experts_per_token=8 --set d_ff=2475 --set domain=8": 16,
    "pipeline_transfer --set batch_tokens=8 --set d_model=4 --set stages=3 "
    "--set microbatches=2 --set bandwidth=16": 6,
    "pipeline_step --set forward=1 --set backward=2 --set stages=2 --set microbatches=2": 9,
    "whole --set value=2.7": 2,
}
FIELDS = {
    # 4DF and 4BD bytes, 4BDF FLOPs per chip (ch. 5.2).
    "mlp_traffic --set strategy=fsdp+tensor --set batch_tokens=64 --set d_model=8 "
    "--set d_ff=16 --set fsdp=4 --set tensor=2": {
        "flops": 4 * 64 * 8 * 16 / 8,
        "weights": 4 * 8 * 16 / 2,
        "activations": 4 * 64 * 8 / 4,
    },
    "fleet --on h100 --set chips=8": {
        "flops": 8 * 9.9e14,
        "hbm_bytes": 6.4e11,
        "power_watts": 5600,
    },
    "route_seconds --on v5e --set bytes=45e9": {"link": 1.0, "host": 45 / 16, "data_centre": 14.4},
    # 16 rows over PCIe: both operands and the result at 1.6e10 bytes/s.
    "level_roofline --on v5e --set m=16 --set k=4096 --set n=4096 --set level=host": {
        "critical_intensity": 1.97e14 / 1.6e10,
        "bytes_seconds": 2 * (4096 * 4096 + 2 * 16 * 4096) / 1.6e10,
    },
    "split_contraction_times --on v5e --set m=1 --set k=100 --set n=1 --set chips=2 "
    "--set result_bytes=2": {"math_seconds": 100 / 1.97e14, "comms_seconds": 2 / 4.5e10},
    "book_mesh --set batch_tokens=4.19e6 --set d_ff=28672 --set chips=8960 --set alpha=2550": {
        "fsdp": 2048,
        "tensor": 4,
    },
    "scale_out --on h100 --set chips=2048": {"switches": [64, 32]},
}


def value_of(capsys, text):
    code, out, err = run(capsys, "book", "rule", *shlex.split(text), "--json")
    assert code == 0, err
    return json.loads(out)["result"]["value"]


@pytest.mark.parametrize("text", CASES)
def test_a_number(capsys, text):
    assert value_of(capsys, text) == pytest.approx(CASES[text], rel=1e-12)


@pytest.mark.parametrize("text", FIELDS)
def test_fields(capsys, text):
    found = value_of(capsys, text)
    for name, wanted in FIELDS[text].items():
        assert found[name] == pytest.approx(wanted, rel=1e-12), name


def test_every_rule_is_reached_by_a_command():
    """By a number of the book, or by a command above: none by Python alone."""
    asked = {step.rule for one in entries().values() for step in one.steps}
    typed = {text.split()[0] for text in (*CASES, *FIELDS)} | {"topology_table"}
    of_models = {"forward_flops_per_token", "model_flops_per_token", "activation_bytes"}
    assert set(RULES) - asked - typed - of_models == {"vector_ops"}


def test_flops_of_a_model(capsys):
    """6 per parameter and attention on top; a policy keeps what it says."""
    model = "--set cfg=llama-3-8b --set context=0"
    forward = value_of(capsys, f"forward_flops_per_token {model}")
    assert value_of(capsys, f"model_flops_per_token {model}") == pytest.approx(
        3 * forward, rel=1e-3
    )
    kept = [
        value_of(capsys, f"activation_bytes --set cfg=llama-3-8b --set policy={p} --set tokens=8")
        for p in ("none", "block")
    ]
    assert kept[0] > kept[1] == 2 * 8 * 32 * 4096
    assert value_of(capsys, "vector_ops --on h100") == 6.7e13 / 2
