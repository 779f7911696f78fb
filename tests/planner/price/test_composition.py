"""A step's seconds against sums over its ops that are written here, on plans of all kinds."""

import random
from collections import defaultdict
from functools import cache

import pytest
from tests.planner.closed import closed_form
from tests.planner.search.test_train_search import request
from tests.planner.steps import dense, moe

from shardwise.errors import BadRequest
from shardwise.models.remat import REMAT_POLICIES
from shardwise.planner.price.plan import stack_for
from shardwise.planner.training import plan_train
from shardwise.plans.context_methods import CONTEXT_METHODS
from shardwise.roofline import body_times
from shardwise.scheduling.pipeline import SCHEDULES

SLICES = ("v5e:2x4", "v5p:2x2x2", "2*h100:8", "h100:4")


@cache
def random_plans(many: int = 50):
    """Plans of random meshes and choices, from searches with some of them pinned."""
    rng, found = random.Random(5), []
    kinds = [kind for kind, row in SCHEDULES.items() for _ in row.chunks]
    while len(found) < many:
        cfg, on = rng.choice((dense(), moe())), rng.choice(SLICES)
        pins = rng.choice(({}, *[{"stage": 2}] * 4, {"tensor": 2}, {"data": 2}, {"context": 2}))
        asked = request(
            cfg,
            on,
            rng.choice((32, 64)),
            remat=(rng.choice(REMAT_POLICIES[:3]),),
            zero=(rng.choice((0, 1, 2)),),
            pipeline_schedule=(rng.choice(kinds),),
            reshard_after_forward=(rng.random() < 0.5,),
            context_method=(rng.choice(CONTEXT_METHODS),),
            stack=rng.choice(("xla", "megatron")),
            pins=pins,
        )
        try:
            planning = plan_train(asked, top=1)
        except BadRequest:
            continue
        found += [(a.plan, cfg, asked.piece) for a in (planning.best, *planning.runners_up)]
    return found[:many]


def test_the_plans_are_of_many_kinds():
    plans = random_plans()
    piped = [plan for plan, *_ in plans if plan.degree("stage") > 1]
    assert len(piped) >= 8
    assert len({plan.pipeline_schedule for plan in piped}) >= 3
    assert len({(plan.remat, plan.zero, tuple(plan.mesh)) for plan, *_ in plans}) >= 20


@pytest.mark.parametrize("number", range(50))
def test_a_step_takes_what_its_ops_take(number):
    """Bodies laid out op by op; a pipeline's bubbles on what is no reduction."""
    plan, cfg, piece = random_plans()[number]
    answer = closed_form(plan, cfg, piece)
    found, stack = answer.estimate, stack_for(plan.stack, plan.constants)
    factor = bubbles(answer) if plan.degree("stage") > 1 else 1.0
    upper, resources = 0.0, defaultdict(float)
    for t in found.ops:
        stretched = 1.0 if once(t.op, plan) else factor
        upper += float(t.serial * t.op.count) * stretched
        for resource, seconds in t.peak.items():
            resources[resource] += float(seconds * t.op.count) * stretched
    bodies = body_times(found.ops, stack)
    usual = body_times([t for t in found.ops if not once(t.op, plan)], stack)
    expected = 0.0
    for name, body in bodies.items():
        expected += float(body.expected)
        if name != "optimizer":
            plain = usual[name].period if name.startswith("backward_last") else body.period
            expected += (factor - 1) * float(body.count * plain)
    lower = max(resources.values())
    assert float(found.lower) == pytest.approx(lower, rel=1e-9)
    assert float(found.upper) == pytest.approx(upper, rel=1e-9)
    assert float(found.expected) == pytest.approx(min(max(expected, lower), upper), rel=1e-9)


def once(op, plan) -> bool:
    """Whether an op comes once per step: the update, and reductions but those of ZeRO-2."""
    reduces = op.id.rpartition("/")[2].startswith("reduce.")
    return op.body == "optimizer" or (reduces and plan.zero < 2)


def bubbles(answer) -> float:
    """What the pipeline idles; test_pipeline.py holds it against the timeline of equal stages."""
    return float(answer.priced.seconds().factor)
