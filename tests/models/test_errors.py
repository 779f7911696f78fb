"""Bad configs are refused with file, key, value, rule and remedy; nothing is guessed."""

import json

import pytest
from tests.models.cases import llama

from shardwise.errors import BadRequest
from shardwise.models import from_hf, load_model


def refused(config) -> str:
    with pytest.raises(BadRequest) as caught:
        from_hf(config, name="bad", file="bad/config.json")
    text = str(caught.value)
    assert "bad/config.json" in text
    return text


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"hidden_size": "4096"}, ["hidden_size is '4096'", "must be an integer", "correct it"]),
        ({"hidden_size": 64.0}, ["hidden_size is 64.0", "must be an integer"]),
        ({"hidden_size": True}, ["hidden_size is True", "must be an integer"]),
        ({"hidden_size": -64}, ["hidden_size is -64", "between 1 and"]),
        ({"hidden_size": 0}, ["hidden_size is 0", "between 1 and"]),
        ({"num_hidden_layers": 10**7}, ["num_hidden_layers is 10000000", "between 1 and 10,000"]),
        ({"vocab_size": 10**12}, ["vocab_size is 1000000000000", "between 1 and"]),
        ({"intermediate_size": [1, 2]}, ["intermediate_size is [1, 2]"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads is 3", "divide num_attention_heads, 8"]),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, ["divide hidden_size, 64"]),
        ({"tie_word_embeddings": "no"}, ["tie_word_embeddings is 'no'", "true or false"]),
        ({"hidden_size": ...}, ["hidden_size is missing", "LlamaConfig", "add it"]),
        ({"num_hidden_layers": ...}, ["num_hidden_layers is missing"]),
        ({"vocab_size": ...}, ["vocab_size is missing"]),
        ({"intermediate_size": None}, ["expansion_ratio is missing"]),
        ({"text_config": 3}, ["text_config is 3", "must be an object"]),
        (
            {"quantization_config": {"quant_method": "magic"}},
            ["quantization_config", "method is unknown"],
        ),
        ({"torch_dtype": "float17"}, ["torch_dtype is 'float17'", "known: float32", "remove it"]),
        ({"dtype": "torch.complex64"}, ["dtype is 'torch.complex64'", "not stored in this dtype"]),
        ({"quantization_config": 8}, ["quantization_config is 8", "must be an object"]),
    ],
)
def test_bad_values(changes, parts):
    text = refused(llama(**changes))
    for part in parts:
        assert part in text


@pytest.mark.parametrize("config", [[], "text", 3, None])
def test_not_an_object(config):
    assert "one object" in refused(config)


def test_unknown_architecture_is_named_with_those_whose_keys_it_has():
    text = refused(llama(architectures=["LamaForCausalLM"]))
    assert "unknown architecture 'LamaForCausalLM'; its keys are those of" in text
    assert text.index("--as LlamaForCausalLM") < text.index("correct it to 'LlamaForCausalLM'")
    assert "its keys are those of LlamaForCausalLM" in text
    assert "add --as LlamaForCausalLM" in text
    assert len(text) < 400


def test_a_key_of_its_own_leaves_no_relatives():
    text = refused(llama(architectures=["NewForCausalLM"], mixer_groups=4))
    assert "docs/models.md" in text
    assert "if it has the shape of one of them, add --as CLASS" in text


def test_a_class_that_has_all_keys_but_few_is_named_with_those_it_lacks():
    text = refused(llama(architectures=["NewForCausalLM"], mixer_groups=4))
    assert "no known class has all its keys (LlamaForCausalLM has all but mixer_groups)" in text
    many = {f"mixer_{part}": 4 for part in ("groups", "width", "depth")}
    assert "has all but" not in refused(llama(architectures=["NewForCausalLM"], **many))


@pytest.mark.parametrize(
    ("slip", "key"), [("num_hiden_layers", "num_hidden_layers"), ("vocabsize", "vocab_size")]
)
def test_a_key_that_is_nearly_a_missing_one_is_named(slip, key):
    sizes = llama()
    text = refused(llama(**{key: ..., slip: sizes[key]}))
    assert f"{key} is missing" in text
    assert f"if '{slip}' is a typo, correct it to '{key}'" in text
    assert "slip" not in refused(llama(**{key: ..., "width_of_all": 3}))


def test_a_known_model_type_does_not_save_an_unknown_architecture():
    assert "unknown architecture 'MyLlama'" in refused(llama(architectures=["MyLlama"]))


def test_without_architectures_the_model_type_decides():
    cfg = from_hf(llama(architectures=...), name="x")
    assert cfg.architecture == "LlamaForCausalLM"
    assert "unknown model_type 'lama'" in refused(llama(architectures=..., model_type="lama"))
    text = refused(llama(architectures=..., model_type=...))
    assert "neither architectures nor model_type" in text
    assert "architectures is 'LlamaForCausalLM'" in refused(llama(architectures="LlamaForCausalLM"))


def test_truncated_file(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(llama(), indent=2)[:150])
    with pytest.raises(BadRequest, match=r"config.json' is not JSON at line \d+.*again"):
        load_model(file)
    file.write_text("")
    with pytest.raises(BadRequest, match="is not JSON at column 1"):
        load_model(str(file))
    file.write_bytes(b"\xff\xfe{}")
    with pytest.raises(BadRequest, match="is not text in UTF-8 but in UTF-16"):
        load_model(tmp_path)


def test_layer_lists_must_fit():
    base = llama(architectures=["Qwen3ForCausalLM"], head_dim=8)
    short = {**base, "layer_types": ["full_attention"] * 2}
    assert "2 entries for 3 layers" in refused(short)
    odd = {**base, "layer_types": ["full_attention", "full_attention", "maybe"]}
    assert "layer_types is 'maybe'" in refused(odd)


def test_more_experts_chosen_than_there_are():
    config = llama(architectures=["MixtralForCausalLM"], num_local_experts=4, num_experts_per_tok=5)
    assert "the model has only 4 experts" in refused(config)


def test_null_is_not_absent():
    # DeepSeek-V2: a missing q_lora_rank is the class default 1536, null means none.
    shape = {
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "num_experts_per_tok": 2,
        "n_routed_experts": 4,
        "moe_intermediate_size": 32,
    }
    base = llama(architectures=["DeepseekV2ForCausalLM"], **shape)
    assert from_hf(base, name="x").layer(0).attention.q_lora_rank == 1536
    assert from_hf({**base, "q_lora_rank": None}, name="x").layer(0).attention.q_lora_rank is None
    assert ("q_lora_rank", "1536") in from_hf(base, name="x").defaulted
