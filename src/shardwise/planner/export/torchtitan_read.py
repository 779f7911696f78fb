"""Fields of a plan from a TorchTitan module, its command line or a TOML file.

Read are Python (`torchtitan_python.py`), flags `--SECTION.NAME VALUE` of `torchtitan.train`,
and the sections of a TOML file. With `--module` and `--config` of TorchTitan's own registry the
values of that function come first (`plans/data/software/torchtitan_configs.json`, a snapshot); what
nobody says is TorchTitan's default.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import shardwise.plans.software
from shardwise.boundary import parse_toml, read_json
from shardwise.errors import BadRequest, Gives, Lacking, shown, unknown
from shardwise.planner.export.flags import arguments_of, processes_of
from shardwise.planner.export.notes import Fields, meant, mesh_of, whole
from shardwise.planner.export.python_text import count_of
from shardwise.planner.export.torchtitan import COMPILED, WORDS, reduces
from shardwise.planner.export.torchtitan_keys import (
    POLICIES,
    flat,
    in_sequences,
    is_idle,
    nearly,
    of_today,
    quantized,
)
from shardwise.planner.export.torchtitan_python import module_values
from shardwise.plans.software.torchtitan import DTYPES, TORCHTITAN, flavors, selective
from shardwise.plans.train import STORAGE_AXES
from shardwise.scheduling.pipeline import schedule_row

TARGET = "torchtitan"
_CONFIGS = Path(shardwise.plans.software.__file__).parents[1] / "data" / "software"
_MICROBATCHES = "parallelism.pipeline_parallel_microbatches"
DEFAULTS: Mapping[str, Any] = {
    "training.local_batch_size": 8,
    "training.global_batch_size": -1,
    "training.seq_len": 2048,
    "training.dtype": "float32",
    "training.mixed_precision_param": "bfloat16",
    "training.mixed_precision_reduce": "float32",
    "parallelism.data_parallel_shard_degree": -1,
    "parallelism.fsdp_reshard_after_forward": "default",
    "parallelism.enable_sequence_parallel": True,
    "parallelism.pipeline_parallel_schedule": "1F1B",
    "parallelism.pipeline_parallel_microbatch_size": 1,
    "compile.enable": False,
    "compile.components": COMPILED,
    "activation_checkpoint": "SelectiveAC",
    "num_chunks": 1,
}
"""TorchTitan's own, of what a plan reads."""


@cache
def own_configs() -> Mapping[str, Mapping[str, Any]]:
    """What the functions of TorchTitan's registry set, by name."""
    return read_json(_CONFIGS / "torchtitan_configs.json", "TorchTitan's configs")["configs"]


def given_values(text: str) -> dict[str, Any]:
    """What a module or a command says, by dotted name; `module` and `flavor` are the model's."""
    if re.search(r"^\[[a-z_.]+\]\s*$", text, re.MULTILINE):
        return of_today(flat(parse_toml(text, f"{TARGET}: the file")))
    python = re.search(r"^\s*(def|import|from)\s", text, re.MULTILINE)
    if python or not re.search(r"(^|\s)--[a-z]", text):
        return in_sequences(module_values(text, own_configs()))
    return _flags(text)


def read(text: str, devices: int | None = None) -> Fields:
    """The fields that a text says; BadRequest where they make no plan. `devices` is how many there
    are, where a degree of -1 takes what the others leave."""
    return fields_of(given_values(text), devices or processes_of(text))


