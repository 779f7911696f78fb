#!/usr/bin/env python3
"""What vLLM and SGLang keep of a sequence of hybrid models: tests/models/data/engine_states.csv.

    pip download --no-deps vllm sglang -d WHEELS; unzip both into FOLDER
    scripts/engine_states.py FOLDER > tests/models/data/engine_states.csv

Needs torch, no GPU. The files of both engines that size states are run as they are, with what they
import of their engine replaced; their arguments are the keys of a model's config.json, as the
engine's own class of the model passes them. States are of one rank, recurrences in float32.
"""

import csv
import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

from shardwise.models.zoo import hf_config

SGLANG, VLLM = "0.5.23", "0.33.0"
CONV, STATE = torch.bfloat16, torch.float32
DTYPES = {"auto": CONV, "bfloat16": CONV, "float32": STATE}

ARGUMENTS = {
    # nemotron_h.py:427, nemotron_h.py:799
    "nemotron": lambda c: (
        c["mamba_num_heads"] * c["mamba_head_dim"], c["n_groups"], c["mamba_num_heads"],
        c["mamba_head_dim"], c["ssm_state_size"], c["conv_kernel"],
    ),
    # granitemoehybrid.py:298
    "granite": lambda c: (
        c["mamba_expand"] * c["hidden_size"], c["mamba_n_groups"], c["mamba_n_heads"],
        c["mamba_expand"] * c["hidden_size"] // c["mamba_n_heads"], c["mamba_d_state"],
        c["mamba_d_conv"],
    ),
    # qwen3_next.py:288
    "delta": lambda c: (
        c["linear_value_head_dim"] * c["linear_num_value_heads"], c["linear_num_key_heads"],
        c["linear_num_value_heads"], c["linear_value_head_dim"], c["linear_key_head_dim"],
        c["linear_conv_kernel_dim"],
    ),
    # lfm2.py:59
    "conv": lambda c: (c["hidden_size"], 1, 1, c["hidden_size"], 0, c["conv_L_cache"]),
}  # fmt: skip

MODELS = {
    "nemotron-3-nano-30b-a3b": ("nemotron", 23, 6),
    "nemotron-3-super-120b-a12b": ("nemotron", 40, 8),
    "nemotron-h-56b": ("nemotron", 54, 10),
    "granite-4.0-h-small": ("granite", 36, 4),
    "granite-4.0-h-1b": ("granite", 36, 4),
    "qwen3-next-80b-a3b": ("delta", 36, 12),
    "qwen3.6-35b-a3b": ("delta", 30, 10),
    "qwen3.8-27b": ("delta", 48, 16),
    "qwen3.8-2.4t-a95b": ("delta", 69, 23),
    "kimi-linear-48b-a3b": ("kimi", 20, 7),
    "lfm2-2.6b": ("conv", 22, 8),
    "jamba-v0.1": ("scan", 28, 4),
    "deepseek-v3.2": ("index", 0, 61),
}
"""How a model's state is sized; its layers with a state, and those with keys."""


def stand_in(name, **members):
    """A module that an engine's file imports and that is not needed here."""
    module = sys.modules[name] = ModuleType(name)
    module.__path__ = []
    module.__dict__.update(members)
    if "." in name:
        parent, _, last = name.rpartition(".")
        setattr(sys.modules.get(parent) or stand_in(parent), last, module)
    return module


