"""A plan as MaxText flags: `python3 -m maxtext.trainers.pre_train.train BASE key=value ...`.

Names are those of src/maxtext/configs/base.yml and types.py of MaxText 0.2.5, whose own parser
takes what is written here (docs/lab/exports_checked.json). Axes: `ici_AXIS_parallelism` inside a
slice and `dcn_AXIS_parallelism` across slices; `tensor` with sequence parallelism is the axis
`tensor_sequence`. What MaxText cannot run: `plans/software/maxtext.py`. `maxtext_model.py` writes
the model's flags, `maxtext_read.py` reads flags and YAML.
"""

import math
import shlex
from collections.abc import Mapping
from typing import Any

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.remat import remat_row
from shardwise.planner.export.hardware import is_tpu, outer_degrees, safe_names
from shardwise.planner.export.maxtext_model import model_flags
from shardwise.planner.export.notes import copies, one_line, placed, stored_dtype
from shardwise.plans import MESH_AXES, TrainPlan
from shardwise.plans.software.maxtext import DTYPES, MAXTEXT, QUANTIZED, TENSORS
from shardwise.plans.software.maxtext_models import snapshot
from shardwise.plans.train import USUAL

PROGRAM = ("python3", "-m", "maxtext.trainers.pre_train.train", "src/maxtext/configs/base.yml")

HEAD = """#!/usr/bin/env bash
# Add what a plan does not choose: base_output_directory, dataset_type and its path, tokenizer_path,
# steps, learning_rate. Without them MaxText trains on made-up tokens.
"""

LOST = {
    "dtypes.param": "weights are stored once, in weight_dtype, and cast when used",
    "dtypes.master": "the weights in weight_dtype are the master copy",
}

AXES = {
    "replica": "data",
    "data": "data",
    "fsdp": "fsdp",
    "expert": "expert",
    "context": "context",
    "stage": "pipeline",
}
WORDS = MAXTEXT.words
CUSTOM = "custom"
PLACES = {"keep": "device", "recompute": "remat", "offload": "offload"}


