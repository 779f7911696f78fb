"""Tensor parallelism, with and without sequence parallelism, equals one device."""

from collections import Counter

import jax
import pytest
from tests.equivalence import cases
from tests.tiers import spread

from shardwise.profiler.hlo import read_collectives
from shardwise.runtime import mesh_of
from shardwise.runtime.parallel import place
from shardwise.runtime.parallel.run import place_batch
from shardwise.runtime.parallel.setup import Setup
from shardwise.runtime.parallel.step import mesh_loss_and_grads


@cases.combinations(
    ("llama", {"tensor": 2}, {"sequence_parallel": False}),
    slow=[
        ("llama", {"tensor": 4}, {"remat": "block"}),  # K = 2: KV heads on several devices
        ("llama", {"tensor": 2}, {"tensor_matmul": "one_way"}),
        ("llama", {"tensor": 4}, {"tensor_matmul": "both_ways", "remat": "block"}),
    ],
    long=[
        ("llama", {"tensor": 2}, {}),
        ("llama", {"data": 2, "fsdp": 2, "tensor": 2}, {"remat": "block", "microbatches": 2}),
        ("llama", {"fsdp": 2, "tensor": 2}, {"attention_kernel": "scores"}),
        ("gemma2", {"fsdp": 2, "tensor": 2}, {"remat_kinds": {"attention": "recompute"}}),
        ("llama", {"fsdp": 2, "tensor": 2}, {"bits": 64}),
        (
            "llama",
            {"data": 2, "fsdp": 2, "tensor": 2},
            {"tensor_matmul": "both_ways", "microbatches": 2},
        ),
        (
            "gpt2",
            {"context": 2, "tensor": 4},
            {"tensor_matmul": "both_ways", "context_method": "ring"},
        ),
        ("llama", {"fsdp": 2, "tensor": 4}, {"tensor_matmul": "both_ways", "bits": 64}),
    ],
)
def test_equals_one_device(case):
    name, mesh, choices = case
    cases.check(name, mesh, **choices)


def permutes(tensor_matmul):
    """Bytes of the permutes in a compiled step, and how often; 4 devices over tensor."""
    cfg, plan = cases.config("llama"), cases.plan_of("llama", {"tensor": 4})
    mesh = mesh_of(plan)
    setup = Setup(plan=plan, cfg=cfg, mesh=mesh, tensor_matmul=tensor_matmul)
    params = place(plan, cfg, mesh, cases.start("llama", "float32"))
    lowered = jax.jit(mesh_loss_and_grads(setup)).lower(params, place_batch(cases.batch_of(), mesh))
    found = read_collectives(lowered.compile().as_text())
    return Counter(c.bytes for c in found if c.kind == "permute")


BLOCK = cases.B * cases.T // 4 * 32 * 4  # x[B, T_tensor, D] with D = 32, f32


@pytest.mark.parametrize(
    ("tensor_matmul", "hops"),
    spread(
        [("one_way", {BLOCK: 3}), ("plain", {}), ("both_ways", {BLOCK: 2, BLOCK // 2: 2})],
        slow=2,
        rows=True,
    ),
)
def test_a_layer_exchanges_by_hops_forward_and_backward(tensor_matmul, hops):
    """Attention and MLP gather and scatter once each way, and gather x again for the gradients of
    their weights, as planned: what is kept are pieces. 10 rings in the two loops over layers."""
    assert permutes(tensor_matmul) == {size: 10 * count for size, count in hops.items()}
