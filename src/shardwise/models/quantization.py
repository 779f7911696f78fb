"""Stored dtypes of the weights, by parameter component, from `quantization_config`.

Checkpoints name what they leave alone by patterns over module names; each component is tried
under a name that stands for it. Scales are not modelled except where the dtype carries them.
"""

import re
from collections.abc import Mapping
from typing import Any

from shardwise.models.reader import Reader

STORED: Mapping[str, str] = {
    "float32": "f32",
    "float": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "half": "f16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "int8": "int8",
}
"""Our dtype names, by the names of torch."""

_LINEAR: Mapping[str, tuple[str, ...]] = {
    "attention": ("model.layers.1.self_attn.q_proj",),
    "linear_attention": ("model.layers.1.linear_attn.in_proj", "model.layers.1.self_attn.q_proj"),
    "mlp_dense": ("model.layers.1.mlp.gate_proj", "model.layers.1.feed_forward.gate_proj"),
    "routed_experts": (
        "model.layers.1.mlp.experts.0.gate_proj",
        "model.layers.1.feed_forward.experts.0.gate_proj",
    ),
    "shared_experts": (
        "model.layers.1.mlp.shared_experts.gate_proj",
        "model.layers.1.feed_forward.shared_expert.gate_proj",
    ),
    "moe_latent": ("model.layers.1.mlp.latent_proj",),
}
"""Components that quantization targets, with module names that stand for each."""

_BY_METHOD: Mapping[str, str] = {
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "gptq": "int4",
    "awq": "int4",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
}
_INTEGERS = {4: "int4", 8: "int8"}
_FLOATS = {4: "fp4", 8: "fp8"}


def weight_dtypes(r: Reader) -> dict[str, str]:
    """Dtype by component, and "" for all others: bf16 where the file names none.

    Raises BadRequest for a dtype or a method that is not known.
    """
    dtypes = {"": _stored(r)}
    config = r.get("quantization_config")
    if config is None:
        return dtypes
    if not isinstance(config, Mapping):
        raise r.error("quantization_config", config, "it must be an object {...}")
    dtype = _quantized(r, config)
    ignored = _ignored(r, config)
    targets = ("routed_experts",) if config.get("quant_method") == "mxfp4" else tuple(_LINEAR)
    for component in targets:
        modules = _LINEAR[component]
        if not any(_matches(pattern, module) for pattern in ignored for module in modules):
            dtypes[component] = dtype
    if r.text("expert_dtype"):
        # DeepSeek-V4 keeps its experts in fp4 with a power-of-two scale per 32 values.
        dtypes["routed_experts"] = {"fp4": "mxfp4"}.get(r.text("expert_dtype"), dtype)
    return dtypes


def _stored(r: Reader) -> str:
    key = "torch_dtype" if r.text("torch_dtype") else "dtype"
    name = r.text(key)
    if not name:
        return "bf16"
    known = name.removeprefix("torch.")
    if known not in STORED:
        rule = f"weights are not stored in this dtype (known: {', '.join(STORED)})"
        raise r.error(key, name, rule, "correct it, or remove it to count bf16 weights")
    return STORED[known]


def _whole(value: Any) -> int:
    return value if type(value) is int else 0


def _quantized(r: Reader, config: Mapping[str, Any]) -> str:
    method = str(config.get("quant_method", ""))
    if method in _BY_METHOD and "bits" not in config:
        return _BY_METHOD[method]
    if str(config.get("quant_algo", "")).lower() in _BY_METHOD:
        return _BY_METHOD[str(config["quant_algo"]).lower()]
    stored = _INTEGERS.get(_whole(config.get("bits")))
    if method in ("gptq", "awq") and stored:
        return stored
    if method == "bitsandbytes":
        return "int4" if config.get("load_in_4bit") else "int8"
    groups = config.get("config_groups")
    if isinstance(groups, Mapping) and groups:
        first = next(iter(groups.values()))
        weights = first.get("weights") if isinstance(first, Mapping) else None
        weights = weights if isinstance(weights, Mapping) else {}
        bits, kind = _whole(weights.get("num_bits")), weights.get("type")
        if kind == "float" and bits == 4:
            return "nvfp4" if weights.get("group_size") == 16 else "mxfp4"
        names = _FLOATS if kind == "float" else _INTEGERS
        if bits in names:
            return names[bits]
    rule = f"its method is unknown (known: {', '.join(_BY_METHOD)}, compressed-tensors)"
    raise r.error("quantization_config", dict(config), rule, "remove it to count bf16 weights")


def _ignored(r: Reader, config: Mapping[str, Any]) -> list[str]:
    for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules"):
        value = config.get(key)
        if isinstance(value, list):
            names = [v for v in value if isinstance(v, str)]
            patterns = [name for name in names if name.startswith("re:")]
            slow = [p for p in patterns[:_MOST_PATTERNS] if _is_slow(p)]
            if slow or len(patterns) > _MOST_PATTERNS:
                rule = (
                    f"at most {_MOST_PATTERNS} patterns are allowed, each with at most "
                    f"{_MOST_REPEATS} repeats and no repeated group"
                )
                raise r.error("quantization_config", slow[0] if slow else len(patterns), rule)
            return names
    return []


_MOST_PATTERNS, _MOST_REPEATS = 100, 4
"""Python's matcher takes time exponential in a repeated group, and by the power of the repeats."""


def _is_slow(pattern: str) -> bool:
    repeats = len(re.findall(r"[*+?{]", pattern))
    return len(pattern) > 200 or repeats > _MOST_REPEATS or bool(re.search(r"\)[*+?{]", pattern))


def _matches(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except re.error:
            return False
    parts = pattern.replace("*", "").replace("language_model.", "").strip(".")
    return bool(parts) and parts in module
