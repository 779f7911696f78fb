"""The trainer takes exactly the devices of its mesh: these tests show it as many as they need.

They train the same few programs again and again: what was traced is kept for the process, what was
compiled for the run.
"""

import os
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from shardwise.plans import model_hash
from shardwise.runtime.trainer import loop
from shardwise.runtime.trainer.step import program

PROGRAMS = {}
"""What was traced, by all that decides it: not the folder that a test has its model in."""


def program_made_once(plan, cfg, settings, tensor_matmul="plain"):
    """`program`, but equal plans share one and its first states are drawn once; `test_kill.py`
    traces and draws anew in every process."""
    key = repr((replace(plan, model=""), model_hash(cfg), settings, tensor_matmul))
    if key not in PROGRAMS:
        made = program(plan, cfg, settings, tensor_matmul)
        PROGRAMS[key] = replace(made, begin=begun_once(made.begin))
    return PROGRAMS[key]


def begun_once(begin):
    """`begin`, which keeps on the host what it drew: a step uses its state up."""
    drawn = {}

    def again(key):
        name = np.asarray(jax.random.key_data(key)).tobytes()
        if name not in drawn:
            leaves, tree = jax.tree.flatten(begin(key))
            drawn[name] = tree, [(np.array(x), x.sharding) for x in leaves]
        tree, leaves = drawn[name]
        return tree.unflatten([jax.device_put(x, to, may_alias=False) for x, to in leaves])

    return again


@pytest.fixture(autouse=True)
def programs_are_made_once(monkeypatch):
    monkeypatch.setattr(loop, "program", program_made_once)


@pytest.fixture(autouse=True)
def as_many_devices_as_the_mesh_has(monkeypatch, request):
    """`jax.devices()` is 8 virtual ones in this process; the check is tested by itself."""
    if "all_devices" not in request.fixturenames:
        monkeypatch.setattr(loop, "check_devices", lambda plan: None)


@pytest.fixture(autouse=True)
def programs_compile_once():
    """In these tests alone: others read what the compiler itself answers."""
    settings = {
        "jax_compilation_cache_dir": str(Path(os.environ["XDG_CACHE_HOME"]) / "programs"),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for values in (settings, before):
        compilation_cache.reset_cache()
        for name, value in values.items():
            jax.config.update(name, value)
        if values is settings:
            yield


@pytest.fixture
def all_devices():
    return jax.devices()
