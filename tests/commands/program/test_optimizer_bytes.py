"""The optimizer's state of every optimizer, per device: what is made is what the plan counts."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import price_plan
from shardwise.models import load_model
from shardwise.plans import TrainPlan, model_hash
from shardwise.plans.optimizers import OPTIMIZERS
from shardwise.plans.train import TrainDtypes
from shardwise.runtime.init import rows_tree, shapes
from shardwise.runtime.parallel.setup import Setup
from shardwise.runtime.parallel.update import Update
from shardwise.runtime.trainer import Settings, optimizer_of

MESHES = ({"data": 8}, {"fsdp": 4, "tensor": 2}, {"data": 2, "fsdp": 2, "tensor": 2})
MODEL = "llama-3-8b"


def plan_of(mesh, optimizer, **changes):
    cfg = load_model(MODEL)
    plan = TrainPlan(
        model=MODEL,
        model_hash=model_hash(cfg),
        slice="v5e:2x4",
        mesh=mesh,
        box=(2, 4),
        global_batch_sequences=16,
        sequence_length=512,
        microbatches=1,
        layers_per_stage=(cfg.layers,),
        optimizer=optimizer,
    )
    return replace(plan, **changes)


def made(plan):
    """Bytes of the state's arrays on a device, from their shapes alone."""
    cfg = load_model(plan.model)
    mesh = jax.sharding.AbstractMesh(tuple(plan.mesh.values()), tuple(plan.mesh))
    setup = Setup(plan=plan, cfg=cfg, mesh=mesh)
    optimizer = optimizer_of(plan, cfg, Settings(steps=1))
    params = shapes(cfg, jax.numpy.bfloat16)
    state = jax.eval_shape(optimizer.init, params)
    at = Update(setup=setup, rows=rows_tree(cfg), optimizer=optimizer).state_shardings(params)
    leaves = zip(jax.tree.leaves(state), jax.tree.leaves(at), strict=True)
    return sum(
        int(np.prod(sharding.shard_shape(x.shape))) * x.dtype.itemsize
        for x, sharding in leaves
        if x.ndim  # counters aside
    )


@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "-".join(f"{a}{n}" for a, n in m.items()))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_state_is_what_the_plan_counts(optimizer, mesh):
    plan = plan_of(mesh, optimizer)
    counted = dict(price_plan(plan, Hardware()).answer.memory.points)["optimizer"]["optimizer"]
    assert made(plan) == counted


def test_the_masters_dtype_counts():
    lean = TrainDtypes(master="none", moments="bf16")
    plan = plan_of({"data": 8}, "adam", dtypes=lean)
    assert made(plan) * 3 == made(plan_of({"data": 8}, "adam"))
