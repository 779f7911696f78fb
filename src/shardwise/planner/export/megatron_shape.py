"""The shape that Megatron-LM's arguments describe, and a model's config of it.

Megatron's own defaults (training/arguments.py of megatron-core 0.19.2) fill what is left out: as
many KV heads as heads, heads of hidden size / heads, an MLP of 4 x the hidden size (two thirds of
that with --swiglu, in steps of 64), experts as wide as the MLP. What has no effect is left out.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwise.errors import BadRequest, Gives, Lacking, shown
from shardwise.planner.export.flags import Flags

Shape = Mapping[str, Any]
TOKENIZERS = {
    "GPT2BPETokenizer": 50_257,
    "Llama2Tokenizer": 32_000,
    "BertWordPieceLowerCase": 30_522,
}
"""Entries of the vocabularies that a tokenizer's type fixes."""
_ENTRIES = str(TOKENIZERS["Llama2Tokenizer"])
"""The vocabulary of an example where no argument says one."""
UNBUILT = (
    *("--is-hybrid-model", "--spec"),
    *("--experimental-attention-variant", "--linear-attention-type", "--window-size"),
    *("--heterogeneous-layers-config-path", "--encoder-num-layers"),
)
"""Arguments of models that these flags alone do not describe."""


def shape_of(given: Flags) -> Shape:
    """Every number and switch of the shape; the vocabulary None where nothing says it."""
    layers, hidden = given.count("--num-layers"), given.count("--hidden-size")
    heads = given.count("--num-attention-heads")
    grouped = "--group-query-attention" in given and "--num-query-groups" in given
    gated, latent = is_gated(given), "--multi-latent-attention" in given
    wide = given.count("--ffn-hidden-size", str(_usual_ffn(hidden, gated=gated)))
    experts = given.number("--num-experts", "0")
    dense = _dense_layers(given, layers) if experts else layers
    shape = {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "gated": gated,
        "vocabulary": vocabulary(given),
        "experts": experts,
        "dense_layers": dense,
        "d_ff": wide if dense else None,
        "tied": "--untie-embeddings-and-output-weights" not in given,
        "qk_norm": "--qk-layernorm" in given,
        "qkv_bias": "--add-qkv-bias" in given or "--disable-bias-linear" not in given,
        "o_bias": "--disable-bias-linear" not in given,
    }
    if latent:
        shape |= {
            "q_lora": given.number("--q-lora-rank", "0"),
            "kv_lora": given.number("--kv-lora-rank", "32"),
            "nope": given.number("--qk-head-dim", "128"),
            "rope": given.number("--qk-pos-emb-head-dim", "64"),
            "value": given.number("--v-head-dim", "128"),
        }
    else:
        shape["kv_heads"] = given.count("--num-query-groups") if grouped else heads
        shape["head_dim"] = given.count("--kv-channels", str(max(hidden // heads, 1)))
    if experts:
        shape |= {
            "expert_ff": given.count("--moe-ffn-hidden-size", str(wide)),
            "chosen": given.count("--moe-router-topk", "2"),
            "shared": given.number("--moe-shared-expert-intermediate-size", "0"),
        }
    return shape


def is_gated(given: Flags) -> bool:
    """Whether MLPs have a gate."""
    return "--swiglu" in given or "--quick-geglu" in given


def _usual_ffn(hidden: int, *, gated: bool) -> int:
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def vocabulary(given: Flags) -> int | None:
    """Entries of the vocabulary, as given or as its tokenizer has them."""
    for flag in ("--vocab-size", "--padded-vocab-size"):
        if flag in given:
            return given.count(flag)
    kind = given.get("--tokenizer-type") if "--tokenizer-type" in given else ""
    if not kind and "--merge-file" in given:
        kind = "GPT2BPETokenizer"
    return TOKENIZERS.get(kind)


def _dense_layers(given: Flags, layers: int) -> int:
    """Layers without experts: all but every n-th, or those of a pattern such as [0]*3+[1]*58."""
    text = given.get("--moe-layer-freq", "1").replace(" ", "").strip("()")
    if re.fullmatch(r"\d{1,4}", text) and int(text):
        return layers - -(-layers // int(text))
    dense = 0
    for part in text.split("+"):
        found = re.fullmatch(r"\(?\[([01,]*)\]\)?(?:\*(\d{1,5}))?", part)
        if found is None:
            rule = "write a number or a list such as [0]*3+[1]*58"
            raise BadRequest(f"megatron: --moe-layer-freq is {shown(text)}; {rule}")
        dense += found[1].count("0") * int(found[2] or 1)
    return dense


def same_shape(given: Shape, own: Shape) -> bool:
    """Whether two shapes are one model's; a vocabulary that is not said is any, and one may be
    padded."""
    entries = given["vocabulary"]
    padded = entries is None or 0 <= entries - own["vocabulary"] < _PADDED
    rest = {**given, "vocabulary": own["vocabulary"]}
    return padded and rest == own


_PADDED = 1024
"""More entries than this no padding adds: 128 times a usual tensor parallelism of 8."""


WINDOWED = ("--window-size", "--window-attn-skip-freq", "--softmax-type")
"""Arguments of attention that are read together, of models with sinks (`with_sinks`)."""


def with_sinks(given: Flags) -> bool:
    """Whether the flags say experts and learnt sinks of attention, as GPT-OSS has them."""
    return "--num-experts" in given and given.given.get("--softmax-type") == "learnable"


def config_of(given: Flags) -> str:
    """The model that the flags describe, as `load_model` reads one that is written out. Raises
    Lacking for what no flag says, BadRequest for a flag of a model that is not so described."""
    sinks = with_sinks(given)
    for flag in UNBUILT:
        if flag in given and not (sinks and flag == "--window-size"):
            raise Lacking(
                f"megatron: {flag} describes a model that the other flags do not",
                "give the model with --model",
                Gives.MODEL,
            )
    shape = shape_of(given)
    if shape["vocabulary"] is None:
        raise Lacking(
            "megatron: no known model has these sizes, and none can be built without --vocab-size",
            "give --vocab-size, or the model with --model",
            Gives.MODEL,
            config_of(replace(given, given={**given.given, "--vocab-size": _ENTRIES})),
        )
    if sinks:
        name, values = _with_sinks(shape, given)
    else:
        name, values = _experts(shape) if shape["experts"] else _dense(shape, given)
    values = _common(shape) | values
    if name == "GPT2LMHeadModel":
        values = {_GPT2.get(key, key): value for key, value in values.items() if key in _GPT2}
        values["n_positions"] = given.count("--max-position-embeddings", given.get("--seq-length"))
    values["tie_word_embeddings"] = shape["tied"]
    return f"{name}({', '.join(f'{key}={value}' for key, value in values.items())})"


_GPT2 = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "vocab_size": "vocab_size",
}
"""Keys of GPT-2's config by those of the others."""


def _common(shape: Shape) -> dict[str, Any]:
    values = {
        "num_hidden_layers": shape["layers"],
        "hidden_size": shape["hidden"],
        "num_attention_heads": shape["heads"],
        "vocab_size": shape["vocabulary"],
        "intermediate_size": shape["d_ff"] or shape.get("expert_ff"),
    }
    if "head_dim" in shape:
        values |= {"num_key_value_heads": shape["kv_heads"], "head_dim": shape["head_dim"]}
    return values


def _dense(shape: Shape, given: Flags) -> tuple[str, dict[str, Any]]:
    if "kv_lora" in shape:
        return "DeepseekV3ForCausalLM", _latent(shape) | {"first_k_dense_replace": shape["layers"]}
    if shape["gated"]:
        kind = "Qwen3ForCausalLM" if shape["qk_norm"] else "LlamaForCausalLM"
        if shape["qkv_bias"] and not shape["o_bias"]:
            return "Qwen2ForCausalLM", {}
        biased = {"mlp_bias": True} if shape["o_bias"] and kind == "LlamaForCausalLM" else {}
        return kind, {"attention_bias": shape["o_bias"], **biased}
    learned = given.get("--position-embedding-type", "learned_absolute") == "learned_absolute"
    if learned and shape["kv_heads"] == shape["heads"]:
        return "GPT2LMHeadModel", {}
    return "Starcoder2ForCausalLM", {"use_bias": shape["o_bias"]}


def _experts(shape: Shape) -> tuple[str, dict[str, Any]]:
    values = {"num_experts_per_tok": shape["chosen"]}
    shared, rest = divmod(shape["shared"], shape["expert_ff"])
    if rest:
        raise BadRequest(
            f"megatron: --moe-shared-expert-intermediate-size is {shape['shared']}, no multiple of "
            f"--moe-ffn-hidden-size {shape['expert_ff']}; give the model with --model"
        )
    plain = not (shared or shape["dense_layers"] or shape["qk_norm"])
    if plain and "kv_lora" not in shape:
        return "MixtralForCausalLM", values | {"num_local_experts": shape["experts"]}
    values |= {
        "n_routed_experts": shape["experts"],
        "n_shared_experts": shared,
        "moe_intermediate_size": shape["expert_ff"],
        "first_k_dense_replace": shape["dense_layers"],
    }
    if "kv_lora" in shape:
        return "DeepseekV3ForCausalLM", values | _latent(shape)
    return "Glm4MoeForCausalLM", values | {"use_qk_norm": shape["qk_norm"]}


def _with_sinks(shape: Shape, given: Flags) -> tuple[str, dict[str, Any]]:
    """A model of experts with learnt sinks, of whose layers every second sees a window."""
    values = {"num_experts_per_tok": shape["chosen"], "num_local_experts": shape["experts"]}
    before = given.get("--window-size", "").strip("()").partition(",")[0]
    every = given.get("--window-attn-skip-freq", "")
    if not before.isdigit() or every != "2":
        raise Lacking(
            "megatron: --softmax-type learnable is known of models with --window-size N,0 and "
            "--window-attn-skip-freq 2",
            "give the model with --model",
            Gives.MODEL,
        )
    return "GptOssForCausalLM", values | {"sliding_window": int(before) + 1}


def _latent(shape: Shape) -> dict[str, Any]:
    return {
        "q_lora_rank": shape["q_lora"] or None,
        "kv_lora_rank": shape["kv_lora"],
        "qk_nope_head_dim": shape["nope"],
        "qk_rope_head_dim": shape["rope"],
        "v_head_dim": shape["value"],
        "num_key_value_heads": shape["heads"],
    }
