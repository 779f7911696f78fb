"""A plan as MaxText flags: `python3 -m maxtext.trainers.pre_train.train BASE key=value ...`.

Names checked against AI-Hypercomputer/maxtext src/maxtext/configs/base.yml@000b810b. Axes:
`ici_AXIS_parallelism` inside a slice and `dcn_AXIS_parallelism` across slices; `tensor` with
sequence parallelism is the axis `tensor_sequence`. The fields of the model are written for reading
and its layers; a `model_name` of MaxText's own, if there is one, is up to the user.
"""

import math
import shlex
from collections.abc import Mapping
from math import prod
from typing import Any

from shardwise.errors import BadRequest
from shardwise.hardware import Slice, parse_slice
from shardwise.models import ModelConfig
from shardwise.models.specs import Attention, LatentAttention, Mlp, Moe
from shardwise.planner.export.flags import Flags, words_of
from shardwise.planner.export.hardware import (
    is_tpu,
    outer_degrees,
    safe_names,
    slice_fields,
    whole_slices,
)
from shardwise.planner.export.notes import (
    Fields,
    check_all_stored,
    copies,
    mesh_of,
    named,
    one_line,
    placed,
    refused,
    stored_dtype,
    whole,
)
from shardwise.plans import MESH_AXES, TrainPlan
from shardwise.plans.train import STORAGE_AXES

TARGET = "maxtext"
PROGRAM = ("python3", "-m", "maxtext.trainers.pre_train.train", "src/maxtext/configs/base.yml")

