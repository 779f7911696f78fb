"""A finding as a report for a maintainer: op, cost, versions, and a program of JAX alone."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import shardwise as sw
from shardwise.commands.program.issue import issue_text
from shardwise.errors import BadRequest
from shardwise.hardware import parse_slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead import target_of
from shardwise.profiler.explain import explain_program
from shardwise.sharding import Mesh

DATA = Path(__file__).parents[2] / "profiler/explain/data"
LABEL = "gather_in_decode.a.fault"
ROW = json.loads((DATA / "index.json").read_text())[LABEL]
SOURCE = """from __future__ import annotations
import jax, jax.numpy as jnp
def step(x, w):
    return x @ w
def args(mesh):
    def array(*spec):
        at = jax.NamedSharding(mesh, jax.P(*spec))
        return jax.ShapeDtypeStruct((64, 4096), jnp.bfloat16, sharding=at)
    return (array(), jax.ShapeDtypeStruct((4096, 64), jnp.bfloat16)), {}
def none():
    return 1
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)


def report(args="mine:args", beside="", **more):
    with gzip.open(DATA / f"{LABEL}.hlo.gz", "rt") as file:
        hlo = file.read()
    piece, mesh = parse_slice(ROW["on"]), Mesh(tuple(ROW["mesh"].items()))
    found = explain_program(hlo, piece, mesh)
    compiled = {"hlo": hlo, "slice": ROW["on"], "mesh": mesh, "versions": {"jax": "9.9"}}
    compiled = SimpleNamespace(**compiled | {"partitioned": False} | more)
    program = SimpleNamespace(phase="mine:step", compiled=compiled)
    target = target_of(piece, mesh_coordinates(piece, mesh))
    return issue_text(program, found, target, args, beside)


def script(text):
    return text.partition("```python\n")[2].partition("\n```")[0]


def test_a_report_has_the_op_its_cost_the_versions_and_a_program():
    text = report(beside="against before: 3 % longer")
    assert text.startswith("### gathered weights: ")
    assert "At `scripts/explain_programs.py:174`, " in text
    assert "all-gather" in text.partition("```text")[2].partition("```")[0]
    assert "metadata=" not in text
    assert "Versions: jax 9.9, Python 3." in text
    assert "against before: 3 % longer" in text
    program = script(text)
    compile(program, "report.py", "exec")
    assert program.startswith("from __future__ import annotations\nimport os")
    assert 'get_topology_desc(platform="tpu"' in program
    assert "jax.tree.map(laid, args(mesh))" in program
    assert "shardwise" not in program


def test_arguments_without_a_mesh_are_made_without():
    assert "jax.tree.map(laid, none())" in script(report("mine:none"))


def test_a_module_that_is_not_here_is_refused():
    with pytest.raises(BadRequest, match="--issue: there is no module 'nowhere' here"):
        report("nowhere:args")


def test_a_plan_has_no_report():
    with pytest.raises(BadRequest, match="reports a function of yours; give one as MODULE:"):
        sw.explain("plan.yaml", issue=True)


@pytest.mark.slow
def test_the_program_of_a_report_runs_without_shardwise():
    program = script(report(partitioned=True))
    around = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    done = subprocess.run(
        [sys.executable, "-I", "-c", program],
        env=around,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "HloModule jit_step" in done.stdout
