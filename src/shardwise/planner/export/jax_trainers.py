"""Files of EasyLM and levanter as MaxText's flags, whose program theirs are in the end: XLA's of a
mesh of copies, FSDP and tensor parallelism. What such a flag has no word for keeps its own name.

EasyLM's are arguments (EasyLM/models/llama/llama_train.py and llama_model.py of young-geng/EasyLM,
July 2024), levanter's a YAML (src/levanter/trainer.py of stanford-crfm/levanter, October 2025).
"""

import re
from collections.abc import Mapping
from typing import Any

from shardwise.boundary import parse_yaml
from shardwise.errors import BadRequest, shown
from shardwise.planner.export.flags import launched
from shardwise.planner.export.interpolation import interpolated
from shardwise.planner.export.neox import REFUSED
from shardwise.planner.export.torchtitan_keys import flat

BATCH = "global_batch_size_to_load"
"""MaxText's name of the sequences of a step, over all devices."""
HUB = "initialize_from_hf"
"""levanter's key of a model on Hugging Face."""
_SIZES: Mapping[str, tuple[int, ...]] = {
    "1b": (22, 2048, 16, 16, 5504),
    "3b": (26, 3200, 32, 32, 8640),
    "7b": (32, 4096, 32, 32, 11_008),
    "13b": (40, 5120, 40, 40, 13_824),
    "30b": (60, 6656, 52, 52, 17_920),
    "65b": (80, 8192, 64, 64, 22_016),
}
"""Layers, width, heads, KV heads and MLP of EasyLM's models by name (LLAMA_STANDARD_CONFIGS); their
vocabulary has 32,000 entries."""
_SHAPE = ("num_decoder_layers", "emb_dim", "num_query_heads", "num_kv_heads", "mlp_dim")
_EASYLM: Mapping[str, str] = {
    **{
        f"train_dataset.{kind}_dataset.{key}": flag
        for kind in ("json", "huggingface")
        for key, flag in (("seq_length", "max_target_length"), ("batch_size", BATCH))
    },
    "optimizer.accumulate_gradient_steps": "gradient_accumulation_steps",
}
_LEVANTER: Mapping[str, str] = {
    "trainer.train_batch_size": BATCH,
    "model.seq_len": "max_target_length",
    "model.max_seq_len": "max_target_length",
    "train_seq_len": "max_target_length",
    "trainer.model_axis_size": "ici_tensor_parallelism",
    "trainer.replica_ici_axis_size": "ici_data_parallelism",
    "trainer.replica_dcn_axis_size": "dcn_data_parallelism",
    "model.num_layers": "base_num_decoder_layers",
    "model.hidden_dim": "base_emb_dim",
    "model.num_heads": "base_num_query_heads",
    "model.num_kv_heads": "base_num_kv_heads",
    "model.intermediate_dim": "base_mlp_dim",
    HUB: HUB,
}
_DTYPES = {"fp32": "float32", "f32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16"}
IDLE = re.compile(
    r"(total_steps|log_freq|save_|load_(checkpoint|dataset)|seed|initialize_jax|eval_steps"
    r"|tokenizer|optimizer\.(type|adamw|\w*lr|weight|beta|min_lr|learning|warmup)|train_dataset\."
    r"|eval_dataset|checkpointer|logger|jax_distributed|data\.|use_hf_model_config|hf_save|hf_upload"
    r"|trainer\.(wandb|tracker|num_train|steps_per|checkpointer|seed|tensor_parallel|fsdp_axis"
    r"|batch_axis|id|profiler|log|max_eval|per_device_eval|ray|axis_resources)|alpha|epoch"
    r"|model\.(type|initializer|layer_norm|rope|use_bias|reference|flash_attention_block))"
)
"""Keys of both that say nothing of a plan, or say what the mesh does by itself."""


