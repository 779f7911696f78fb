"""Child processes: devices, limits, and errors that say what to do."""

import importlib.util

import pytest

from shardwise.errors import BadRequest, MissingPart, ShardwiseError
from shardwise.profiler import need_libtpu, run_function, run_source


def test_a_source_gets_its_devices_and_what_it_prints_comes_back():
    assert run_source("import jax; print(jax.device_count())", devices=3) == "3\n"


def test_a_function_answers_in_json():
    answer = run_function("shardwise.profiler.jobs:run_programs", {"cases": []})
    assert answer == []


def test_a_child_that_fails_says_its_last_words():
    with pytest.raises(ShardwiseError, match="the program failed in its process: KeyError: 'a'"):
        run_source("{}['a']")


def test_a_child_that_takes_too_long_is_stopped():
    with pytest.raises(ShardwiseError, match=r"the program was stopped after 0\.5 s"):
        run_source("import time; time.sleep(60)", seconds=0.5)


def test_a_child_that_takes_too_much_memory_is_stopped():
    code = "import numpy; print(numpy.ones(2**28).sum())"
    with pytest.raises(ShardwiseError, match="out of memory; ask for less"):
        run_source(code, memory_bytes=2**30)


@pytest.mark.parametrize("printed", ["", "WARNING: no accelerator type", "E0000 00:00 no hosts"])
def test_a_crash_without_a_reason_names_the_memory_limit(printed):
    code = f"import os, sys; print({printed!r}, file=sys.stderr, flush=True); os.abort()"
    said = r"it crashed with SIGABRT; it may take 1\.07 GB: if that is too little, raise its memory"
    with pytest.raises(ShardwiseError, match=said):
        run_source(code, memory_bytes=2**30)


def test_a_crash_with_a_reason_says_it():
    code = "import os, sys; print('Check failed: x', file=sys.stderr, flush=True); os.abort()"
    with pytest.raises(ShardwiseError, match="it crashed with SIGABRT; Check failed: x"):
        run_source(code)


def test_what_a_user_raises_is_named():
    job, named = "shardwise.profiler.jobs:run_programs", ("--timeout", "--memory")
    with pytest.raises(ShardwiseError, match=r"after 0\.05 s; ask for less, or raise --timeout"):
        run_function(job, {"cases": []}, seconds=0.05, raised_by=named)


def test_no_devices_are_refused():
    with pytest.raises(BadRequest, match="needs at least 1"):
        run_source("", devices=0)


@pytest.mark.parametrize("name", ["jax", "libtpu"])
def test_a_missing_part_comes_with_its_install_command(monkeypatch, name):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda x: None if x == name else found(x))
    extra = {"jax": "run", "libtpu": "tpu-compile"}[name]
    with pytest.raises(MissingPart, match=rf"pip install '\.\[{extra}\]'") as error:
        need_libtpu()
    assert error.value.exit_code == 5
