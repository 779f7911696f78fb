"""Which model a plan is of: today's hash, and that of plans that were written before it."""

from dataclasses import replace
from pathlib import Path

import pytest

from shardwise import load_plan, plan_diff, plan_show
from shardwise.evidence.compare_plans import compare_plans
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.plans import TrainPlan
from shardwise.plans.files import save_plan
from shardwise.plans.identity import former_hash, is_of, model_hash

WRITTEN_BEFORE = Path(__file__).parents[1] / "documents" / "plans" / "train.yaml"


def with_mlp(cfg, **changes):
    first, *rest = cfg.groups
    return replace(cfg, groups=(replace(first, mlp=replace(first.mlp, **changes)), *rest))


def test_the_hash_depends_on_the_layers_and_on_nothing_else():
    cfg = load_model("llama-3-8b")
    same = replace(cfg, name="other name", provenance={})
    assert model_hash(cfg) == model_hash(same) == model_hash(load_model("llama-3-8b"))
    fewer = replace(cfg, pattern=cfg.pattern[:-1])
    wider = replace(cfg, d_model=cfg.d_model * 2)
    scaled = with_mlp(cfg, activation_scalars=2)
    assert len({model_hash(c) for c in (cfg, fewer, wider, scaled)}) == 4


@pytest.mark.parametrize(
    ("later", "known"),
    [
        ({}, "1992fd4cc57f50a3"),
        ({"inner_norm": True, "activation_scalars": 2}, "7d2df5b68b5eed02"),
    ],
)
def test_the_former_hash_is_known(later, known):
    cfg = with_mlp(load_model("llama-3-8b"), **later)
    assert former_hash(cfg) == known != model_hash(cfg)
    assert is_of(known, cfg)
    assert is_of(model_hash(cfg), cfg)
    assert not is_of(known, replace(cfg, pattern=cfg.pattern[:-1]))


def test_a_plan_with_the_former_hash_is_of_its_model(tmp_path):
    before = load_plan(WRITTEN_BEFORE)
    assert isinstance(before, TrainPlan)
    cfg = load_model("llama-3-8b")
    assert before.model_hash == former_hash(cfg)
    assert not [line for line in plan_show(WRITTEN_BEFORE).warnings if "another" in line]
    now = replace(before, model_hash=model_hash(cfg))
    save_plan(now, tmp_path / "plan.yaml")
    assert plan_diff(WRITTEN_BEFORE, tmp_path / "plan.yaml").changed == {}
    assert compare_plans(now, before, cfg, parse_slice(now.slice)) == ()
