"""A YAML recipe of Megatron-LM, Megatron-Bridge or NeMo as Megatron's arguments.

Most keys are arguments with underscores, in sections whose names say nothing (`model`, `train`,
`model_parallel`); the table has those that are called otherwise (megatron/core configs, and
megatron/bridge/training/config.py). What is null or false is left out. Megatron-LM's own tests have
the arguments as they are, under `MODEL_ARGS`, or with NeMo's dotted names.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.boundary import parse_yaml
from shardwise.errors import BadRequest
from shardwise.planner.export import nanotron, neox
from shardwise.planner.export.interpolation import interpolated
from shardwise.planner.export.nanotron import arguments_of_nanotron, is_nanotron
from shardwise.planner.export.nemo_python import keys_of
from shardwise.planner.export.neox import arguments_of_neox, is_neox
from shardwise.planner.export.script import script_of
from shardwise.planner.export.torchtitan_keys import flat

_OTHERWISE: Mapping[str, str] = {
    "num_moe_experts": "--num-experts",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "gated_linear_unit": "--swiglu",
    "num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
    "account_for_embedding_in_pipeline_split": "--account-for-embedding-in-pipeline-split",
    "sequence_length": "--seq-length",
    "encoder_seq_length": "--seq-length",
    "tp_comm_overlap": "--tp-comm-overlap",
    "ub_tp_comm_overlap": "--tp-comm-overlap",
    "num_nodes": "--nnodes",
    "devices": "--nproc-per-node",
    "data_parallel_sharding_strategy": "--data-parallel-sharding-strategy",
    "optimizer_cpu_offload": "--optimizer-cpu-offload",
    "cpu_offload": "--optimizer-cpu-offload",
    "max_lr": "--lr",
    "activations_checkpoint_granularity": "--recompute-granularity",
    "activations_checkpoint_method": "--recompute-method",
    "activations_checkpoint_num_layers": "--recompute-num-layers",
    "rotary_percentage": "--rotary-percent",
}
"""Keys that are called otherwise than the argument."""
_FALSE: Mapping[str, str] = {
    "add_bias_linear": "--disable-bias-linear",
    "bias": "--disable-bias-linear",
    "share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
    "gradient_accumulation_fusion": "--no-gradient-accumulation-fusion",
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "grad_reduce_in_fp32": "--grad-reduce-in-bf16",
}
"""Keys whose false is an argument."""
_IDLE_SECTIONS = (
    *("scheduler", "logger", "checkpoint", "tokenizer", "rng", "profiling", "exp_manager", "run"),
    *(
        "ENV_VARS",
        "validation",
        "straggler",
        "nvrx_straggler",
        "inprocess_restart",
        "fault_tolerance",
        "name",
    ),
)
_IDLE_KEYS = re.compile(
    r"accelerator|accumulate_grad_batches|betas|data_impl|gradient_clip_val|layernorm_epsilon"
    r"|(limit|val)_\w+|log_every_n_steps|max_(epochs|steps)|mcore_gpt|splits_string|warmup_steps"
    r"|persist_layer_norm|transformer_engine|exp_name|benchmark|enable_\w+|native_amp_\w+"
)
"""Keys of NeMo's recipes that say nothing of a plan, in any section."""
_OPTIMIZERS: Mapping[str, Mapping[str, str]] = {
    "fused_adam": {"--optimizer": "adam"},
    "distributed_fused_adam": {"--optimizer": "adam", "--use-distributed-optimizer": ""},
    "mcore_distributed_optim": {"--optimizer": "adam", "--use-distributed-optimizer": ""},
}
"""NeMo's names of optimizers (nemo/core/optim/optimizers.py)."""


