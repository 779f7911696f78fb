"""A plan as Megatron-LM arguments: `torchrun --nnodes N --nproc-per-node P pretrain_gpt.py ...`.

Names checked against NVIDIA/Megatron-LM megatron/training/arguments.py@000c4ac2 and its use in
published launch scripts. Ranks run tp-cp-ep-dp-pp, innermost first. Megatron derives data
parallelism from the world size: DP = replica x data x fsdp x expert, and EP is carved out of it.
Where parameters are stored in pieces, Megatron-FSDP does it (optim_grads_params); replicas of
that are `--num-distributed-optimizer-instances`.
"""

import re
import shlex
from collections.abc import Mapping
from math import prod
from typing import Any

from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.specs import Attention, LatentAttention, Mlp, Moe
from shardwise.planner.export.flags import Flags, words_of
from shardwise.planner.export.hardware import is_tpu, nodes
from shardwise.planner.export.notes import (
    Fields,
    check_all_stored,
    meant,
    mesh_of,
    named,
    placed,
    refused,
    stored_axes,
    whole,
)
from shardwise.planner.export.torchtitan import chunk_sizes
from shardwise.plans import TrainPlan
from shardwise.plans.train import STORAGE_AXES

TARGET = "megatron"

HEAD = """#!/usr/bin/env bash
# Add what a plan does not choose: rendezvous of the hosts, data, tokenizer, steps, learning rate.
"""

LOST: Mapping[str, str] = {}

CONTEXT = {"all_gather": "all_gather", "ring": "p2p", "ulysses": "a2a"}
OPTIMIZERS = {"adam": "adam", "muon": "muon", "sgd": "sgd"}
ATTENTION = {"flash": "flash", "scores": "unfused"}
MOMENTS = {"f32": "fp32", "f16": "fp16", "fp8": "fp8", "bf16": "bf16"}
RECIPES = {"fp8": "delayed", "mxfp8": "mxfp8"}
OUTER = {0: "no_shard", 1: "optim"}
MODULES = {"attention": "core_attn", "norm": "layernorm", "activation": "moe_act"}
"""Kinds of activations that `--recompute-granularity selective` can recompute alone."""


