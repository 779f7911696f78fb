"""Parameters and optimizer state that a device holds are those of the plan, to the byte.

All strategies at even dims are in `tests/evidence/planned/test_planned.py`, compiled; here are
uneven dims, every optimizer, and pipelines.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.equivalence import cases

from shardwise.models import from_hf
from shardwise.plans.identity import model_hash
from shardwise.plans.train import TrainDtypes, TrainPlan
from shardwise.runtime import mesh_of
from shardwise.runtime.parallel.abstract import abstract_state
from shardwise.runtime.trainer.optimizer import Settings, optimizer_of

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from planned_steps.lowered import held_bytes
from planned_steps.plans import DENSE, MOE
from planned_steps.steps import planned_state

MIXED = {"fsdp": 2, "tensor": 4}


def plan_of(document, mesh, **choices):
    cfg = from_hf(dict(document), name="state")
    stages = mesh.get("stage", 1)
    even = [cfg.layers // stages + (i < cfg.layers % stages) for i in range(stages)]
    plan = TrainPlan(
        model=cfg.name,
        model_hash=model_hash(cfg),
        slice="cpu",
        mesh=mesh,
        box=(8,),
        sequence_length=64,
        global_batch_sequences=32,
        layers_per_stage=tuple(even),
        **{"microbatches": 1, **choices},
    )
    return plan, cfg


def held(plan, cfg):
    """(part, rank) -> bytes on a device, without counters and buffers."""
    optimizer = optimizer_of(plan, cfg, Settings(steps=1))
    state = abstract_state(plan, cfg, mesh_of(plan), optimizer)
    ranks = state
    if plan.degree("stage") == 1:
        ranks = {name: (part,) for name, part in state.items()}
    return {
        (k, i): held_bytes(part)[0] for k, parts in ranks.items() for i, part in enumerate(parts)
    }


def check(plan, cfg):
    want = {
        (name, rank): size
        for rank in range(plan.degree("stage"))
        for name, size in planned_state(plan, cfg, rank).items()
    }
    assert held(plan, cfg) == want


@pytest.mark.parametrize("dims", [{"intermediate_size": 770}, {"vocab_size": 1283}], ids=str)
@pytest.mark.parametrize("mesh", [{"tensor": 4}, MIXED, {"data": 2, "tensor": 4}], ids=str)
def test_padded_dims(dims, mesh):
    check(*plan_of({**DENSE, **dims}, mesh))


@pytest.mark.parametrize("mesh", [{"tensor": 8}, {"stage": 2, "tensor": 4}], ids=str)
def test_kv_heads_that_tensor_does_not_divide(mesh):
    check(*plan_of({**DENSE, "num_key_value_heads": 2}, mesh, microbatches=2))


@pytest.mark.parametrize("optimizer", ["adam", "adafactor", "muon", "sgd"])
@pytest.mark.parametrize("mesh", [{"fsdp": 4, "tensor": 2}, {"data": 8}], ids=str)
def test_every_optimizer(optimizer, mesh):
    check(*plan_of(DENSE, mesh, optimizer=optimizer))


@pytest.mark.parametrize("dtypes", [cases.F32, TrainDtypes(master="none", moments="bf16")], ids=str)
def test_dtypes(dtypes):
    check(*plan_of(MOE, {"fsdp": 2, "expert": 4}, dtypes=dtypes))


@pytest.mark.parametrize(
    ("mesh", "choices"),
    [
        ({"stage": 2, "data": 4}, {"zero": 1}),
        ({"stage": 2, "fsdp": 2, "tensor": 2}, {"pipeline_schedule": "zb_h1"}),
        ({"stage": 4, "fsdp": 2}, {"pipeline_schedule": "gpipe", "zero": 0}),
        ({"stage": 2}, {"pipeline_schedule": "interleaved", "virtual_stages": 2}),
    ],
    ids=str,
)
def test_pipelines(mesh, choices):
    check(*plan_of({**DENSE, "num_hidden_layers": 8}, mesh, microbatches=4, **choices))


def test_the_plan_tells_states_apart():
    plan, cfg = plan_of(DENSE, {"fsdp": 8})
    other = planned_state(replace(plan, optimizer="sgd"), cfg)
    assert held(plan, cfg)["optimizer", 0] != other["optimizer"]