def recipe_of(text: str) -> dict[str, str] | None:
    """The arguments of a recipe by name, "" for a switch; None for a text that is not YAML of keys.
    A key of a section that has no argument keeps its name with hyphens, to be told as unknown.
    Python that changes a recipe is one, too."""
    if (keys := keys_of(text, "megatron")) is not None:
        return _of_keys({"train": keys})
    if not re.search(r"^([A-Za-z_]+:(\s|$)|[{]$)", text, re.MULTILINE) or script_of(text):
        return None
    try:
        table = parse_yaml(text, "megatron: the recipe")
    except BadRequest:
        return None
    if not isinstance(table, Mapping):
        return None
    table = interpolated(table)
    if is_nanotron(table):
        return arguments_of_nanotron(table)
    if is_neox(table):
        return arguments_of_neox(table)
    return _of_keys(table)


def _of_keys(table: Mapping[Any, Any]) -> dict[str, str]:
    """The arguments that a recipe's keys say."""
    found: dict[str, str] = {}
    arguments = table.get("MODEL_ARGS")
    for section, value in (arguments if isinstance(arguments, Mapping) else table).items():
        if section in _IDLE_SECTIONS or str(section).startswith("_"):
            continue
        for key, inner in _leaves(value, str(section)):
            if _IDLE_KEYS.fullmatch(key) is None:
                _add(found, key, inner)
    if "train" in table and not any(flag in found for flag in ("--bf16", "--fp16")):
        found["--bf16"] = ""  # Megatron-Bridge's recipes: bf16_mixed
    if "--num-query-groups" in found:
        found["--group-query-attention"] = ""
    return found


def overrides_of(words: Sequence[str]) -> dict[str, str]:
    """The arguments that words like `model.tensor_model_parallel_size=2` say, as Hydra takes them
    for a recipe of Megatron-Bridge or NeMo.

    >>> overrides_of(["train.micro_batch_size=2", "logger.log_interval=1", "model.bias=False"])
    {'--micro-batch-size': '2', '--disable-bias-linear': '', '--bf16': ''}
    """
    found: dict[str, str] = {}
    for word in words:
        if (said := _OVERRIDE.fullmatch(word)) is None:
            continue
        sections, key = said[1].split("."), said[2]
        if flag := _OF_VERL.get(f"{said[1]}.{key}"):
            found[flag] = said[3]
            continue
        if {*sections} & {*_IDLE_SECTIONS} or (sections == ["dataset"] and key not in _OF_DATA):
            continue
        _add(found, key, _plain(said[3]))
    if found and not any(flag in found for flag in ("--bf16", "--fp16")):
        found["--bf16"] = ""  # as in recipe_of
    return found


def in_full(words: Sequence[str]) -> list[str]:
    """The words of Megatron-Bridge's scripts/performance, of which flags may be short; of any other
    program as they are.

    >>> in_full(["-mr", "llama3_8b", "-g", "h100"]), in_full(["-g", "1"])
    (['--model_recipe_name', 'llama3_8b', '--gpu', 'h100'], ['-g', '1'])
    """
    own = any(word in ("-mr", "--model_recipe_name") for word in words)
    return [_SHORT.get(word, word) for word in words] if own else [*words]


_SHORT: Mapping[str, str] = {
    "-m": "--model_family_name",
    "-mr": "--model_recipe_name",
    "-ng": "--num_gpus",
    "-gn": "--gpus_per_node",
    "-g": "--gpu",
    "-c": "--compute_dtype",
    "-ms": "--train_iters",
    "-gb": "--global_batch_size",
    "-mb": "--micro_batch_size",
    "-sl": "--seq_length",
    "-tp": "--tensor_model_parallel_size",
    "-pp": "--pipeline_model_parallel_size",
    "-ep": "--expert_model_parallel_size",
    "-cp": "--context_parallel_size",
    "-et": "--expert_tensor_parallel_size",
    "-vp": "--virtual_pipeline_model_parallel_size",
    "-rl": "--recompute_num_layers",
}
"""Its argument_parser.py, August 2026."""


