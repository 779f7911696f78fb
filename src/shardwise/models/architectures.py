"""The table of classes: how each spells its keys, what it assumes, how its layers are built.

One row per `architectures[0]`; a config that names no architecture is looked up by `model_type`.
`defaults` holds what the class assumes for a key that is left out (None: derived, as K = N). Sizes
that make a model what it is (width, depth, heads, vocabulary) have a default only where published
configs of the class leave them out, so that a damaged file is refused rather than completed.
Every default was read from the class named in `source`; "analytic" rows have no class there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from shardwise.errors import BadRequest, unknown
from shardwise.models import blocks, families, patterns, towers
from shardwise.models.blocks import Switch, Traits
from shardwise.models.config import Tower
from shardwise.models.patterns import Rule
from shardwise.models.reader import Reader
from shardwise.models.specs import Layer, Mixer, Mlp, Moe

TowerRule = Callable[[Reader, Reader], Tower]
NAMES = {"num_experts": ("num_experts", "num_local_experts", "n_routed_experts")}
TF = "transformers 5.23.0"
PLAIN = Traits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One class. `mixers` and `mlps` say which kind each layer is, `mixer` and `mlp` build one.

    `mixer_list`, `mlp_list` and `stack` replace them where layers differ in more than their kind.
    """

    model_type: str
    source: str
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    traits: Traits | Callable[[Reader], Traits] = PLAIN
    mixers: Rule = patterns.all_full
    mlps: Rule = patterns.all_dense
    mixer: Callable[[Reader, str, Traits], Mixer] = blocks.softmax
    mlp: Callable[[Reader, Traits], Mlp] = blocks.dense
    mixer_list: Callable[[Reader, list[str], Traits], list[Mixer]] | None = None
    mlp_list: Callable[[Reader, list[str], Traits], list[Mlp | Moe]] | None = None
    stack: Callable[[Reader, int], list[Layer]] | None = None
    layers: Callable[[Reader], int] | None = None
    embedding_norm: bool = False
    final_norm: Switch = True
    head_bias: Switch = False
    position_key: str = ""
    position_offset: int = 0
    extra_embedding_rows: int = 0
    streams_key: str = ""
    towers: Mapping[str, TowerRule] = field(default_factory=dict)
    tower_defaults: Mapping[str, Any] = field(default_factory=dict)


COMMON = {
    "num_key_value_heads": None,
    "head_dim": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "max_position_embeddings": None,
    "sliding_window": None,
}
QWEN_WINDOW = {"use_sliding_window": False, "max_window_layers": 28, "layer_types": None}
LISTED = {"layer_types": None}
TIED = {"tie_word_embeddings": True}
GPT = {"intermediate_size": None, "expansion_ratio": 4}
MIXTRAL_KEYS = {**NAMES, "moe_intermediate_size": ("intermediate_size",)}
SPARSE = {"decoder_sparse_step": 1, "mlp_only_layers": None}
FIRST_DENSE = {
    "mlp_layer_types": None,
    "first_k_dense_replace": 0,
    "moe_layer_freq": 1,
    "n_shared_experts": 0,
}
QWEN_LINEAR = {"full_attention_interval": 4, **LISTED}
INDEXER = {"indexer_types": None, "index_topk_freq": 1, "index_skip_topk_offset": 2}
BOTH_BIAS = Traits(qkv_bias="attention_bias", o_bias="attention_bias")
FOUR_NORMS = ("attention", "post_attention", "mlp", "post_mlp")

LLAMA = replace(BOTH_BIAS, mlp_bias="mlp_bias")
QWEN2 = Traits(qkv_bias=True)
QWEN3 = replace(BOTH_BIAS, qk_norm="head")
DEEPSEEK = Traits(qkv_bias="attention_bias", shared="count")
DEEPSEEK_V2 = replace(DEEPSEEK, mlp_bias="mlp_bias")
OLMO2 = replace(BOTH_BIAS, qk_norm="full", norms=("post_attention", "post_mlp"))
GPT2 = Traits(qkv_bias=True, o_bias=True, mlp_bias=True, norm_bias=True, gated=False)
QWEN_MOE = Traits(qkv_bias="qkv_bias", shared="width", shared_gate=True)
QWEN_NEXT = replace(BOTH_BIAS, qk_norm="head", output_gate=True, shared="width", shared_gate=True)

