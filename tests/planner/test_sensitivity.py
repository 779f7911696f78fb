"""A plan with one input changed is the plan priced where that input is so large."""

import pytest

import shardwise as sw
from shardwise.planner.sensitivity import MovedInput, train_sensitivity
from shardwise.plans.files import save_plan

SMALL = {"batch": "16seq", "seq": 2048}


@pytest.fixture(scope="module")
def planned():
    return sw.plan_train("llama-3.2-1b", "v5e:2x2", sensitivity=True, **SMALL)


def test_a_weight_is_one_in_proportion_and_none_without_effect():
    proportional = MovedInput(name="chips", by=2, time=0.5, cost=1)
    assert proportional.weight == pytest.approx(1)
    assert MovedInput(name="prompt", by=1.1, time=None, cost=1.21).weight == pytest.approx(2)
    assert MovedInput(name="network", by=1.1, time=1, cost=1).weight == 0


def test_a_changed_chip_is_the_plan_shown_on_that_chip(planned, tmp_path):
    path = tmp_path / "plan.yaml"
    save_plan(planned.best.plan, path)
    chip = planned.best.piece.chip
    faster = sw.plan_show(path, sets={"chip.hbm_bandwidth": 1.1 * chip.hbm_bandwidth})
    found = {one.name: one for one in planned.sensitivity}["HBM bandwidth"]
    expected = planned.tokens_per_second / faster.tokens_per_second
    assert found.time == pytest.approx(expected, rel=1e-9)
    assert found.cost == found.time


def test_twice_the_chips_cost_twice_the_time_that_they_save(planned):
    found = {one.name: one for one in train_sensitivity(planned.best)}
    assert found["chips"].cost == pytest.approx(2 * found["chips"].time)
    assert 0.5 <= found["chips"].time < 1
    assert [one.weight for one in planned.sensitivity] == sorted(
        (one.weight for one in found.values()), reverse=True
    )


def test_the_page_of_why_names_the_two_that_weigh_most(planned):
    *_, said = planned.sections()["why"]
    assert "Largest effects: " in str(said)
    for one in planned.sensitivity[:2]:
        assert one.text.partition(":")[0] in " ".join(str(said).split())


@pytest.mark.slow
def test_servers_follow_their_inputs():
    found = sw.plan_serve("llama-3.2-1b", "v5e:1x1", input=256, output=32, sensitivity=True)
    by = {one.name: one for one in found.sensitivity}
    assert by["prompt tokens"].cost > 1
    assert by["FLOP/s"].cost <= 1
    assert by["HBM bandwidth"].cost <= 1
    assert by["time to the first token"].cost <= 1
    assert all(one.time is None for one in by.values())
