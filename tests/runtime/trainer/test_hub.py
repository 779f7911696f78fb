"""Training begins with a Hugging Face checkpoint and ends in one."""

import errno
import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from runtime.trainer.made import CONFIG, make_plan, make_run
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.models import load_model
from shardwise.models.zoo import hf_config
from shardwise.runtime import initialise, load, save, shapes
from shardwise.runtime.text.model_text import read_model_text
from shardwise.runtime.text.tokenizer import Bytes
from shardwise.runtime.trainer import Settings, hub, train
from shardwise.runtime.trainer.checkpoint import read_params

STILL = Settings(steps=1, lr=0.0, decay=0.0)


def pretrained(folder, **config):
    """A checkpoint of random numbers, and the tree that it holds."""
    plan = make_plan(folder, config=config)
    cfg = load_model(plan.model)
    params = initialise(cfg, jax.random.key(7))
    save(folder / "hf", params, cfg)
    return folder / "hf", params


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "changes"),
    [
        ({}, {}),
        pytest.param({"fsdp": 2, "tensor": 2}, {}, marks=pytest.mark.slow),
        pytest.param(
            {"stage": 2},
            {"microbatches": 2, "layers_per_stage": (1, 1)},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["one", "fsdp2-tensor2", "stage2"],
)
def test_weights_go_in_and_come_out(tmp_path, mesh, changes):
    """A step at rate 0 leaves them as they were."""
    folder, params = pretrained(tmp_path)
    plan = make_plan(tmp_path, mesh, **changes)
    out = tmp_path / "new" / "trained"
    train(make_run(tmp_path, plan, settings=STILL, init=folder, save_hf=out, config=CONFIG))
    assert_equal(load(out, load_model(plan.model)), params)
    assert load_model(str(out)).vocabulary == CONFIG["vocab_size"]
    config = json.loads((out / "config.json").read_text())
    assert (config["torch_dtype"], "dtype" in config) == ("float32", False)
    assert not list(out.parent.glob(".*"))


def test_a_dtype_keeps_its_name_and_generation_settings_come_along(tmp_path):
    folder, _ = pretrained(tmp_path)
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    out, config = tmp_path / "out_hf", CONFIG | {"dtype": "bfloat16"}
    train(make_run(tmp_path, settings=STILL, init=folder, save_hf=out, config=config))
    assert json.loads((out / "config.json").read_text()) == CONFIG | {"dtype": "float32"}
    assert (out / "generation_config.json").read_text() == '{"eos_token_id": 2}'


@pytest.mark.slow
def test_what_was_trained_comes_out(tmp_path):
    run = make_run(tmp_path, settings=Settings(steps=2), save_hf=tmp_path / "hf", config=CONFIG)
    done = train(run)
    assert_equal(load(tmp_path / "hf", run.cfg), read_params(done.checkpoint, shapes(run.cfg)))


def test_a_resumed_run_goes_on_from_its_own_checkpoint(tmp_path):
    folder, params = pretrained(tmp_path)
    run = make_run(tmp_path, settings=Settings(steps=2), init=folder)
    first = train(run)
    again = train(replace(run, resume=True, save_hf=tmp_path / "late", config=CONFIG))
    assert (again.from_step, again.loss) == (2, None)
    found = load(tmp_path / "late", run.cfg)
    assert_equal(found, read_params(first.checkpoint, shapes(run.cfg)))
    assert not np.array_equal(found["embedding"], params["embedding"])
    with pytest.raises(BadRequest, match="was made with init hf, and this run has nothing"):
        train(replace(run, resume=True, init=None))


def test_a_checkpoint_of_another_shape_is_refused_before_the_data_is_read(tmp_path):
    (tmp_path / "wide").mkdir()
    folder, _ = pretrained(tmp_path / "wide", hidden_size=64)
    run = make_run(tmp_path, settings=STILL, init=folder)
    with pytest.raises(BadRequest, match=r"tensor 'model.embed_tokens.weight' is \[257, 64\] in"):
        train(replace(run, data=tmp_path / "nowhere"))


def test_nothing_is_written_over(tmp_path):
    folder, _ = pretrained(tmp_path)
    with pytest.raises(BadRequest, match="already holds a checkpoint; give a new folder"):
        train(make_run(tmp_path, settings=STILL, init=folder, save_hf=folder))


def test_a_place_that_could_not_be_written_is_refused_before_the_run(tmp_path):
    run = make_run(tmp_path, settings=STILL)
    (tmp_path / "file").write_text("")
    for place, said in {
        run.out: "overlaps --out '.*', which holds the run",
        run.out / "checkpoints" / "hf": "overlaps --out '.*', which holds the run",
        tmp_path / "file" / "hf": "'.*file' is no writable folder",
    }.items():
        with pytest.raises(BadRequest, match=said):
            train(replace(run, save_hf=place, config=CONFIG))
    with pytest.raises(BadRequest, match=r"cannot write the model's config\.json: Out of range"):
        train(replace(run, save_hf=tmp_path / "hf", config={"rope_theta": float("nan")}))
    assert not run.out.exists()


def test_a_config_with_a_byte_order_mark_comes_out(tmp_path):
    """As some editors write them; `load_model` reads it."""
    plan = make_plan(tmp_path)
    file = tmp_path / "model" / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert hf_config(plan.model) == CONFIG


def test_a_full_disk_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    def full(folder, params, cfg):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    run = make_run(tmp_path, settings=STILL, save_hf=tmp_path / "hf", config=CONFIG)
    with monkeypatch.context() as patched:
        patched.setattr(hub, "save", full)
        with pytest.raises(ShardwiseError, match=r"No space left .*; the training checkpoint is"):
            train(run)
    assert not (tmp_path / "hf").exists()
    assert not list(tmp_path.glob(".hf*"))
    train(replace(run, resume=True))
    assert (tmp_path / "hf" / "model.safetensors").exists()


def test_the_tokenizer_comes_along(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    folder, _ = pretrained(tmp_path)
    words = Tokenizer(WordLevel({"words": 0, "other": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = Whitespace()
    words.save(str(folder / "tokenizer.json"))
    out = tmp_path / "out_hf"
    run = make_run(tmp_path, settings=STILL, init=folder, save_hf=out, config=CONFIG)
    run = replace(run, data=tmp_path / "words.txt")
    run.data.write_text("words and other words " * 200)
    seen = []
    train(run, note=seen.append)
    assert any(note.startswith("800 tokens in 1 document:") for note in seen)
    assert (out / "tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()


def test_what_was_trained_on_bytes_has_their_tokenizer(tmp_path):
    text, out = "a \u20ac\n\x00<|endoftext|>", tmp_path / "hf"
    train(make_run(tmp_path, settings=STILL, save_hf=out, config=CONFIG))
    read = read_model_text(out)
    assert read.encode(text) == [*text.partition("<")[0].encode(), Bytes.end]
    assert read.decode(read.encode(text), skip_special=False) == text
    assert read.end_ids == {Bytes.end}
    assert read.vocabulary == Bytes.vocabulary


def test_the_config_of_a_model_by_name_or_by_path(tmp_path):
    assert hf_config("llama-3-8b")["hidden_size"] == 4096
    plan = make_plan(tmp_path)
    assert hf_config(plan.model) == CONFIG
