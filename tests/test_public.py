"""The Python API is the list of verbs: its names are pinned, and importing it costs nothing."""

import subprocess
import sys

import pytest

import shardwise
from shardwise.roofline import load_stack

NAMES = [
    "Layout",
    "Load",
    "Mesh",
    "ServePlan",
    "TrainPlan",
    "backward",
    "compare",
    "compile",
    "count",
    "evaluate_serve",
    "evaluate_train",
    "explain",
    "load_chip",
    "load_model",
    "load_plan",
    "parameters",
    "place",
    "plan_serve",
    "plan_train",
    "price",
    "resolve",
    "save_plan",
    "simulate",
    "slice_of",
]


def test_the_public_names_are_pinned():
    assert shardwise.__all__ == NAMES
    assert dir(shardwise) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_loads_and_says_what_it_does(name):
    assert callable(getattr(shardwise, name))
    assert getattr(shardwise, name).__doc__


def test_another_name_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'shardwise' has no attribute 'plan_trian'"):
        _ = shardwise.plan_trian


def test_importing_the_package_loads_nothing():
    code = (
        "import sys, shardwise\n"
        "loaded = [m for m in ('numpy', 'pydantic', 'yaml', 'rich', 'click', 'jax') "
        "if m in sys.modules]\n"
        "sys.exit('loaded ' + ', '.join(loaded) if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_plan_that_serves_is_simulated():
    planning = shardwise.plan_serve("llama-3-8b", "v5e:2x2", input=512, output=32)
    found = shardwise.simulate(planning.best.plan, shardwise.Load(rate=2.0, requests=20))
    assert found.result["completed"] == 20


def test_the_verbs_join(tmp_path):
    """Plan, save, load, evaluate: the same numbers; its Work priced again is its estimate."""
    planning = shardwise.plan_train("llama-3-8b", "v5e:4x4", batch="32seq", seq=2048)
    path = tmp_path / "plan.yaml"
    shardwise.save_plan(planning.best.plan, path)
    plan = shardwise.load_plan(path)
    assert plan == planning.best.plan
    cfg, piece = shardwise.load_model(plan.model), shardwise.slice_of(plan.slice)
    again = shardwise.evaluate_train(plan, cfg, piece)
    assert again.step_seconds == planning.best.step_seconds
    stack = load_stack(plan.stack)
    priced = shardwise.price(again.work, piece.chip, again.placement, stack=stack)
    assert float(priced.expected) == pytest.approx(again.step_seconds["expected"])
