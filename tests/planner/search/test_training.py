"""plan_train: plans that pass their own checks, refusals that say what would do, and the book."""

from dataclasses import replace

import pytest
from tests.planner.search.test_train_search import request
from tests.planner.steps import dense, moe

from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import parse_slice
from shardwise.models import load_model, params_active, params_total
from shardwise.planner.checks import check_plan
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.search.misses import nearest_batches
from shardwise.planner.training import (
    better_batches,
    plan_train,
    run_of,
    tokens_per_second_at,
)
from shardwise.plans import MESH_AXES, TrainDtypes
from shardwise.plans.software.usual import default_dtypes

HELD = {"remat": ("block",)}
"""A quarter of the structures, for what is not about remat policies."""
SLICES = ["v5p:4x4x4", "v5e:4x8", "4*h100:8", "2*v5p:2x2x4", "tpu7x:2x2x2", "h100:1"]


@pytest.mark.parametrize("on", SLICES)
@pytest.mark.parametrize("cfg", [dense(), moe()], ids=lambda c: c.name)
def test_every_plan_returned_passes_its_own_checks(on, cfg):
    asked = request(cfg, on, 64, remat=("none", "block"))
    planning = plan_train(asked, top=4)
    for answer in (planning.best, *planning.runners_up):
        check_plan(answer.plan, cfg, asked.piece)
        again = evaluate_train(answer.plan, cfg, asked.piece)
        assert again.step_seconds == answer.step_seconds
        assert again.peak_bytes_per_chip == answer.peak_bytes_per_chip
        assert answer.peak_bytes_per_chip <= asked.piece.chip.hbm_usable_bytes
        steps = answer.step_seconds
        assert 0 < steps.lower <= steps.expected <= steps.upper
        assert answer.chips_used + answer.chips_idle == asked.piece.chips
        assert list(answer.plan.mesh) == [a for a in MESH_AXES if a in answer.plan.mesh]
        assert 0 < answer.mfu < 1
        assert sum(answer.memory_by_kind.values()) == pytest.approx(answer.peak_bytes_per_chip)
    expected = [a.step_seconds.expected for a in (planning.best, *planning.runners_up)]
    assert expected == sorted(expected)


def test_rates_and_utilisation_by_hand():
    """tokens/s x 6 N over all chips' peak; mfu leaves the lookup out and adds attention."""
    cfg = load_model("llama-3-8b")
    answer = plan_train(request(cfg, "v5p:4x4x4", 64, sequence_length=4096, **HELD)).best
    rate = 64 * 4096 / answer.step_seconds.expected
    assert answer.tokens_per_second == pytest.approx(rate)
    peak = 64 * answer.piece.chip.peak_flops["bf16"]
    assert answer.mfu_6nd == pytest.approx(6 * params_active(cfg) * rate / peak)
    lookup = 128256 * 4096
    attention = 3 * 32 * 4 * (4096 / 2) * 4096  # L x QK and PV, half of T keys, N H = 4096
    per_token = 6 * (params_total(cfg) - lookup) + attention
    assert answer.mfu == pytest.approx(per_token * rate / peak)


def test_idle_chips_are_in_the_denominator():
    """Seven chips, a batch of 8: one of them stays idle or the batch would not divide."""
    answer = plan_train(request(dense(), "h100:7", 8)).best
    assert answer.chips_idle >= 1
    peak = 7 * answer.piece.chip.peak_flops["bf16"]
    rate = 8 * 256 / answer.step_seconds.expected
    assert answer.mfu_6nd == pytest.approx(6 * params_active(dense()) * rate / peak)


def test_runners_up_are_as_many_meshes_as_asked_for_at_least():
    planning = plan_train(request(on="v5e:4x4", sequences=32, **HELD), top=5)
    assert len(planning.runners_up) >= 5


# Refusals -----------------------------------------------------------------------------------------


