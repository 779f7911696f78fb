"""A plan for transformers' Trainer: TRL's SFT script behind `accelerate launch` or `deepspeed`, or
axolotl's YAML.

What a script needs further files for it writes itself, so that one text is the whole of it. Names
are those of trl 1.16, accelerate 1.15, axolotl 0.19 and DeepSpeed 0.19, whose own parsers take what
is written here (scripts/check_exports.py).
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.zoo import hub_id
from shardwise.planner.export.hardware import nodes
from shardwise.planner.export.notes import copies, stored_axes
from shardwise.plans import TrainPlan
from shardwise.plans.software import Obstacle
from shardwise.plans.software.trainer import (
    CONTEXT_WORDS,
    TRAINER,
    engine_of,
    written_dtypes,
)

_HEAD = """#!/usr/bin/env bash
# Add what a plan does not choose: --dataset_name, --learning_rate and its schedule, --output_dir,
# and of several nodes accelerate's --machine_rank and --main_process_ip.
"""
_YAML_HEAD = """# axolotl train FILE --launcher accelerate. Add what a plan does not choose:
# datasets, learning_rate and its schedule, num_epochs or max_steps, output_dir.
"""
_ACCELERATE, _DEEPSPEED = "accelerate.yaml", "ds_config.json"
_LONG = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
_ATTENTION = TRAINER.words["attention_kernel"]
_OPTIM = TRAINER.words["optimizer"]


def write_trl(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """A script with one command, whose flags say all but DeepSpeed's JSON."""
    config = _accelerate(plan, piece)
    words = ["accelerate launch", *_flags(_unfolded(config)), "-m trl.scripts.sft"]
    return _HEAD + _json(plan) + _command(words, _arguments(plan))


