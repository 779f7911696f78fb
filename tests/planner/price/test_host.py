"""What the host works for a step: it runs ahead of the device, and the slower of both decides."""

from dataclasses import replace

import pytest
from tests.planner.search.test_train_search import request
from tests.planner.steps import dense

from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.training import plan_train
from shardwise.roofline.stacks import BEGIN_SECONDS, OP_SECONDS


def step(plan, on, **changes):
    return evaluate_train(replace(plan, **changes), dense(), request(dense(), on, 32).piece)


def best(on, stack, sequences=32):
    return plan_train(request(dense(), on, sequences, stack=stack), top=0).best.plan


def ops(answer) -> float:
    return sum(float(t.op.count) for t in answer.estimate.ops)


def test_a_small_step_takes_what_the_host_starts():
    plan = best("h100:1", "fsdp")
    for compiled in (False, True):
        answer = step(plan, "h100:1", compiled=compiled)
        host = ops(answer) * OP_SECONDS[compiled]
        assert answer.step_seconds.expected == pytest.approx(host + BEGIN_SECONDS, rel=1e-6)
        assert answer.time_parts.named()["kernel starts"] > 0.5 * answer.step_seconds.expected


def test_beside_a_slow_device_only_what_begins_a_step_is_waited_for():
    plan = best("h100:1", "fsdp")
    long = replace(plan, global_batch_sequences=2**14, microbatches=1)
    answer = step(long, "h100:1")
    assert ops(answer) * OP_SECONDS[False] < answer.step_seconds.expected
    assert float(answer.priced.seconds().host) == pytest.approx(BEGIN_SECONDS)


def test_graphs_of_the_whole_step_and_programs_of_xla_have_no_host():
    plan = best("h100:1", "megatron")
    free = step(plan, "h100:1", cuda_graph=("full",)).step_seconds.expected
    assert free < BEGIN_SECONDS < step(plan, "h100:1").step_seconds.expected
    answer = step(best("v5e:1x1", "xla"), "v5e:1x1")
    assert float(answer.priced.seconds().host) == 0.0


def test_the_book_has_no_host():
    plan = replace(best("h100:1", "fsdp"), constants="book")
    assert step(plan, "h100:1").step_seconds.expected < BEGIN_SECONDS