def test_the_nearest_miss_says_by_how_much_and_what_would_do():
    cfg = load_model("llama-3-70b")
    asked = request(cfg, "v5e:4x4", 64, sequence_length=4096, **HELD)
    with pytest.raises(NoFeasiblePlan) as missed:
        plan_train(asked)
    said = str(missed.value)
    need = params_total(cfg) * 16 / 16  # 16 bytes of state over 16 chips
    assert said.startswith("no plan fits v5e:4x4 = 16 chips")
    assert "per device, 15.8 GiB (16.9 GB) usable" in said
    assert "GB too much, mostly optimizer" in said
    larger = said.split("use ")[-1].split(" (")[0]
    chips = parse_slice(larger).chips
    assert chips >= 16 * need / asked.max_hbm_bytes
    # The slice that the message spells is indeed enough, or the next one is.
    assert plan_train(request(cfg, "v5e:8x16", 64, sequence_length=4096, **HELD)).best
    assert chips in (64, 128)


def test_a_batch_too_large_is_told_apart_from_too_few_chips():
    cfg = dense(num_hidden_layers=64)
    asked = request(cfg, "h100:1", 2**20, sequence_length=2**20)
    with pytest.raises(NoFeasiblePlan, match="use a smaller batch or shorter sequences"):
        plan_train(asked)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("llama-3-8b", r"; pin fewer axes: .* fits, or use "),
        ("llama-3.1-405b", r"; no plan with fewer axes pinned fits either"),
    ],
)
def test_the_nearest_miss_says_whether_the_pin_is_what_stands_in_the_way(model, says):
    with pytest.raises(NoFeasiblePlan, match="no plan with data=16 pinned fits.*" + says):
        plan_train(request(load_model(model), "v5e:4x4", 64, pins={"data": 16}, **HELD))


def test_a_limit_below_the_chip_is_honoured():
    asked = request(on="v5e:4x4", sequences=64, sequence_length=2048, **HELD)
    free = plan_train(asked).best.peak_bytes_per_chip
    tight = plan_train(replace(asked, max_hbm_bytes=free / 2)).best
    assert tight.peak_bytes_per_chip <= free / 2


def test_a_pinned_mesh_that_divides_no_batch_offers_neighbours():
    asked = request(on="v5e:4x4", sequences=17, pins={"fsdp": 16})
    with pytest.raises(BadRequest) as refused:
        plan_train(asked)
    assert str(refused.value) == (
        "no mesh on v5e:4x4 with fsdp=16 pinned divides a batch of 17 sequences x 256 tokens; "
        "nearest legal batches: 16 sequences or 32 sequences"
    )
    assert nearest_batches(asked) == [16, 32]
    for sequences in (16, 32):
        assert plan_train(replace(asked, sequences=sequences)).best


def test_a_batch_below_the_smallest_offers_only_more():
    assert nearest_batches(request(on="v5e:4x4", sequences=3, pins={"fsdp": 16})) == [16]


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        (
            {"tensor": 3},
            "mesh axis 'tensor' of 3 does not divide N=8 query heads; the nearest that do: 2 or 4",
        ),
        (
            {"tensor": 16},
            "mesh axis 'tensor' of 16 does not divide N=8 query heads; the nearest that do: 8",
        ),
        (
            {"stage": 9},
            (
                "mesh axis 'stage' is pinned to 9, but dense has 3 layers; every stage needs "
                "one, so pin at most 3"
            ),
        ),
        (
            {"context": 3},
            "sequence_length 256 does not divide over context=3; use a degree that divides it",
        ),
        (
            {"expert": 2},
            (
                "mesh axis 'expert' has degree 2, but dense has no routed experts, so it cannot "
                "take effect; give those devices to fsdp"
            ),
        ),
        (
            {"fsdp": 5},
            (
                "fsdp=5 pinned needs a multiple of 5 devices; no part of v5e:4x4 (16 devices) has "
                "that, so pin degrees whose product divides 16"
            ),
        ),
        (
            {"fsdp": 16, "tensor": 2},
            (
                "fsdp=16 x tensor=2 pinned needs a multiple of 32 devices; no part of v5e:4x4 "
                "(16 devices) has that, so pin degrees whose product divides 16"
            ),
        ),
    ],
)
def test_impossible_pins_are_named(pins, said):
    with pytest.raises(BadRequest) as refused:
        plan_train(request(dense(), "v5e:4x4", 16, pins=pins))
    assert str(refused.value) == said


