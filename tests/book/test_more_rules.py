"""Rules that no number of the book asks for, by hand; each as `shardwise book rule` gives it."""

import json
import shlex

import numpy as np
import pytest
from tests.apps.commands import run

from shardwise.book import RULES, entries
from shardwise.errors import BadRequest

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
    # 20 cycles of work, then 300 of waiting: 16 warps.
    "warps_hiding --set latency_cycles=300 --set busy_cycles=20": 16,
    "optimal_tokens --set params=70e9": 1.4e12,
    "total_seconds --set compute=3 --set comms=2 --set overlap=1.5": 3.5,
    # Appendix D.3 of the paper at N = D = infinity, and by hand.
    "loss_law --set params=1e300 --set tokens=1e300": 1.69,
    "loss_law --set params=1e9 --set tokens=20e9": 1.69 + 406.4 / 1e9**0.34 + 410.7 / 20e9**0.28,
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
    # Two halves of a warp: 30 cycles, of which each lane works 10 or 20.
    "warp_divergence --set lanes=16,16 --set instructions=10,20": {
        "cycles": 30,
        "share": 0.5,
        "slowdown": 1.5,
    },
    # 8 registers of 1024: 7 adds; ten halvings.
    "lane_sum --on v5e --set elements=8192": {"adds": 7, "moves": 10, "instructions": 27},
    "lane_sum --on h100 --set elements=32": {"adds": 0, "moves": 5, "cross_lane_share": 1},
    # Rings of 4, 4 and 8: 1 + 1 + 2 hops to 127 others.
    "torus_spread --set shape=4,4,8": {"mean_hops": 4 * 128 / 127, "diameter": 8},
    "torus_spread --set shape=4,8 --set twisted=true": {"diameter": 4},
    # C = 6 at G^(alpha + beta) = alpha A / (beta B): N = G, D = 1 / G.
    "compute_optimal --set flops=6": {
        "params": (0.34 * 406.4 / (0.28 * 410.7)) ** (1 / 0.62),
        "tokens": (0.28 * 410.7 / (0.34 * 406.4)) ** (1 / 0.62),
    },
    "scalar_dot --set left=1,2,3 --set right=4,5,6": {
        "value": 32,
        "memory_accesses": 7,
        "intensity": 6 / 28,
        "comms_seconds": 7e-8,
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


@pytest.mark.parametrize("shape", [(4, 8), (4, 4, 8), (4, 8, 8), (8, 8, 16)])
def test_a_twist_brings_chips_closer(shape):
    """And loads the busiest axis less; each chip keeps its links, so nothing else can give."""
    plain, twisted = (RULES["torus_spread"](shape=list(shape), twisted=t) for t in (False, True))
    assert twisted.mean_hops < plain.mean_hops
    assert twisted.diameter < plain.diameter
    assert twisted.busiest_axis_hops < plain.busiest_axis_hops


@pytest.mark.parametrize("flops", [1e18, 5.76e23])
def test_no_other_split_of_the_flops_has_less_loss(flops):
    best = RULES["compute_optimal"](flops=flops)
    assert 6 * best.params * best.tokens == pytest.approx(flops)
    for factor in (0.9, 1.1):
        params = factor * best.params
        assert RULES["loss_law"](params=params, tokens=flops / 6 / params) > best.loss


def test_a_dot_product_is_the_product_whatever_its_length():
    draw = np.random.default_rng(0)
    for length in (1, 2, 100):
        a, b = draw.integers(-99, 99, (2, length)).tolist()
        found = RULES["scalar_dot"](left=a, right=b)
        assert found.value == np.dot(a, b)
        assert found.memory_accesses == 2 * length + 1


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("warp_divergence", {"lanes": [30, 3], "instructions": [1, 1]}, "a warp has 32 in all"),
        ("warp_divergence", {"lanes": [3], "instructions": [1, 1]}, "lanes has 1 numbers"),
        ("torus_spread", {"shape": [4, 4], "twisted": True}, "4x4 has no twist"),
        ("torus_spread", {"shape": [0]}, "shape is 0; it must be a whole number of at least 1"),
        ("total_seconds", {"compute": 1, "comms": 2, "overlap": 1.5}, "overlap is 1.5"),
        ("scalar_dot", {"left": [1], "right": [1, 2]}, "left has 1 numbers and right 2"),
    ],
)
def test_refused(name, given, said):
    with pytest.raises(BadRequest, match=said):
        RULES[name](**given)
