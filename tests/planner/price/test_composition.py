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
from shardwise.plans.stacks import GATHERS, REDUCES
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
            weight_gather=(rng.choice(GATHERS),),
            gradient_reduce=(rng.choice(REDUCES),),
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


@pytest.mark.slow
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
    found, stack = answer.estimate, stack_for(plan, answer.piece.chip)
    factor = bubbles(answer) if plan.degree("stage") > 1 else 1.0
    upper, resources = 0.0, defaultdict(float)
    for t in found.ops:
        stretched = 1.0 if once(t.op, plan) else factor
        upper += float(t.serial * t.op.count) * stretched
        for resource, seconds in t.peak.items():
            resources[resource] += float(seconds * t.op.count) * stretched
    expected = 0.0
    for name in {t.op.body: None for t in found.ops}:
        ops = [t for t in found.ops if t.op.body == name]
        count = max(float(t.op.count) for t in ops)
        period, hidden = round_of_ops(ops, count, plan, stack)
        expected += count * period + hidden * min(count, 1.0)
        if name != "optimizer":
            late = name.startswith("backward_last")
            usual = [t for t in ops if not (late and once(t.op, plan))]
            plain, _ = round_of_ops(usual, count, plan, stack)
            expected += (factor - 1) * count * plain
    host = sum(float(t.host * t.op.count) for t in found.ops)
    lower, upper = max(resources.values()), max(upper, host)
    device = min(max(expected, lower), upper)
    assert float(found.lower) == pytest.approx(lower, rel=1e-9)
    assert float(found.upper) == pytest.approx(upper + stack.begin_seconds, rel=1e-9)
    expected = max(device, host) + stack.begin_seconds
    assert float(found.expected) == pytest.approx(expected, rel=1e-9)


def round_of_ops(ops, count, plan, stack) -> tuple[float, float]:
    """One round of a body, and what of it hides: the formulas of `roofline/bodies.py`."""
    along, beside = 0.0, defaultdict(float)
    waited_for = {i for t in ops for i in t.op.after}
    for t in ops:
        seconds = float(t.derated * t.op.count) / count if count else 0.0
        aside = not t.op.after or t.op.id not in waited_for
        match owner(t.op):
            case "stage":  # else the schedule says who waits for it
                hides = plan.virtual_stages > 1 and plan.stack == "megatron"
                if not hides:
                    continue
            case "data" | "context":
                hides = aside
            case "expert":
                hides = plan.paired
            case "tensor":
                hides = plan.sequence_parallel and plan.stack in ("xla", "megatron")
            case _:
                hides = aside and t.op.stream == "host"
        if hides:
            beside[t.op.stream] += seconds
        else:
            along += seconds
    side = max(beside.values(), default=0.0)
    hidden = float(stack.overlap) * min(along, side)
    return along + side - hidden, hidden


def owner(op) -> str:
    """Whose transfer an op is."""
    if op.collective is None:
        return ""
    if op.component in ("parameters", "gradients", "optimizer"):
        return "data"
    first = op.collective.axes[0]
    return first if first in ("stage", "context", "tensor") else "expert"


def once(op, plan) -> bool:
    """Whether an op comes once per step: the update, and reductions but those of ZeRO-2."""
    name = op.id.rpartition("/")[2]
    late = name.startswith("scatter.") and plan.gradient_reduce == "per_step"
    reduces = op.collective is not None and (name.startswith("reduce.") or late)
    return op.body == "optimizer" or (reduces and plan.zero < 2)


def bubbles(answer) -> float:
    """What the pipeline idles; test_pipeline.py holds it against the timeline of equal stages."""
    return float(answer.priced.seconds().factor)