def around(given: Mapping[str, str]) -> dict[str, str]:
    """The arguments of programs that start Megatron by a recipe's name, whose own flags are called
    otherwise (scripts/performance of Megatron-Bridge)."""
    found = {flag: "" if v == "true" else v for flag, v in given.items() if v != "false"}
    if kind := found.pop("--compute-dtype", ""):
        found |= _precision(_COMPUTED.get(kind, kind))
    if "--max-length" in found:  # of ms-swift
        found.setdefault("--seq-length", found.pop("--max-length"))
        usual = dict.fromkeys(("--use-distributed-optimizer", "--bf16"), "")
        found |= {flag: word for flag, word in usual.items() if given.get(flag) != "false"}
    if (_VIRTUAL in found) and (chunks := found.pop(_VIRTUAL)) not in ("", "None"):
        found["--num-virtual-stages-per-pipeline-rank"] = chunks
    total, each = found.pop("--num-gpus", ""), found.pop("--gpus-per-node", "")
    if total and "--nproc-per-node" not in found:
        found["--nproc-per-node"] = total
    elif each and "--nproc-per-node" not in found:
        found["--nproc-per-node"] = each
    if "," in found.get(_SCOPE, ""):
        found[_SCOPE] = found[_SCOPE].replace(",", " ")
    return found


_VIRTUAL = "--virtual-pipeline-model-parallel-size"
_SCOPE = "--cuda-graph-scope"
_COMPUTED = {
    "fp8_cs": "bf16_with_fp8_current_scaling_mixed",
    "fp8_mx": "bf16_with_mxfp8_mixed",
    "fp8_sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "fp8_ds": "bf16_with_fp8_delayed_scaling_mixed",
}
"""Words of `--compute_dtype` as the recipes write them."""
RECIPES = ("--recipe", "--model-recipe-name", "--model", "--hf-model-id", "--hf-path", "--load")
"""Flags that name a recipe or the model on Hugging Face, the last by the checkpoint's folder."""


def is_override(word: str) -> bool:
    """Whether a word is one of these."""
    return _OVERRIDE.fullmatch(word) is not None


_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)\.(\w+)=(.*)", re.DOTALL)
_OF_DATA = ("seq_length", "sequence_length")
_OF_VERL: Mapping[str, str] = {
    "data.train_batch_size": "--global-batch-size",
    "data.micro_batch_size_per_gpu": "--micro-batch-size",
    "data.max_length": "--seq-length",
    "model.path": "--hf-path",
}
"""Keys of verl, whose engine may be Megatron (verl/trainer/config/sft_trainer_engine.yaml)."""


OVERRIDDEN: Mapping[str, str] = {
    "tp_comm_overlap": "comm_overlap",
    **dict.fromkeys(("optimizer_cpu_offload", "optimizer"), "optimizer"),
    **dict.fromkeys(("micro_batch_size", "global_batch_size"), "train"),
    **dict.fromkeys(
        ("use_distributed_optimizer", "overlap_grad_reduce", "use_megatron_fsdp"), "ddp"
    ),
    **dict.fromkeys(("grad_reduce_in_fp32", "data_parallel_sharding_strategy"), "ddp"),
}
"""Sections of Megatron-Bridge's config by key, where it is not `model` (its training/config.py)."""


def _plain(text: str) -> Any:
    """A switch or a list as YAML has it, else the text."""
    words = {"true": True, "false": False, "null": None, "none": None}
    listed = [word.strip(" '\"") for word in text[1:-1].split(",")]
    return listed if text[:1] == "[" else words.get(text.lower(), text)


def idle_keys(text: str) -> list[str]:
    """Keys of a recipe's sections that say nothing of a plan, by dotted name."""
    if recipe_of(text) is None or keys_of(text, "megatron") is not None:
        return []
    table = parse_yaml(text, "megatron: the recipe")
    dotted = flat(table)
    for owns, idle in ((is_neox, neox.is_idle), (is_nanotron, nanotron.is_idle)):
        if owns(table):
            return [key for key in dotted if idle(key)]
    said = {key: key.split(".") for key in dotted}
    return [
        key
        for key, names in said.items()
        if {*names} & {*_IDLE_SECTIONS} or _IDLE_KEYS.fullmatch(names[-1]) or names[-1][0] == "_"
    ]


