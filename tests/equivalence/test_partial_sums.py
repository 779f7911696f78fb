"""Where a layer's partial sums go: what is written out in a step, before any compiler reads it."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from tests.equivalence import cases

from shardwise.runtime import mesh_of
from shardwise.runtime.init import shapes
from shardwise.runtime.parallel.setup import Setup
from shardwise.runtime.parallel.step import mesh_loss_and_grads

SUMS = ("reduce_scatter", "psum", "psum_invariant")


def sums(mesh, **choices):
    """Axes of the sums in the loops over layers, with how often each stands there."""
    cfg, plan = cases.config("llama"), cases.plan_of("llama", mesh, **choices)
    run = mesh_loss_and_grads(Setup(plan=plan, cfg=cfg, mesh=mesh_of(plan)))
    tokens = jax.ShapeDtypeStruct((cases.B, cases.T), jnp.int32)
    closed = jax.make_jaxpr(run)(shapes(cfg), {"tokens": tokens, "targets": tokens})
    return Counter(inside(closed.jaxpr))


def inside(jaxpr):
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in SUMS:
            axes = eqn.params.get("axes", eqn.params.get("axis_name"))
            yield eqn.primitive.name, axes if isinstance(axes, tuple) else (axes,)
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(value):
                yield from inside(getattr(value, "jaxpr", value))


def is_jaxpr(value):
    return hasattr(getattr(value, "jaxpr", value), "eqns")


WEIGHTS = 7  # q, k, v, o; gate, up, down
KEPT = {"remat": "none"}


def test_gradients_are_scattered_to_those_that_store():
    assert sums({"fsdp": 4}, **KEPT) == {("reduce_scatter", ("fsdp",)): WEIGHTS}


def test_then_their_pieces_to_those_that_replicate():
    """Pieces of few rows in blocks of columns: F=48 of gate and up as 32 and 16. That of down is
    cut along F and D, in no blocks."""
    found = sums({"replica": 2, "fsdp": 2}, zero=1, **KEPT)
    assert found == {
        ("reduce_scatter", ("fsdp",)): WEIGHTS + 2,
        ("reduce_scatter", ("replica",)): WEIGHTS + 2,
    }
    assert sums({"replica": 2, "fsdp": 2}, zero=0, **KEPT)[("psum", ("replica",))] == WEIGHTS


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_over_tensor_each_block_sums_once_each_way(sequence_parallel):
    found = sums({"tensor": 2}, sequence_parallel=sequence_parallel, **KEPT)
    assert found == {("reduce_scatter" if sequence_parallel else "psum", ("tensor",)): 4}


def test_heads_that_tensor_does_not_divide_are_the_compilers():
    """K = 2: k and v. F=48 is 12 on a device, in blocks of 8 and 4 for each weight of the MLP."""
    found = sums({"fsdp": 2, "tensor": 4}, **KEPT)
    assert found[("reduce_scatter", ("fsdp",))] == WEIGHTS - 2 + 3
