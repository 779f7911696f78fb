"""A plan as a TorchTitan config: a Python function that sets the fields of a `Trainer.Config`.

Names checked against pytorch/torchtitan torchtitan/config/parallelism.py@15e24313 and
training.py@f204eb63, which count batches in tokens. Dims: `pp`, `dp_replicate`, `dp_shard`, `cp`,
`tp` and `ep`; EP is no dim of its own but carved out of dp_shard x cp x tp, innermost first, so our
`expert` is a factor of dp_shard, and ep is expert x tensor, as experts are never cut by `tp`.
"""

import ast
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.export.hardware import is_tpu
from shardwise.planner.export.notes import (
    Fields,
    check_all_stored,
    copies,
    meant,
    mesh_of,
    named,
    refused,
    stored_axes,
    stored_dtype,
    whole,
)
from shardwise.planner.export.python_text import count_of, literal_of, tree_of, within_docstring
from shardwise.plans import TrainPlan
from shardwise.plans.train import STORAGE_AXES
from shardwise.scheduling.pipeline import schedule_row

TARGET = "torchtitan"

LOST = {
    "dtypes.param": "parameters are stored once, in training.dtype, and cast when gathered",
    "dtypes.master": "the stored parameters are the master copy",
}

DTYPES = {"bf16": "bfloat16", "f32": "float32"}
SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zb_v": "ZBVZeroBubble",
}
RESHARD = {"per_pass": "always", "per_microbatch": "never"}
POLICIES = {"none": "None", "matmul_outputs": "SelectiveAC", "block": "FullAC"}

_HEAD = '''from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.trainer import Trainer


def with_plan(config: Trainer.Config) -> Trainer.Config:
    """The config of the model MODEL, trained by the plan."""
'''