def fields_of(said_by: Mapping[str, Any], devices: int | None) -> Fields:
    """As `read`, of what a text says."""
    given = {**DEFAULTS, **said_by}
    stages = _degree(given, "pipeline_parallel_degree")
    mesh = _mesh(given, devices)
    said: Fields = {
        "software": TARGET,
        "stack": TORCHTITAN.stack,
        "mesh": mesh_of(mesh),
        "zero": 0,
        "storage_axes": list(STORAGE_AXES),
        "expert_over_tensor": mesh["tensor"] > 1 and _degree(given, "expert_parallel_degree") > 1,
        "sequence_parallel": bool(given["parallelism.enable_sequence_parallel"]),
        "weight_gather": _gather(given, stages),
        "gradient_reduce": reduces(stages),
        **_remat(given),
        "offload_optimizer": bool(given.get("training.enable_cpu_offload", False)),
        "optimizer": "adam",
        "lora_rank": 0,
        "frozen": [],
        "mtp_layers": 0,
        "attention_kernel": "flash",
        "expert_dispatch": "ragged",
        "logit_chunks": count_of(TARGET, "num_chunks", given["num_chunks"]),
    }
    if mesh["context"] > 1:
        said["context_method"] = "all_gather"
    said |= _compiled(given)
    ranks = mesh["data"] * mesh["fsdp"] * mesh["expert"]
    return said | _read_batch(given, ranks, stages) | _read_stages(given, stages)


def _compiled(given: Mapping[str, Any]) -> Fields:
    """Whether layers are compiled, and the loss where it is otherwise."""
    parts = given["compile.components"] if given["compile.enable"] else []
    model, loss = (part in parts for part in COMPILED)
    return {"compiled": model, "fused_loss": None if loss == model else loss}


def _remat(given: Mapping[str, Any]) -> Fields:
    """The policy of activation checkpointing; SelectiveAC by what it keeps."""
    policy = given["activation_checkpoint"]
    if policy == "SelectiveAC":
        return {"remat": "block", "remat_kinds": dict(selective(experts=_has_experts(given)))}
    known = {**WORDS["remat"], "": "SelectiveAC"}
    return {"remat": meant(TARGET, "activation_checkpoint", policy, known), "remat_kinds": {}}


def _has_experts(given: Mapping[str, Any]) -> bool:
    """Whether the model has experts, by the names of TorchTitan's registry."""
    of_experts = given.get("module") in ("deepseek_v3", "llama4", "gpt_oss", "moe")
    return of_experts or re.search(r"a[\d._]+b", str(given.get("flavor", "")).lower()) is not None


def read_nearly(text: str) -> list[str]:
    """What is read as the nearest that a plan can say."""
    given = {**DEFAULTS, **given_values(text)}
    return nearly(given, experts=_has_experts(given))


def not_understood(text: str) -> dict[str, Any]:
    """Keys, with their values, that are neither read nor without effect."""
    return {
        key: value
        for key, value in given_values(text).items()
        if not (key in READ or key.startswith(_READ_PARTS) or is_idle(key, value))
    }


def without_effect(given: Mapping[str, Any]) -> list[str]:
    """Keys of what is off: parts that nothing compiles, a schedule without stages."""
    found = [] if given.get("compile.enable") else ["compile.components"]
    if given.get("parallelism.pipeline_parallel_degree", 1) == 1:
        found += ["parallelism.pipeline_parallel_schedule", _MICROBATCHES]
    if given.get("activation_checkpoint") != "SelectiveAC":
        found.append("activation_checkpoint.selective_ac_option")
    return [key for key in found if key in given]


_DEGREES = tuple(
    f"parallelism.{name}_parallel_degree"
    for name in ("pipeline", "data_parallel_replicate", "context", "tensor", "expert")
)
READ = frozenset(
    (
        *(*DEFAULTS, *_DEGREES, "parallelism.data_parallel_replicate_degree"),
        *("module", "flavor", "model.converters", "training.enable_cpu_offload"),
        *("parallelism.module_fqns_per_model_part", "float8.enable_float8_linear"),
        *("parallelism.pipeline_parallel_layers_per_stage", _MICROBATCHES),
        *("activation_checkpoint.selective_ac_option", "activation_checkpoint.mode"),
    )
)
OF_ENDS = ("parallelism.pipeline_parallel_first", "parallelism.pipeline_parallel_last")
"""How keys begin that say how many layers the first stage and the last have less."""
_READ_PARTS = ("converter.", *OF_ENDS)


