"""A plan's documents, packed into one sequence, equal one device that is told of them."""

from functools import partial

import jax
import pytest
from tests.equivalence import cases

from shardwise.runtime import loss, mesh_of
from shardwise.runtime.parallel import loss_and_grads, place

PACKED = {"packed_lengths": (5, 8, 3)}  # documents that cross the cuts of context


@cases.combinations(
    slow=[
        ("gpt2", {"context": 4}, {**PACKED, "context_method": "ring"}),
        ("lfm2", {"data": 2, "context": 2}, {**PACKED, "context_method": "all_gather"}),
    ],
    long=[
        ("gpt2", {"data": 2, "tensor": 2}, {**PACKED, "microbatches": 2}),
        ("gpt2", {"context": 2, "tensor": 2}, {**PACKED, "context_method": "all_gather"}),
        ("gpt2", {"fsdp": 2, "context": 2}, {**PACKED, "context_method": "ulysses"}),
        ("gpt2", {"stage": 2, "context": 2}, {**PACKED, "microbatches": 2}),
    ],
)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)


@pytest.mark.slow
def test_segments_of_the_batch_come_first():
    """Other documents than the plan's: the loss is theirs."""
    cfg, params = cases.config("gpt2"), cases.start("gpt2", "float32")
    plan = cases.plan_of("gpt2", {"data": 2}, **PACKED)
    theirs = cases.batch_of(packed=(10, 6))
    mesh = mesh_of(plan)
    got, _ = loss_and_grads(plan, cfg, mesh)(place(plan, cfg, mesh, params), theirs)
    alone = jax.jit(partial(loss, cfg=cfg))
    want, other = (float(alone(params, b)) for b in (theirs, cases.batch_of(packed=(5, 8, 3))))
    assert float(got) == pytest.approx(want, rel=1e-5)
    assert abs(want - other) > 1e-5
