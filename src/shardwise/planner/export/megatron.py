"""A plan as Megatron-LM arguments: `torchrun --nnodes N --nproc-per-node P pretrain_gpt.py ...`.

Names are those of megatron/training/arguments.py of megatron-core 0.19.2, whose own parser takes
what is written here (docs/lab/exports_checked.json). Ranks run tp-cp-ep-dp-pp, innermost first.
Megatron derives data parallelism from the world size: DP = replica x data x fsdp x expert, and EP
is carved out of it. Where parameters are stored in pieces, Megatron-FSDP does it
(optim_grads_params); replicas of that are `--num-distributed-optimizer-instances`. What Megatron
cannot run: `plans/software/megatron.py`. `megatron_model.py` writes the model's arguments,
`megatron_read.py` reads arguments.
"""

import shlex
from dataclasses import replace
from typing import Any

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.export.hardware import nodes
from shardwise.planner.export.megatron_model import model_arguments
from shardwise.planner.export.notes import copies, placed, stored_axes
from shardwise.planner.export.torchtitan import chunk_sizes
from shardwise.plans import TrainPlan
from shardwise.plans.software.megatron import (
    MEGATRON,
    MIXED_DTYPES,
    MODULES,
    MOMENTS,
    RECIPES,
    SUMS,
    WHOLE_MODULES,
    modules_of,
)

PIECES = "optim_grads_params"
"""What Megatron-FSDP calls parameters in pieces."""

HEAD = """#!/usr/bin/env bash
# Add what a plan does not choose: torchrun's rendezvous (--node-rank, --master-addr), --data-path,
# --split, --tokenizer-type and its files, --train-iters, --lr and its schedule, --save.
"""

LOST: dict[str, str] = {}
WORDS = MEGATRON.words


