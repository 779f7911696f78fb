"""The trainer takes exactly the devices of its mesh: these tests show it as many as they need."""

import jax
import pytest

from shardwise.runtime.trainer import loop


@pytest.fixture(autouse=True)
def as_many_devices_as_the_mesh_has(monkeypatch, request):
    """`jax.devices()` is 8 virtual ones in this process; the check is tested by itself."""
    if "all_devices" not in request.fixturenames:
        monkeypatch.setattr(loop, "check_devices", lambda plan: None)


@pytest.fixture
def all_devices():
    return jax.devices()