HEAD = """#!/usr/bin/env bash
# Add what a plan does not choose: decoder_block or model_name, data, steps, learning rate, output.
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
DTYPES = {"bf16": "bfloat16", "f32": "float32", "f16": "float16"}
QUANTIZED = {"fp8": "fp8", "int8": "int8", "mxfp8": "te_mxfp8", "nvfp4": "te_nvfp4"}
OPTIMIZERS = {"adam": "adamw", "muon": "muon", "sgd": "sgd"}
ATTENTION = {"flash": "flash", "scores": "dot_product"}
CONTEXT = {"all_gather": "all_gather", "ring": "ring", "ulysses": "ulysses"}
POLICIES = {"matmul_outputs": "minimal", "block": "full", "offload": "custom"}
PLACES = {"keep": "device", "recompute": "remat", "offload": "offload"}
TENSORS: Mapping[str, tuple[str, ...]] = {
    "block_input": ("decoder_layer_input",),
    "qkv": ("query_proj", "key_proj", "value_proj"),
    "attention": ("context",),
    "attention_out": ("out_proj",),
    "mlp_in": ("mlpwi_0", "mlpwi_1"),
    "mlp_out": ("mlpwo",),
}
"""Names of the tensors that the policy `custom` places, by our kind; norms have none."""


def write(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """A shell script with one command."""
    return HEAD + " \\\n  ".join(command(plan, cfg, piece)) + "\n"


def command(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> list[str]:
    """The words of the command, quoted for a shell."""
    given = {k: shlex.quote(v) for k, v in flags(plan, cfg, piece).items()}
    return [" ".join(PROGRAM), *(f"{k}={v}" for k, v in given.items())]


def flags(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> dict[str, str]:
    """Every flag that the plan sets."""
    check_all_stored(TARGET, plan)
    if plan.expert_over_tensor and plan.degree("tensor") > 1:
        raise refused(TARGET, "expert_over_tensor", True, "it cuts each expert over tensor")
    values: dict[str, Any] = {"run_name": one_line(cfg.name)}
    values |= _model(cfg) | _hardware(plan, piece) | _mesh(plan) | _batch(plan)
    if plan.degree("stage") > 1:
        values |= _pipeline(plan)
    values |= _memory(plan) | _dtypes(plan) | _methods(plan, cfg)
    return {k: _text(v) for k, v in values.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _model(cfg: ModelConfig) -> dict[str, Any]:
    layer = cfg.groups[-1]
    values: dict[str, Any] = {
        "override_model_config": True,
        "base_num_decoder_layers": cfg.layers,
        "base_emb_dim": cfg.d_model,
        "vocab_size": cfg.vocabulary,
        "logits_via_embedding": cfg.tied_embeddings,
    }
    if isinstance(layer.mixer, Attention):
        values["base_num_query_heads"] = layer.mixer.heads
        values["base_num_kv_heads"] = layer.mixer.kv_heads
        values["head_dim"] = layer.mixer.head_dim
    if isinstance(layer.mixer, LatentAttention):
        values["attention_type"] = "mla"
        values["base_num_query_heads"] = layer.mixer.heads
        values["q_lora_rank"] = layer.mixer.q_lora_rank or 0
        values["kv_lora_rank"] = layer.mixer.kv_lora_rank
        values["qk_nope_head_dim"] = layer.mixer.nope_head_dim
        values["qk_rope_head_dim"] = layer.mixer.rope_head_dim
        values["v_head_dim"] = layer.mixer.v_head_dim
    for mlp in (group.mlp for group in cfg.groups):
        if isinstance(mlp, Mlp):
            values["base_mlp_dim"] = mlp.d_ff
        if isinstance(mlp, Moe):
            values["num_experts"] = mlp.experts
            values["num_experts_per_tok"] = mlp.experts_per_token
            values["base_moe_mlp_dim"] = mlp.d_ff
            values["shared_experts"] = mlp.shared_experts
            values.setdefault("base_mlp_dim", mlp.d_ff)
    return values


def _hardware(plan: TrainPlan, piece: Slice) -> dict[str, Any]:
    """The topology to compile for ahead of time, where Cloud has an unambiguous name for it."""
    used = whole_slices(TARGET, plan, piece)
    if not is_tpu(piece):
        return {"hardware": "gpu"}
    names = safe_names(piece)
    if not names:
        return {"hardware": "tpu"}
    return {
        "hardware": "tpu",
        "compile_topology": names[-1],
        "compile_topology_num_slices": used.count,
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
    stages, layers = plan.degree("stage"), plan.layers_per_stage
    if plan.pipeline_schedule not in ("gpipe", "interleaved"):
        raise refused(
            TARGET,
            "pipeline_schedule",
            plan.pipeline_schedule,
            "its pipeline runs all microbatches forward and then all backward, as gpipe does, "
            "or in circular repeats, as interleaved",
        )
    if len(set(layers)) > 1 or layers[0] % plan.virtual_stages:
        raise refused(
            TARGET, "layers_per_stage", list(layers), "every (virtual) stage has the same layers"
        )
    if plan.microbatches % stages:
        raise refused(
            TARGET, "microbatches", plan.microbatches, f"it takes multiples of {stages} stages"
        )
    return {
        "num_pipeline_microbatches": plan.microbatches,
        "num_layers_per_pipeline_stage": layers[0] // plan.virtual_stages,
        "num_pipeline_repeats": plan.virtual_stages,
        "pipeline_fsdp_ag_once": plan.weight_gather != "per_pass",
    }


def _memory(plan: TrainPlan) -> dict[str, Any]:
    if plan.zero == 2 and copies(plan) > 1:
        raise refused(TARGET, "zero", 2, "it shards the optimizer state over data (zero 1), or not")
    values: dict[str, Any] = {
        "shard_optimizer_over_data": plan.zero == 1,
        "optimizer_memory_host_offload": plan.offload_optimizer,
    }
    if plan.remat == "none" and not plan.remat_kinds:
        raise refused(TARGET, "remat", "none", f"it keeps at most {', '.join(POLICIES)}")
    if plan.remat != "offload" and not plan.remat_kinds:
        return values | {"remat_policy": named(TARGET, "remat", plan.remat, POLICIES)}
    return values | {"remat_policy": "custom"} | _placed_tensors(plan)


def _placed_tensors(plan: TrainPlan) -> dict[str, str]:
    places = placed(plan.remat, plan.remat_kinds)
    for kind, place in places.items():
        if kind not in TENSORS and place != "recompute":
            rule = f"it recomputes '{kind}' and can place only {', '.join(TENSORS)}"
            raise refused(TARGET, "remat_kinds", dict(plan.remat_kinds), rule)
    return {tensor: PLACES[places[kind]] for kind, names in TENSORS.items() for tensor in names}


def _dtypes(plan: TrainPlan) -> dict[str, Any]:
    """One stored copy of the weights; the second moment always has the weights' dtype."""
    d = plan.dtypes
    stored = stored_dtype(TARGET, d)
    if d.moments != stored:
        raise refused(TARGET, "dtypes.moments", d.moments, f"they follow the weights, {stored}")
    values = {
        "weight_dtype": named(TARGET, "dtypes.param", stored, DTYPES),
        "grad_dtype": named(TARGET, "dtypes.grad", d.grad, DTYPES),
        "mu_dtype": named(TARGET, "dtypes.moments", d.moments, DTYPES),
    }
    if d.compute in DTYPES:
        return values | {"dtype": DTYPES[d.compute]}
    words = DTYPES | QUANTIZED
    quantized = named(TARGET, "dtypes.compute", d.compute, words)
    return values | {"dtype": "bfloat16", "quantization": quantized}