def _leaves(value: Any, name: str) -> list[tuple[str, Any]]:
    if name in _IDLE_SECTIONS:
        return []
    if not isinstance(value, Mapping):
        return [(name.rpartition(".")[2], value)]
    if name == "optim" and "name" in value:
        value = {"optimizer_type": value["name"], **{k: v for k, v in value.items() if k != "name"}}
    return [leaf for key, inner in value.items() for leaf in _leaves(inner, str(key))]


def _add(found: dict[str, str], key: str, value: Any) -> None:
    if key.startswith("--"):  # arguments as they are
        if value is not False and value is not None:
            found[key] = "" if value is True else str(value)
    elif key in _FALSE:
        if value is False:
            found[_FALSE[key]] = ""
    elif key in ("mixed_precision", "precision", "precision_config"):
        found |= _precision(str(value))
    elif key in ("activation_func", "activation") and value in ("swiglu", "fast-swiglu", "silu"):
        found["--swiglu"] = ""
    elif key == "pipeline_model_parallel_layout" and isinstance(value, list):
        found["--pipeline-model-parallel-layout"] = "|".join(map(_chunk, value))
    elif key == "optimizer_type":
        found |= _OPTIMIZERS.get(str(value), {"--optimizer": str(value)})
    elif value is None or value is False or key.startswith("_"):
        return
    else:
        named = key if key.startswith("-") else f"--{key.replace('_', '-')}"
        flag = _OTHERWISE.get(key, named)
        words = value if isinstance(value, list) else [value]
        text = "" if value is True else " ".join(map(str, words))
        if flag == "--seq-length" and found.get(flag, text) != text:
            raise BadRequest(f"megatron: {key} is {found[flag]} and {text}; make them equal")
        found[flag] = text


def _chunk(parts: Any) -> str:
    """The layers of a chunk as the argument writes them: Et*3, t*2L."""
    words = {"embedding": "E", "decoder": "t", "loss": "L", "mtp": "m"}
    listed = parts if isinstance(parts, list) else [parts]
    return "".join(words.get(str(part), str(part)) for part in listed)


def _precision(text: str) -> dict[str, str]:
    """`bf16_mixed`, `bf16_with_mxfp8_mixed`, `bf16-mixed`, `16-mixed` and their like."""
    kind = {"--bf16": ""} if "bf16" in text else {"--fp16": ""} if "16" in text else {}
    recipes = {"mxfp8": "mxfp8", "current_scaling": "tensorwise", "subchannel": "blockwise"}
    if "fp8" not in text:
        return kind
    recipe = next((name for part, name in recipes.items() if part in text), "delayed")
    return {**kind, "--fp8-format": "hybrid", "--fp8-recipe": recipe}


def recipe_keys(flag: str, value: str | None) -> list[tuple[str, str]]:
    """The keys that say an argument in a recipe, each with the word for its value, which is "" for
    a switch and None for one that is not given.

    >>> recipe_keys("--no-overlap-p2p-communication", ""), recipe_keys("--num-experts", "8")
    ([('overlap_p2p_comm', 'false')], [('num_moe_experts', '8'), ('num_experts', '8')])
    """
    negated = [key for key, other in _FALSE.items() if other == flag]
    if negated:
        return [(key, "true" if value is None else "false") for key in negated]
    named = [key for key, other in _OTHERWISE.items() if other == flag]
    plain = flag.removeprefix("--").replace("-", "_")
    word = "false" if value is None else value or "true"
    many = f"[{', '.join(word.split())}]" if " " in word else word
    return [(key, many) for key in dict.fromkeys([*named, plain])]
