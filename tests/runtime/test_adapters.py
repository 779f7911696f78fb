"""Adapters of PEFT's form: the sums of `W + scale B A`, which requests get them, and refusals."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from llama_folder import write_llama

from shardwise.errors import BadRequest
from shardwise.models import load_model
from shardwise.runtime.checkpoint import load
from shardwise.runtime.engine import GREEDY
from shardwise.runtime.engine.opening import EngineSettings, open_engine

NAMES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
LAYERS = 2
ALPHA, RANK = 48, 4


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("llama") / "llama", "least")


def write_adapter(folder, base, **changes):
    """An adapter with random numbers, and the tensors that it makes of the base's."""
    weights, rng = load_file(base / "model.safetensors"), np.random.default_rng(1)
    tensors = {}
    for layer in range(LAYERS):
        for name in NAMES:
            module = f"model.layers.{layer}.{name}"
            out, into = weights[f"{module}.weight"].shape
            a = rng.normal(size=(RANK, into)).astype(np.float32)
            b = rng.normal(size=(out, RANK)).astype(np.float32) / 8
            tensors[f"base_model.model.{module}.lora_A.weight"] = a
            tensors[f"base_model.model.{module}.lora_B.weight"] = b
            scale = changes.get("alpha", ALPHA) / RANK
            weights[f"{module}.weight"] = weights[f"{module}.weight"] + np.float32(scale) * (b @ a)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, **changes}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return weights


def merged(folder, base, weights):
    """The base's folder with other weights."""
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text((base / "config.json").read_text())
    return folder


def test_an_adapter_is_added_while_weights_are_read(base, tmp_path):
    weights = write_adapter(tmp_path / "adapter", base)
    right = merged(tmp_path / "merged", base, weights)
    cfg = load_model(base)
    found = load(base, cfg, "float32", adapter=tmp_path / "adapter")
    for one, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(load(right, cfg, "float32")), strict=True
    ):
        assert np.allclose(one, other, atol=1e-5)


def test_patterns_and_ranks_scale_it(base, tmp_path):
    write_adapter(tmp_path, base, use_rslora=True, alpha_pattern={"layers.1.mlp.down_proj": 7})
    cfg = load_model(base)
    found, plain = (load(base, cfg, "float32", adapter=a)["layers"][0] for a in (tmp_path, None))
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    for layer, scale in ((0, ALPHA / 2), (1, 7 / 2)):
        head = f"base_model.model.model.layers.{layer}.mlp.down_proj.lora_"
        more = tensors[f"{head}B.weight"] @ tensors[f"{head}A.weight"]
        (name,) = (name for name in plain if "down" in name or name.endswith("mlp.out"))
        change = np.asarray(found[name] - plain[name])[layer]
        assert np.allclose(change, scale * more.T, atol=1e-4)


PROMPT = [0, 34, 279, 270, 78, 387, 340]
GREEDILY = [[77, 17, 113, 17, 424, 464], [266, 104, 281, 79, 201, 201]]
"""What follows by transformers 5.24 in float32: of the base, and with PEFT 0.21.2's PeftModel."""


@pytest.mark.slow
def test_requests_get_the_weights_that_they_name(base, tmp_path):
    write_adapter(tmp_path, base)
    sizes = {"batch": 2, "budget": 32, "most_tokens": 64, "pages": 16}
    engine = open_engine(base, EngineSettings(**sizes, adapters=[tmp_path]))

    def answer(variant):
        (generation,) = engine.add(PROMPT, replace(GREEDY, max_tokens=6), variant=variant)
        while not engine.idle:
            engine.step()
        return generation.tokens

    assert [answer(variant) for variant in (0, 1, 0)] == [*GREEDILY, GREEDILY[0]]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora is true"),
        ({"lora_alpha": None}, "lora_alpha is None"),
        ({"fan_in_fan_out": True}, "use an adapter of this model"),
    ],
)
def test_what_is_no_lora_of_the_model_is_refused(base, tmp_path, changes, said):
    write_adapter(tmp_path, base, **changes)
    with pytest.raises(BadRequest, match=said):
        load(base, load_model(base), "float32", adapter=tmp_path)


def test_an_adapter_of_another_model_is_refused(base, tmp_path):
    write_adapter(tmp_path, base)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    tensors["base_model.model.model.layers.9.mlp.up_proj.lora_A.weight"] = np.zeros((4, 64), "f4")
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(BadRequest, match=r"no weight for 'base_model.model.model.layers.9"):
        load(base, load_model(base), "float32", adapter=tmp_path)