def run_file(name, path):
    """One file of an engine, run."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sglang_of(folder):
    """SGLang's mamba_utils.py."""
    stand_in("sglang.srt.distributed.utils", divide=lambda a, b: a // b)
    unset = SimpleNamespace(get=lambda: None)
    conv = SimpleNamespace(get=lambda: "bfloat16")
    envs = SimpleNamespace(SGLANG_MAMBA_CONV_DTYPE=conv, SGLANG_MAMBA_SSM_DTYPE=unset)
    stand_in("sglang.srt.environ", envs=envs)
    return run_file("sglang_states", folder / "sglang/srt/configs/mamba_utils.py")


def vllm_of(folder):
    """vLLM's mamba_utils.py."""
    stand_in("vllm.envs", VLLM_SSM_CONV_STATE_LAYOUT=None)
    stand_in("vllm.config.cache", MambaDType=str)
    stand_in("vllm.config.mamba", MambaBackendEnum=object)
    stand_in("vllm.config.model", ModelDType=str)
    stand_in("vllm.distributed", divide=lambda a, b: a // b)
    stand_in("vllm.logger", init_logger=logging.getLogger)
    stand_in(
        "vllm.utils.torch_utils",
        STR_DTYPE_TO_TORCH_DTYPE=DTYPES,
        get_kv_cache_torch_dtype=lambda kept, model: model if kept == "auto" else DTYPES[kept],
    )
    stand_in("vllm.v1.attention.backends.registry", MambaAttentionBackendEnum=object)
    return run_file("vllm_states", folder / "vllm/model_executor/layers/mamba/mamba_utils.py")


def sglang_bytes(engine, kind, config, layers):
    """`mamba_cache_per_req` of SGLang."""
    numbers = list(range(layers))
    if kind == "kimi":
        a = config["linear_attn_config"]
        shape = engine.KimiLinearStateShape.create(
            tp_world_size=1, num_heads=a["num_heads"], head_dim=a["head_dim"],
            conv_kernel_size=a["short_conv_kernel_size"],
        )  # fmt: skip
        return engine.KimiLinearCacheParams(shape=shape, layers=numbers).mamba_cache_per_req
    if kind == "scan":
        shape = engine.Mamba2StateShape.create_full_rank(
            tp_world_size=1, intermediate_size=config["mamba_expand"] * config["hidden_size"],
            state_size=config["mamba_d_state"], conv_kernel=config["mamba_d_conv"],
        )  # fmt: skip
    else:
        names = ("intermediate_size", "n_groups", "num_heads", "head_dim", "state_size")
        given = zip((*names, "conv_kernel"), ARGUMENTS[kind](config), strict=True)
        shape = engine.Mamba2StateShape.create(tp_world_size=1, **dict(given))
    return engine.Mamba2CacheParams(shape=shape, layers=numbers).mamba_cache_per_req


def vllm_bytes(engine, kind, config, layers):
    """The bytes of a MambaSpec of vLLM (kv_cache_interface.py:1109): shapes times dtypes."""
    shapes, dtypes = engine.MambaStateShapeCalculator, engine.MambaStateDtypeCalculator
    if kind == "kimi":
        a = config["linear_attn_config"]
        size = a["num_heads"], a["head_dim"]
        found = shapes.kda_state_shape(1, *size, conv_kernel_size=a["short_conv_kernel_size"])
    elif kind == "scan":
        inner = config["mamba_expand"] * config["hidden_size"]
        found = shapes.mamba1_state_shape(1, inner, config["mamba_d_state"], config["mamba_d_conv"])
    elif kind == "conv":
        found = shapes.short_conv_state_shape(1, config["hidden_size"], config["conv_L_cache"])
    elif kind == "delta":
        inner, keys, values, width, depth, kernel = ARGUMENTS[kind](config)
        assert inner == values * width
        found = shapes.gated_delta_net_state_shape(1, keys, values, depth, width, kernel)
    else:
        found = shapes.mamba2_state_shape(1, *ARGUMENTS[kind](config))
    kept = dtypes.mamba2_state_dtype(CONV, "auto", "float32")
    sizes = [torch.Size(s).numel() * d.itemsize for s, d in zip(found, kept, strict=False)]
    return layers * sum(sizes)


def token_bytes(config, layers):
    """vLLM's page of one token in bf16: K and V of every head (kv_cache_interface.py:604), or the
    one latent, and an indexer's key with its scale (deepseek_v2.py:732)."""
    if "kv_lora_rank" in config:
        kept = 2 * (config["kv_lora_rank"] + config["qk_rope_head_dim"])
        width = config.get("index_head_dim", 0)
        return layers * kept, layers * (width + width // 128 * 4)
    heads, width = config["num_attention_heads"], config["hidden_size"]
    head = config.get("head_dim") or config.get("attention_head_dim") or width // heads
    return layers * 2 * 2 * config["num_key_value_heads"] * head, 0


def main(folder):
    """The table."""
    sglang, vllm = sglang_of(folder), vllm_of(folder)
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(
        ["model", "sglang", "vllm", "sglang_state", "vllm_state", "kv_token", "index_token"]
    )
    for model, (kind, states, keyed) in MODELS.items():
        whole = hf_config(model)
        config = whole.get("text_config", whole)
        sizes = (0, 0)
        if states:
            sizes = [of(e, kind, config, states) for of, e in
                     ((sglang_bytes, sglang), (vllm_bytes, vllm))]  # fmt: skip
        out.writerow([model, SGLANG, VLLM, *map(int, sizes), *token_bytes(config, keyed)])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
