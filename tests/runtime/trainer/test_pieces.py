"""No checkpoint resumes whose pieces are missing, overlapping, exchanged, doubled or another's."""

import json
import shutil
import sys
import tempfile
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from runtime.trainer.forged import Piece, forge, older
from runtime.trainer.made import make_plan, make_run
from shardwise.errors import BadRequest
from shardwise.runtime.trainer import Keeper, Settings, restore, train
from shardwise.runtime.trainer.pieces import flaw

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from held_out import held_out_loss

IDENTITY = {"model": "a", "lr": 0.1}
SHAPES = {"w": (8, 4), "v": (8, 4), "b": (4,), "c": ()}


def state_on(*shape):
    """Arrays without two equal blocks, cut over a mesh of this shape."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), ("x", "y"))
    specs = {"w": ("x", "y"), "v": ("x", "y"), "b": ("y",), "c": ()}

    def one(i, name):
        values = 100 * i + np.arange(np.prod(SHAPES[name], dtype=int)).reshape(SHAPES[name])
        at = NamedSharding(mesh, PartitionSpec(*specs[name]))
        return jax.device_put(values.astype(np.float32), at)

    return {name: one(i, name) for i, name in enumerate(SHAPES)}


def shapes(state):
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


@cache
def wanted():
    """Another mesh than any that was saved."""
    return shapes(state_on(2, 2))


def saved(folder, *mesh):
    keeper = Keeper(folder=folder, identity=IDENTITY)
    keeper.save(3, state_on(*mesh))
    keeper.wait()
    return keeper.path(3)


def moved(name, by):
    array, _, starts = name.rpartition("@")
    return f"{array}@{','.join(str(max(0, int(s) + by)) for s in starts.split(',') if s)}"


def drop(shard, a, b):
    del shard.pieces[a]


def double(shard, a, b):
    array, _, starts = a.rpartition("@")
    shard.pieces[moved(a, 1) if starts else f"{array}@0"] = shard.pieces[a]


def swap(shard, a, b):
    shard.pieces[a], shard.pieces[b] = shard.pieces[b], shard.pieces[a]


def swap_with_sums(shard, a, b):
    swap(shard, a, b)
    shard.meta[a], shard.meta[b] = shard.meta[b], shard.meta[a]


def shift(shard, a, b):
    shard.pieces[moved(a, 1) if a[-1] != "@" else f"{a}1"] = shard.pieces.pop(a)


def rename(shard, a, b):
    array, _, starts = a.rpartition("@")
    shard.pieces[f"{array}x@{starts}"] = shard.pieces.pop(a)


def other_array(shard, a, b):
    shard.pieces[f"{b.rpartition('@')[0]}@{a.rpartition('@')[2]}"] = shard.pieces.pop(a)


def other_dtype(shard, a, b):
    shard.pieces[a] = replace(shard.pieces[a], dtype="I32")


def narrower(shard, a, b):
    held = shard.pieces[a]
    half = [*held.shape[:-1], held.shape[-1] * 2]
    shard.pieces[a] = Piece("F16", half, held.data)


def turned(shard, a, b):
    held = shard.pieces[a]
    shard.pieces[a] = replace(held, shape=[1, *held.shape])


def zeros(shard, a, b):
    shard.pieces[a] = replace(shard.pieces[a], data=bytes(len(shard.pieces[a].data)))


def no_name(shard, a, b):
    shard.pieces[a.replace("@", "@ ")] = shard.pieces.pop(a)


STRUCTURE = (drop, double, shift, rename, other_array, other_dtype, narrower, turned, no_name)
CONTENT = (swap, swap_with_sums, zeros)


@cache
def whole_ones(first):
    """A checkpoint of each mesh, of this format or the first, and what restores it."""
    folder = Path(tempfile.mkdtemp())
    found = [saved(folder / str(i), *mesh) for i, mesh in enumerate([(1, 1), (4, 2)])]
    for one in found:
        if first:
            older(one)
        assert restore(one, wanted(), IDENTITY)[0] == 3
    return found


@settings(max_examples=150)
@given(data=st.data())
def test_no_changed_checkpoint_is_restored(tmp_path_factory, data):
    first = data.draw(st.booleans(), label="the first format")
    harm = data.draw(st.sampled_from(STRUCTURE if first else STRUCTURE + CONTENT))
    folder = tmp_path_factory.mktemp("c") / "step-00000003"
    shutil.copytree(data.draw(st.sampled_from(whole_ones(first))), folder)

    def change(shards, manifest):
        names = sorted(shards[0].pieces)
        a = data.draw(st.sampled_from(names))
        held = shards[0].pieces
        others = [n for n in names if n != a and held[n].data != held[a].data]
        if harm in (swap, swap_with_sums):
            others = [n for n in others if held[n].shape == held[a].shape] or others
        if harm is other_array:
            others = [n for n in others if n.rpartition("@")[0] != a.rpartition("@")[0]]
        before = {name: (p.dtype, p.shape, p.data) for name, p in held.items()}
        harm(shards[0], a, data.draw(st.sampled_from(others)))
        after = {name: (p.dtype, p.shape, p.data) for name, p in held.items()}
        if before == after:  # zeros of zeros
            shards[0].pieces.pop(a)

    forge(folder, change)
    with pytest.raises(BadRequest):
        restore(folder, wanted(), IDENTITY)


@given(
    cuts=st.lists(st.sets(st.integers(1, 5), max_size=3), max_size=3),
    lost=st.integers(0, 10**6),
)
def test_a_grid_covers_and_without_any_of_its_cells_it_does_not(cuts, lost):
    """Six elements a dim, cut anywhere."""
    boxes = [((), ())]
    for cut in cuts:
        edges = [0, *sorted(cut), 6]
        spans = [(a, b - a) for a, b in pairwise(edges)]
        boxes = [((*at, a), (*size, n)) for at, size in boxes for a, n in spans]
    shape = (6,) * len(cuts)
    assert flaw(shape, boxes) is None
    i = lost % len(boxes)
    assert flaw(shape, boxes[:i] + boxes[i + 1 :]) is not None
    assert flaw(shape, [*boxes, boxes[i]]) is not None


@given(
    boxes=st.lists(
        st.tuples(*(st.tuples(st.integers(0, 4), st.integers(0, 4)) for _ in range(2))), max_size=6
    )
)
def test_what_is_said_to_cover_covers_each_element_once(boxes):
    seen = np.zeros((4, 3), int)
    for (x, y), (n, m) in boxes:
        seen[x : x + n, y : y + m] += 1
    inside = all(x + n <= 4 and y + m <= 3 for (x, y), (n, m) in boxes)
    if flaw((4, 3), boxes) is None:
        assert inside
        assert (seen == 1).all()


def test_a_file_of_another_step_or_run_is_refused(tmp_path):
    state = state_on(1, 1)
    folders = []
    for name, identity, step in (("a", IDENTITY, 3), ("b", IDENTITY, 4), ("c", {"lr": 1.0}, 3)):
        keeper = Keeper(folder=tmp_path / name, identity=identity)
        keeper.save(step, state)
        keeper.wait()
        folders.append(keeper.path(step))
    own = folders[0] / "shards-00000-of-00001.safetensors"
    for folder, word in ((folders[1], "step"), (folders[2], "run")):
        own.write_bytes((folder / own.name).read_bytes())
        forge(folders[0], lambda shards, manifest: None)
        with pytest.raises(BadRequest, match=f"is of another {word}; remove it and resume again"):
            restore(folders[0], shapes(state), IDENTITY)


def test_an_array_that_the_run_lacks_or_has_longer_is_refused(tmp_path):
    state = state_on(1, 1)
    folder = saved(tmp_path, 1, 1)
    fewer = {name: x for name, x in shapes(state).items() if name != "b"}
    with pytest.raises(BadRequest, match=r"holds b as float32 \[4\] and this run has nothing"):
        restore(folder, fewer, IDENTITY)
    longer = shapes(state) | {"b": jax.ShapeDtypeStruct((6,), jnp.float32)}
    with pytest.raises(BadRequest, match=r"holds b as float32 \[4\] and this run has .* \[6\]"):
        restore(folder, longer, IDENTITY)


def run_of_one_step(folder, **more):
    return make_run(folder, settings=Settings(steps=2), save_every=1, **more)


def test_a_renamed_piece_neither_resumes_nor_is_exported(tmp_path):
    """It once resumed, and wrote an embedding of zeros."""
    run = run_of_one_step(tmp_path)
    done = train(run).checkpoint

    def change(shards, manifest):
        (name,) = [n for n in shards[0].pieces if n.startswith("params/embedding@")]
        shards[0].pieces[name.replace("params/", "params/x")] = shards[0].pieces.pop(name)

    forge(done, change)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    again = replace(run, resume=True, save_hf=tmp_path / "hf", config=config)
    with pytest.raises(BadRequest, match=r"'params/xembedding@0,0' in .* is not what was written"):
        train(again)
    assert not (tmp_path / "hf").exists()
    with pytest.raises(BadRequest, match="is not whole: 'params/xembedding@0,0'"):
        held_out_loss(run, done, run.data)


@pytest.mark.slow
@pytest.mark.parametrize("stages", [1, 2])
def test_what_a_mesh_pads_is_no_flaw(tmp_path, stages):
    """257 rows of a table over two devices are saved as 258, and go on on one device."""
    mesh = {"stage": 2, "tensor": 2} if stages == 2 else {"tensor": 2}
    more = {"mesh": mesh}
    if stages == 2:
        more |= {"layers_per_stage": (1, 1), "microbatches": 2}
    plan = make_plan(tmp_path, **more)
    run = run_of_one_step(tmp_path, plan=plan)
    done = train(run).checkpoint
    tree = json.loads((done / "manifest.json").read_text())["tree"]
    assert any(258 in array["shape"] for array in tree.values())
    fewer = {"stage": 2} if stages == 2 else None
    plain = make_plan(tmp_path, **(more | {"mesh": fewer}))
    assert train(replace(run, plan=plain, resume=True)).from_step == 2

    def change(shards, manifest):
        for shard in shards:
            for name in list(shard.pieces):
                if 258 in manifest["tree"][name.rpartition("@")[0]]["shape"]:
                    del shard.pieces[name]
        for array in manifest["tree"].values():
            array["shape"] = [0 if n == 258 else n for n in array["shape"]]

    forge(done, change)
    with pytest.raises(BadRequest, match="resume with the stages and optimizer that wrote it"):
        train(replace(run, plan=plain, resume=True))
