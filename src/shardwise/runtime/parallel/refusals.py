"""What the runtime does not run, by name: each a BadRequest before anything is compiled.

Everything else that the planner may propose runs (`planner/search/legality.py` has its rules).
"""

from collections.abc import Iterator

import jax

from shardwise.errors import BadRequest, check_known
from shardwise.models import ModelConfig
from shardwise.models.remat import PART_OF
from shardwise.models.runnable import numerics_of
from shardwise.models.specs import Moe
from shardwise.plans.train import TrainPlan, broken_laws, check_layers
from shardwise.runtime.parallel.setup import TENSOR_MATMULS
from shardwise.runtime.precision import dtype_of
from shardwise.runtime.sharding import parameter_specs
from shardwise.scheduling import pipeline_schedule


def check(plan: TrainPlan, cfg: ModelConfig, tensor_matmul: str = "plain") -> None:
    """Raise BadRequest for the first choice of a plan that cannot be run as it stands."""
    numerics_of(cfg)
    for name in ("param", "compute", "grad"):
        dtype_of(getattr(plan.dtypes, name))
    if plan.dtypes.master != "none":
        dtype_of(plan.dtypes.master)
    problems = (
        *_training(plan),
        *_cuts(plan),
        *broken_laws(plan, cfg),
        *_experts(plan, cfg),
        *_rings(plan, tensor_matmul),
    )
    for problem in problems:
        raise BadRequest(problem)
    parameter_specs(cfg, {a: n for a, n in plan.mesh.items() if n > 1}, plan.storage_axes)
    if plan.degree("stage") > 1:
        _pipeline(plan, cfg)


def _training(plan: TrainPlan) -> Iterator[str]:
    if plan.lora_rank:
        yield (
            f"lora_rank is {plan.lora_rank}; the runtime trains the parameters themselves, so "
            "set lora_rank to 0"
        )
    if plan.frozen:
        yield (
            f"frozen names {', '.join(plan.frozen)}; the runtime trains every component, so leave "
            "`frozen` out"
        )
    if plan.mtp_layers:
        yield (
            f"mtp_layers is {plan.mtp_layers}; the runtime predicts one token ahead, so set it to 0"
        )
    for part in (kind for kind in plan.remat_kinds if kind in PART_OF):
        yield (f"remat_kinds names {part}; the runtime has only {PART_OF[part]}, so name that")
    if plan.logit_chunks > 1:
        yield (
            f"logit_chunks is {plan.logit_chunks}; the runtime makes all logits of a microbatch at "
            "once, so set it to 1"
        )
    if plan.offload_optimizer:
        yield (
            "offload_optimizer is set; the runtime keeps optimizer state on the devices, so shard "
            "it (zero, fsdp) or leave it out"
        )

    if plan.weight_gather == "per_step" and plan.microbatches > 1:
        yield (
            "weight_gather is per_step; the runtime gathers for every microbatch, so set it to "
            "per_pass or per_microbatch"
        )
    if plan.gradient_reduce == "per_step" and plan.microbatches > 1:
        yield (
            "gradient_reduce is per_step; the runtime scatters gradients after every microbatch, "
            "so set it to per_microbatch"
        )


def _cuts(plan: TrainPlan) -> Iterator[str]:
    tensor, context = plan.degree("tensor"), plan.degree("context")
    T = plan.sequence_length
    if plan.sequence_parallel and tensor > 1 and T % (tensor * context):
        yield (
            f"sequence_parallel cuts {T} tokens over context={context} x tensor={tensor}, which "
            "does not divide them; use a length that it divides, or sequence_parallel false"
        )


def _rings(plan: TrainPlan, tensor_matmul: str) -> Iterator[str]:
    check_known("tensor_matmul", tensor_matmul, TENSOR_MATMULS)
    if tensor_matmul == "plain":
        return
    if plan.degree("tensor") == 1:
        yield (
            f"tensor_matmul '{tensor_matmul}' overlaps communication over tensor, and tensor is "
            "1; use 'plain'"
        )
    elif not plan.sequence_parallel:
        yield (
            f"tensor_matmul '{tensor_matmul}' gathers tokens that sequence_parallel cuts, which is "
            "false; set it, or use 'plain'"
        )


def _experts(plan: TrainPlan, cfg: ModelConfig) -> Iterator[str]:
    moes = [layer.mlp for layer in cfg.groups if isinstance(layer.mlp, Moe)]
    T, tensor, context = plan.sequence_length, plan.degree("tensor"), plan.degree("context")
    if not (plan.expert_over_tensor and moes):
        return
    if T % (tensor * context):
        yield (
            f"expert_over_tensor cuts {T} tokens over context={context} x tensor={tensor}, which "
            "does not divide them; use a length that it divides"
        )


def _pipeline(plan: TrainPlan, cfg: ModelConfig) -> None:
    stages = plan.degree("stage")
    pipeline_schedule(plan.pipeline_schedule, stages, plan.microbatches, plan.virtual_stages)
    check_layers(plan, cfg)
    if jax.process_count() > 1:
        raise BadRequest(
            f"mesh axis 'stage' is {stages} over {jax.process_count()} processes; the runtime "
            "moves activations between stages within one process, so use fsdp or data instead"
        )