def write_accelerate(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """A script that writes accelerate's config and starts TRL's SFT with it."""
    import yaml

    held = yaml.safe_dump(_accelerate(plan, piece), sort_keys=False)
    words = [f"accelerate launch --config_file {_ACCELERATE}", "-m trl.scripts.sft"]
    head = _HEAD + _json(plan) + _file(_ACCELERATE, held)
    return head + _command(words, _arguments(plan))


def write_deepspeed(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """A script that writes DeepSpeed's config and starts TRL's SFT with it."""
    count, each = nodes(plan, piece)
    words = [f"deepspeed --num_nodes {count} --num_gpus {each}", "--module trl.scripts.sft"]
    given = {"deepspeed": _DEEPSPEED} | _arguments(plan)
    return _HEAD + _json(plan) + _command(words, given)


def write_axolotl(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """The YAML of `axolotl train`."""
    import yaml

    mixed, loaded = _dtypes(plan)
    count, each = nodes(plan, piece)
    values: dict[str, Any] = {
        "base_model": hub_id(plan.model) or plan.model,
        "world_size": count * each,
        "sequence_len": plan.sequence_length,
        "micro_batch_size": _each(plan),
        "gradient_accumulation_steps": plan.microbatches,
        "optimizer": _OPTIM[plan.optimizer],
        "gradient_checkpointing": plan.remat != "none",
        "activation_offloading": plan.remat == "offload",
        "attn_implementation": _ATTENTION[plan.attention_kernel],
        "bf16": mixed == "bf16",
        "fp16": mixed == "f16",
        "float32": loaded == "f32" and mixed is None,
        "torch_compile": plan.fuses_elementwise,
    }
    if plan.lora_rank:
        adapter = "qlora" if plan.quantize == "nf4" else "lora"
        values |= {"adapter": adapter, "lora_r": plan.lora_rank} | _quantized(plan)
        values |= {"gptq": True} if plan.quantize == "gptq" else {}
        names = [f"{name}_proj" for name in plan.lora_targets]
        values |= {"lora_target_modules": names} if names else {"lora_target_linear": True}
    if plan.fused_loss:
        values["liger_fused_linear_cross_entropy"] = True
    engine = _engine(plan)
    if engine == "deepspeed":
        values["deepspeed"] = _deepspeed(plan)
    elif engine == "fsdp":
        named = {_OF_AXOLOTL.get(name, f"{name}_size"): size for name, size in _sizes(plan).items()}
        values |= {"fsdp_version": 2, "fsdp_config": _fsdp(plan, "")} | named
        if plan.optimizer == "adam8bit":  # its FSDP2 takes no bitsandbytes
            values["optimizer"] = "adamw_torch_8bit"
    return _YAML_HEAD + yaml.safe_dump(values, sort_keys=False)


def obstacles_deepspeed(plan: TrainPlan, piece: Slice) -> list[Obstacle]:
    """That DeepSpeed runs the plan at all."""
    if _engine(plan) == "deepspeed":
        return []
    rule = "DeepSpeed keeps an f32 master beside parameters in 16 bits"
    remedy = "set dtypes.master to f32, or export to accelerate"
    return [Obstacle(field="dtypes.master", value=plan.dtypes.master, rule=rule, remedy=remedy)]


_SDPA = ("flash", "sdpa")
"""Kernels of torch's scaled_dot_product_attention, which alone accelerate cuts by the sequence."""


def obstacles_accelerate(plan: TrainPlan, piece: Slice) -> list[Obstacle]:
    """That accelerate's context parallelism can run the attention kernel."""
    kernel = plan.attention_kernel
    if plan.degree("context") == 1 or kernel in _SDPA:
        return []
    rule = "accelerate's context parallelism runs torch's scaled_dot_product_attention alone"
    remedy = "set attention_kernel to flash, or export to axolotl"
    return [Obstacle(field="attention_kernel", value=kernel, rule=rule, remedy=remedy)]


def obstacles_axolotl(plan: TrainPlan, piece: Slice) -> list[Obstacle]:
    """That axolotl passes KV around in a ring, and loads a model in the dtype of autocast."""
    d = plan.dtypes
    if plan.degree("context") > 1 and plan.context_method != "ring":
        rule, remedy = "axolotl passes KV around in a ring", "set context_method to ring"
        value = plan.context_method
        return [Obstacle(field="context_method", value=value, rule=rule, remedy=remedy)]
    if _engine(plan) != "ddp" or d.param == d.compute:
        return []
    rule = "axolotl loads a model in the dtype that it computes in"
    remedy = f"set dtypes.param to {d.compute}, or export to trl"
    return [Obstacle(field="dtypes.param", value=d.param, rule=rule, remedy=remedy)]


def _engine(plan: TrainPlan) -> str:
    return engine_of(plan, stored=bool(stored_axes(plan)))


def _dtypes(plan: TrainPlan) -> tuple[str | None, str]:
    found = written_dtypes(plan.dtypes, _engine(plan))
    assert found is not None, "the Trainer's row takes these dtypes alone"
    return found


def _each(plan: TrainPlan) -> int:
    return plan.global_batch_sequences // (plan.batch_shards * plan.microbatches)


def _arguments(plan: TrainPlan) -> dict[str, Any]:
    """TRL's arguments, in the names of SFTConfig and ModelConfig."""
    mixed, loaded = _dtypes(plan)
    values: dict[str, Any] = {
        "model_name_or_path": hub_id(plan.model) or plan.model,
        "dtype": _LONG[loaded],
        "attn_implementation": _ATTENTION[plan.attention_kernel],
        "max_length": plan.sequence_length,
        "per_device_train_batch_size": _each(plan),
        "gradient_accumulation_steps": plan.microbatches,
        "optim": _OPTIM[plan.optimizer],
        "gradient_checkpointing": plan.remat != "none",
        "bf16": mixed == "bf16",
        "fp16": mixed == "f16",
    }
    if plan.remat == "offload":
        values["activation_offloading"] = True
    if plan.fuses_elementwise:
        values["torch_compile"] = True
    if plan.fused_loss:
        values["use_liger_kernel"] = True
    if plan.lora_rank:
        names = " ".join(f"{name}_proj" for name in plan.lora_targets) or "all-linear"
        lora = {"lora_r": plan.lora_rank, "lora_target_modules": names}
        values |= {"use_peft": True} | lora | _quantized(plan)
    return values


def _quantized(plan: TrainPlan) -> dict[str, Any]:
    """How the frozen matrices are loaded."""
    return {"nf4": {"load_in_4bit": True}, "int8": {"load_in_8bit": True}}.get(plan.quantize, {})


def _accelerate(plan: TrainPlan, piece: Slice) -> dict[str, Any]:
    count, each = nodes(plan, piece)
    mixed, _ = _dtypes(plan)
    kinds = {"deepspeed": "DEEPSPEED", "fsdp": "FSDP", "ddp": "MULTI_GPU"}
    engine = _engine(plan)
    kind = kinds[engine] if count * each > 1 or engine != "ddp" else "NO"
    values: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": {"bf16": "bf16", "f16": "fp16", None: "no"}[mixed],
        "num_machines": count,
        "num_processes": count * each,
    }
    if engine == "deepspeed":  # whose JSON says the dtype
        section = {"deepspeed_config_file": _DEEPSPEED, "zero3_init_flag": _stage(plan) == 3}
        values["deepspeed_config"] = section
        del values["mixed_precision"]
    elif engine == "fsdp":
        values["fsdp_config"] = _fsdp(plan, "fsdp_") | {"fsdp_version": 2}
        if sizes := _sizes(plan):
            named: dict[str, Any] = {f"{_SECTION}{name}_size": size for name, size in sizes.items()}
            if "cp" in sizes:
                named[f"{_SECTION}cp_comm_strategy"] = CONTEXT_WORDS[plan.context_method]
            values["parallelism_config"] = named
    return values


def _fsdp(plan: TrainPlan, begin: str) -> dict[str, Any]:
    return {
        f"{begin}auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        f"{begin}offload_params": plan.offload_optimizer,
        f"{begin}reshard_after_forward": plan.weight_gather == "per_pass",
        f"{begin}state_dict_type": "SHARDED_STATE_DICT",
    }


_SECTION = "parallelism_config_"
_OF_AXOLOTL = {"tp": "tensor_parallel_size", "cp": "context_parallel_size"}


def _sizes(plan: TrainPlan) -> dict[str, int]:
    """accelerate's ParallelismConfig: copies, shards of each, and how a model and its sequences are
    cut beside FSDP, where it is not FSDP alone."""
    outer = copies(plan)
    inner = {"tp": plan.degree("tensor"), "cp": plan.degree("context")}
    inner = {name: size for name, size in inner.items() if size > 1}
    if outer == 1 and not inner:
        return {}
    outside = {"dp_replicate": outer} if outer > 1 else {}
    return outside | {"dp_shard": plan.degree("fsdp")} | inner


def _stage(plan: TrainPlan) -> int:
    return 3 if plan.degree("fsdp") > 1 else plan.zero


def _deepspeed(plan: TrainPlan) -> dict[str, Any]:
    """DeepSpeed's JSON; what is "auto" the Trainer fills in."""
    mixed, _ = _dtypes(plan)
    zero: dict[str, Any] = {"stage": _stage(plan), "overlap_comm": "data" in plan.hidden}
    if plan.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": mixed == "bf16"},
        "fp16": {"enabled": mixed == "f16"},
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
    }


def _json(plan: TrainPlan) -> str:
    """DeepSpeed's JSON as a file, where it runs."""
    if _engine(plan) != "deepspeed":
        return ""
    return _file(_DEEPSPEED, json.dumps(_deepspeed(plan), indent=2) + "\n")


def _unfolded(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as flags of `accelerate launch`."""
    kind = {"DEEPSPEED": "use_deepspeed", "FSDP": "use_fsdp", "MULTI_GPU": "multi_gpu"}
    values: dict[str, Any] = {}
    for key, value in config.items():
        if key == "distributed_type":
            values |= {kind[value]: ""} if value in kind else {}
        elif isinstance(value, Mapping):
            values |= {"use_parallelism_config": ""} if key == "parallelism_config" else {}
            values |= value
        elif key != "compute_environment":
            values[key] = value
    return values


def _flags(values: Mapping[str, Any]) -> list[str]:
    return [f"--{name} {_word(value)}".rstrip() for name, value in values.items()]


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(shlex.quote, str(value).split()))


def _command(words: list[str], arguments: Mapping[str, Any]) -> str:
    return " \\\n  ".join([*words, *_flags(arguments)]) + "\n"


def _file(name: str, held: str) -> str:
    return f"cat > {name} <<'END'\n{held}END\n"