def write(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """A shell script with one command."""
    return HEAD + " \\\n  ".join(command(plan, cfg, piece)) + "\n"


def command(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> list[str]:
    """The words of the command, quoted for a shell."""
    given = {k: shlex.quote(v) for k, v in flags(plan, cfg, piece).items()}
    return [" ".join(PROGRAM), *(f"{k}={v}" for k, v in given.items())]


def flags(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> dict[str, str]:
    """Every flag that the plan sets."""
    values: dict[str, Any] = {"run_name": one_line(cfg.name)}
    values |= model_flags(cfg) | _hardware(plan, piece) | _mesh(plan) | _batch(plan)
    if plan.degree("stage") > 1:
        values |= _pipeline(plan)
    values |= _memory(plan) | _dtypes(plan) | _methods(plan, cfg) | _attention(plan, piece)
    return {k: written(v) for k, v in values.items()}


def written(value: Any) -> str:
    """A value as MaxText writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _hardware(plan: TrainPlan, piece: Slice) -> dict[str, Any]:
    """The topology to compile for ahead of time, where Cloud has an unambiguous name for it."""
    if not is_tpu(piece):
        return {"hardware": "gpu"}
    names = [name for name in safe_names(piece) if name in snapshot()["topologies"]]
    if not names:
        return {"hardware": "tpu"}
    return {
        "hardware": "tpu",
        "compile_topology": names[-1],
        "compile_topology_num_slices": plan.slices,
    }


def _mesh(plan: TrainPlan) -> dict[str, Any]:
    """Every axis inside and across slices; `replica` and `data` multiply to MaxText's data."""
    outer = outer_degrees(plan)
    values: dict[str, Any] = {}
    for axis in MESH_AXES:
        word = AXES.get(axis) or ("tensor_sequence" if plan.sequence_parallel else "tensor")
        for net, degree in (("ici", plan.degree(axis) // outer[axis]), ("dcn", outer[axis])):
            name = f"{net}_{word}_parallelism"
            values[name] = values.get(name, 1) * degree
    return values


def _batch(plan: TrainPlan) -> dict[str, Any]:
    """Sequences per device and accumulated step; a pipeline takes all microbatches at once."""
    accumulated = plan.microbatches if plan.degree("stage") == 1 else 1
    return {
        "per_device_batch_size": _per_device(
            plan.global_batch_sequences // accumulated, plan.devices
        ),
        "gradient_accumulation_steps": accumulated,
        "max_target_length": plan.sequence_length,
        "packing": bool(plan.packed_lengths),
    }


def _per_device(sequences: int, devices: int) -> float:
    """Sequences per device; MaxText multiplies by the devices again and cuts the fraction off, so
    a quotient that was rounded down is moved up by one last bit."""
    each = sequences / devices
    return each if int(devices * each) == sequences else math.nextafter(each, math.inf)


def _pipeline(plan: TrainPlan) -> dict[str, Any]:
    return {
        "num_pipeline_microbatches": plan.microbatches,
        "num_layers_per_pipeline_stage": plan.layers_per_stage[0] // plan.virtual_stages,
        "num_pipeline_repeats": plan.virtual_stages,
        "pipeline_fsdp_ag_once": WORDS["weight_gather"].get(plan.weight_gather, "false"),
    }


def _memory(plan: TrainPlan) -> dict[str, Any]:
    values: dict[str, Any] = {
        "shard_optimizer_over_data": copies(plan) > 1 and WORDS["zero"].get(plan.zero, "false"),
        "optimizer_memory_host_offload": plan.offload_optimizer,
        "scan_layers": True,
    }
    if not remat_row(plan.remat).offloads and not plan.remat_kinds:
        return values | {"remat_policy": WORDS["remat"][plan.remat]}
    places = placed(plan.remat, plan.remat_kinds)
    tensors = {name: PLACES[places[kind]] for kind, names in TENSORS.items() for name in names}
    return values | {"remat_policy": CUSTOM} | tensors


def _dtypes(plan: TrainPlan) -> dict[str, Any]:
    """One stored copy of the weights; the second moment always has the weights' dtype."""
    d = plan.dtypes
    values = {
        "weight_dtype": DTYPES[stored_dtype(d)],
        "grad_dtype": DTYPES[d.grad],
        "mu_dtype": DTYPES[d.moments],
    }
    if d.compute in DTYPES:
        return values | {"dtype": DTYPES[d.compute]}
    return values | {"dtype": "bfloat16", "quantization": QUANTIZED[d.compute]}


def _methods(plan: TrainPlan, cfg: ModelConfig) -> dict[str, Any]:
    values: dict[str, Any] = {
        "opt_type": WORDS["optimizer"][plan.optimizer],
        "mtp_num_layers": plan.mtp_layers,
        "num_vocab_tiling": plan.logit_chunks,
    }
    if cfg.has_experts:
        values["sparse_matmul"] = plan.ragged
        values["capacity_factor"] = -1 if plan.ragged else plan.expert_capacity
    return values


def _attention(plan: TrainPlan, piece: Slice) -> dict[str, Any]:
    """The kernel, and how sequences are cut; MaxText refuses a method that has nothing to do."""
    cut = plan.degree("context") > 1
    strategy = WORDS["context_method"][plan.context_method if cut else USUAL.context_method]
    values: dict[str, Any] = {
        "attention": WORDS["attention_kernel"][plan.attention_kernel],
        "context_parallel_strategy": strategy,
    }
    if is_tpu(piece):
        return {**values, **_CONTEXT_KERNELS.get(strategy, {})}
    values["attention"] = ON_GPUS.get(values["attention"], values["attention"])
    return values | (
        {"max_segments_per_seq": len(plan.packed_lengths)} if plan.packed_lengths else {}
    )


ON_GPUS = {"flash": "cudnn_flash_te"}
"""Kernels of configs/gpu/models/*.yml, by what TPUs call them."""
_CONTEXT_KERNELS: Mapping[str, Mapping[str, Any]] = {
    "ring": {"use_tokamax_splash": True},
    "ulysses": {"use_tokamax_splash": True, "context_parallel_load_balance": False},
}
"""What MaxText requires on TPU beside a strategy: `configs/types.py` refuses it otherwise."""
