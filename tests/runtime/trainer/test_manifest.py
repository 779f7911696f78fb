"""Whatever a manifest says is answered with one message, by every reader of it."""

import json
import shutil
from copy import deepcopy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.mutate import VALUES
from shardwise.errors import BadRequest
from shardwise.runtime.trainer import Keeper, restore
from shardwise.runtime.trainer.checkpoint import read_params
from shardwise.runtime.trainer.manifest import check_identity, steps_in

IDENTITY = {"model": "a", "lr": 0.1, "init": None, "data": "x"}
STATE = {"params": {"w": (4, 2), "v": ()}, "optimizer": {"w": (4, 2)}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    state = jax.tree.map(jnp.ones, STATE, is_leaf=lambda x: isinstance(x, tuple))
    keeper = Keeper(folder=tmp_path_factory.mktemp("whole"), identity=IDENTITY)
    keeper.save(3, state)
    keeper.wait()
    return keeper.path(3), jax.eval_shape(lambda: state), state


def laid(shapes):
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)


def places(value, at=()):
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    return [(*at, k) for k in keys] + [p for k in keys for p in places(value[k], (*at, k))]


def answer(read):
    """What was read, or the message instead."""
    try:
        return read(), ""
    except BadRequest as error:
        return None, str(error)


@settings(max_examples=200)
@given(data=st.data())
def test_a_value_of_any_kind_in_any_place_is_answered(whole, tmp_path_factory, data):
    good, shapes, state = whole
    folder = tmp_path_factory.mktemp("m") / good.name
    shutil.copytree(good, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    changed = deepcopy(manifest)
    *above, last = data.draw(st.sampled_from(places(manifest)))
    holder = changed
    for key in above:
        holder = holder[key]
    harm = data.draw(st.sampled_from(["value", "left out", "other key", "doubled"]))
    value = data.draw(st.sampled_from(VALUES))
    if harm == "value" or (harm == "other key" and isinstance(last, int)):
        holder[last] = value
    elif harm == "left out":
        del holder[last]
    elif isinstance(last, int):
        holder.append(holder[last])
    else:
        holder[str(value)] = holder.pop(last) if harm == "other key" else holder[last]
    (folder / "manifest.json").write_text(json.dumps(changed))

    keeper = Keeper(folder=folder.parent, identity=IDENTITY)
    newest, damaged = keeper.newest(), keeper.damaged()
    assert (newest == 3) != (3 in damaged)
    assert all(len(why) < 400 and why.isprintable() for why in damaged.values())
    for read in (
        lambda: restore(folder, laid(shapes), IDENTITY)[1],
        lambda: {**state, "params": read_params(folder, shapes["params"])},
    ):
        found, said = answer(read)
        assert len(said) < 1000
        assert said.isprintable()
        if found is not None:
            assert newest == 3 or changed.get("step") != manifest["step"]
            jax.tree.map(np.testing.assert_array_equal, found, state)


def test_the_first_wrong_value_is_named(whole, tmp_path):
    folder = tmp_path / whole[0].name
    shutil.copytree(whole[0], folder)
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"][0]["bytes"] = "12"
    file.write_text(json.dumps(manifest))
    with pytest.raises(
        BadRequest,
        match=r"is not a checkpoint of this trainer: its manifest.json cannot be read \('files.0."
        r"bytes' is '12'; it must be a whole number\)",
    ):
        restore(folder, laid(whole[1]), IDENTITY)


@pytest.mark.parametrize("name", ["step-²", "step-3", "step-000000003", "step-" + "9" * 200])
def test_a_folder_of_another_name_is_no_step(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / "step-00000007").mkdir()
    assert steps_in(tmp_path) == [7]


def test_what_an_earlier_version_wrote_for_the_same_run_is_no_difference(whole):
    now = {**IDENTITY, "model": "b"}
    assert check_identity(whole[0], now, former={"model": "a"}).step == 3
    with pytest.raises(BadRequest, match="was made with model a, and this run has b"):
        check_identity(whole[0], now, former={"model": "c"})
