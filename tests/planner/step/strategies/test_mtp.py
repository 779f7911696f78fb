"""Modules that predict further tokens."""

import pytest
from tests.planner.steps import ATTENTION, LAYER, MLP, PARAMS, D, H, N, V, dense, over, step

from shardwise.models import load_model
from shardwise.planner.price.memory import train_memory
from shardwise.planner.step.strategies.mtp import mtp_rows
from shardwise.planner.step.work import train_work

TOKENS, T = 4 * 128, 128


def test_deepseek_v3_s_module_has_11_5_billion_parameters_of_its_own():
    """deepseek-ai/DeepSeek-V3, README_WEIGHTS.md: 11.5B unique parameters (without the shared
    embedding and head)."""
    rows = mtp_rows(load_model("deepseek-v3"), 1)
    assert sum(r.params for r in rows) == pytest.approx(11.5e9, rel=0.01)


def test_a_module_costs_a_layer_a_projection_and_the_head():
    module = ATTENTION + MLP + 2 * D * D + D * V
    core = 3.5 * 4 * TOKENS * (T / 2) * N * H
    base = train_work(dense(), step()).flops()
    for modules in (1, 2):
        work = train_work(dense(), step(choices={"mtp_layers": modules}))
        want = base + modules * (3 * 2 * TOKENS * module + core)
        assert work.flops() == pytest.approx(want)


def test_a_module_shares_the_embedding_and_the_head():
    own = LAYER + 2 * D * D + 2 * D
    shape = step(choices={"mtp_layers": 1}, fsdp=2)
    assert float(dict(train_memory(dense(), shape).points)["loss"]["params"]) == PARAMS + own
    wires = over(train_work(dense(), shape), "fsdp")
    assert wires.collective_bytes("reduce_scatter") == pytest.approx(2 * (PARAMS + own))


def test_modules_stand_on_the_last_stage():
    shape = step(choices={"mtp_layers": 1}, stage=3, microbatches=3.0)
    points = dict(train_memory(dense(), shape).points)
    own = LAYER + 2 * D * D + 2 * D
    assert float(points["loss"]["params"]) == 2 * (LAYER + D + V * D + own)
    assert float(points["backward"]["params"]) == 2 * (LAYER + V * D)


def test_remat_repeats_a_module_s_layer():
    """Without the last matmul of its MLP, as in the stack."""
    plain, again = (
        train_work(dense(), step(remat=remat, choices={"mtp_layers": 1}))
        for remat in ("none", "block")
    )
    repeated = again.where(lambda o: o.body == "last" and o.phase == "recompute").flops()
    core = 4 * TOKENS * (T / 2) * N * H
    assert repeated == pytest.approx(2 * TOKENS * (ATTENTION + MLP * 2 / 3) + core)
    assert not plain.where(lambda o: o.phase == "recompute").ops
