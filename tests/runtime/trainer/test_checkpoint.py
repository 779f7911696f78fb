"""A checkpoint is whole or not there; what it holds comes back bit for bit, on any mesh."""

import errno
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.errors import BadRequest, ShardwiseError
from shardwise.runtime.trainer import Keeper, checkpoint, restore

IDENTITY = {"model": "a", "lr": 0.1}


def mesh(*shape):
    return jax.sharding.Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), ("x", "y"))


def laid(mesh, *specs):
    return [NamedSharding(mesh, PartitionSpec(*spec)) for spec in specs]


def state_on(mesh):
    a, b, c = laid(mesh, ("x", "y"), ("y",), ())
    key = jax.random.key(0)
    return {
        "w": jax.device_put(jax.random.normal(key, (8, 4)), a),
        "b": (jax.device_put(jnp.arange(4, dtype=jnp.bfloat16), b),),
        "count": jax.device_put(jnp.int32(7), c),
    }


def shapes(state):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture
def keeper(tmp_path):
    return Keeper(folder=tmp_path / "checkpoints", identity=IDENTITY)


@pytest.mark.parametrize("other", [(4, 2), (2, 2), (1, 1), (8, 1)])
def test_a_state_comes_back_on_another_mesh(keeper, other):
    state = state_on(mesh(4, 2))
    keeper.save(3, state)
    keeper.wait()
    wanted = shapes(state_on(mesh(*other)))
    step, found = restore(keeper.path(3), wanted, IDENTITY)
    assert step == 3
    equal(state, found)
    assert jax.tree.map(lambda x: x.sharding, found) == jax.tree.map(lambda x: x.sharding, wanted)


def test_a_save_is_a_copy(keeper, monkeypatch):
    """The state may be donated to the next step while it is being written."""
    state = state_on(mesh(1, 1))
    before = jax.tree.map(np.array, state)
    change = jax.jit(lambda s: jax.tree.map(lambda x: x + x.dtype.type(1), s), donate_argnums=0)
    kept = shapes(state)
    keeper.save(1, state)
    change(state)
    keeper.wait()
    equal(before, restore(keeper.path(1), kept, IDENTITY)[1])


def test_the_newest_two_are_kept(keeper):
    state = state_on(mesh(1, 1))
    for step in (1, 2, 3):
        keeper.save(step, state)
    keeper.wait()
    assert checkpoint.steps_in(keeper.folder) == [2, 3]
    assert keeper.newest() == 3


def test_what_was_left_half_written_is_not_there(keeper):
    state = state_on(mesh(1, 1))
    keeper.save(1, state)
    keeper.wait()
    (keeper.folder / ".step-00000002").mkdir()
    (keeper.folder / "step-00000003").mkdir()  # without a manifest
    assert keeper.newest() == 1
    keeper.clean()
    assert not list(keeper.folder.glob(".step-*"))


def test_a_full_disk_loses_nothing(keeper, monkeypatch):
    state = state_on(mesh(1, 1))
    keeper.save(1, state)
    keeper.wait()

    def full(path, *_):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_file", full)
    keeper.save(2, state)
    with pytest.raises(
        ShardwiseError,
        match=r"no room for the checkpoint of step 2 in .*it takes 140 B, .* are free "
        r"\(No space left on device\); the last good one is step 1: free space and "
        "start again "
        "with --resume",
    ):
        keeper.wait()
    assert not list(keeper.folder.glob(".step-*"))
    equal(state, restore(keeper.path(1), shapes(state), IDENTITY)[1])


def test_any_other_failure_of_the_thread_is_raised(keeper, monkeypatch):
    def broken(*_):
        raise KeyError("x")

    monkeypatch.setattr(checkpoint, "write_file", broken)
    keeper.save(1, state_on(mesh(1, 1)))
    with pytest.raises(KeyError):
        keeper.wait()


def test_another_run_is_refused(keeper):
    state = state_on(mesh(1, 1))
    keeper.save(1, state)
    keeper.wait()
    with pytest.raises(BadRequest, match=r"was made with lr 0\.1, and this run has 0\.2; use the"):
        restore(keeper.path(1), shapes(state), {**IDENTITY, "lr": 0.2})
    wrong = {**shapes(state), "count": jax.ShapeDtypeStruct((2,), jnp.int32)}
    with pytest.raises(BadRequest, match=r"holds count as .*\[\].*this run has .*\[2\]"):
        restore(keeper.path(1), wrong, IDENTITY)


def test_a_damaged_file_is_refused(keeper):
    state = state_on(mesh(1, 1))
    keeper.save(1, state)
    keeper.wait()
    file = next(keeper.path(1).glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(
        BadRequest,
        match=r"is not whole: 'w@0,0' in .* is not what was written there; remove it and resume",
    ):
        restore(keeper.path(1), shapes(state), IDENTITY)
    file.write_bytes(data[:-4])
    assert keeper.newest() is None  # too short shows without reading it


def test_what_is_damaged_is_told_and_never_outlives_what_is_whole(keeper):
    """A run that fell back to step 1 saves step 2 beside the damaged 3 and 4: 1 and 2 stay."""
    state = state_on(mesh(1, 1))
    keeper.keep = 3
    for step in (1, 3, 4):
        keeper.save(step, state)
    keeper.wait()
    keeper.keep = 2
    file = next(keeper.path(3).glob("*.safetensors"))
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:100])
    (keeper.path(4) / "manifest.json").write_text('{"format": 1, "step": ')
    assert keeper.newest() == 1
    assert keeper.damaged() == {
        3: f"'{file.name}' has 100 of {size} bytes",
        4: "its manifest.json cannot be read",
    }
    keeper.save(2, state)
    keeper.wait()
    assert keeper.newest() == 2
    assert checkpoint.steps_in(keeper.folder) == [1, 2, 3, 4]
    keeper.save(5, state)
    keeper.wait()
    assert checkpoint.steps_in(keeper.folder) == [2, 5]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("files", [{"name": "../x", "bytes": 1, "crc32": 1}]),
        ("files", [{"name": "x"}]),
        ("files", ["x"]),
        ("step", "3"),
        ("step", 4),
        ("tree", []),
        ("identity", None),
    ],
)
def test_a_manifest_that_is_not_ours_is_damage(keeper, key, value):
    keeper.save(3, state_on(mesh(1, 1)))
    keeper.wait()
    file = keeper.path(3) / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    assert keeper.newest() is None
    assert "its manifest.json" in keeper.damaged()[3]


def test_what_is_no_checkpoint_is_refused(tmp_path):
    for text in ("", "[]", json.dumps({"format": 0})):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(BadRequest, match="is not a checkpoint of this trainer"):
            restore(tmp_path, {}, IDENTITY)


def test_processes_finish_together(tmp_path):
    """Process 0 makes the checkpoint appear when both have written."""
    state = state_on(mesh(1, 1))
    first, second = (
        Keeper(folder=tmp_path, identity=IDENTITY, process=i, processes=2) for i in (0, 1)
    )
    first.save(1, state)
    assert first.newest() is None
    second.save(1, state)
    second.wait()
    first.wait()
    assert first.newest() == 1
    names = sorted(p.name for p in first.path(1).iterdir())
    assert names == [
        "manifest.json",
        "shards-00000-of-00002.safetensors",
        "shards-00001-of-00002.safetensors",
    ]
