"""What a process takes of its devices, and what it says where they have no room."""

import pytest

from shardwise.commands.run import serving
from shardwise.errors import BadRequest
from shardwise.runtime.engine.opening import _free_bytes
from shardwise.runtime.processes import SHARE, has_accelerator, use_memory, within_memory


def test_a_share_of_a_card_is_told_to_jax(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9")
    monkeypatch.setenv(SHARE, "")
    use_memory(0.4)
    from jaxlib.xla_client import generate_pjrt_gpu_plugin_options  # what JAX starts a card with

    assert generate_pjrt_gpu_plugin_options()["memory_fraction"] == 0.4
    for share in (0.0, 1.5):
        with pytest.raises(BadRequest, match="--memory-share"):
            use_memory(share)


class Device:
    process_index = 0

    def memory_stats(self):
        return None


def test_of_a_host_a_cache_takes_the_share_that_is_asked_for():
    half, tenth = (_free_bytes([Device()], 1, 0.9, host) for host in (0.5, 0.1))
    assert half == pytest.approx(5 * tenth, rel=0.2)


@pytest.mark.parametrize(
    "said",
    [
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.",
        "Unable to initialize backend 'cuda': INTERNAL: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    ],
)
def test_a_full_card_is_refused_with_what_to_do(said, monkeypatch, tmp_path):
    def full(*_):
        raise RuntimeError(said)

    with pytest.raises(BadRequest, match="--memory-share") as error, within_memory():
        full()
    assert said.split(":")[0] in str(error.value)
    with pytest.raises(RuntimeError, match="another"), within_memory():
        raise RuntimeError("another mistake")
    monkeypatch.setattr(serving, "open_engine", full)
    from tests.apps.server.made import folder_of

    asked = serving.ServeModelRequest(path=str(folder_of(tmp_path)))
    with pytest.raises(BadRequest, match="75 % of a card"):
        serving.open_replica(asked, lambda _: None)


@pytest.mark.parametrize("name", ["nvidia0", "accel0", "vfio/3", "kfd"])
def test_a_machine_with_an_accelerator_is_never_held_to_its_cpu(tmp_path, name):
    assert not has_accelerator(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert has_accelerator(tmp_path)
