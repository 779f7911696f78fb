"""A YAML or JSON of GPT-NeoX as Megatron's arguments, of which it is a fork: DeepSpeed's keys for
the batch, ZeRO and the dtype, its own names for the rest, with hyphens or underscores
(megatron/neox_arguments of EleutherAI/gpt-neox, September 2025)."""

import re
from collections.abc import Mapping
from typing import Any

from shardwise.errors import shown
from shardwise.planner.export.torchtitan_keys import flat

_NAMES: Mapping[str, str] = {
    "pipe_parallel_size": "--pipeline-model-parallel-size",
    "model_parallel_size": "--tensor-model-parallel-size",
    "context_parallel_size": "--context-parallel-size",
    "train_micro_batch_size_per_gpu": "--micro-batch-size",
    "train_batch_size": "--global-batch-size",
    "gradient_accumulation_steps": "--gradient-accumulation-steps",
    "seq_length": "--seq-length",
    "num_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "num_attention_heads": "--num-attention-heads",
    "num_kv_heads": "--num-query-groups",
    "intermediate_size": "--ffn-hidden-size",
    "max_position_embeddings": "--max-position-embeddings",
    "hidden_dropout": "--hidden-dropout",
    "attention_dropout": "--attention-dropout",
    "checkpoint_num_layers": "--recompute-num-layers",
}
_SWITCHES: Mapping[tuple[str, Any], Mapping[str, str]] = {
    ("no_weight_tying", True): {"--untie-embeddings-and-output-weights": ""},
    ("zero_optimization.stage", 0): {},
    ("zero_optimization.stage", 1): {"--use-distributed-optimizer": ""},
    ("zero_optimization.overlap_comm", True): {"--overlap-grad-reduce": ""},
    ("fp16.enabled", True): {"--fp16": ""},
    ("bf16.enabled", True): {"--bf16": ""},
    ("precision", "bfloat16"): {"--bf16": ""},
    ("precision", "fp16"): {"--fp16": ""},
    ("precision", "fp32"): {},
    ("checkpoint_activations", True): {"--recompute-granularity": "full"},
    ("sequence_parallel", True): {"--sequence-parallel": ""},
    ("activation", "gelu"): {},
    ("activation", "swiglu"): {"--swiglu": ""},
    ("use_bias_in_attn_linear", False): {"--disable-bias-linear": ""},
    ("pos_emb", "rotary"): {"--position-embedding-type": "rope"},
    ("pos_emb", "learned"): {"--position-embedding-type": "learned_absolute"},
    ("optimizer.type", "Adam"): {"--optimizer": "adam"},
    ("optimizer.type", "sgd"): {"--optimizer": "sgd"},
}
"""Words of keys that are arguments; those that are refused where they have another word."""
_REFUSED = ("zero_optimization.stage", "precision", "activation", "optimizer.type", "pos_emb")
REFUSED = "cannot"
"""Where arguments say why no plan can be read of them."""
_ENTRIES = {"20B_tokenizer.json": 50_277, "GPT2BPETokenizer": 50_257}
"""Entries of the vocabularies that a tokenizer's file, or its type, fixes."""
_IDLE = re.compile(
    r"(vocab_file|merge_file|tokenizer_type|save|load|data_|train_data|valid_data|test_data|split"
    r"|(output_layer_)?init_method|(min_)?lr|optimizer\.params|warmup|weight_decay|gradient_clip"
    r"|zero_optimization\.(all|reduce|contiguous|cpu_offload$)|synchronize|train_iters|distributed"
    r"|log|steps_per|wall_clock|tensorboard|(use_)?wandb|eval|checkpoint_(factor|validation)|norm$"
    r"|rotary|rms_norm|layernorm|scaled_|bias_|fp16\.|make_vocab|launcher|deepspeed|num_workers"
    r"|output_layer_par|extra_save|keep_last|comet|seed|finetune)"
)


def is_neox(table: Mapping[Any, Any]) -> bool:
    """Whether a file's keys are GPT-NeoX's."""
    keys = {str(key).replace("-", "_") for key in table}
    return "num_layers" in keys and bool(keys & {"pipe_parallel_size", "model_parallel_size"})


def arguments_of_neox(table: Mapping[Any, Any]) -> dict[str, str]:
    """The arguments; a key that has none keeps its name, to be told as unknown. What is to be said
    of a word that Megatron has no argument for stands under `REFUSED`."""
    said = {key.replace("-", "_"): value for key, value in flat(table).items() if value is not None}
    found = {flag: str(said[key]) for key, flag in _NAMES.items() if key in said}
    if found.get("--pipeline-model-parallel-size") == "0":  # one stage, run without its engine
        del found["--pipeline-model-parallel-size"]
    found |= {"--group-query-attention": ""} if "--num-query-groups" in found else {}
    for (key, word), arguments in _SWITCHES.items():
        found |= arguments if said.get(key) == word else {}
    if wrong := next((k for k in _REFUSED if k in said and (k, said[k]) not in _SWITCHES), ""):
        known = ", ".join(str(word) for key, word in _SWITCHES if key == wrong)
        told = f"megatron: {wrong} is {shown(str(said[wrong]))} in GPT-NeoX's file"
        found[REFUSED] = f"{told}; a plan can express {known}"
    found["--attention-backend"] = (
        "flash"
        if "flash" in str(said.get("attention_config"))
        else (
            "unfused"  # "global", its default: a softmax of its own over stored scores
        )
    )
    if entries := _vocabulary(said):
        found["--vocab-size"] = str(entries)
    done = {*_NAMES, *(key for key, _ in _SWITCHES), "attention_config", "vocab_size"}
    left = (key for key in said if key not in done and not _IDLE.match(key))
    return found | {key: str(said[key]) for key in left if said[key] is not False}


def is_idle(key: str) -> bool:
    """Whether a dotted key of GPT-NeoX says nothing of a plan."""
    return _IDLE.match(key.replace("-", "_")) is not None


def _vocabulary(said: Mapping[str, Any]) -> int:
    """Entries, padded so that each rank of tensor parallelism has a multiple of 128; 0 where no key
    fixes them."""
    names = (str(said.get("vocab_file", "")).rpartition("/")[2], str(said.get("tokenizer_type")))
    entries = next((_ENTRIES[name] for name in names if name in _ENTRIES), 0)
    each = said.get("make_vocab_size_divisible_by", 128)
    ranks = said.get("model_parallel_size", 1)
    step = each * ranks if isinstance(each, int) and isinstance(ranks, int) else 1
    return -(-entries // max(step, 1)) * max(step, 1)
