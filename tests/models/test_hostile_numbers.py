"""Numbers of a config.json that make nothing that a model can be are refused by their key."""

import json
from pathlib import Path

import pytest

import shardwise.models
from shardwise.errors import BadRequest
from shardwise.models import from_hf
from shardwise.models.specs import Attention
from shardwise.models.zoo import zoo_names

LFM2 = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "hidden_size": 1024,
    "intermediate_size": 6656,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 65536,
}
EXTREMES = (1e-308, 5e-324, 1e-30, 1e308, 1e15, 10**400, -0.0, 0, 2**63, float("inf"))


@pytest.mark.parametrize("value", [1e-308, 1e-300, 1e-9])
def test_a_multiplier_that_leaves_no_width_is_refused(value):
    with pytest.raises(BadRequest, match=r"block_ffn_dim_multiplier.*it m"):
        from_hf(LFM2 | {"block_ffn_dim_multiplier": value}, name="lfm2")


def test_lfm2_without_kinds_of_layers_is_attention_throughout():
    """As transformers' Lfm2Config has it where neither list is given."""
    cfg = from_hf(LFM2, name="lfm2")
    assert all(isinstance(cfg.layer(i).mixer, Attention) for i in range(cfg.layers))
    one = from_hf(LFM2 | {"full_attn_idxs": [2]}, name="lfm2")
    kinds = [isinstance(one.layer(i).mixer, Attention) for i in range(4)]
    assert kinds == [False, False, True, False]
    none = from_hf(LFM2 | {"full_attn_idxs": []}, name="lfm2")
    assert not any(isinstance(none.layer(i).mixer, Attention) for i in range(4))


def numbers(value, at=()):
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in numbers(v, (*at, k))]
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return [at] if plain else []


def configs():
    """One config of each class of the zoo."""
    data, seen = Path(shardwise.models.__file__).parent / "data", {}
    for name in zoo_names():
        held = json.loads((data / f"{name}.json").read_text())
        config = held.get("config")
        if config and config["architectures"][0] not in seen:
            seen[config["architectures"][0]] = config
    return seen


@pytest.mark.parametrize("name", sorted(configs()))
def test_extreme_numbers_are_read_or_refused_by_name(name):
    config = configs()[name]
    for path in numbers(config):
        for value in EXTREMES:
            changed = json.loads(json.dumps(config))
            holder = changed
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = value
            said = refusal(changed)
            assert len(said) < 1000, (path, value)


def refusal(config):
    try:
        cfg = from_hf(config, name="x")
        cfg.numerics  # noqa: B018 it may be worked out late
    except BadRequest as error:
        return str(error)
    return ""
