#!/usr/bin/env python3
"""Golden outputs of transformers for tiny models: tests/runtime/golden/NAME.json and NAME.npy.

    scripts/make_golden.py [OUT] [NAME ...]

Needs torch and transformers; nothing else of shardwise does. Each model is made from a tiny config;
its checkpoint is written by `save_pretrained`, every tensor replaced by numbers that follow from
its name and shape (`weights.py` beside the goldens), and loaded back. Stored are the config, the
logits of a prompt [B, T, V] in float32 and what greedy decoding appends; never the weights.
"""

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

GOLDEN = Path(__file__).parents[1] / "tests" / "runtime" / "golden"
PROMPT = 12
NEW = 10
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 8}
LATENT = {
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
GPT = {
    "vocab_size": 64,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 16,
}

MODELS = {
    "llama": {"model_type": "llama", **SMALL, "head_dim": 16, "attention_bias": True},
    "llama-3.1": {"model_type": "llama", **SMALL, "rope_theta": 5e5, "rope_scaling": LLAMA3},
    "llama-linear": {
        "model_type": "llama",
        **SMALL,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "tie_word_embeddings": True,
        "mlp_bias": True,
    },
    "llama-yarn": {"model_type": "llama", **SMALL, "rope_scaling": YARN},
    "mistral": {"model_type": "mistral", **SMALL, "sliding_window": 5},
    "mixtral": {
        "model_type": "mixtral",
        **SMALL,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen2": {
        "model_type": "qwen2",
        **SMALL,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", **SMALL, "head_dim": 16, "tie_word_embeddings": True},
    "qwen2-moe": {
        "model_type": "qwen2_moe",
        **SMALL,
        **EXPERTS,
        "shared_expert_intermediate_size": 40,
        "decoder_sparse_step": 2,
    },
    "qwen3-moe": {"model_type": "qwen3_moe", **SMALL, **EXPERTS, "head_dim": 16}
    | {"norm_topk_prob": True},
    "olmoe": {
        "model_type": "olmoe",
        **SMALL,
        "num_experts": 8,
        "num_experts_per_tok": 3,
    },
    "gemma": {"model_type": "gemma", **SMALL, "head_dim": 16, "tie_word_embeddings": True},
    "gemma2": {
        "model_type": "gemma2",
        **SMALL,
        "num_hidden_layers": 5,
        "head_dim": 16,
        "sliding_window": 5,
        "query_pre_attn_scalar": 20,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **SMALL,
        "num_hidden_layers": 8,
        "head_dim": 16,
        "sliding_window": 5,
        "query_pre_attn_scalar": 20,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "tie_word_embeddings": True,
    },
    "gpt-oss": {
        "model_type": "gpt_oss",
        **SMALL,
        "num_hidden_layers": 4,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 5,
        "rope_theta": 150000.0,
        "rope_scaling": {**YARN, "truncate": False},
    },
    "deepseek-v2": {
        "model_type": "deepseek_v2",
        **SMALL,
        **LATENT,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.0,
        "moe_layer_freq": 1,
    },
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2",
        **SMALL,
        **LATENT,
        "q_lora_rank": None,
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
        "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3",
        **SMALL,
        **LATENT,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "glm4-moe": {
        "model_type": "glm4_moe",
        **SMALL,
        "head_dim": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "use_qk_norm": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
    },
    "gpt2": {"model_type": "gpt2", **GPT},
    "gptj": {"model_type": "gptj", **GPT, "rotary_dim": 4},
    "gpt-neox": {
        "model_type": "gpt_neox",
        **SMALL,
        "num_key_value_heads": 4,
        "rotary_pct": 0.5,
    },
    "opt": {
        "model_type": "opt",
        "vocab_size": 64,
        "hidden_size": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "word_embed_proj_dim": 24,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": None,
    },
    "phi": {"model_type": "phi", **SMALL, "partial_rotary_factor": 0.5},
    "phi3": {
        "model_type": "phi3",
        **SMALL,
        "sliding_window": 5,
        "partial_rotary_factor": 0.5,
    },
    "stablelm": {
        "model_type": "stablelm",
        **SMALL,
        "partial_rotary_factor": 0.5,
        "use_qkv_bias": True,
    },
    "starcoder2": {"model_type": "starcoder2", **SMALL, "sliding_window": 5},
    "cohere": {"model_type": "cohere", **SMALL, "tie_word_embeddings": True},
    "cohere2": {
        "model_type": "cohere2",
        **SMALL,
        "num_hidden_layers": 4,
        "head_dim": 16,
        "sliding_window": 5,
        "tie_word_embeddings": True,
    },
    "olmo2": {"model_type": "olmo2", **SMALL},
    "granite": {
        "model_type": "granite",
        **SMALL,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.0,
    },
    "ernie4_5": {"model_type": "ernie4_5", **SMALL, "head_dim": 8, "use_bias": True},
    "smollm3": {"model_type": "smollm3", **SMALL, "num_hidden_layers": 4}
    | {"no_rope_layers": [1, 1, 1, 0], "use_sliding_window": False},
}


def helper():
    """The module that makes weights from names and shapes; tests use the same."""
    spec = importlib.util.spec_from_file_location("weights", GOLDEN / "weights.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(raw: dict, folder: Path):
    """The model with the weights that follow from names, and its checkpoint in `folder`."""
    values = dict(raw)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    made = helper().tensor
    path = folder / "model.safetensors"
    tensors = {k: made(k, v.shape) for k, v in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def run(model, vocabulary: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompt [B, T], logits [B, T, V] and greedy tokens [B, NEW]."""
    prompt = np.random.RandomState(7).randint(3, vocabulary, (2, PROMPT))
    tokens = torch.tensor(prompt)
    with torch.no_grad():
        logits = model(tokens).logits
        out = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=0,
        )
    return prompt, logits.float().numpy(), out[:, PROMPT:].numpy()


def main(out: Path, names: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name in names or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            model = build(MODELS[name], Path(folder))
            prompt, logits, generated = run(model, MODELS[name]["vocab_size"])
            config = json.loads((Path(folder) / "config.json").read_text())
        document = {
            "transformers": transformers.__version__,
            "config": {k: v for k, v in config.items() if k != "transformers_version"},
            "prompt": prompt.tolist(),
            "generated": generated.tolist(),
        }
        (out / f"{name}.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
        np.save(out / f"{name}.npy", logits.astype(np.float32))
        print(name, np.abs(logits).max(), generated[0].tolist(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN, sys.argv[2:])