def write(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """A shell script with one command, for every host."""
    count, each = nodes(plan, piece)
    head = [f"torchrun --nnodes {count} --nproc-per-node {each}", "pretrain_gpt.py"]
    return HEAD + " \\\n  ".join([*head, *arguments(plan, cfg, piece)]) + "\n"


def arguments(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> list[str]:
    """The arguments of pretrain_gpt.py, one flag with its value per entry."""
    if is_tpu(piece):
        raise refused(TARGET, "slice", plan.slice, "it runs on GPUs")
    values: dict[str, Any] = _model(cfg) | _experts(plan, cfg) | _degrees(plan) | _sharding(plan)
    values |= _pipeline(plan) | _batch(plan) | _memory(plan, cfg) | _dtypes(plan)
    values |= {
        "--attention-backend": ATTENTION[plan.attention_kernel],
        "--optimizer": named(TARGET, "optimizer", plan.optimizer, OPTIMIZERS),
    }
    if plan.mtp_layers:
        values["--mtp-num-layers"] = plan.mtp_layers
    if plan.offload_optimizer:
        values["--optimizer-cpu-offload"] = ""
    return [_argument(flag, value) for flag, value in values.items()]


def _argument(flag: str, value: Any) -> str:
    """A switch, a flag with its value, or with several values."""
    several = value if isinstance(value, list) else [value]
    return " ".join([flag, *(shlex.quote(str(v)) for v in several if v != "")])


def _model(cfg: ModelConfig) -> dict[str, Any]:
    """Shape arguments. Raises BadRequest for a mixer that Megatron's GPT has no arguments for."""
    mixers = {group.mixer for group in cfg.groups}
    mixer = cfg.groups[-1].mixer
    if len({(type(m), getattr(m, "heads", 0), getattr(m, "head_dim", 0)) for m in mixers}) > 1:
        raise refused(TARGET, "model", cfg.name, "its arguments describe one kind of attention")
    values: dict[str, Any] = {"--num-layers": cfg.layers, "--hidden-size": cfg.d_model}
    if isinstance(mixer, Attention):
        values["--num-attention-heads"] = mixer.heads
        values["--kv-channels"] = mixer.head_dim
        if mixer.kv_heads < mixer.heads:
            values |= {"--group-query-attention": "", "--num-query-groups": mixer.kv_heads}
    elif isinstance(mixer, LatentAttention):
        values |= {"--multi-latent-attention": "", "--num-attention-heads": mixer.heads}
        if mixer.q_lora_rank:
            values["--q-lora-rank"] = mixer.q_lora_rank
        values["--kv-lora-rank"] = mixer.kv_lora_rank
        values["--qk-head-dim"] = mixer.nope_head_dim
        values["--qk-pos-emb-head-dim"] = mixer.rope_head_dim
        values["--v-head-dim"] = mixer.v_head_dim
    else:
        raise refused(TARGET, "model", cfg.name, "it describes softmax or latent attention only")
    for mlp in (group.mlp for group in cfg.groups):
        if isinstance(mlp, Mlp):
            values["--ffn-hidden-size"] = mlp.d_ff
        if isinstance(mlp, Mlp | Moe) and mlp.gated:
            values["--swiglu"] = ""
    if not cfg.tied_embeddings:
        values["--untie-embeddings-and-output-weights"] = ""
    return values | {"--vocab-size": cfg.vocabulary}


def _experts(plan: TrainPlan, cfg: ModelConfig) -> dict[str, Any]:
    moe = next((g.mlp for g in cfg.groups if isinstance(g.mlp, Moe)), None)
    if moe is None:
        return {}
    tensor = plan.degree("tensor")
    pattern = ",".join(str(int(isinstance(cfg.layer(i).mlp, Moe))) for i in range(cfg.layers))
    values: dict[str, Any] = {
        "--num-experts": moe.experts,
        "--moe-router-topk": moe.experts_per_token,
        "--moe-ffn-hidden-size": moe.d_ff,
        "--ffn-hidden-size": next(
            (g.mlp.d_ff for g in cfg.groups if isinstance(g.mlp, Mlp)), moe.d_ff
        ),
        "--moe-layer-freq": f"[{pattern}]",
        "--moe-token-dispatcher-type": "alltoall",
        "--expert-model-parallel-size": plan.degree("expert")
        * (tensor if plan.expert_over_tensor else 1),
        "--expert-tensor-parallel-size": 1 if plan.expert_over_tensor else tensor,
    }
    if moe.shared_d_ff:
        values["--moe-shared-expert-intermediate-size"] = moe.shared_d_ff
    if plan.expert_dispatch == "dense":
        values["--moe-expert-capacity-factor"] = plan.expert_capacity
        values["--moe-pad-expert-input-to-capacity"] = ""
    return values


def _degrees(plan: TrainPlan) -> dict[str, Any]:
    values: dict[str, Any] = {
        "--tensor-model-parallel-size": plan.degree("tensor"),
        "--pipeline-model-parallel-size": plan.degree("stage"),
        "--context-parallel-size": plan.degree("context"),
    }
    if plan.degree("context") > 1:
        values["--cp-comm-type"] = CONTEXT[plan.context_method]
    if plan.sequence_parallel and plan.degree("tensor") > 1:
        values["--sequence-parallel"] = ""
        if "tensor" in plan.hidden:  # the price counts on it
            values["--tp-comm-overlap"] = ""
    return values


def _sharding(plan: TrainPlan) -> dict[str, Any]:
    """ZeRO over data parallelism: the distributed optimizer (1), or Megatron-FSDP (2 and 3)."""
    fsdp = {"--use-megatron-fsdp": "", "--use-distributed-optimizer": ""}
    fsdp |= {"--ckpt-format": "fsdp_dtensor", "--no-gradient-accumulation-fusion": ""}
    name = "--data-parallel-sharding-strategy"
    if not stored_axes(plan):
        plain = {0: {}, 1: {"--use-distributed-optimizer": ""}}
        return plain.get(plan.zero, fsdp | {name: "optim_grads"})
    check_all_stored(TARGET, plan)
    values: dict[str, Any] = fsdp | {name: "optim_grads_params"}
    outer = plan.degree("replica") * plan.degree("data")
    if outer > 1:
        values["--num-distributed-optimizer-instances"] = outer
        values["--outer-dp-sharding-strategy"] = named(TARGET, "zero", plan.zero, OUTER)
    return values


def _pipeline(plan: TrainPlan) -> dict[str, Any]:
    stages = plan.degree("stage")
    if stages == 1:
        return {}
    if plan.pipeline_schedule not in ("1f1b", "interleaved"):
        raise refused(
            TARGET, "pipeline_schedule", plan.pipeline_schedule, "it runs 1f1b or interleaved"
        )
    sizes = chunk_sizes(plan)
    if len(set(sizes)) == 1:
        virtual = plan.virtual_stages
        return {"--num-virtual-stages-per-pipeline-rank": virtual} if virtual > 1 else {}
    chunks = [f"t*{size}" for size in sizes]
    chunks[0] = "E" + chunks[0]
    chunks[-1] += "m" * plan.mtp_layers + "L"
    return {"--pipeline-model-parallel-layout": "|".join(chunks)}


def _batch(plan: TrainPlan) -> dict[str, Any]:
    return {
        "--micro-batch-size": plan.global_batch_sequences
        // (plan.batch_shards * plan.microbatches),
        "--global-batch-size": plan.global_batch_sequences,
        "--seq-length": plan.sequence_length,
        "--max-position-embeddings": plan.sequence_length,
    }


def _memory(plan: TrainPlan, cfg: ModelConfig) -> dict[str, Any]:
    """Recomputation: every layer, or modules alone; an MLP without experts is never split."""
    places = placed(plan.remat, plan.remat_kinds)
    if places == placed("none", {}):
        return {}
    if places == placed("block", {}):
        method = {"--recompute-method": "uniform", "--recompute-num-layers": 1}
        return {"--recompute-granularity": "full"} | method
    moe = cfg.has_experts
    again = [kind for kind, place in places.items() if place == "recompute"]
    known = [kind for kind in MODULES if moe or kind != "activation"]
    if "offload" in places.values() or not set(again) <= set(known):
        field = "remat_kinds" if plan.remat_kinds else "remat"
        rule = f"it recomputes whole layers, or of {', '.join(known)}"
        raise refused(TARGET, field, dict(plan.remat_kinds) or plan.remat, rule)
    modules = [MODULES[kind] for kind in known if kind in again]
    return {"--recompute-granularity": "selective", "--recompute-modules": modules}


def _dtypes(plan: TrainPlan) -> dict[str, Any]:
    """Mixed precision keeps an f32 master copy; f32 has none. Gradients are summed as given."""
    d = plan.dtypes
    if d.param == d.compute == "f32":
        return {}
    kind = d.param if d.param in ("bf16", "f16") else "bf16"
    if d.param == "fp8" and d.compute not in RECIPES:
        raise refused(TARGET, "dtypes.param", d.param, "parameters are fp8 in fp8 compute alone")
    values: dict[str, Any] = {"--bf16" if kind == "bf16" else "--fp16": ""}
    reduce = {"bf16": "--grad-reduce-in-bf16", "f32": "--accumulate-allreduce-grads-in-fp32"}
    values[named(TARGET, "dtypes.grad", d.grad, reduce)] = ""
    if d.compute in RECIPES:
        values |= {"--fp8-format": "hybrid", "--fp8-recipe": RECIPES[d.compute]}
        if d.param == d.compute:
            values["--fp8-param-gather"] = ""
    elif d.compute != kind:
        raise refused(TARGET, "dtypes.compute", d.compute, f"it computes in {kind} or fp8")
    if d.moments != "f32":
        word = named(TARGET, "dtypes.moments", d.moments, MOMENTS)
        values |= {"--use-precision-aware-optimizer": ""}
        values |= {"--exp-avg-dtype": word, "--exp-avg-sq-dtype": word}
    return values


def read(text: str, world: int | None = None) -> Fields:
    """The fields that the arguments say; `world` replaces torchrun's number of devices."""
    given = parsed(text)
    if world is None:
        world = given.count("--nnodes") * given.count("--nproc-per-node")
    said = _read_mesh(given, world)
    said |= _read_batch(given, said["mesh"]) | _read_stages(given, said["mesh"].get("stage", 1))
    said |= _read_memory(given) | _read_dtypes(given)
    said |= {
        "sequence_parallel": "--sequence-parallel" in given,
        "attention_kernel": given.word("--attention-backend", ATTENTION),
        "optimizer": given.word("--optimizer", OPTIMIZERS, "adam"),
        "offload_optimizer": "--optimizer-cpu-offload" in given,
        "mtp_layers": given.number("--mtp-num-layers", "0"),
        "weight_gather": "per_pass",
        "gradient_reduce": "per_microbatch",
        "lora_rank": 0,
        "frozen": [],
    }
    if "context" in said["mesh"]:
        word = given.get("--cp-comm-type", "p2p").replace("allgather", "all_gather")
        said["context_method"] = meant(TARGET, "--cp-comm-type", word, CONTEXT)
    if "--num-experts" in given:
        capacity = "--moe-expert-capacity-factor"
        said["expert_dispatch"] = "dense" if capacity in given else "ragged"
        if capacity in given:
            said["expert_capacity"] = given.number(capacity, kind=float)
    return said


def parsed(text: str) -> Flags:
    """Flags of a command: `--flag value...` or `--flag=value`; the values joined by spaces."""
    given: dict[str, str] = {}
    flag = ""
    for word in words_of(TARGET, text):
        if word.startswith("--"):
            flag, _, value = word.partition("=")
            given[flag] = value
        elif flag and word != "pretrain_gpt.py":
            given[flag] = f"{given[flag]} {word}".strip()
    return Flags(TARGET, given)


def _read_mesh(given: Flags, world: int) -> Fields:
    tensor = given.count("--tensor-model-parallel-size", "1")
    stage = given.count("--pipeline-model-parallel-size", "1")
    context = given.count("--context-parallel-size", "1")
    ep = given.count("--expert-model-parallel-size", "1")
    etp = given.count("--expert-tensor-parallel-size", str(tensor))
    spans = etp == 1 and tensor > 1
    expert = whole(TARGET, "EP over the tensor axis", ep / tensor) if spans else ep
    if not spans and etp != tensor:
        raise BadRequest(
            f"{TARGET}: --expert-tensor-parallel-size is {etp}; a plan has 1 or tensor={tensor}"
        )
    data = whole(
        TARGET,
        f"DP / EP, of {world} devices,",
        world / (tensor * stage * context * expert),
    )
    stored = given.get("--data-parallel-sharding-strategy") == "optim_grads_params"
    outer = given.count("--num-distributed-optimizer-instances", "1") if stored else data
    fsdp = whole(TARGET, "DP / EP / optimizer instances", data / outer)
    mesh = {"stage": stage, "data": outer, "fsdp": fsdp, "expert": expert}
    mesh |= {"context": context, "tensor": tensor}
    return {
        "mesh": mesh_of(mesh),
        "expert_over_tensor": spans,
        "storage_axes": list(STORAGE_AXES) if stored else ["fsdp"],
        "zero": _read_zero(given, stored),
    }


def _read_zero(given: Flags, stored: bool) -> int:
    if stored:
        return given.word("--outer-dp-sharding-strategy", OUTER, "no_shard")
    if given.get("--data-parallel-sharding-strategy") == "optim_grads":
        return 2
    return int("--use-distributed-optimizer" in given)


def _read_batch(given: Flags, mesh: Mapping[str, int]) -> Fields:
    batch = given.count("--global-batch-size")
    shards = prod(mesh.get(axis, 1) for axis in ("data", "fsdp", "expert"))
    each = given.count("--micro-batch-size") * shards
    return {
        "global_batch_sequences": batch,
        "sequence_length": given.count("--seq-length"),
        "microbatches": whole(TARGET, "the number of microbatches", batch / each),
    }


def _read_stages(given: Flags, stages: int) -> Fields:
    layers = given.count("--num-layers")
    virtual = given.count("--num-virtual-stages-per-pipeline-rank", "1")
    if max(layers, stages * virtual) > MOST_LAYERS:
        raise BadRequest(f"{TARGET}: more than {MOST_LAYERS:,} layers or chunks; correct the flags")
    if "--num-layers-per-virtual-pipeline-stage" in given:
        inner = given.count("--num-layers-per-virtual-pipeline-stage")
        virtual = whole(TARGET, "the number of virtual stages", layers / (stages * inner))
    if "--pipeline-model-parallel-layout" in given:
        sizes = _read_layout(given.get("--pipeline-model-parallel-layout"))
        virtual = whole(TARGET, "the layout's chunks per stage", len(sizes) / stages)
    else:
        each = whole(TARGET, "layers per (virtual) stage", layers / (stages * virtual))
        sizes = [each] * (stages * virtual)
    if sum(sizes) != layers:
        raise BadRequest(f"{TARGET}: the layout has {sum(sizes)} layers, --num-layers is {layers}")
    per_stage = [sum(sizes[stage::stages]) for stage in range(stages)]  # chunks are dealt in turn
    said: Fields = {"layers_per_stage": per_stage, "virtual_stages": virtual}
    if stages > 1:
        said["pipeline_schedule"] = "interleaved" if virtual > 1 else "1f1b"
    return said


MOST_LAYERS = 10_000
"""As a config.json may say (`models/reader.py`)."""


def _read_layout(text: str) -> list[int]:
    """Layers of every chunk of a layout such as `Et*3|t*2|t*2L`."""
    sizes = []
    for chunk in text.split("|"):
        found = re.findall(r"t(?:\*(\d{1,6}))?", chunk)
        sizes.append(sum(int(times or 1) for times in found))
    return sizes


def _read_memory(given: Flags) -> Fields:
    granularity = given.get("--recompute-granularity", "none")
    whole_layers = {"none": "none", "full": "block"}
    if granularity in whole_layers:
        return {"remat": whole_layers[granularity], "remat_kinds": {}}
    modules = given.get("--recompute-modules", "core_attn").split()
    kinds = {meant(TARGET, "--recompute-modules", m, MODULES): "recompute" for m in modules}
    return {"remat": "none", "remat_kinds": kinds}


def _read_dtypes(given: Flags) -> Fields:
    mixed = {"--bf16": "bf16", "--fp16": "f16"}
    kind = next((dtype for flag, dtype in mixed.items() if flag in given), "f32")
    compute, param = kind, kind
    if "--fp8-format" in given:
        compute = given.word("--fp8-recipe", RECIPES, "delayed")
        param = compute if "--fp8-param-gather" in given else kind
    moments = given.word("--exp-avg-dtype", MOMENTS, "fp32")
    return {
        "dtypes.param": param,
        "dtypes.compute": compute,
        "dtypes.grad": "bf16" if "--grad-reduce-in-bf16" in given else "f32",
        "dtypes.master": "none" if kind == "f32" else "f32",
        "dtypes.moments": moments,
    }
