"""The count of compiles for TPUs (tests/startup/sitecustomize.py, tests/conftest.py) counts."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardwise.profiler import run_source

WRAPPED = """
import subprocess, sys
code = "import jax; from jax._src import compiler as c; " \\
    "print(hasattr(c.backend_compile_and_load, 'counts_tpus'))"
exec(code)
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
"""


@pytest.fixture(scope="module")
def counter():
    path = Path(__file__).parent / "startup" / "sitecustomize.py"
    spec = importlib.util.spec_from_file_location("counter", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_children_and_their_children_count():
    assert run_source(WRAPPED).split() == ["True", "True"]


def test_programs_for_tpus_are_lines_and_others_are_not(counter, monkeypatch, tmp_path):
    monkeypatch.setenv(counter.FILE, str(tmp_path / "compiles"))
    jax = SimpleNamespace(**{counter.ENTRY: lambda backend, program, *rest: rest})
    counter.counted(jax)
    counter.counted(jax)  # once
    operation = SimpleNamespace(attributes={"sym_name": '"jit_step"'})
    program = SimpleNamespace(operation=operation)
    for platform in ("tpu", "cpu", "cuda", "tpu"):
        backend = SimpleNamespace(platform=platform)
        assert getattr(jax, counter.ENTRY)(backend, program, 1, 2) == (1, 2)
    rows = [json.loads(line) for line in (tmp_path / "compiles").read_text().splitlines()]
    assert [row["name"] for row in rows] == ["jit_step"] * 2
    assert rows[0]["test"].endswith("test_programs_for_tpus_are_lines_and_others_are_not")


def test_a_compiler_without_the_entry_is_an_error(counter):
    with pytest.raises(AttributeError, match=counter.ENTRY):
        counter.counted(SimpleNamespace())
