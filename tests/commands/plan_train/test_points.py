"""Sweeps: which slices, how scaling is measured, the front, and the verdicts."""

from dataclasses import replace
from functools import cache

import pytest

from shardwise.commands.base.inputs import Hardware
from shardwise.commands.plan_train.points import slices_between, sweep, verdicts
from shardwise.commands.plan_train.swept_result import SweepJob, SweepPlan, sweep_row
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import parse_slice

pytestmark = pytest.mark.usefixtures("answers_kept")

HARDWARE = Hardware()


@cache
def run(*pieces, **more):
    """A sweep over slices; choices that are held leave a small search."""
    found = [parse_slice(p) for p in pieces]
    held = TrainChoices(pins={"stage": 1}, remat="block")
    return sweep("llama-3-8b", found, batches=["1024seq"], lengths=[4096], choices=held, **more)


def test_slices_of_a_bare_chip_double_and_go_on_over_the_data_centre():
    chips = [p.chips for p in slices_between("v5e", 16, 1024, HARDWARE)]
    assert chips == [16, 32, 64, 128, 256, 512, 1024]
    assert [str(p) for p in slices_between("h100", 8, 32, HARDWARE)] == [
        "h100:8",
        "2*h100:8",
        "4*h100:8",
    ]
    assert [str(p) for p in slices_between("v5p:4x4x4", 1, 2, HARDWARE)] == ["v5p:4x4x4"]
    with pytest.raises(BadRequest, match="widen --chips"):
        slices_between("v5e", 3, 3, HARDWARE)


def test_scaling_is_measured_against_the_row_before():
    small, large = run("v5e:8x8", "v5e:16x16", tokens=1e12)
    assert small.answer
    assert large.answer
    rate = large.answer.tokens_per_second / small.answer.tokens_per_second
    assert small.efficiency == 1
    assert small.marginal is None
    assert large.efficiency == pytest.approx(rate / 4)
    assert large.marginal == pytest.approx((rate - 1) / 3)


def test_the_front_holds_what_nothing_beats():
    points = run("v5e:8x8", "v5e:8x16", "v5e:16x16", tokens=1e12)
    for p in points:
        others = [(q.days or 0.0, q.usd or 0.0) for q in points if q is not p]
        beaten = any(days <= (p.days or 0.0) and usd < (p.usd or 0.0) for days, usd in others)
        assert p.on_front is not beaten


def test_the_cheapest_within_a_deadline():
    points = run("v5e:8x8", "v5e:16x16", tokens=1e12)
    slow = max(p.days or 0.0 for p in points)
    best = min(points, key=lambda p: p.usd or 0.0)
    assert f"cheapest within {slow:.3g} days: {best.piece}"[:30] in verdicts(points, days=slow)[-1]
    assert "no slice here trains it" in verdicts(points, days=0.01)[-1]


def test_where_it_stops_being_worth_it_is_said():
    points = run("v5e:4x4", "v5e:16x16")
    flat = [points[0], replace(points[1], marginal=0.2)]
    assert "beyond 16 chips scaling does not pay" in verdicts(flat)[0]
    assert "the added ones bring 20% of their speed" in verdicts(flat)[0]


def test_points_without_a_plan_say_why_and_all_of_them_raise():
    points = run("v5e:1x1", "v5e:8x8")
    missing = next(p for p in points if p.answer is None)
    assert "no plan with stage=1 pinned fits v5e:1x1" in missing.miss
    assert [type(sweep_row(point)) for point in points] == [SweepJob, SweepPlan]
    with pytest.raises(NoFeasiblePlan, match="no point of the sweep has a plan"):
        run("v5e:1x1")


def test_a_point_that_cannot_be_asked_says_why_and_a_request_that_no_point_can_is_refused():
    pinned = TrainChoices(pins={"stage": 1, "fsdp": 64}, remat="block")
    two = [parse_slice("v5e:4x4"), parse_slice("v5e:8x8")]
    asked = {"batches": ["1024seq"], "lengths": [4096], "choices": pinned}
    small, large = sweep("llama-3-8b", two, **asked)
    assert "needs a multiple of 64 devices" in small.miss
    assert large.answer
    with pytest.raises(BadRequest, match="needs a multiple of 64 devices"):
        sweep("llama-3-8b", two[:1], **asked)
    elsewhere = replace(pinned, pins={"stage": 1}, software="megatron")
    with pytest.raises(BadRequest, match="GPUs"):
        sweep("llama-3-8b", two, **{**asked, "choices": elsewhere})
