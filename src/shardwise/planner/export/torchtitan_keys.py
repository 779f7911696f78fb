"""Keys of TorchTitan's configs, of today and of before: what each is called now, what says nothing
of a plan, and what converters and activation checkpointing come to.

Names of before are those of TorchTitan's job configs until February 2026, when its TOML files
became Python (pytorch/torchtitan#2386).
"""

from collections.abc import Mapping
from typing import Any

from shardwise.errors import BadRequest, shown, unknown
from shardwise.planner.export.notes import whole
from shardwise.planner.export.python_text import count_of
from shardwise.planner.export.torchtitan import NARROW, NO_POLICY

TARGET = "torchtitan"
RENAMED: Mapping[str, str] = {
    "training.batch_size": "training.local_batch_size",
    "training.compile": "compile.enable",
    "training.fsdp_reshard_after_forward": "parallelism.fsdp_reshard_after_forward",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_shard_degree": "parallelism.data_parallel_shard_degree",
    "training.data_parallel_replicate_degree": "parallelism.data_parallel_replicate_degree",
    "training.tensor_parallel_degree": "parallelism.tensor_parallel_degree",
    "training.mixed_precision_params": "training.mixed_precision_param",
    **{
        f"experimental.{name}": f"parallelism.{name}"
        for name in (
            *("pipeline_parallel_degree", "pipeline_parallel_schedule", "context_parallel_degree"),
            *("pipeline_parallel_microbatches", "context_parallel_rotate_method"),
            "pipeline_parallel_split_points",
        )
    },
    "training.enable_float8_linear": "float8.enable_float8_linear",
    "experimental.enable_async_tensor_parallel": "compile.enable_async_tensor_parallel",
    "parallelism.enable_async_tensor_parallel": "compile.enable_async_tensor_parallel",
    "model.name": "module",
    "model.flavor": "flavor",
}
"""Keys of before by those of today."""

