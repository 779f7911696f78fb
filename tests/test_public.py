"""The Python API is the list of verbs: its names are pinned, and importing it costs nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tiers import spread

import shardwise
from shardwise.errors import BadRequest
from shardwise.models.zoo import hf_config
from shardwise.roofline import load_stack

pytestmark = pytest.mark.usefixtures("answers_kept")

NAMES = [
    "Layout",
    "Mesh",
    "ServePlan",
    "TrainPlan",
    "backward",
    "bench_serve",
    "book_errata",
    "book_figure",
    "book_list",
    "book_quiz",
    "book_rule",
    "book_show",
    "calibrate",
    "check",
    "compare",
    "compile",
    "count",
    "evaluate_serve",
    "evaluate_train",
    "explain",
    "export",
    "hw_diff",
    "hw_list",
    "hw_show",
    "load_chip",
    "load_model",
    "load_plan",
    "matmul_roofline",
    "model_diff",
    "model_list",
    "model_show",
    "parameters",
    "place",
    "plan_diff",
    "plan_schema",
    "plan_serve",
    "plan_show",
    "plan_sweep",
    "plan_train",
    "price",
    "profile",
    "report",
    "resolve",
    "save_plan",
    "schema",
    "shard",
    "simulate",
    "slice_of",
    "train",
    "validate",
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
    planning = shardwise.plan_serve("llama-3-8b", "h100:1", input=512, output=32, rate=5)
    found = shardwise.simulate(planning.best.plan, rate=2.0, requests=20)
    assert found.result["completed"] == 20


@pytest.mark.parametrize("kind", spread([str, Path], slow=1))
def test_a_path_is_a_path_or_its_text(tmp_path, kind):
    """Every verb that takes a path takes both."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(hf_config("llama-3-8b")))
    saved = kind(tmp_path / "p.yaml")
    asked = {"input": 512, "output": 32}
    served = shardwise.plan_serve(kind(config), "h100:1", rate=5, **asked).best.plan
    shardwise.save_plan(served, saved)
    assert shardwise.load_plan(saved) == served
    trained = shardwise.plan_train(kind(config), "v5p:2x2x2", batch="8seq", seq=512).best.plan
    shardwise.save_plan(trained, saved)
    assert shardwise.load_plan(saved) == trained
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrival": 0.0, "prompt": 10, "output": 5}\n')
    found = shardwise.simulate(served, trace=kind(trace))
    assert found.result["completed"] == 1
    missing = kind(tmp_path / "none.csv")
    with pytest.raises(BadRequest, match=r"none\.csv"):
        shardwise.simulate(served, rate=1.0, lengths=f"{missing}:all")
    with pytest.raises(BadRequest, match=r"none\.csv"):
        shardwise.load_plan(missing)
    with pytest.raises(BadRequest, match=r"none\.csv"):
        shardwise.compile(missing)
    with pytest.raises(BadRequest, match=r"none\.toml"):
        shardwise.load_chip("v5e", hw_files=[kind(tmp_path / "none.toml")])


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
    assert float(priced.expected) == pytest.approx(again.step_seconds.expected)