def _methods(plan: TrainPlan, cfg: ModelConfig) -> dict[str, Any]:
    values: dict[str, Any] = {
        "attention": ATTENTION[plan.attention_kernel],
        "context_parallel_strategy": CONTEXT[plan.context_method],
        "opt_type": named(TARGET, "optimizer", plan.optimizer, OPTIMIZERS),
        "mtp_num_layers": plan.mtp_layers,
        "num_vocab_tiling": plan.logit_chunks,
    }
    if cfg.has_experts:
        dense = plan.expert_dispatch == "dense"
        values["sparse_matmul"] = not dense
        values["capacity_factor"] = plan.expert_capacity if dense else -1
    return values


def read(text: str) -> Fields:
    """The fields that the flags say; BadRequest where they contradict each other."""
    words = words_of(TARGET, text)
    given = Flags(
        TARGET, dict(w.split("=", 1) for w in words if "=" in w and not w.startswith("-"))
    )
    for flag in ("per_device_batch_size", "max_target_length", "base_num_decoder_layers"):
        if flag not in given:
            raise BadRequest(f"{TARGET}: the flag {flag} is missing; give it")
    said = _read_mesh(given)
    mesh = said["mesh"]
    said |= _read_batch(given, mesh)
    if "compile_topology" in given:
        count = given.number("compile_topology_num_slices")
        if count != said["slices"]:
            raise BadRequest(
                f"{TARGET}: the dcn_* flags multiply to {said['slices']} slices, "
                f"compile_topology_num_slices is {count}; make them equal"
            )
        times = f"{count}*" if count > 1 else ""
        said |= slice_fields(parse_slice(times + given.get("compile_topology")))
    said |= _read_memory(given) | _read_dtypes(given)
    said["storage_axes"] = list(STORAGE_AXES)
    said["attention_kernel"] = given.word("attention", ATTENTION)
    if "context" in mesh:
        said["context_method"] = given.word("context_parallel_strategy", CONTEXT)
    said["optimizer"] = given.word("opt_type", OPTIMIZERS)
    said["mtp_layers"] = given.number("mtp_num_layers", "0")
    said["logit_chunks"] = given.count("num_vocab_tiling", "1", "write the pieces out, 1 or more")
    once = given.get("pipeline_fsdp_ag_once") == "true"
    said |= {
        "weight_gather": "per_microbatch" if once else "per_pass",
        "gradient_reduce": "per_microbatch",
    }
    said |= {"expert_over_tensor": False, "lora_rank": 0, "frozen": []}
    if "capacity_factor" in given:
        capacity = given.number("capacity_factor", kind=float)
        dense = given.get("sparse_matmul") == "false"
        said["expert_dispatch"] = "dense" if dense else "ragged"
        if dense:
            said["expert_capacity"] = capacity
    return said