_IDLE_SECTIONS = (
    *("job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "memory_estimation"),
    *("fault_tolerance", "experimental", "validation", "debug", "dataloader", "tokenizer"),
    *("profiler", "dump_folder", "hf_assets_path", "config", "checkpointer", "loss"),
    *("validator", "lr_scheduler"),
)
_IDLE = frozenset(
    (
        *("optimizer.lr", "optimizer.eps", "optimizer.beta1", "optimizer.beta2"),
        *("optimizer.weight_decay", "optimizer.implementation", "optimizer.fused"),
        *("model.hf_assets_path", "model.tokenizer_path", "model.print_after_conversion"),
        *("training.dataset", "training.dataset_path", "training.max_norm", "training.steps"),
        *("training.gc_freq", "training.gc_debug", "training.warmup_steps", "training.seed"),
        *("training.disable_cuda_graphs", "model.norm_type"),
        *("activation_checkpoint.preserve_rng_state", "activation_checkpoint.determinism_check"),
        *("activation_checkpoint.debug", "activation_checkpoint.early_stop"),
    )
)
"""Keys that change neither the time of a step nor its memory."""
_MATTERS = ("debug.moe_force_load_balance", "fault_tolerance.enable", "job.config_file")
"""Of the sections that else say nothing of a plan, keys that do."""


_USUAL: Mapping[str, tuple[Any, ...]] = {
    "optimizer.name": ("AdamW", "Adam"),
    "optimizer.early_step_in_backward": (False,),
    "compile.backend": ("inductor",),
    "compile.enable_async_tensor_parallel": (False,),
    "debug.moe_force_load_balance": (False,),
    "fault_tolerance.enable": (False,),
    "parallelism.disable_loss_parallel": (False,),
    "parallelism.context_parallel_load_balancer": ("headtail",),
    "parallelism.context_parallel_rotate_method": ("allgather",),
    "parallelism.expert_tensor_parallel_degree": (1,),
    "parallelism.expert_parallel_comm_backend": ("standard",),
    "parallelism.enable_compiled_autograd": (False,),
    "parallelism.pipeline_parallel_split_points": ([],),
    "parallelism.pipeline_parallel_schedule_csv": ("",),
    "parallelism.spmd_backend": ("spmd_types", "partial_dtensor"),
}
"""Keys that a plan says in one way alone, and that way."""


def is_idle(key: str, value: Any) -> bool:
    """Whether a key has no effect on a plan, or says what every plan does."""
    section = key.partition(".")[0]
    quantizer = section in ("float8", "quantize", "mx") and "all_gather" not in key
    matters = key in _MATTERS or key in RENAMED
    idle = key in _IDLE or (section in _IDLE_SECTIONS and not matters) or quantizer
    if key.endswith("enable_fsdp_float8_all_gather") and value is False:
        return True
    return idle or value in _USUAL.get(key, ())


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a TOML file by dotted name."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _name_of(key: str, given: Mapping[str, Any]) -> str:
    """The name of today; a key of before stays what it is, and unknown, where today's is given
    beside it with another value."""
    name = RENAMED.get(key, key)
    return key if given.get(name, given[key]) != given[key] else name


def of_today(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values under the keys of today; activation checkpointing and converters as TorchTitan's
    Python calls them."""
    found = {_name_of(key, given): value for key, value in given.items()}
    if isinstance(file := found.get("job.config_file"), str):
        raise BadRequest(
            f"{TARGET}: job.config_file is {shown(file)}, which has the values; give that file"
        )
    if (mode := found.get("activation_checkpoint.mode")) is not None:
        found["activation_checkpoint"] = _policy(str(mode), found)
    named = found.get("model.converters", ())
    names = named.split(",") if isinstance(named, str) else list(named)
    for name in filter(None, names):
        found |= _converter(str(name).strip(), found)
    if found.pop("training.fp8_linear", ""):  # of 2024
        found |= _converter("float8", found)
    if found.get("float8.enable_float8_linear"):  # before there were converters
        found |= _converter("float8", found)
    return found


def in_sequences(given: Mapping[str, Any]) -> dict[str, Any]:
    """The batch in sequences, which TorchTitan's Python counts in tokens since July 2026
    (TrainingConfig of torchtitan/config/configs.py); of a pipeline the rank's own is that of all
    its microbatches."""
    found = dict(given)
    if (length := found.pop(_LENGTH, None)) is not None:
        found["training.seq_len"] = length
    length = count_of(TARGET, _LENGTH, found.get("training.seq_len", 2048))
    for key, tokens in _IN_TOKENS.items():
        if (many := found.pop(tokens, None)) is not None:
            found[key] = (
                many if many == -1 else whole(TARGET, f"{tokens} over {_LENGTH}", many / length)
            )
    rounds = found.pop("parallelism.num_pp_microbatches", 1)
    if found.get("parallelism.pipeline_parallel_degree", 1) != 1 and _IN_TOKENS[_LOCAL] in given:
        found["parallelism.pipeline_parallel_microbatch_size"] = found[_LOCAL]
        found[_LOCAL] *= count_of(TARGET, "parallelism.num_pp_microbatches", rounds)
    return found


_LENGTH = "training.max_context_length"
_LOCAL = "training.local_batch_size"
_IN_TOKENS = {
    _LOCAL: "training.num_tokens_per_microbatch_per_dp_rank",
    "training.global_batch_size": "training.num_tokens_per_train_step",
}


POLICIES = {"selective": "SelectiveAC", "full": "FullAC", "none": NO_POLICY}


def _policy(mode: str, found: Mapping[str, Any]) -> str:
    if mode not in POLICIES:
        raise unknown("activation_checkpoint.mode", mode, POLICIES)
    every = str(found.get("activation_checkpoint.selective_ac_option", "op"))
    return "FullAC" if (mode, every) == ("selective", "1") else POLICIES[mode]


def _converter(name: str, found: Mapping[str, Any]) -> dict[str, bool]:
    """A converter of before as the class of today."""
    kinds = {"float8": "Float8", "mx": "MXFP8", "nvfp4": "NVFP4"}
    kind = kinds.get(name.rpartition(".")[2])
    if kind is None:
        raise unknown("converter of TorchTitan", name, ("float8", "quantize.linear.float8", "mx"))
    recipe = str(found.get(f"{name}.recipe_name", ""))
    if kind == "MXFP8" and recipe and not recipe.startswith("mxfp8"):
        raise BadRequest(f"{TARGET}: {name}.recipe_name is {shown(recipe)}; use mxfp8")
    part = "GroupedExperts" if "grouped_mm" in name else "Linear"
    return {f"converter.{kind}{part}Converter": True}


def quantized(given: Mapping[str, Any]) -> str | None:
    """The dtype that linear layers are converted to, None for none."""
    return next((d for d, k in NARROW.items() if f"converter.{k}LinearConverter" in given), None)


def nearly(given: Mapping[str, Any], *, experts: bool) -> list[str]:
    """What is read as the nearest that a plan can say."""
    said = []
    every = str(given.get("activation_checkpoint.selective_ac_option", "op"))
    if given.get("activation_checkpoint") == "SelectiveAC" and every != "op":
        said.append(
            f"activation_checkpoint.selective_ac_option {every} recomputes one layer in {every}; "
            "read as op, the nearest"
        )
    dtype = quantized(given)
    if dtype and experts and f"converter.{NARROW[dtype]}GroupedExpertsConverter" not in given:
        said.append(
            f"experts stay in bf16 where linear layers are {dtype}; read as {dtype} for all"
        )
    sections = {key.rpartition(".")[0] for key in given if key.startswith(("float8.", "quantize."))}
    if sections and dtype is None:
        names = ", ".join(f"[{name}]" for name in sorted(sections))
        have = "has" if len(sections) == 1 else "have"
        said.append(f"{names} {have} no effect without [model] converters")
    return said