_ROWS: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture(
        model_type="llama",
        source=f"{TF} LlamaConfig",
        defaults=COMMON,
        traits=LLAMA,
    ),
    # MistralConfig would give a missing sliding_window 4096, the window of 7B v0.1; the published
    # configs that leave it out (Nemo, Large) attend fully, so None stands here.
    "MistralForCausalLM": Architecture(
        model_type="mistral",
        source=f"{TF} MistralConfig",
        defaults={**COMMON, "num_key_value_heads": 8},
        mixers=patterns.one_window,
    ),
    "MixtralForCausalLM": Architecture(
        model_type="mixtral",
        source=f"{TF} MixtralConfig",
        keys=MIXTRAL_KEYS,
        defaults={**COMMON, "num_key_value_heads": 8},
        mixers=patterns.one_window,
        mlps=patterns.all_sparse,
    ),
    "Grok1ModelForCausalLM": Architecture(
        model_type="grok-1",
        source="analytic: Mixtral shape, tied embeddings, four norms (xai-org/grok-1)",
        keys=MIXTRAL_KEYS,
        defaults={**COMMON, **TIED},
        traits=Traits(norms=FOUR_NORMS),
        mlps=patterns.all_sparse,
    ),
    "BaichuanForCausalLM": Architecture(
        model_type="baichuan",
        source="analytic: Llama shape with fused W_pack (baichuan-inc/Baichuan2-7B-Base)",
        defaults=COMMON,
        traits=LLAMA,
    ),
    "InternLM2ForCausalLM": Architecture(
        model_type="internlm2",
        source="analytic: Llama shape with fused wqkv (InternLM/InternLM)",
        defaults={**COMMON, "bias": False},
        traits=Traits(qkv_bias="bias", o_bias="bias"),
    ),
    "MiniCPMForCausalLM": Architecture(
        model_type="minicpm",
        source="analytic: Llama shape, tied embeddings (OpenBMB/MiniCPM)",
        defaults={**COMMON, **TIED},
        traits=LLAMA,
    ),
    "DeciLMForCausalLM": Architecture(
        model_type="nemotron-nas",
        source="analytic: Llama blocks by block_configs (nvidia/Llama-3_3-Nemotron-Super-49B-v1)",
        defaults=COMMON,
        stack=families.deci_stack,
    ),
    "SmolLM3ForCausalLM": Architecture(
        model_type="smollm3",
        source=f"{TF} SmolLM3Config",
        defaults={**COMMON, **QWEN_WINDOW, **TIED, "num_key_value_heads": 4},
        traits=LLAMA,
        mixers=patterns.switched_window,
    ),
    "Phi3ForCausalLM": Architecture(
        model_type="phi3",
        source=f"{TF} Phi3Config",
        defaults={**COMMON, "lm_head_bias": False},
        mixers=patterns.one_window,
    ),
    "PhiForCausalLM": Architecture(
        model_type="phi",
        source=f"{TF} PhiConfig; key names of model type phi-msft",
        keys={
            "hidden_size": ("hidden_size", "n_embd"),
            "num_hidden_layers": ("num_hidden_layers", "n_layer"),
            "num_attention_heads": ("num_attention_heads", "n_head"),
            "num_key_value_heads": ("num_key_value_heads", "n_head_kv"),
            "intermediate_size": ("intermediate_size", "n_inner"),
            "max_position_embeddings": ("max_position_embeddings", "n_positions"),
        },
        defaults={**COMMON, **GPT, "qk_layernorm": False},
        traits=Traits(
            qkv_bias=True,
            o_bias=True,
            mlp_bias=True,
            qk_norm="head",
            qk_norm_if="qk_layernorm",
            qk_norm_bias=True,
            gated=False,
            norms=("input",),
            norm_bias=True,
            parallel=True,
        ),
        head_bias=True,
    ),
    "Phi3SmallForCausalLM": Architecture(
        model_type="phi3small",
        source="analytic: microsoft/Phi-3-small-8k-instruct remote code, 7.39B stated",
        keys={"intermediate_size": ("ff_intermediate_size",)},
        defaults={**COMMON, **TIED},
        traits=Traits(qkv_bias=True, o_bias=True, mlp_bias=True, norm_bias=True),
    ),
    "PhimoeForCausalLM": Architecture(
        model_type="phimoe",
        source=f"{TF} PhimoeConfig",
        keys=MIXTRAL_KEYS,
        defaults={**COMMON, "num_key_value_heads": 8, "lm_head_bias": False},
        traits=replace(BOTH_BIAS, norm_bias=True),
        mixers=patterns.one_window,
        mlps=patterns.all_sparse,
        head_bias="lm_head_bias",
    ),
    "StableLmForCausalLM": Architecture(
        model_type="stablelm",
        source=f"{TF} StableLmConfig",
        defaults={
            **COMMON,
            "num_key_value_heads": 32,
            "use_qkv_bias": False,
            "qk_layernorm": False,
            "use_parallel_residual": False,
        },
        traits=families.stablelm_traits,
    ),
    "GPT2LMHeadModel": Architecture(
        model_type="gpt2",
        source=f"{TF} GPT2Config",
        keys={
            "hidden_size": ("n_embd",),
            "num_hidden_layers": ("n_layer",),
            "num_attention_heads": ("n_head",),
            "intermediate_size": ("n_inner",),
            "max_position_embeddings": ("n_positions",),
        },
        defaults={**COMMON, **GPT, **TIED, "max_position_embeddings": 1024},
        traits=GPT2,
        position_key="max_position_embeddings",
    ),
    "GPTJForCausalLM": Architecture(
        model_type="gptj",
        source=f"{TF} GPTJConfig",
        keys={
            "hidden_size": ("n_embd",),
            "num_hidden_layers": ("n_layer",),
            "num_attention_heads": ("n_head",),
            "intermediate_size": ("n_inner",),
            "max_position_embeddings": ("n_positions",),
        },
        defaults={**COMMON, **GPT, "max_position_embeddings": 2048},
        traits=Traits(mlp_bias=True, gated=False, norms=("input",), norm_bias=True, parallel=True),
        head_bias=True,
    ),
    "GPTNeoXForCausalLM": Architecture(
        model_type="gpt_neox",
        source=f"{TF} GPTNeoXConfig",
        defaults={**COMMON, "attention_bias": True, "use_parallel_residual": True},
        traits=replace(
            BOTH_BIAS,
            mlp_bias=True,
            gated=False,
            norm_bias=True,
            parallel="use_parallel_residual",
        ),
    ),
    "OPTForCausalLM": Architecture(
        model_type="opt",
        source=f"{TF} OPTConfig; two spare position rows as in its learned embedding",
        keys={"intermediate_size": ("ffn_dim",), "embedding_dim": ("word_embed_proj_dim",)},
        defaults={
            **COMMON,
            **TIED,
            "max_position_embeddings": 2048,
            "embedding_dim": None,
            "enable_bias": True,
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "layer_norm_elementwise_affine": True,
        },
        traits=Traits(
            qkv_bias="enable_bias",
            o_bias="enable_bias",
            mlp_bias="enable_bias",
            gated=False,
            norm_bias=True,
        ),
        final_norm="do_layer_norm_before",
        position_key="max_position_embeddings",
        position_offset=2,
    ),
    "BloomForCausalLM": Architecture(
        model_type="bloom",
        source=f"{TF} BloomConfig",
        keys={
            "hidden_size": ("hidden_size", "n_embed"),
            "num_hidden_layers": ("n_layer", "num_hidden_layers"),
            "num_attention_heads": ("n_head", "num_attention_heads"),
            "max_position_embeddings": ("seq_length",),
        },
        defaults={**COMMON, **TIED, "intermediate_size": None, "expansion_ratio": 4},
        traits=GPT2,
        embedding_norm=True,
    ),
    "MptForCausalLM": Architecture(
        model_type="mpt",
        source=f"{TF} MptConfig; no biases, positions by ALiBi",
        keys={
            "hidden_size": ("d_model",),
            "num_hidden_layers": ("n_layers",),
            "num_attention_heads": ("n_heads",),
            "max_position_embeddings": ("max_seq_len",),
        },
        defaults={**COMMON, **GPT, **TIED, "max_position_embeddings": 2048},
        traits=Traits(gated=False),
    ),
    "FalconForCausalLM": Architecture(
        model_type="falcon",
        source=f"{TF} FalconConfig",
        keys={
            "num_hidden_layers": ("num_hidden_layers", "n_layer"),
            "num_attention_heads": ("num_attention_heads", "n_head"),
            "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
            "intermediate_size": ("ffn_hidden_size",),
        },
        defaults={
            **COMMON,
            **GPT,
            **TIED,
            "max_position_embeddings": 2048,
            "num_ln_in_parallel_attn": None,
            "new_decoder_architecture": False,
            "multi_query": True,
            "parallel_attn": True,
            "bias": False,
        },
        traits=families.falcon_traits,
        mixer=families.falcon_attention,
    ),
    "CohereForCausalLM": Architecture(
        model_type="cohere",
        source=f"{TF} CohereConfig",
        defaults={**COMMON, **TIED, "use_qk_norm": False},
        traits=replace(
            BOTH_BIAS,
            qk_norm="heads",
            qk_norm_if="use_qk_norm",
            norms=("input",),
            parallel=True,
        ),
    ),
    "Cohere2ForCausalLM": Architecture(
        model_type="cohere2",
        source=f"{TF} Cohere2Config",
        defaults={**COMMON, **TIED, **LISTED, "sliding_window_pattern": 4, "sliding_window": 4096},
        traits=replace(BOTH_BIAS, norms=("input",), parallel=True),
        mixers=patterns.every("sliding_window_pattern", "window"),
    ),
    "QWenLMHeadModel": Architecture(
        model_type="qwen",
        source="analytic: Qwen/Qwen-72B remote code; Qwen2 shape, half the stated MLP width",
        keys={"head_dim": ("kv_channels",), "max_position_embeddings": ("seq_length",)},
        defaults=COMMON,
        traits=QWEN2,
        mlp=families.qwen_mlp,
    ),
    "Qwen2ForCausalLM": Architecture(
        model_type="qwen2",
        source=f"{TF} Qwen2Config",
        defaults={**COMMON, **QWEN_WINDOW, "num_key_value_heads": 32},
        traits=QWEN2,
        mixers=patterns.switched_window,
    ),
    "MiMoForCausalLM": Architecture(
        model_type="mimo",
        source="analytic: Qwen2 shape, MTP layer left out (XiaomiMiMo/MiMo-7B-Base)",
        defaults={**COMMON, **QWEN_WINDOW, "attention_bias": True},
        traits=Traits(qkv_bias="attention_bias"),
        mixers=patterns.switched_window,
    ),
    "Qwen2MoeForCausalLM": Architecture(
        model_type="qwen2_moe",
        source=f"{TF} Qwen2MoeConfig",
        keys=NAMES,
        defaults={
            **COMMON,
            **QWEN_WINDOW,
            **SPARSE,
            "num_key_value_heads": 16,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
        },
        traits=QWEN_MOE,
        mixers=patterns.switched_window_even,
        mlps=patterns.sparse_step,
    ),
    "Qwen3ForCausalLM": Architecture(
        model_type="qwen3",
        source=f"{TF} Qwen3Config",
        defaults={**COMMON, **QWEN_WINDOW, "num_key_value_heads": 32, "head_dim": 128},
        traits=QWEN3,
        mixers=patterns.switched_window,
    ),
    "Qwen3MoeForCausalLM": Architecture(
        model_type="qwen3_moe",
        source=f"{TF} Qwen3MoeConfig",
        keys=NAMES,
        defaults={**COMMON, **QWEN_WINDOW, **SPARSE, "num_key_value_heads": 4},
        traits=QWEN3,
        mixers=patterns.switched_window,
        mlps=patterns.sparse_step,
    ),
    "Qwen3NextForCausalLM": Architecture(
        model_type="qwen3_next",
        source=f"{TF} Qwen3NextConfig",
        keys=NAMES,
        defaults={**COMMON, **QWEN_LINEAR, **SPARSE, "num_key_value_heads": 2, "head_dim": 256},
        traits=QWEN_NEXT,
        mixers=patterns.every("full_attention_interval", "linear"),
        mixer=blocks.gated_delta,
        mlps=patterns.sparse_step,
    ),
    "Qwen3_5ForConditionalGeneration": Architecture(
        model_type="qwen3_5",
        source=f"{TF} Qwen3_5Config",
        defaults={**COMMON, **QWEN_LINEAR, "num_key_value_heads": 4, "head_dim": 256},
        traits=QWEN_NEXT,
        mixers=patterns.every("full_attention_interval", "linear"),
        mixer=blocks.gated_delta,
        towers={"vision_config": towers.qwen_vision},
        tower_defaults={"deepstack_visual_indexes": None},
    ),
    "Qwen3_5MoeForConditionalGeneration": Architecture(
        model_type="qwen3_5_moe",
        source=f"{TF} Qwen3_5MoeConfig",
        keys=NAMES,
        defaults={**COMMON, **QWEN_LINEAR, "num_key_value_heads": 2, "head_dim": 256},
        traits=QWEN_NEXT,
        mixers=patterns.every("full_attention_interval", "linear"),
        mixer=blocks.gated_delta,
        mlps=patterns.all_sparse,
        towers={"vision_config": towers.qwen_vision},
        tower_defaults={"deepstack_visual_indexes": None},
    ),
    "Qwen3VLForConditionalGeneration": Architecture(
        model_type="qwen3_vl",
        source=f"{TF} Qwen3VLConfig",
        defaults={**COMMON, "num_key_value_heads": 32, "head_dim": 128},
        traits=QWEN3,
        towers={"vision_config": towers.qwen_vision},
        tower_defaults={"deepstack_visual_indexes": [8, 16, 24]},
    ),
    "Qwen3VLMoeForConditionalGeneration": Architecture(
        model_type="qwen3_vl_moe",
        source=f"{TF} Qwen3VLMoeConfig",
        keys=NAMES,
        defaults={**COMMON, **SPARSE, "num_key_value_heads": 16},
        traits=QWEN3,
        mlps=patterns.sparse_step,
        towers={"vision_config": towers.qwen_vision},
        tower_defaults={"deepstack_visual_indexes": [8, 16, 24]},
    ),
    "OlmoeForCausalLM": Architecture(
        model_type="olmoe",
        source=f"{TF} OlmoeConfig",
        keys=MIXTRAL_KEYS,
        defaults=COMMON,
        traits=replace(BOTH_BIAS, qk_norm="full"),
        mlps=patterns.all_sparse,
    ),
    "Olmo2ForCausalLM": Architecture(
        model_type="olmo2",
        source=f"{TF} Olmo2Config",
        defaults=COMMON,
        traits=OLMO2,
    ),
    "Olmo3ForCausalLM": Architecture(
        model_type="olmo3",
        source=f"{TF} Olmo3Config",
        defaults={**COMMON, **LISTED, "sliding_window": 4096, "sliding_window_pattern": 4},
        traits=OLMO2,
        mixers=patterns.every("sliding_window_pattern", "window"),
    ),
    "Exaone4ForCausalLM": Architecture(
        model_type="exaone4",
        source=f"{TF} Exaone4Config",
        defaults={
            **COMMON,
            **LISTED,
            "num_key_value_heads": 32,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        traits=Traits(qk_norm="head", norms=("post_attention", "post_mlp")),
        mixers=patterns.windows_named,
    ),
    "GemmaForCausalLM": Architecture(
        model_type="gemma",
        source=f"{TF} GemmaConfig",
        defaults={**COMMON, **TIED, "num_key_value_heads": 16, "head_dim": 256},
        traits=BOTH_BIAS,
    ),
    "Gemma2ForCausalLM": Architecture(
        model_type="gemma2",
        source=f"{TF} Gemma2Config",
        defaults={
            **COMMON,
            **TIED,
            **LISTED,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 2,
        },
        traits=replace(BOTH_BIAS, norms=FOUR_NORMS),
        mixers=patterns.every("sliding_window_pattern", "window"),
    ),
    "GptOssForCausalLM": Architecture(
        model_type="gpt_oss",
        source=f"{TF} GptOssConfig",
        keys={
            **MIXTRAL_KEYS,
            "num_experts_per_tok": ("num_experts_per_tok", "experts_per_token"),
        },
        defaults={
            **COMMON,
            **LISTED,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "attention_bias": True,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
        },
        traits=replace(BOTH_BIAS, sinks=True, moe_bias=True),
        mixers=patterns.every("sliding_window_pattern", "window"),
        mlps=patterns.all_sparse,
    ),
    "GraniteMoeForCausalLM": Architecture(
        model_type="granitemoe",
        source=f"{TF} GraniteMoeConfig",
        keys=MIXTRAL_KEYS,
        defaults=COMMON,
        traits=BOTH_BIAS,
        mlps=patterns.all_sparse,
    ),
    "DbrxForCausalLM": Architecture(
        model_type="dbrx",
        source=f"{TF} DbrxConfig",
        keys={
            "hidden_size": ("d_model",),
            "num_hidden_layers": ("n_layers",),
            "num_attention_heads": ("n_heads",),
            "num_key_value_heads": ("attn_config.kv_n_heads",),
            "max_position_embeddings": ("max_seq_len",),
            "moe_intermediate_size": ("ffn_config.ffn_hidden_size",),
            "num_experts": ("ffn_config.moe_num_experts",),
            "num_experts_per_tok": ("ffn_config.moe_top_k",),
        },
        defaults={"head_dim": None, "tie_word_embeddings": False, "max_position_embeddings": 2048},
        mlps=patterns.all_sparse,
    ),
    "DeepseekForCausalLM": Architecture(
        model_type="deepseek",
        source="analytic: deepseek-ai/deepseek-moe-16b-base remote code; Glm4Moe shape",
        keys=NAMES,
        defaults={**COMMON, **FIRST_DENSE},
        traits=replace(BOTH_BIAS, shared="count"),
        mlps=patterns.first_dense,
    ),
    "DeepseekV2ForCausalLM": Architecture(
        model_type="deepseek_v2",
        source=f"{TF} DeepseekV2Config",
        keys=NAMES,
        defaults={
            **COMMON,
            **FIRST_DENSE,
            "n_shared_experts": 2,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        traits=DEEPSEEK_V2,
        mixer=blocks.latent,
        mlps=patterns.first_dense,
    ),
    "DeepseekV3ForCausalLM": Architecture(
        model_type="deepseek_v3",
        source=f"{TF} DeepseekV3Config",
        keys=NAMES,
        defaults={
            **COMMON,
            **FIRST_DENSE,
            "first_k_dense_replace": 3,
            "n_shared_experts": 1,
            "q_lora_rank": 1536,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        traits=DEEPSEEK,
        mixer=blocks.latent,
        mlps=patterns.first_dense,
    ),
    "DeepseekV4ForCausalLM": Architecture(
        model_type="deepseek_v4",
        source=f"{TF} DeepseekV4Config",
        keys=NAMES,
        defaults={
            **COMMON,
            **LISTED,
            "compress_ratios": None,
            "compress_rate_csa": 4,
            "compress_rate_hca": 128,
            "num_hash_layers": 3,
            "n_shared_experts": 1,
            "hc_mult": 4,
            "sliding_window": 128,
        },
        traits=Traits(mlp_bias="mlp_bias", shared="count"),
        mixer_list=families.deepseek_v4_mixers,
        mlp_list=families.deepseek_v4_mlps,
        streams_key="hc_mult",
    ),
    "MiniCPM3ForCausalLM": Architecture(
        model_type="minicpm3",
        source=f"{TF} MiniCPM3Config",
        defaults={**COMMON, **TIED, "v_head_dim": 64},
        traits=Traits(qkv_bias="attention_bias", mlp_bias="mlp_bias"),
        mixer=blocks.latent,
    ),
    "ChatGLMModel": Architecture(
        model_type="chatglm",
        source="analytic: THUDM/glm-4-9b-chat remote code; Glm shape",
        keys={
            "vocab_size": ("padded_vocab_size",),
            "num_hidden_layers": ("num_layers",),
            "num_key_value_heads": ("multi_query_group_num",),
            "head_dim": ("kv_channels",),
            "intermediate_size": ("ffn_hidden_size",),
            "max_position_embeddings": ("seq_length",),
        },
        defaults={**COMMON, "multi_query_attention": False, "add_qkv_bias": False}
        | {"add_bias_linear": False},
        traits=Traits(mlp_bias="add_bias_linear"),
        mixer=families.chatglm_attention,
    ),
    "Glm4MoeForCausalLM": Architecture(
        model_type="glm4_moe",
        source=f"{TF} Glm4MoeConfig",
        keys=NAMES,
        defaults={
            **COMMON,
            **FIRST_DENSE,
            "num_key_value_heads": 8,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "use_qk_norm": False,
        },
        traits=Traits(
            qkv_bias="attention_bias", qk_norm="head", qk_norm_if="use_qk_norm", shared="count"
        ),
        mlps=patterns.first_dense,
    ),
    "Glm4MoeLiteForCausalLM": Architecture(
        model_type="glm4_moe_lite",
        source=f"{TF} Glm4MoeLiteConfig",
        keys=NAMES,
        defaults={
            **COMMON,
            **FIRST_DENSE,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "q_lora_rank": 768,
        },
        traits=DEEPSEEK,
        mixer=blocks.latent,
        mlps=patterns.first_dense,
    ),
    "GlmMoeDsaForCausalLM": Architecture(
        model_type="glm_moe_dsa",
        source=f"{TF} GlmMoeDsaConfig",
        keys=NAMES,
        defaults={
            **COMMON,
            **FIRST_DENSE,
            **INDEXER,
            "first_k_dense_replace": 3,
            "n_shared_experts": 1,
            "q_lora_rank": 2048,
        },
        traits=DEEPSEEK,
        mixer_list=families.indexed_latent,
        mlps=patterns.first_dense,
    ),
    "MiMoV2FlashForCausalLM": Architecture(
        model_type="mimo_v2_flash",
        source=f"{TF} MiMoV2FlashConfig",
        keys={**NAMES, "sliding_window": ("sliding_window", "sliding_window_size")},
        defaults={
            **COMMON,
            **LISTED,
            "mlp_layer_types": None,
            "moe_layer_freq": None,
            "hybrid_layer_pattern": None,
            "add_swa_attention_sink_bias": True,
            "add_full_attention_sink_bias": False,
        },
        mixers=patterns.zeros_and_ones("hybrid_layer_pattern", "full", "window"),
        mixer=families.mimo_attention,
        mlps=patterns.sparse_flags,
    ),
    "MiniMaxM1ForCausalLM": Architecture(
        model_type="minimax_m1",
        source=f"{TF} MiniMaxConfig; attn_type_list as in MiniMaxAI/MiniMax-M1-80k",
        keys=MIXTRAL_KEYS,
        defaults={**COMMON, **LISTED, "num_key_value_heads": 8, "attn_type_list": None},
        mixers=patterns.zeros_and_ones("attn_type_list", "linear", "full"),
        mixer=blocks.lightning,
        mlps=patterns.all_sparse,
    ),
    "NemotronHForCausalLM": Architecture(
        model_type="nemotron_h",
        source=f"{TF} NemotronHConfig",
        keys={
            **NAMES,
            "head_dim": ("head_dim", "attention_head_dim"),
            "shared_expert_intermediate_size": ("moe_shared_expert_intermediate_size",),
            "layers_block_type": ("layers_block_type", "layer_types"),
        },
        defaults={
            **COMMON,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "layers_block_type": None,
            "hybrid_override_pattern": None,
            "use_conv_bias": True,
            "moe_latent_size": 0,
            "use_bias": False,
        },
        stack=families.nemotron_stack,
        layers=families.nemotron_layers,
    ),
    "Lfm2ForCausalLM": Architecture(
        model_type="lfm2",
        source=f"{TF} Lfm2Config",
        keys={
            "intermediate_size": ("block_ff_dim", "intermediate_size"),
            "tie_word_embeddings": ("tie_embedding", "tie_word_embeddings"),
        },
        defaults={
            **COMMON,
            **LISTED,
            **TIED,
            "num_key_value_heads": 8,
            "full_attn_idxs": None,
            "conv_bias": False,
            "conv_L_cache": 3,
            "block_multiple_of": 256,
            "block_ffn_dim_multiplier": 1.0,
            "block_auto_adjust_ff_dim": True,
        },
        traits=Traits(qk_norm="head"),
        mixers=patterns.listed_indices("full_attn_idxs", "full", "conv"),
        mixer=blocks.short_conv,
        mlp=families.lfm2_mlp,
    ),
    "Gemma3ForConditionalGeneration": Architecture(
        model_type="gemma3",
        source=f"{TF} Gemma3TextConfig",
        defaults={
            **COMMON,
            **TIED,
            **LISTED,
            "vocab_size": 262208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
        },
        traits=replace(BOTH_BIAS, qk_norm="head", norms=FOUR_NORMS),
        mixers=patterns.every("sliding_window_pattern", "window"),
        towers={"vision_config": towers.siglip},
        tower_defaults={"num_channels": 3, "vision_use_head": True},
    ),
    "Gemma4ForConditionalGeneration": Architecture(
        model_type="gemma4",
        source=f"{TF} Gemma4TextConfig",
        keys={**NAMES, "num_experts_per_tok": ("top_k_experts",)},
        defaults={
            **COMMON,
            **TIED,
            **LISTED,
            "vocab_size": 262144,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "global_head_dim": 512,
            "num_global_key_value_heads": None,
            "sliding_window": 512,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": False,
            "enable_moe_block": False,
            "use_double_wide_mlp": False,
            "hidden_size_per_layer_input": 256,
            "vocab_size_per_layer_input": 262144,
        },
        stack=families.gemma4_stack,
        towers={"vision_config": towers.gemma4_vision},
    ),
    "Llama4ForConditionalGeneration": Architecture(
        model_type="llama4",
        source=f"{TF} Llama4TextConfig",
        keys={
            **NAMES,
            "moe_intermediate_size": ("intermediate_size",),
            "intermediate_size": ("intermediate_size_mlp",),
        },
        defaults={
            **COMMON,
            **LISTED,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attention_chunk_size": 8192,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
            "moe_layers": None,
            "interleave_moe_layer_step": 1,
        },
        traits=replace(BOTH_BIAS, shared="one"),
        mixers=patterns.chunks_without_rope,
        mlps=patterns.interleaved,
        towers={"vision_config": towers.llama4_vision},
    ),
    "MllamaForConditionalGeneration": Architecture(
        model_type="mllama",
        source=f"{TF} MllamaTextConfig; eight spare embedding rows as in its embed_tokens",
        defaults={**COMMON, "num_key_value_heads": 8},
        mixers=patterns.listed_indices("cross_attention_layers", "cross", "full"),
        mixer=families.mllama_attention,
        extra_embedding_rows=8,
        towers={"vision_config": towers.mllama_vision},
    ),
    "KimiK3ForConditionalGeneration": Architecture(
        model_type="kimi_k3",
        source="analytic: moonshotai/Kimi-K3 remote code (kimi_linear)",
        keys={
            **NAMES,
            "num_experts_per_tok": ("num_experts_per_token", "num_experts_per_tok"),
            "n_shared_experts": ("num_shared_experts",),
        },
        defaults={
            **COMMON,
            **FIRST_DENSE,
            "q_lora_rank": None,
            "mla_use_output_gate": False,
            "routed_expert_hidden_size": 0,
            "latent_moe_use_norm": False,
            "attn_res_block_size": None,
        },
        stack=families.kimi_stack,
    ),
}

_ROWS |= {
    "GlmForCausalLM": Architecture(
        model_type="glm",
        source=f"{TF} GlmConfig",
        defaults={**COMMON, "num_key_value_heads": 2, "head_dim": 128, "attention_bias": True},
        traits=Traits(qkv_bias="attention_bias"),
    ),
    "Glm4ForCausalLM": Architecture(
        model_type="glm4",
        source=f"{TF} Glm4Config",
        defaults={**COMMON, "num_key_value_heads": 2, "head_dim": 128, "attention_bias": True},
        traits=Traits(qkv_bias="attention_bias", norms=FOUR_NORMS),
    ),
    "GraniteForCausalLM": replace(
        _ROWS["LlamaForCausalLM"], model_type="granite", source=f"{TF} GraniteConfig"
    ),
    "ArceeForCausalLM": replace(
        _ROWS["LlamaForCausalLM"],
        model_type="arcee",
        source=f"{TF} ArceeConfig",
        traits=replace(LLAMA, gated=False),
    ),
    "SeedOssForCausalLM": Architecture(
        model_type="seed_oss",
        source=f"{TF} SeedOssConfig",
        defaults={
            **COMMON,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "attention_bias": True,
            "attention_out_bias": False,
        },
        traits=Traits(qkv_bias="attention_bias", o_bias="attention_out_bias", mlp_bias="mlp_bias"),
    ),
    "Starcoder2ForCausalLM": Architecture(
        model_type="starcoder2",
        source=f"{TF} Starcoder2Config",
        defaults={**COMMON, **TIED, "num_key_value_heads": 2, "use_bias": True},
        traits=Traits(
            qkv_bias="use_bias",
            o_bias="use_bias",
            mlp_bias="use_bias",
            gated=False,
            norm_bias=True,
        ),
        mixers=patterns.one_window,
    ),
    "Ernie4_5ForCausalLM": Architecture(
        model_type="ernie4_5",
        source=f"{TF} Ernie4_5Config",
        defaults={
            **COMMON,
            **TIED,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "use_bias": False,
        },
        traits=Traits(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias"),
    ),
    "OlmoForCausalLM": Architecture(
        model_type="olmo",
        source=f"{TF} OlmoConfig; its norms have no parameters",
        defaults=COMMON,
        traits=replace(BOTH_BIAS, norms=()),
        final_norm=False,
    ),
    "MiniMaxM2ForCausalLM": Architecture(
        model_type="minimax_m2",
        source=f"{TF} MiniMaxM2Config",
        keys=MIXTRAL_KEYS,
        defaults={**COMMON, "num_key_value_heads": 8, "head_dim": 128},
        traits=Traits(qk_norm="full"),
        mlps=patterns.all_sparse,
    ),
    "DeepseekV32ForCausalLM": Architecture(
        model_type="deepseek_v32",
        source=f"{TF} DeepseekV32Config; every layer has an indexer of its own",
        keys=NAMES,
        defaults={
            **_ROWS["DeepseekV3ForCausalLM"].defaults,
            **INDEXER,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "index_topk": 2048,
        },
        traits=DEEPSEEK,
        mixer_list=families.indexed_latent,
        mlps=patterns.first_dense,
    ),
    "Gemma3ForCausalLM": replace(
        _ROWS["Gemma3ForConditionalGeneration"], model_type="gemma3_text", towers={}
    ),
    "Gemma4ForCausalLM": replace(
        _ROWS["Gemma4ForConditionalGeneration"], model_type="gemma4_text", towers={}
    ),
    "Llama4ForCausalLM": replace(
        _ROWS["Llama4ForConditionalGeneration"], model_type="llama4_text", towers={}
    ),
    "Qwen3_5ForCausalLM": replace(
        _ROWS["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5_text", towers={}
    ),
    "Qwen3_5MoeForCausalLM": replace(
        _ROWS["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe_text", towers={}
    ),
    "KimiLinearForCausalLM": replace(
        _ROWS["KimiK3ForConditionalGeneration"],
        model_type="kimi_linear",
        source="analytic: moonshotai/Kimi-Linear-48B-A3B remote code",
    ),
}

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(_ROWS)
"""Every class known, by the name that `architectures[0]` gives it."""

ALIASES: Mapping[str, str] = {"PhiMoEForCausalLM": "PhimoeForCausalLM"}
"""Names of remote-code classes that became a class of the table."""

TYPE_ALIASES: Mapping[str, str] = {"phi-msft": "phi", "kimi_k2": "deepseek_v3"}
"""Model types that a class of the table also reads."""


def architecture_of(raw: Mapping[str, Any], file: str) -> tuple[str, Architecture]:
    """Name and row for a config: `architectures[0]`, else `model_type`; unknown names are refused.

    A name that is given but not in the table is refused even where its model_type is known: a
    class that says it is another may differ in any tensor.
    """
    known = f"known: {', '.join(ARCHITECTURES)}"
    names = raw.get("architectures")
    if names is not None and (
        not isinstance(names, list) or not names or not isinstance(names[0], str)
    ):
        rule = "it must be a list with the name of a class"
        raise BadRequest(f"{file}: architectures is {names!r}; {rule}; {known}")
    if names:
        name = ALIASES.get(names[0], names[0])
        if name not in ARCHITECTURES:
            raise unknown("architecture", names[0], ARCHITECTURES, f"{file}; {known}")
        return name, ARCHITECTURES[name]
    kind = raw.get("model_type")
    if not isinstance(kind, str):
        rule = "neither architectures nor model_type names a class"
        raise BadRequest(f"{file}: {rule}; add one to say what the model is; {known}")
    types = {row.model_type: name for name, row in ARCHITECTURES.items()}
    kind = TYPE_ALIASES.get(kind, kind)
    if kind not in types:
        raise unknown("model_type", kind, types, f"{file}; known: {', '.join(types)}")
    return types[kind], ARCHITECTURES[types[kind]]
