"""The trainer takes exactly the devices of its mesh: these tests show it as many as they need.

They train the same few programs again and again, so what was compiled is kept for the run.
"""

import os
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from shardwise.runtime.trainer import loop


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
