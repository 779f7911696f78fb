"""Checkpoints: shards read straight from files, round trips, and refusals by name and shape."""

import json
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.runtime import goldens

from shardwise.errors import BadRequest
from shardwise.models import from_hf
from shardwise.runtime import initialise, load, mesh_of, parameter_shardings, save
from shardwise.runtime.checkpoint import _HostBuffer
from shardwise.runtime.tensor_file import INDEX, read_folder, write_file

ROUND_TRIP = ["llama", "gpt2", "gpt-neox", "phi3", "gpt-oss", "deepseek-v3", "qwen2-moe", "opt"]


def written(name, folder):
    cfg = goldens.config(name)
    return cfg, goldens.write_checkpoint(cfg, folder)


@pytest.mark.parametrize("name", ROUND_TRIP)
def test_save_writes_what_load_read(name, tmp_path):
    cfg, shapes = written(name, tmp_path / "a")
    params = load(tmp_path / "a", cfg)
    save(tmp_path / "b", params, cfg, max_file_bytes=20_000)
    assert (tmp_path / "b" / INDEX).is_file()
    again = read_folder(tmp_path / "b")
    assert {k: e.shape for k, e in again.items()} == shapes
    for tensor, entry in again.items():
        np.testing.assert_array_equal(entry.open(), goldens.tensor(tensor, entry.shape))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-oss", "deepseek-v3"])
def test_blocks_on_a_mesh_are_those_of_the_whole(name, tmp_path):
    cfg, _ = written(name, tmp_path)
    mesh = mesh_of({"fsdp": 2, "expert": 2, "tensor": 2})
    sharded = load(tmp_path, cfg, jnp.bfloat16, parameter_shardings(cfg, mesh))
    whole = load(tmp_path, cfg, jnp.bfloat16)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), sharded, whole)
    assert {w.dtype for w in jax.tree.leaves(sharded)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.slow
def test_the_host_never_holds_the_model(tmp_path):
    """Peak of host buffers while 32 MB are loaded: the buffer that blocks pass through and the one
    tensor being read into it, each as large as the largest block, and small change."""
    raw = dict(goldens.document("llama")["config"], hidden_size=512, intermediate_size=1024)
    raw |= {"num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8}
    cfg = from_hf(raw, name="wide")
    mesh = mesh_of({"fsdp": 4, "tensor": 2})
    shardings = parameter_shardings(cfg, mesh)
    save(tmp_path, initialise(cfg, jax.random.key(0), shardings=shardings), cfg)
    load(tmp_path, cfg, shardings=shardings)  # imports and caches are not the measurement
    tracemalloc.start()
    loaded = load(tmp_path, cfg, shardings=shardings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    arrays = jax.tree.leaves(loaded)
    total = sum(w.nbytes for w in arrays)
    largest = max(w.addressable_shards[0].data.nbytes for w in arrays)
    assert total > 20 * largest
    assert peak < 3 * largest, (peak, largest, total)


@pytest.mark.parametrize("count", [1, 16, 100, 4096])
def test_a_device_keeps_what_passed_through_the_buffer(count):
    """XLA's CPU backend takes arrays at multiples of 64 bytes as they are, without a copy."""
    buffer = _HostBuffer()
    kept = []
    for value in range(1, 5):
        block = buffer.zeros((count,), np.dtype(np.float32))
        block += value
        kept.append(jax.block_until_ready(jax.device_put(block)))
    assert [float(w.max()) for w in kept] == [1, 2, 3, 4]
    assert [float(w.min()) for w in kept] == [1, 2, 3, 4]


def rewritten(folder, change):
    """The checkpoint with its tensors changed by `change(dict)`."""
    held = {name: np.array(entry.open()) for name, entry in read_folder(folder).items()}
    change(held)
    planned = [(name, value.shape, value.dtype) for name, value in held.items()]
    write_file(folder / "model.safetensors", planned, held.__getitem__)


def test_a_missing_tensor_is_named(tmp_path):
    cfg, _ = written("llama", tmp_path)
    rewritten(tmp_path, lambda held: held.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(
        BadRequest, match=r"no tensor 'model.layers.1.mlp.up_proj.weight' \[48, 32\]"
    ):
        load(tmp_path, cfg)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path):
    cfg, _ = written("llama", tmp_path)
    wide = np.zeros((40, 32), np.float32)
    rewritten(tmp_path, lambda held: held.update({"model.layers.2.mlp.up_proj.weight": wide}))
    with pytest.raises(BadRequest, match=r"up_proj.weight' is \[40, 32\] .* has \[48, 32\]"):
        load(tmp_path, cfg)


def test_a_tensor_without_a_place_is_named(tmp_path):
    cfg, _ = written("llama", tmp_path)
    rewritten(tmp_path, lambda held: held.update({"model.layers.0.extra": np.zeros(3, np.float32)}))
    with pytest.raises(BadRequest, match=r"'model.layers.0.extra' \[3\] .* is not in model"):
        load(tmp_path, cfg)


def test_a_stored_tied_head_and_old_constants_are_passed_over(tmp_path):
    cfg, _ = written("qwen3", tmp_path)

    def change(held):
        held["lm_head.weight"] = held["model.embed_tokens.weight"]
        held["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)

    rewritten(tmp_path, change)
    load(tmp_path, cfg)


def test_gpt2_names_without_their_first_part(tmp_path):
    cfg, _ = written("gpt2", tmp_path)

    def change(held):
        for name in list(held):
            held[name.removeprefix("transformer.")] = held.pop(name)

    whole = load(tmp_path, cfg)
    rewritten(tmp_path, change)
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path, cfg), whole)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    cfg, _ = written("llama", tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadRequest, match=r"model.safetensors: not a complete .* cut off"):
        load(tmp_path, cfg)


def test_an_index_that_names_a_file_that_is_not_there(tmp_path):
    cfg = goldens.config("llama")
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(BadRequest, match=r"'model-00001-of-00002\.safetensors', which does not"):
        load(tmp_path, cfg)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(BadRequest, match=r"holds neither model\.safetensors nor"):
        load(tmp_path, goldens.config("llama"))


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_of_a_model_with_a_tower(tmp_path, prefix):
    cfg, _ = written("gemma3", tmp_path)
    whole = load(tmp_path, cfg)
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}
    vision |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    raw = {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": vision}
    both = from_hf({**raw, "text_config": goldens.document("gemma3")["config"]}, name="both")

    def change(held):
        for name in list(held):
            held[name.replace("model.", prefix)] = held.pop(name)
        held["vision_tower.anything"] = np.zeros(3, np.float32)

    rewritten(tmp_path, change)
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path, both), whole)
