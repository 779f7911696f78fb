"""Where a step's time goes: parts that add up to it, and what each part means."""

import numpy as np
import pytest
from tests.planner.price.test_composition import random_plans
from tests.planner.search.test_train_search import request
from tests.planner.steps import dense

from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.price.plan import timeline_factor
from shardwise.planner.price.where import composed_parts
from shardwise.planner.training import plan_train

PARTS = {"math at peak", "math below peak", "memory-bound ops", "optimizer"}


def composed(answer):
    """The step's seconds before its bounds, from the times that the composition adds up."""
    reduced, shape = answer.priced.reduced, answer.priced.shape
    forward, backward = reduced.layers_time(shape)
    around = reduced.around(shape)
    own = forward + backward + around.ends
    factor = 1.0
    if answer.plan.degree("stage") > 1:
        factor = timeline_factor(answer.plan, answer.cfg, answer.priced)
    seconds = own.seconds + (factor - 1) * own.plain + around.update
    return float(np.sum(seconds)), factor


@pytest.mark.parametrize("number", range(50))
def test_the_parts_add_up_to_the_step(number):
    answer = evaluate_train(*random_plans()[number])
    expected = answer.step_seconds.expected
    named = answer.time_parts.named()
    assert sum(named.values()) == pytest.approx(expected, rel=1e-9)
    assert min(named.values()) >= 0
    whole, factor = composed(answer)
    parts = composed_parts(answer.plan, answer.cfg, answer.priced, factor)
    assert parts.seconds == pytest.approx(whole, rel=1e-9)
    assert ("pipeline bubble" in named) == (answer.plan.degree("stage") > 1)


def best(on, **choices):
    return plan_train(request(dense(), on, 32, **choices), top=0).best


def test_one_device_waits_for_nothing():
    answer = best("v5e:1x1")
    assert set(answer.time_parts.named()) <= {*PARTS, "kernel starts"}
    assert not answer.time_parts.waiting


def test_what_is_waited_for_is_named_by_its_mesh_axes():
    answer = best("h100:8", pins={"tensor": 8})
    assert set(answer.time_parts.waiting) == {"tensor"}
    assert answer.time_parts.waiting["tensor"] == pytest.approx(answer.exposed_seconds, rel=0.05)


def test_math_at_peak_is_that_of_the_ops_that_math_bounds():
    answer = best("v5p:2x2x1")
    by_math = [
        t
        for t in answer.estimate.ops
        if t.op.body != "optimizer" and t.rated.get("math", 0.0) > t.rated.get("HBM", 0.0)
    ]
    at_peak = sum(float(t.peak["math"] * t.op.count) for t in by_math)
    assert answer.time_parts.math_at_peak == pytest.approx(at_peak)
    assert 0 < at_peak < float(answer.estimate.resources["math"]) * (1 + 1e-9)
