"""Configs of models around a text model: sizes left out, parts that talk, spellings of layers.

The numbers are those of the classes of transformers 5.23.0 on torch's meta device (2026-11).
"""

import pytest

from shardwise.errors import BadRequest
from shardwise.models import from_hf, params_text

LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024},
}
"""What llava-hf/llava-1.5-7b-hf says of its shape."""

OMNI_TEXT = {
    "vocab_size": 152064,
    "hidden_size": 2048,
    "intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}

GRANITE = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "vocab_size": 100352,
    "hidden_size": 1536,
    "intermediate_size": 512,
    "num_hidden_layers": 40,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "num_local_experts": 64,
    "num_experts_per_tok": 6,
    "shared_intermediate_size": 1024,
    "mamba_n_heads": 48,
    "mamba_d_state": 128,
    "tie_word_embeddings": True,
    "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
}


def test_a_text_section_leaves_out_the_sizes_of_its_class():
    cfg = from_hf(LLAVA, name="llava")
    assert params_text(cfg) == 6_738_939_904
    assert ("text_config.hidden_size", "4096") in cfg.defaulted
    assert cfg.towers_unread == ("vision_config",)


def test_a_config_of_the_text_model_alone_must_say_them():
    text = {"architectures": ["LlamaForCausalLM"], "vocab_size": 32064}
    with pytest.raises(BadRequest, match="hidden_size"):
        from_hf(text, name="text")


def test_all_missing_keys_stand_in_one_message():
    scout = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "text_config": {"hidden_size": 5120, "vocab_size": 202048},
        "vision_config": {"hidden_size": 1408, "patch_size": 14},
    }
    with pytest.raises(BadRequest) as raised:
        from_hf(scout, name="scout")
    text = str(raised.value)
    for key in ("text_config.num_hidden_layers", "text_config.num_attention_heads"):
        assert key in text
    for key in ("num_channels", "image_size", "num_hidden_layers", "projector_input_dim"):
        assert f"vision_config.{key}" in text
    assert "are missing and have no defaults (transformers 5.23.0 Llama4TextConfig)" in text
    assert "patch_size" not in text
    scout["text_config"] |= {"hidden_size": "wide"}
    with pytest.raises(BadRequest, match="are missing"):
        from_hf(scout, name="scout")


def test_of_a_model_that_talks_the_part_that_thinks_is_read():
    omni = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "thinker_config": {"text_config": OMNI_TEXT, "audio_config": {}, "vision_config": {}},
        "talker_config": {},
        "code2wav_config": {},
    }
    cfg = from_hf(omni, name="omni")
    assert params_text(cfg) == 30_532_646_912
    parts = ("vision_config", "audio_config", "talker_config", "code2wav_config")
    assert cfg.towers_unread == parts


def test_mamba_layers_as_granite_4_publishes_them():
    cfg = from_hf(GRANITE, name="granite-4.0-h-tiny")
    assert params_text(cfg) == 6_939_037_248
    kinds = [layer.mixer.kind for layer, _ in cfg.layer_groups() if layer.mixer]
    assert kinds == ["mamba", "full"]
