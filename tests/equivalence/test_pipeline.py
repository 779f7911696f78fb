"""Pipelines by the schedule's table, alone and with other strategies, equal one device."""

import jax
import jax.numpy as jnp
from tests.equivalence import cases

from shardwise.runtime.parallel.passes import passes

INTERLEAVED = {"pipeline_schedule": "interleaved", "virtual_stages": 2}
DUAL = {"pipeline_schedule": "dualpipe", "virtual_stages": 2, "expert_dispatch": "ragged"}
ZERO_BUBBLE = {"pipeline_schedule": "zb_h1", "microbatches": 4, "remat": "block"}


@cases.combinations(
    ("llama", {"stage": 2}, {"microbatches": 4, "pipeline_schedule": "gpipe"}),
    ("llama", {"stage": 3}, {"microbatches": 4, "remat": "block"}),
    ("gemma2", {"stage": 2}, {**INTERLEAVED, "microbatches": 4}),
    ("llama", {"stage": 2}, {"microbatches": 4, "pipeline_schedule": "zb_h1"}),
    ("gemma2", {"stage": 2}, {"microbatches": 4, "pipeline_schedule": "zb_v", "virtual_stages": 2}),
    ("gpt-oss", {"stage": 2}, {**DUAL, "microbatches": 4}),
    ("llama", {"stage": 2, "fsdp": 2, "tensor": 2}, {"microbatches": 2, "remat": "block"}),
    ("gpt2", {"stage": 2, "data": 2, "context": 2}, {**ZERO_BUBBLE, "context_method": "ring"}),
    ("mixtral", {"stage": 2, "expert": 2}, {"microbatches": 2, "expert_dispatch": "ragged"}),
    ("llama", {"stage": 2, "fsdp": 2}, {**ZERO_BUBBLE, "zero": 2, "bits": 64}),
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