def test_experts_that_do_not_divide():
    with pytest.raises(BadRequest, match="mesh axis 'expert' of 3 does not divide E=8"):
        plan_train(request(moe(), "v5e:4x4", 16, pins={"expert": 3}))


# Hand-written plans -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def priced():
    asked = request(dense(), "v5e:4x4", 64, **HELD)
    return asked, plan_train(asked).best.plan


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layers_per_stage": (4,)}, "adds up to 4 layers; dense has 3"),
        ({"box": (4, 8)}, "box 4x8 does not fit v5e:4x4"),
        ({"box": (16,)}, "box 16 does not fit v5e:4x4; give one size per physical axis"),
        (
            {"mesh": {"fsdp": 8}},
            "has 8 devices; 1 slice(s) x box 4x4 of v5e:4x4 have 16: make them equal by",
        ),
        ({"mesh": {"tensor": 16}}, "mesh axis 'tensor' of 16 does not divide N=8"),
        ({"mesh": {"fsdp": 8, "expert": 2}}, "has no routed experts"),
    ],
)
def test_plans_that_do_not_suit_model_or_slice(priced, changes, said):
    asked, plan = priced
    base = {"mesh": {"fsdp": 16}, "box": (4, 4), "microbatches": 1}
    with pytest.raises(BadRequest) as refused:
        evaluate_train(replace(plan, **(base | changes)), asked.cfg, asked.piece)
    assert said in str(refused.value)


# Batches, runs, dtypes ----------------------------------------------------------------------------


def test_a_batch_that_splits_badly_is_offered_a_better_one():
    asked = request(on="v5p:4x4x4", sequences=255, cfg=load_model("llama-3-8b"), **HELD)
    asked = replace(asked, sequence_length=4096)
    best = plan_train(asked).best
    offers = better_batches(asked, best)
    assert 256 in [n for n, _ in offers]
    for sequences, rate in offers:
        assert abs(sequences / 255 - 1) <= 0.15
        other = plan_train(replace(asked, sequences=sequences)).best
        assert other.tokens_per_second == pytest.approx(rate)
        assert rate > 1.1 * best.tokens_per_second


def test_a_batch_that_splits_well_is_left_alone():
    asked = request(on="v5e:4x4", sequences=256, **HELD)
    assert better_batches(asked, plan_train(asked).best) == []


def test_days_of_llama_3_70b_by_the_book():
    """ch. 6.3: 15T tokens at 40 % of 8960 v5p take 44.3 days with 70e9 parameters, 44.7 exactly."""
    piece = parse_slice("v5p:16x20x28")
    for params, days in ((70e9, 44.3), (params_total(load_model("llama-3-70b")), 44.7)):
        rate = tokens_per_second_at(0.4, params, piece, "bf16")
        run = run_of(15e12, rate, piece)
        assert run["days"] == pytest.approx(days, abs=0.05)
        assert run["chip_hours"] == pytest.approx(run["days"] * 24 * 8960)


def test_days_count_every_chip_of_the_slice():
    piece = parse_slice("v5e:4x4")
    assert run_of(1e9, 1e6, piece) == pytest.approx(
        {"days": 1000 / 86400, "chip_hours": 16 * 1000 / 3600}
    )


def test_default_dtypes():
    assert default_dtypes("bf16") == TrainDtypes()
    assert default_dtypes("f32").master == "none"
    assert default_dtypes("f32").param == "f32"
    assert default_dtypes("fp8").compute == "fp8"
    assert default_dtypes("fp8").param == "bf16"


def test_a_dtype_without_a_peak_is_refused():
    with pytest.raises(BadRequest, match="chip 'v5p' has no peak for dtype 'fp4'"):
        plan_train(request(on="v5p:2x2x1", dtypes=default_dtypes("fp4")))