def write(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> str:
    """A Python module with `with_plan(config)`, to be called on the config of the model."""
    if is_tpu(piece):
        raise refused(TARGET, "slice", plan.slice, "it runs on GPUs")
    check_all_stored(TARGET, plan)
    if copies(plan) > 1 and plan.zero > 0:
        raise refused(TARGET, "zero", plan.zero, "dp_replicate replicates the optimizer too (0)")
    if plan.degree("context") > 1 and plan.context_method != "all_gather":
        raise refused(TARGET, "context_method", plan.context_method, "it gathers K and V")
    check_reduction(plan)
    sections = {
        "training": _training(plan),
        "parallelism": _degrees(plan, cfg) | _pipeline(plan),
    }
    lines = [
        f"    config.{section}.{name} = {_literal(value)}"
        for section, values in sections.items()
        for name, value in values.items()
    ]
    policy = named(TARGET, "remat", plan.remat, POLICIES)
    call = "" if policy == "None" else ".Config()"
    lines.append(f"    config.activation_checkpoint = {policy}{call}")
    return (
        _HEAD.replace("MODEL", within_docstring(cfg.name))
        + "\n".join([*lines, "    return config"])
        + "\n"
    )


def _literal(value: Any) -> str:
    """A value as Python; a list of lists with one of them per line."""
    if not isinstance(value, list):
        return repr(value)
    return "\n        ".join(["[", *(f"{part!r}," for part in value)]) + "\n    ]"


def _training(plan: TrainPlan) -> dict[str, Any]:
    """Tokens per microbatch and rank, tokens per step, and the dtypes of FSDP."""
    d = plan.dtypes
    stored = stored_dtype(TARGET, d)
    if d.moments != stored:
        raise refused(TARGET, "dtypes.moments", d.moments, f"they follow the parameters, {stored}")
    each = plan.tokens // (plan.batch_shards * plan.microbatches)
    return {
        "max_context_length": plan.sequence_length,
        "num_tokens_per_microbatch_per_dp_rank": each,
        "num_tokens_per_train_step": plan.tokens,
        "dtype": named(TARGET, "dtypes.param", stored, DTYPES),
        "mixed_precision_param": named(TARGET, "dtypes.compute", d.compute, DTYPES),
        "mixed_precision_reduce": named(TARGET, "dtypes.grad", d.grad, DTYPES),
    }


def _degrees(plan: TrainPlan, cfg: ModelConfig) -> dict[str, Any]:
    return {
        "pipeline_parallel_degree": plan.degree("stage"),
        "data_parallel_replicate_degree": plan.degree("replica") * plan.degree("data"),
        "data_parallel_shard_degree": plan.degree("fsdp") * plan.degree("expert"),
        "context_parallel_degree": plan.degree("context"),
        "tensor_parallel_degree": plan.degree("tensor"),
        "expert_parallel_degree": _expert_degree(plan, cfg),
        "enable_sequence_parallel": plan.sequence_parallel,
        "fsdp_reshard_after_forward": RESHARD[
            "per_pass" if plan.weight_gather == "per_pass" else "per_microbatch"
        ],
    }


def _expert_degree(plan: TrainPlan, cfg: ModelConfig) -> int:
    if not cfg.has_experts:
        return 1
    if plan.degree("tensor") > 1 and not plan.expert_over_tensor:
        raise refused(
            TARGET, "expert_over_tensor", False, "its experts span tp, which does not cut them"
        )
    return plan.degree("expert") * plan.degree("tensor")


def _pipeline(plan: TrainPlan) -> dict[str, Any]:
    """The schedule and every chunk's layers by name; nothing where there are no stages."""
    if plan.degree("stage") == 1:
        return {}
    schedule = named(TARGET, "pipeline_schedule", plan.pipeline_schedule, SCHEDULES)
    sizes = chunk_sizes(plan)
    ends = list(accumulate(sizes))
    parts = [
        [f"layers.{i}" for i in range(end - size, end)]
        for size, end in zip(sizes, ends, strict=True)
    ]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return {
        "pipeline_parallel_schedule": schedule,
        "num_pp_microbatches": plan.microbatches,
        "pipeline_parallel_module_fqns_per_model_part": parts,
    }


def check_reduction(plan: TrainPlan) -> None:
    """Raise BadRequest where gradients are not reduced as often as it does: once a step under a
    pipeline, else after every microbatch."""
    if plan.microbatches == 1 or not stored_axes(plan):
        return
    does = reduces(plan.degree("stage"))
    if plan.gradient_reduce != does:
        raise refused(TARGET, "gradient_reduce", plan.gradient_reduce, f"it reduces {does}")


def reduces(stages: int) -> str:
    """How often it reduces gradients."""
    return "per_step" if stages > 1 else "per_microbatch"


def chunk_sizes(plan: TrainPlan) -> list[int]:
    """Layers of every model chunk in the order of the layers; a stage's larger chunks first."""
    sizes, stages = [], plan.degree("stage")
    for part in range(stages * plan.virtual_stages):
        stage, turn = plan.schedule.place_of(part, stages)
        size, more = divmod(plan.layers_per_stage[stage], plan.virtual_stages)
        sizes.append(size + (turn < more))
    return sizes


def read(text: str) -> Fields:
    """The fields that the assignments say; BadRequest where they make no plan."""
    given = _assignments(text)
    stages = _count(given, "parallelism.pipeline_parallel_degree")
    replicate = _count(given, "parallelism.data_parallel_replicate_degree")
    shard = _count(given, "parallelism.data_parallel_shard_degree")
    tensor = _count(given, "parallelism.tensor_parallel_degree")
    ep = _count(given, "parallelism.expert_parallel_degree")
    spans = ep > 1 and tensor > 1
    if (spans and ep % tensor) or shard % (expert := ep // tensor if spans else ep):
        raise BadRequest(
            f"{TARGET}: expert_parallel_degree {ep} is no multiple of tensor_parallel_degree "
            f"{tensor} within data_parallel_shard_degree {shard} x it; choose one that is"
        )
    mesh = {
        "stage": stages,
        "data": replicate,
        "fsdp": shard // expert,
        "expert": expert,
        "context": _count(given, "parallelism.context_parallel_degree"),
        "tensor": tensor,
    }
    said: Fields = {
        "mesh": mesh_of(mesh),
        "zero": 0,
        "storage_axes": list(STORAGE_AXES),
        "expert_over_tensor": spans,
        "sequence_parallel": bool(given.get("parallelism.enable_sequence_parallel", True)),
        "weight_gather": meant(
            TARGET,
            "fsdp_reshard_after_forward",
            given.get("parallelism.fsdp_reshard_after_forward", ""),
            RESHARD,
        ),
        "gradient_reduce": reduces(stages),
        "remat": meant(TARGET, "activation_checkpoint", given.get("ac", ""), POLICIES),
        "remat_kinds": {},
        "offload_optimizer": bool(given.get("training.enable_cpu_offload", False)),
        "optimizer": "adam",
        "lora_rank": 0,
        "frozen": [],
        "mtp_layers": 0,
        "attention_kernel": "flash",
        "expert_dispatch": "ragged",
    }
    if mesh["context"] > 1:
        said["context_method"] = "all_gather"
    return said | _read_batch(given, replicate * shard) | _read_stages(given, stages)


def _read_batch(given: Mapping[str, Any], ranks: int) -> Fields:
    length = _count(given, "training.max_context_length")
    tokens = _count(given, "training.num_tokens_per_train_step")
    each = _count(given, "training.num_tokens_per_microbatch_per_dp_rank")
    rounds = whole(TARGET, "the number of microbatches", tokens / (each * ranks))
    if _count(given, "parallelism.pipeline_parallel_degree") > 1:
        flow = _count(given, "parallelism.num_pp_microbatches")
        if flow != rounds:
            raise BadRequest(
                f"{TARGET}: num_pp_microbatches is {flow}, but {tokens} tokens per step are "
                f"{rounds} microbatches of {each} on {ranks} ranks; a plan's microbatches all pass "
                "the pipeline in one go, so make them equal"
            )
    dtypes = {
        "dtypes.param": "dtype",
        "dtypes.compute": "mixed_precision_param",
        "dtypes.grad": "mixed_precision_reduce",
        "dtypes.moments": "dtype",
    }
    said: Fields = {
        key: meant(TARGET, name, given.get(f"training.{name}", ""), DTYPES)
        for key, name in dtypes.items()
    }
    return said | {
        "dtypes.master": "none",
        "sequence_length": length,
        "global_batch_sequences": whole(TARGET, "the batch in sequences", tokens / length),
        "microbatches": rounds,
    }


def _read_stages(given: Mapping[str, Any], stages: int) -> Fields:
    """Layers per stage from the parts' names; without stages the config does not say them."""
    if stages == 1:
        return {"virtual_stages": 1}
    name = "parallelism.pipeline_parallel_module_fqns_per_model_part"
    parts = given.get(name)
    if (
        not isinstance(parts, list)
        or not all(isinstance(part, list) for part in parts)
        or len(parts) % stages
    ):
        raise BadRequest(f"{TARGET}: {name} is no list of parts, a multiple of {stages} stages")
    virtual = len(parts) // stages
    layers = [0] * stages
    word = given.get("parallelism.pipeline_parallel_schedule", "1F1B")
    schedule = meant(TARGET, "pipeline_parallel_schedule", word, SCHEDULES)
    for i, part in enumerate(parts):
        stage, _ = schedule_row(schedule).place_of(i, stages)
        layers[stage] += sum(str(module).startswith("layers.") for module in part)
    return {
        "layers_per_stage": layers,
        "virtual_stages": virtual,
        "pipeline_schedule": schedule,
    }


def _assignments(text: str) -> dict[str, Any]:
    """`config.SECTION.NAME = LITERAL` as {"SECTION.NAME": value}, the policy under "ac"."""
    given: dict[str, Any] = {}
    for node in ast.walk(tree_of(TARGET, text)):
        if not isinstance(node, ast.Assign):
            continue
        name = ast.unparse(node.targets[0]).removeprefix("config.")
        if name == "activation_checkpoint":
            given["ac"] = ast.unparse(node.value).removesuffix(".Config()")
            continue
        given[name] = literal_of(TARGET, name, node.value)
    return given


def _count(given: Mapping[str, Any], name: str) -> int:
    return count_of(TARGET, name, given.get(name, 1 if name.endswith("_degree") else None))