def flags_of(text: str) -> dict[str, str] | None:
    """MaxText's flags; None for a text of neither program. What is to be said of a word that they
    do not have stands under `REFUSED`."""
    launch = launched("maxtext", text) if "EasyLM" in text else None
    if launch is not None and "easylm" in launch.words:
        words = (word.removeprefix("--").partition("=") for word in launch.arguments)
        return _of_easylm({key: value for key, _, value in words})
    if re.search(r"^trainer:", text, re.M) and re.search(r"^\s+(mp|train_batch_size):", text, re.M):
        table = parse_yaml(text, "maxtext: the file")
        keys = flat(interpolated(table)) if isinstance(table, Mapping) else {}
        return _of_levanter(keys) if "trainer.train_batch_size" in keys else None
    return None


def _of_easylm(said: Mapping[str, str]) -> dict[str, str]:
    found = _named(said, _EASYLM) | _mesh(said.get("mesh_dim", "1,-1,1"))
    counts = found.get(BATCH, ""), found.get("gradient_accumulation_steps", "1")
    if all(count.isdigit() for count in counts):  # its batch is that of a microbatch
        found[BATCH] = str(int(counts[0]) * int(counts[1]))
    size = said.get("load_llama_config", "").removeprefix("llama_")
    if size not in _SIZES or said.get("update_llama_config"):
        key = "load_llama_config" if size not in _SIZES else "update_llama_config"
        told = f"maxtext: {key} is {shown(said.get(key, ''))} in EasyLM's command; "
        return found | {REFUSED: f"{told}known models, unchanged: {', '.join(_SIZES)}"}
    dtype = said.get("dtype", "fp32")
    found |= {f"base_{key}": str(n) for key, n in zip(_SHAPE, _SIZES[size], strict=True)}
    found |= {"head_dim": str(_SIZES[size][1] // _SIZES[size][2]), "vocab_size": "32000"}
    done = {"mesh_dim", "load_llama_config", "update_llama_config", "dtype"}
    found |= {"dtype": _DTYPES.get(dtype, dtype), "attention": "dot_product"}
    return found | _left(said, {*_EASYLM, *done})


def _mesh(text: str) -> dict[str, str]:
    """Copies, FSDP and tensor parallelism of `mesh_dim`, one of them perhaps -1, named or not."""
    sizes = [part.rpartition(":")[2] for part in text.removeprefix("!").split(",")]
    if len(sizes) != 3:
        raise BadRequest(f"maxtext: mesh_dim is {shown(text)}; it has three degrees: dp,fsdp,mp")
    words = (f"ici_{axis}_parallelism" for axis in ("data", "fsdp", "tensor"))
    return {"dcn_data_parallelism": "1", **dict(zip(words, sizes, strict=True))}


def _of_levanter(said: Mapping[str, Any]) -> dict[str, str]:
    found = {"dcn_data_parallelism": "1", "ici_fsdp_parallelism": "-1"} | _named(said, _LEVANTER)
    dtypes = dict(re.findall(r"(\w+)=(\w+)", str(said.get("trainer.mp", ""))))
    found |= {"dtype": _DTYPES[dtypes["c"]]} if dtypes.get("c") in _DTYPES else {"dtype": "float32"}
    kept = said.get("model.gradient_checkpointing") is False
    found["remat_policy"] = "minimal_with_context" if kept else "full"
    if not any(key in said for key, flag in _LEVANTER.items() if flag == "max_target_length"):
        found[REFUSED] = (
            "maxtext: levanter's file has no sequence length; add one, such as train_seq_len: 4096"
        )
    return found | _left(said, {*_LEVANTER, "trainer.mp", "model.gradient_checkpointing"})


def _named(said: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    return {flag: str(said[key]) for key, flag in names.items() if said.get(key) is not None}


def _left(said: Mapping[str, Any], done: set[str]) -> dict[str, str]:
    """What is not read, by its own name; what is off or empty says nothing."""
    return {
        key: str(value)
        for key, value in said.items()
        if key not in done and value not in (None, "", False, [], {})
    }