def _read_mesh(given: Flags) -> Fields:
    def degree(net: str, word: str) -> int:
        rule = "write the degree out, 1 or more"
        return given.count(f"{net}_{word}_parallelism", "1", rule)

    both = {word: degree("ici", word) * degree("dcn", word) for word in _WORDS}
    if both["tensor"] > 1 and both["tensor_sequence"] > 1:
        raise BadRequest(f"{TARGET}: tensor and tensor_sequence are both cut; a plan has one axis")
    outer = prod(degree("dcn", word) for word in _WORDS)
    mesh = {
        "replica": degree("dcn", "data"),
        "data": degree("ici", "data"),
        **{axis: both[AXES[axis]] for axis in ("fsdp", "expert", "context", "stage")},
        "tensor": both["tensor"] * both["tensor_sequence"],
    }
    return {
        "mesh": mesh_of(mesh),
        "slices": outer,
        "sequence_parallel": both["tensor"] == 1,
    }


_WORDS = (*dict.fromkeys(AXES.values()), "tensor", "tensor_sequence")


def _read_batch(given: Flags, mesh: Mapping[str, int]) -> Fields:
    each = given.number("per_device_batch_size", kind=float)
    steps = given.number("gradient_accumulation_steps")
    layers = given.number("base_num_decoder_layers")
    stages, repeats = mesh.get("stage", 1), 1
    if stages > 1:
        if steps != 1:
            raise BadRequest(
                f"{TARGET}: gradient_accumulation_steps is {steps} with a pipeline; a plan's "
                "microbatches all pass the pipeline in one go, so use num_pipeline_microbatches"
            )
        repeats = given.number("num_pipeline_repeats")
        inner = given.number("num_layers_per_pipeline_stage")
        if inner * repeats * stages != layers:
            raise BadRequest(
                f"{TARGET}: {stages} stages x num_pipeline_repeats {repeats} x "
                f"num_layers_per_pipeline_stage {inner} are not {layers} layers"
            )
    batch = each * prod(mesh.values()) * steps
    flow = "num_pipeline_microbatches" if stages > 1 else "gradient_accumulation_steps"
    said: Fields = {
        "global_batch_sequences": whole(TARGET, "the batch in sequences", batch),
        "sequence_length": given.number("max_target_length"),
        "microbatches": given.number(flow),
        "layers_per_stage": [layers // stages] * stages,
        "virtual_stages": repeats,
    }
    if stages > 1:
        said["pipeline_schedule"] = "interleaved" if repeats > 1 else "gpipe"
    return said


def _read_memory(given: Flags) -> Fields:
    said: Fields = {
        "zero": int(given.get("shard_optimizer_over_data") == "true"),
        "offload_optimizer": given.get("optimizer_memory_host_offload") == "true",
        "remat": given.word("remat_policy", POLICIES),
        "remat_kinds": {},
    }
    if given.get("remat_policy") != "custom":
        return said
    defaults = {"block_input": "device"}
    places = {
        kind: given.word(names[0], PLACES, defaults.get(kind, "remat"))
        for kind, names in TENSORS.items()
    }
    inner = {kind: place for kind, place in places.items() if place != "recompute"}
    if inner == {"block_input": "offload"}:
        return said
    if inner.get("block_input") == "keep":
        del inner["block_input"]
    return said | {"remat": "block", "remat_kinds": inner}


def _read_dtypes(given: Flags) -> Fields:
    compute = given.word("dtype", DTYPES)
    if given.get("quantization"):
        compute = given.word("quantization", QUANTIZED)
    return {
        "dtypes.param": given.word("weight_dtype", DTYPES),
        "dtypes.master": "none",
        "dtypes.compute": compute,
        "dtypes.grad": given.word("grad_dtype", DTYPES),
        "dtypes.moments": given.word("mu_dtype", DTYPES),
    }
