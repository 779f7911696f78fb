"""A YAML of nanotron as Megatron's arguments, whose parallelism it has: `tp`, `pp` and `dp` of its
`parallelism`, and a Llama by the names of its config.json (nanotron's config/config.py and
config/models_config.py, April 2026)."""

from collections.abc import Mapping
from typing import Any

from shardwise.planner.export.torchtitan_keys import flat

_NAMES: Mapping[str, str] = {
    "parallelism.tp": "--tensor-model-parallel-size",
    "parallelism.pp": "--pipeline-model-parallel-size",
    "parallelism.context_parallel_size": "--context-parallel-size",
    "parallelism.expert_parallel_size": "--expert-model-parallel-size",
    "tokens.micro_batch_size": "--micro-batch-size",
    "tokens.sequence_length": "--seq-length",
    "model.model_config.num_hidden_layers": "--num-layers",
    "model.model_config.hidden_size": "--hidden-size",
    "model.model_config.num_attention_heads": "--num-attention-heads",
    "model.model_config.num_key_value_heads": "--num-query-groups",
    "model.model_config.intermediate_size": "--ffn-hidden-size",
    "model.model_config.vocab_size": "--vocab-size",
}
_SWITCHES: Mapping[tuple[str, Any], str] = {
    ("model.model_config.tie_word_embeddings", False): "--untie-embeddings-and-output-weights",
    ("model.model_config.hidden_act", "silu"): "--swiglu",
    ("model.model_config.attention_bias", True): "--add-qkv-bias",
    ("model.dtype", "bfloat16"): "--bf16",
    ("model.dtype", "float16"): "--fp16",
    ("parallelism.tp_mode", "REDUCE_SCATTER"): "--sequence-parallel",
    ("optimizer.zero_stage", 1): "--use-distributed-optimizer",
    ("optimizer.accumulate_grad_in_fp32", False): "--grad-reduce-in-bf16",
}
"""Keys of which one value is an argument; the other one is what Megatron does without it."""
_ROUNDS, _COPIES = "tokens.batch_accumulation_per_replica", "parallelism.dp"
_IDLE = (
    *("checkpoints", "data_stages", "general", "logging", "lighteval", "tokenizer", "profiler"),
    *("s3_upload", "metrics_logging", "optimizer", "tokens.limit", "tokens.train", "tokens.val"),
    *("model.init_method", "model.make_vocab", "model.ddp_bucket", "model.model_config.bos_"),
    *("model.model_config.eos_", "model.model_config.pad_", "model.model_config.rms_"),
    *("model.model_config.rope", "model.model_config.initializer", "model.model_config.max_pos"),
    *("model.model_config.is_", "model.model_config.use_cache", "model.model_config.pretraining"),
    *("model.model_config.z_loss", "model.model_config._", "parallelism.pp_engine"),
    *("parallelism.tp_linear_async", "parallelism.tp_recompute"),
)


def is_idle(key: str) -> bool:
    """Whether a dotted key of nanotron says nothing of a plan."""
    return (
        key.startswith(_IDLE) and key not in _NAMES and key not in {name for name, _ in _SWITCHES}
    )


def is_nanotron(table: Mapping[Any, Any]) -> bool:
    """Whether a YAML's keys are nanotron's."""
    model = table.get("model")
    return "parallelism" in table and isinstance(model, Mapping) and "model_config" in model


def arguments_of_nanotron(table: Mapping[Any, Any]) -> dict[str, str]:
    """The arguments; a key that has none keeps its name, to be told as unknown."""
    said = {key: value for key, value in flat(table).items() if value not in (None, "", {}, [])}
    found = {flag: str(said[key]) for key, flag in _NAMES.items() if key in said}
    found |= {flag: "" for (key, value), flag in _SWITCHES.items() if said.get(key) == value}
    found |= {"--group-query-attention": "", "--disable-bias-linear": ""}
    if said.get("parallelism.recompute_layer") is True:
        found["--recompute-granularity"] = "full"
    counts = [said.get(key, 1) for key in (_COPIES, _ROUNDS, "tokens.micro_batch_size")]
    inner = [said.get(key, 1) for key in list(_NAMES)[:3]]
    if all(isinstance(count, int) for count in (*counts, *inner)):
        found["--global-batch-size"] = str(counts[0] * counts[1] * counts[2])
        found["--nproc-per-node"] = str(counts[0] * inner[0] * inner[1] * inner[2])
    done = {
        *_NAMES,
        *(key for key, _ in _SWITCHES),
        _ROUNDS,
        _COPIES,
        "parallelism.recompute_layer",
    }
    left = (key for key in said if key not in done and not key.startswith(_IDLE))
    return found | {key: str(said[key]) for key in left if said[key] is not False}
