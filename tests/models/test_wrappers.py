"""Configs of models around a text model: sizes left out, parts that talk, spellings of layers.

The numbers are those of the classes of transformers 5.23.0 on torch's meta device (2026-11).
"""

import pytest

from shardwise.errors import BadRequest
from shardwise.models import from_hf, index_bytes, params_text
from shardwise.models.flops import keys_seen

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
    assert "num_channels" not in text  # Llama4VisionConfig has 3
    for key in ("image_size", "num_hidden_layers", "projector_input_dim"):
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


SMALL = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 80, "num_attention_heads": 4}
EXPERTS = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
LATENT = {
    "n_routed_experts": 8,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "index_topk": 32,
    "index_head_dim": 16,
    "index_n_heads": 2,
}
GROUPED = {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 24}
STEP = {
    "num_hidden_layers": 5,
    "num_attention_groups": 2,
    "head_dim": 16,
    "moe_num_experts": 8,
    "moe_top_k": 2,
    "moe_intermediate_size": 24,
    "share_expert_dim": 40,
    "moe_layers_enum": "2,3,4",
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"] * 2,
    "sliding_window": 8,
    "attention_other_setting": {"num_attention_heads": 6},
}
GLM = EXPERTS | {
    "num_hidden_layers": 8,
    "q_lora_rank": 28,
    "index_kpool": 8,
    "linear_attn_config": {"head_dim": 12, "num_heads": 3, "short_conv_kernel_size": 4},
    "index_topk_pattern": "FFFFFFFS",
}
MISTRAL = EXPERTS | {"num_hidden_layers": 5, "qk_rope_head_dim": 8, "index_topk_freq": 2}
SPARK = EXPERTS | {
    "num_local_experts": 8,
    "moe_hidden_size": 40,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
}
QWEN = EXPERTS | {
    "num_experts": 8,
    "shared_expert_intermediate_size": 40,
    "hc_lowrank": 6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "linear_conv_kernel_dim": 4,
    "indexer_n_heads": 2,
    "indexer_head_dim": 256,
    "indexer_budget": 32,
    "indexer_compress_ratio": 4,
}
TEXTS = {
    "Step3p7": (SMALL | STEP, 254_432),
    "Glm5Next": (SMALL | LATENT | GLM, 466_690),
    "MistralLarge4": (SMALL | LATENT | MISTRAL, 272_888),
    "MuseGlimmer": (SMALL | GROUPED, 173_120),
    "MuseSpark": (SMALL | GROUPED | SPARK, 213_552),
    "Qwen4Exp": (SMALL | GROUPED | QWEN, 363_652),
}
"""The text section of a wrapper and the parameters of its language model and head."""


@pytest.mark.parametrize("name", TEXTS)
def test_text_models_of_wrappers_count_as_their_classes(name):
    text, expected = TEXTS[name]
    raw = {"architectures": [f"{name}ForConditionalGeneration"], "text_config": text}
    assert params_text(from_hf(raw, name=name)) == expected


def test_indexers_beside_plain_attention_choose_and_keep_keys():
    text, _ = TEXTS["Qwen4Exp"]
    cfg = from_hf({"architectures": ["Qwen4ExpForCausalLM"], **text}, name="qwen")
    assert keys_seen(cfg.layer(3), 1000, causal=False) == 32
    assert index_bytes(cfg, 1000) == 250 * 256 * 2  # one layer, a key in bf16 per four tokens


@pytest.mark.parametrize(
    ("change", "name", "rule"),
    [
        ({"ple_layer_ids": [1]}, "Qwen4Exp", "hashed embeddings of n-grams are not modelled"),
        ({"index_topk_pattern": "FS"}, "Glm5Next", "for each of 8 layers"),
        ({"kv_source_layers": [0, 0, 2, 3, 4]}, "MistralLarge4", "latent of an earlier one"),
        ({"moe_layers_enum": "2;3"}, "Step3p7", "numbers of layers between commas"),
    ],
)
def test_variants_that_are_not_modelled_are_refused(change, name, rule):
    raw = {"architectures": [f"{name}ForConditionalGeneration"], "text_config": TEXTS[name][0]}
    raw["text_config"] = raw["text_config"] | change
    with pytest.raises(BadRequest, match=rule):
        from_hf(raw, name=name)
