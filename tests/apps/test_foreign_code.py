"""Nothing in the current folder is run because it is there: not here, not in a child."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.tiers import spread

from runtime.trainer.made import QUICK, make_plan
from shardwise.plans import save_plan
from shardwise.plans.train import TrainDtypes

NAMES = (
    *("tempfile", "json", "jax", "random", "numpy", "yaml", "click", "threading", "resource"),
    *("sitecustomize", "usercustomize"),
)
"""Modules that a program of ours, Python itself or a child would import."""

SCRIPT = ("-P", "-c", "from shardwise.apps.cli import main; main()")
"""As the installed command `shardwise` starts: the current folder is not on its path."""

MODULE = ("-m", "shardwise")

COMMANDS = {
    "shard --run": [
        *("shard", "A[I_X, J] * B[J, K] -> C[I_X, K]", "--dims", "I=8,J=8,K=8"),
        *("--mesh", "X=2", "--run"),
    ],
    "compile": ["compile", "mine:nothing", "--args", "mine:args", "--on", "v5e:1x1"],
    "profile": [
        "profile",
        "mine:step",
        "--args",
        "mine:args",
        "--cpu-devices",
        "1",
        "--steps",
        "1",
    ],
    "profile --capture": ["profile", "--capture", "a.xplane.pb"],
    "train": ["train", "plan.yaml", "--data", "text.txt", "--steps", "1", "--cpu-devices", "1"],
    "train --processes 2": [
        *("train", "wide.yaml", "--data", "text.txt", "--steps", "1", "--cpu-devices", "1"),
        *("--processes", "2"),
    ],
    "plan show": ["plan", "show", "plan.yaml"],
    "export": ["export", "plan.yaml", "--to", "maxtext"],
}

MINE = """
import jax
def step(x):
    return x + 1
def args():
    return (jax.ShapeDtypeStruct((8,), "float32"),)
"""


@pytest.fixture
def folder(tmp_path):
    """What the commands read, and a module of each name that says that it was run."""
    here = tmp_path / "here"
    here.mkdir()
    plan = make_plan(tmp_path, dtypes=TrainDtypes(), remat="block")
    save_plan(plan, here / "plan.yaml")
    wide = replace(plan, slice="v5e:2x2", mesh={"fsdp": 2}, box=(1, 2))
    save_plan(wide, here / "wide.yaml")
    (here / "text.txt").write_text("some words " * 1000)
    (here / "a.xplane.pb").write_bytes(b"no capture")
    (here / "mine.py").write_text(MINE)
    for name in NAMES:
        said = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + ' ')\n"
        (here / f"{name}.py").write_text(said)
    return here


def run(folder: Path, start: tuple[str, ...], args: list[str], **around: str):
    """The command's exit, and the planted modules that were run."""
    done = subprocess.run(
        [sys.executable, *start, *args],
        capture_output=True,
        text=True,
        cwd=folder,
        env=QUICK | around,
        timeout=300,
    )
    ran = folder.parent / "ran"
    return done, ran.read_text().split() if ran.exists() else []


PLACES = {name: place for place, name in enumerate(COMMANDS)}


@pytest.mark.parametrize(
    "name",
    spread(COMMANDS, quick=[PLACES["plan show"]], slow=[PLACES["compile"], PLACES["train"]]),
)
def test_modules_in_the_current_folder_are_not_run(folder, name):
    done, ran = run(folder, SCRIPT, COMMANDS[name])
    assert ran == []
    # What cannot work is refused, what can does work.
    said = {"compile": "module 'mine' has no 'nothing'", "profile --capture": "is no capture"}
    assert done.returncode == (2 if name in said else 0), done.stderr
    assert said.get(name, "") in done.stderr


@pytest.mark.parametrize("name", spread(["plan show", "shard --run", "profile"], slow=1))
def test_nor_where_python_leads_its_path_with_that_folder(folder, name):
    """`python -m shardwise` puts the current folder first; we take it off again."""
    done, ran = run(folder, MODULE, COMMANDS[name])
    assert (ran, done.returncode) == ([], 0), done.stderr


def test_nor_through_a_pythonpath_that_means_it(folder):
    """An empty and a relative entry mean the current folder, in the child as here."""
    given = os.environ["PYTHONPATH"]
    for name in NAMES:  # in this process Python itself reads them: see that the child does not
        (folder / f"{name}.py").rename(folder / f"{name}.txt")
    start = ("-P", "-c", _STARTS_A_CHILD)
    for entry in ("", ".", "./", "../here"):
        path = os.pathsep.join([given, entry])
        done, _ = run(folder, start, [], PYTHONPATH=path)
        where = json.loads(done.stdout)
        assert str(folder) not in where, (entry, done.stderr)
        assert "" not in where
        assert str(folder / "below") not in where
    below = os.pathsep.join([given, "below"])
    done, _ = run(folder, start, [], PYTHONPATH=below)
    assert str(folder / "below") in json.loads(done.stdout)


_STARTS_A_CHILD = """
from shardwise.profiler import run_source
print(run_source("import json, sys; print(json.dumps(sys.path))"), end="")
"""


@pytest.mark.slow
def test_the_users_module_is_found_in_the_current_folder_last(folder):
    """What it imports of Python's own is Python's, whatever else lies in the folder."""
    (folder / "mine.py").write_text("import random, tempfile, colorsys\n" + MINE)
    (folder / "colorsys.py").write_text((folder / "random.py").read_text())
    done, ran = run(folder, SCRIPT, COMMANDS["profile"])
    assert (ran, done.returncode) == ([], 0), done.stderr


@pytest.mark.slow
def test_a_module_that_python_has_too_is_named(folder):
    (folder / "colorsys.py").write_text(MINE)
    args = ["profile", "colorsys:step", "--args", "mine:args", "--cpu-devices", "1"]
    done, _ = run(folder, SCRIPT, args)
    assert done.returncode == 2
    assert "module 'colorsys'" in done.stderr
    assert "the current folder comes last, so rename" in done.stderr