def write(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """A shell script with one command, for every host."""
    count, each = nodes(plan, piece)
    run = f"torchrun --nnodes {count} --nproc-per-node {each}"
    head = [*environment(plan), run, "pretrain_gpt.py"]
    return HEAD + " \\\n  ".join([*head, *arguments(plan, cfg, piece)]) + "\n"


QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
"""The variable that says how many queues there are to a GPU."""


def environment(plan: TrainPlan) -> list[str]:
    """Assignments in front of the command: tensor and context parallelism want one queue to the
    GPU, Megatron-FSDP several (validate_args)."""
    inner = plan.degree("tensor") > 1 or plan.degree("context") > 1
    return [f"{QUEUES}=1"] if inner and not runs_fsdp(plan) else []


def runs_fsdp(plan: TrainPlan) -> bool:
    """Whether Megatron-FSDP runs: for parameters in pieces, or gradients (ZeRO-2)."""
    return bool(stored_axes(plan)) or (copies(plan) > 1 and plan.zero == 2)


def arguments(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> list[str]:
    """The arguments of pretrain_gpt.py, one flag with its value per entry."""
    values: dict[str, Any] = {"--use-mcore-models": ""} | model_arguments(cfg)
    values |= _experts(plan, cfg, piece) | _degrees(plan) | _sharding(plan)
    values |= _pipeline(plan) | _batch(plan) | _memory(plan, cfg) | _dtypes(plan)
    values |= {
        "--attention-backend": WORDS["attention_kernel"][plan.attention_kernel],
        "--optimizer": WORDS["optimizer"][plan.optimizer],
    }
    values |= _graphs(plan)
    if not plan.fuses_accumulation:
        values["--no-gradient-accumulation-fusion"] = ""
    if plan.mtp_layers:
        values["--mtp-num-layers"] = plan.mtp_layers
    if plan.offload_optimizer:
        values["--optimizer-cpu-offload"] = ""
    return [_argument(flag, value) for flag, value in values.items()]


def _argument(flag: str, value: Any) -> str:
    """A switch, a flag with its value, or with several values."""
    several = value if isinstance(value, list) else [value]
    return " ".join([flag, *(shlex.quote(str(v)) for v in several if v != "")])


def _experts(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> dict[str, Any]:
    """How experts are cut and how tokens find them."""
    if not cfg.has_experts:
        return {}
    tensor = plan.degree("tensor")
    sends = replace(plan, stack=MEGATRON.stack).sent_by(piece.chip.vendor)
    flex = sends != "alltoall"
    values: dict[str, Any] = {
        "--moe-token-dispatcher-type": "flex" if flex else sends,
        **({"--moe-flex-dispatcher-backend": sends} if flex else {}),
        "--moe-grouped-gemm": "",
        "--expert-model-parallel-size": plan.degree("expert")
        * (tensor if plan.expert_over_tensor else 1),
        "--expert-tensor-parallel-size": 1 if plan.expert_over_tensor else tensor,
    }
    if not plan.ragged:
        values["--moe-expert-capacity-factor"] = plan.expert_capacity
        values["--moe-pad-expert-input-to-capacity"] = ""
    return values


def _graphs(plan: TrainPlan) -> dict[str, Any]:
    """What CUDA graphs capture: of a whole iteration by Megatron itself, of parts of layers by
    Transformer Engine."""
    if not plan.cuda_graph:
        return {}
    if WHOLE in plan.cuda_graph:
        whole = {"--cuda-graph-impl": "local", "--cuda-graph-scope": ITERATION}
        return whole | {"--no-check-for-nan-in-loss-and-grad": ""}  # a graph has no such check
    return {"--cuda-graph-impl": "transformer_engine", "--cuda-graph-scope": list(plan.cuda_graph)}


WHOLE, ITERATION = "full", "full_iteration"
"""A graph of the whole step, as plans and Megatron-LM call it."""


def _degrees(plan: TrainPlan) -> dict[str, Any]:
    values: dict[str, Any] = {
        "--tensor-model-parallel-size": plan.degree("tensor"),
        "--pipeline-model-parallel-size": plan.degree("stage"),
        "--context-parallel-size": plan.degree("context"),
    }
    if plan.degree("context") > 1:
        values["--cp-comm-type"] = WORDS["context_method"][plan.context_method]
    if plan.sequence_parallel and plan.degree("tensor") > 1:
        values["--sequence-parallel"] = ""
        if "tensor" in plan.hidden:  # the price counts on it
            values["--tp-comm-overlap"] = ""
    return values


def _sharding(plan: TrainPlan) -> dict[str, Any]:
    """ZeRO over data parallelism, the distributed optimizer (1) or Megatron-FSDP (2 and 3), and
    what runs beside compute."""
    pieces, copied = bool(stored_axes(plan)), copies(plan) > 1
    if not pieces and not copied:
        return {}
    beside = {"--overlap-grad-reduce": ""} if "data" in plan.hidden else {}
    gathers = beside | {"--overlap-param-gather": ""} if beside else {}
    if runs_fsdp(plan):
        return _fsdp(plan, pieces) | gathers
    return {"--use-distributed-optimizer": ""} | gathers if plan.zero else beside


def _fsdp(plan: TrainPlan, pieces: bool) -> dict[str, Any]:
    values: dict[str, Any] = {"--use-megatron-fsdp": "", "--use-distributed-optimizer": ""}
    values |= {"--ckpt-format": "fsdp_dtensor"}
    name = "--data-parallel-sharding-strategy"
    if not pieces:
        return values | {name: WORDS["zero"][plan.zero]}
    values[name] = PIECES
    outer = plan.degree("replica") * plan.degree("data")
    if outer > 1:
        values["--num-distributed-optimizer-instances"] = outer
        values["--outer-dp-sharding-strategy"] = WORDS["zero"][plan.zero]
    return values


def _pipeline(plan: TrainPlan) -> dict[str, Any]:
    stages = plan.degree("stage")
    if stages == 1:
        return {}
    sizes, virtual = chunk_sizes(plan), plan.virtual_stages
    values: dict[str, Any] = {}
    if virtual > 1 and "pipeline" not in plan.hidden:
        values["--no-overlap-p2p-communication"] = ""
    if len(set(sizes)) == 1:
        chunked = {"--num-virtual-stages-per-pipeline-rank": virtual} if virtual > 1 else {}
        return values | chunked
    chunks = [f"t*{size}" for size in sizes]
    chunks[0] = "E" + chunks[0]
    chunks[-1] += "m" * plan.mtp_layers + "L"
    return values | {"--pipeline-model-parallel-layout": "|".join(chunks)}


def _batch(plan: TrainPlan) -> dict[str, Any]:
    return {
        "--micro-batch-size": plan.global_batch_sequences
        // (plan.batch_shards * plan.microbatches),
        "--global-batch-size": plan.global_batch_sequences,
        "--seq-length": plan.sequence_length,
        "--max-position-embeddings": plan.sequence_length,
    }


def _memory(plan: TrainPlan, cfg: ModelConfig) -> dict[str, Any]:
    """Recomputation: every layer, or modules alone."""
    places = placed(plan.remat, plan.remat_kinds)
    if places == placed("none", {}):
        return {}
    if places == placed("block", {}):
        method = {"--recompute-method": "uniform", "--recompute-num-layers": 1}
        return {"--recompute-granularity": "full"} | method
    again = {kind for kind, place in places.items() if place == "recompute"}
    modules = [module for module in modules_of(cfg) if again.issuperset(WHOLE_MODULES[module])]
    inside = {kind for module in modules for kind in WHOLE_MODULES[module]}
    modules += [MODULES[kind] for kind in MODULES if kind in again - inside]
    return {"--recompute-granularity": "selective", "--recompute-modules": modules}


def _dtypes(plan: TrainPlan) -> dict[str, Any]:
    """Mixed precision keeps an f32 master copy; f32 has none. Gradients are summed as given."""
    d = plan.dtypes
    if d.param == d.compute == "f32":
        return {}
    kind = d.param if d.param in MIXED_DTYPES else "bf16"
    values: dict[str, Any] = {MIXED_DTYPES[kind]: "", SUMS[d.grad]: ""}
    if d.compute in RECIPES:
        values |= {"--fp8-format": "hybrid", "--fp8-recipe": RECIPES[d.compute]}
        if d.param == d.compute:
            values["--fp8-param-gather"] = ""
    if d.moments != "f32":
        word = MOMENTS[d.moments]
        values |= {"--use-precision-aware-optimizer": ""}
        values |= {"--exp-avg-dtype": word, "--exp-avg-sq-dtype": word}
    return values
