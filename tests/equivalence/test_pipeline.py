"""Pipelines by the schedule's table, alone and with other strategies, equal one device."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from tests.equivalence import cases

from shardwise.profiler.hlo import read_collectives
from shardwise.runtime import mesh_of
from shardwise.runtime.parallel import place
from shardwise.runtime.parallel.chunks import programs
from shardwise.runtime.parallel.passes import passes
from shardwise.runtime.parallel.pipeline import PipelineRun, microbatches, reduction
from shardwise.runtime.parallel.stages import held, pipeline_of
from shardwise.scheduling.pipeline import ready_order

INTERLEAVED = {"pipeline_schedule": "interleaved", "virtual_stages": 2}
DUAL = {"pipeline_schedule": "dualpipe", "virtual_stages": 2, "expert_dispatch": "ragged"}
ZB_V = {"pipeline_schedule": "zb_v", "virtual_stages": 2}
ZERO_BUBBLE = {"pipeline_schedule": "zb_h1", "microbatches": 4, "remat": "block"}


@cases.combinations(
    ("llama", {"stage": 3}, {"microbatches": 4, "remat": "block"}),
    slow=[
        ("llama", {"stage": 2}, {"microbatches": 4, "pipeline_schedule": "zb_h1"}),
        ("gemma2", {"stage": 2}, {**ZB_V, "microbatches": 4}),
        ("gemma2", {"stage": 2}, {**INTERLEAVED, "microbatches": 4}),
        ("gpt-oss", {"stage": 2}, {**DUAL, "microbatches": 4}),
    ],
    long=[
        ("llama", {"stage": 2, "fsdp": 2, "tensor": 2}, {"microbatches": 2, "remat": "block"}),
        ("mixtral", {"stage": 2, "expert": 2}, {"microbatches": 2, "expert_dispatch": "ragged"}),
        ("llama", {"stage": 2}, {"microbatches": 4, "pipeline_schedule": "gpipe"}),
        ("llama", {"stage": 2, "tensor": 2}, {**ZERO_BUBBLE, "tensor_matmul": "one_way"}),
        ("gpt2", {"stage": 2, "data": 2, "context": 2}, {**ZERO_BUBBLE, "context_method": "ring"}),
        ("gpt2", {"stage": 2, "data": 2, "fsdp": 2}, {"microbatches": 2, "zero": 0}),
        ("llama", {"stage": 2, "fsdp": 2}, {**ZERO_BUBBLE, "zero": 2, "bits": 64}),
    ],
)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)


def test_a_split_backward_pass_computes_no_product_twice():
    """Two matmuls under remat: B recomputes the first and has two dX, W has two dW."""

    def run(params, x, extra):
        block = jax.checkpoint(lambda p, x: jnp.tanh(x @ p[0]) @ p[1])
        return block(params, x) * extra

    params, x, extra = [jnp.ones((4, 6)), jnp.ones((6, 4))], jnp.ones((3, 4)), jnp.ones((3, 4))
    made = passes(run, (params, x, extra), split=True, lay=lambda sums: sums)
    out, kept = made.forward(params, x, extra)
    dx, left = made.backward(params, kept, out)
    programs = {
        "B": jax.make_jaxpr(made.backward)(params, kept, out),
        "W": jax.make_jaxpr(made.weights)(params, kept, out, left, params),
    }
    assert {k: str(p).count("dot_general") for k, p in programs.items()} == {"B": 3, "W": 2}
    want, pull = jax.vjp(lambda p, x: run(p, x, extra), params, x)
    assert jnp.allclose(dx, pull(want)[1])


def kinds(program, *args):
    """How many collectives of each kind the compiled program has."""
    found = read_collectives(program.lower(*args).compile().as_text())
    return Counter(c.kind for c in found if c.bytes > 4)


def backward_and_end(zero):
    """Collectives of the first backward pass of two stages with data=2, and of the end."""
    cfg, plan = (
        cases.config("gpt2"),
        cases.plan_of(
            "gpt2", {"stage": 2, "data": 2}, microbatches=2, zero=zero, pipeline_schedule="gpipe"
        ),
    )
    mesh = mesh_of(plan)
    pipe, params = (
        pipeline_of(plan, cfg, mesh),
        place(plan, cfg, mesh, cases.start("gpt2", "float32")),
    )
    parts = [list(microbatches(pipe, rank, cases.batch_of())) for rank in range(2)]
    pipe.programs.update(programs(pipe, params, [mine[0] for mine in parts]))
    run = PipelineRun(pipe, params, parts)
    forward = [(rank, action) for rank, action in ready_order(pipe.schedule) if action.kind == "F"]
    for rank, action in forward:
        run.act(rank, action)
    mine, sums = held(pipe, params[1], 1, 0), held(pipe, run.sums[1], 1, 0)
    one = jnp.ones((), run.losses[0].dtype)
    backward = kinds(pipe.programs[1, 0].backward, mine, run.kept[1, 0, 0], one, sums)
    return backward, kinds(jax.jit(reduction(pipe, 1)), run.sums[1])


@pytest.mark.slow
def test_gradients_are_summed_over_data_once_per_step():
    """Under ZeRO-2 every backward pass sums them, for the sum is kept in pieces."""
    assert all(not backward and end for backward, end in map(backward_and_end, (0, 1)))
    backward, end = backward_and_end(2)
    assert backward
    assert not end