def _mesh(given: Mapping[str, Any], devices: int | None) -> dict[str, int]:
    names = ("pipeline", "context", "tensor", "expert")
    degrees = {name: _degree(given, f"{name}_parallel_degree") for name in names}
    replicate = _degree(given, "data_parallel_replicate_degree")
    others = degrees["pipeline"] * replicate * degrees["context"] * degrees["tensor"]
    shard = _shard(given, devices, others)
    tensor, ep = degrees["tensor"], degrees["expert"]
    spans = ep > 1 and tensor > 1
    if (spans and ep % tensor) or shard % (expert := ep // tensor if spans else ep):
        raise BadRequest(
            f"{TARGET}: expert_parallel_degree {ep} is not a multiple of tensor_parallel_degree "
            f"{tensor} within data_parallel_shard_degree {shard} x it; choose one that is"
        )
    return {
        "stage": degrees["pipeline"],
        "data": replicate,
        "fsdp": shard // expert,
        "expert": expert,
        "context": degrees["context"],
        "tensor": tensor,
    }


def _shard(given: Mapping[str, Any], devices: int | None, others: int) -> int:
    name = "parallelism.data_parallel_shard_degree"
    if given[name] != -1:
        return count_of(TARGET, name, given[name])
    if devices is None:
        raise Lacking(
            f"{TARGET}: {name} is -1, the devices that remain, and the text does not give their "
            "number",
            "give the slice with --on",
            Gives.SLICE,
        )
    return whole(TARGET, f"{name} of -1", devices / others)


def _gather(given: Mapping[str, Any], stages: int) -> str:
    """How often weights are gathered; by default once for both passes under a pipeline alone."""
    word = given["parallelism.fsdp_reshard_after_forward"]
    if word == "default":
        word = WORDS["weight_gather"]["per_microbatch" if stages > 1 else "per_pass"]
    often = meant(TARGET, "fsdp_reshard_after_forward", word, WORDS["weight_gather"])
    return "per_step" if stages > 1 and often != "per_pass" else often


def _read_batch(given: Mapping[str, Any], ranks: int, stages: int) -> Fields:
    local = count_of(TARGET, "local_batch_size", given["training.local_batch_size"])
    total = given["training.global_batch_size"]
    total = local * ranks if total == -1 else count_of(TARGET, "global_batch_size", total)
    rounds = whole(TARGET, "the number of microbatches", total / (local * ranks))
    if stages > 1:
        if rounds != 1:
            raise BadRequest(
                f"{TARGET}: global_batch_size is {rounds} times what the ranks take at once; a "
                "plan's microbatches all pass the pipeline at once, so raise local_batch_size"
            )
        name = "parallelism.pipeline_parallel_microbatch_size"
        each = count_of(TARGET, name, given[name])
        if _MICROBATCHES in given:  # how many, before there was their size
            each = local / count_of(TARGET, _MICROBATCHES, given[_MICROBATCHES])
        rounds = whole(TARGET, "the number of microbatches", local / each)
    dtypes = {
        "dtypes.param": "dtype",
        "dtypes.compute": "mixed_precision_param",
        "dtypes.grad": "mixed_precision_reduce",
        "dtypes.moments": "dtype",
    }
    said: Fields = {
        key: meant(TARGET, name, given[f"training.{name}"], DTYPES) for key, name in dtypes.items()
    }
    said["dtypes.compute"] = quantized(given) or said["dtypes.compute"]
    return said | {
        "dtypes.master": "none",
        "sequence_length": count_of(TARGET, "seq_len", given["training.seq_len"]),
        "global_batch_sequences": total,
        "microbatches": rounds,
    }


def _read_stages(given: Mapping[str, Any], stages: int) -> Fields:
    """Layers per stage from the parts' names; without stages the config does not say them."""
    if stages == 1:
        return {"virtual_stages": 1}
    name = "parallelism.module_fqns_per_model_part"
    word = given["parallelism.pipeline_parallel_schedule"]
    schedule = meant(TARGET, "pipeline_parallel_schedule", word, WORDS["pipeline_schedule"])
    parts = given.get(name)
    if parts is None:
        parts = _usual_parts(given, stages, schedule)
    if (
        not isinstance(parts, list)
        or not all(isinstance(part, list) for part in parts)
        or len(parts) % stages
    ):
        raise BadRequest(f"{TARGET}: {name} is not a list of parts, a multiple of {stages} stages")
    layers = [0] * stages
    for i, part in enumerate(parts):
        stage, _ = schedule_row(schedule).place_of(i, stages)
        layers[stage] += sum(str(module).startswith("layers.") for module in part)
    return {
        "layers_per_stage": layers,
        "virtual_stages": len(parts) // stages,
        "pipeline_schedule": schedule,
    }


def _usual_parts(given: Mapping[str, Any], stages: int, schedule: str) -> list[list[str]]:
    """The parts that TorchTitan makes itself: the embedding and the head count as a layer each
    (generate_llm_fqn_per_model_part)."""
    known = {(flavor.module, flavor.name): flavor.layers for flavor in flavors()}
    layers = known.get((str(given.get("module")), str(given.get("flavor"))))
    if layers is None:
        raise BadRequest(
            f"{TARGET}: parallelism.module_fqns_per_model_part is missing, and the layers of the "
            "model are not known; write the parts"
        )
    less = [
        int(given.get(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1))
        for end in ("first", "last")
    ]
    many = stages * (1 if schedule in ("1f1b", "gpipe") else 2)
    name = "parallelism.pipeline_parallel_layers_per_stage"
    if given.get(name) is not None:
        many = -(-(layers + sum(less)) // count_of(TARGET, name, given[name]))
    each, more = divmod(layers + sum(less), many)
    sizes = [each + (part < more) for part in range(many)]
    sizes[0] -= less[0]
    sizes[-1] -= less[1]
    return [["layers."] * size for size in sizes]


_SWITCH = {"True": True, "False": False, "true": True, "false": False}


def _flags(text: str) -> dict[str, Any]:
    """`--SECTION.NAME VALUE` and `--SECTION.NAME=VALUE`, those of a registered config first."""
    given: dict[str, Any] = {}
    flag = ""
    for word in arguments_of(TARGET, text):
        if word.startswith("--"):
            flag, equals, value = word[2:].replace("-", "_").partition("=")
            value = word.partition("=")[2]
            given[flag] = _value(value) if equals else True
        elif word.startswith(("activation-checkpoint:", "activation_checkpoint:")):
            kind = word.partition(":")[2]
            if kind not in POLICIES:
                raise unknown("activation checkpoint", kind, POLICIES)
            given["activation_checkpoint"], flag = POLICIES[kind], ""
        elif flag:
            given[flag], flag = _value(word), ""
    return in_sequences(_registered(given) | of_today(given))


def _registered(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the function of --config sets."""
    name = given.get("config")
    if name is None:
        return {}
    if name not in own_configs():
        raise unknown("--config of TorchTitan", str(name), own_configs())
    return dict(own_configs()[name])


def _value(text: str) -> Any:
    if text in _SWITCH:
        return _SWITCH[text]
    return int(text) if re.fullmatch(r"-?\d{1,13}", text) else text


def _degree(given: Mapping[str, Any], name: str) -> int:
    return count_of(TARGET, name, given.get(f"parallelism.{name}", 1))


def said_model(text: str) -> tuple[str, str] | None:
    """Module and flavor of the model that a text names."""
    given = given_values(text)
    module, flavor = given.get("module"), given.get("flavor")
    if not isinstance(module, str) or not isinstance(flavor, str):
        return None
    if not module.isidentifier():
        raise BadRequest(f"{TARGET}: the module {shown(module)} is none of TorchTitan's")
    return module, flavor
