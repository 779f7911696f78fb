"""Which program's file a text is, and which of its flags that program does not know.

The flags that each program takes are a snapshot of its own parser: `flags.json` in
`plans/data/software`, written by scripts/check_exports.py. A flag that it knows and that says
nothing of a plan is fine; one that it does not know is most often a slip of the pen, which nobody
would notice.
"""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import shardwise.plans.software
from shardwise.boundary import read_json, read_toml
from shardwise.errors import BadRequest, Remark, shown
from shardwise.planner.export import (
    jax_trainers,
    maxtext_read,
    megatron_read,
    torchtitan_read,
)
from shardwise.planner.export.effect import same_without
from shardwise.planner.export.maxtext import written
from shardwise.planner.export.megatron_hybrid import PATTERN
from shardwise.planner.export.megatron_shape import WINDOWED, vocabulary, with_sinks
from shardwise.planner.export.megatron_yaml import RECIPES, idle_keys, recipe_of
from shardwise.planner.export.notes import NOTE, heading
from shardwise.planner.export.script import launch_of, script_of
from shardwise.planner.export.torchtitan_keys import is_idle
from shardwise.planner.export.trainer import TARGETS as TRAINERS
from shardwise.planner.export.trainer import Given, given_of, notes
from shardwise.planner.export.trainer.dialects import Dialect

_FILE = Path(shardwise.plans.software.__file__).parents[1] / "data" / "software" / "flags.json"

_LAUNCHER = ("--nnodes", "--nproc-per-node", "--node-rank", "--master-addr", "--master-port")
"""Of torchrun, which stands before Megatron's own."""
_OURS = re.compile(
    r"^(?:[{]?\s*(?=\"))?\"?((kind|model_hash|slice|mesh|batch|length)\"?\s*:|"
    r"model\"?\s*:[ \t]*[^\s#])",
    re.M,
)
_OF_TRAINERS = {
    *("model_name_or_path", "base_model", "per_device_train_batch_size", "distributed_type"),
    *("fsdp_config", "deepspeed_config", "deepspeed.zero_optimization"),
    "deepspeed.train_micro_batch_size_per_gpu",
}
"""Keys without one of which a text is none of transformers' Trainer."""
_FEWEST = 2
"""Flags of a program that a text holds if it is for it."""


@cache
def known_flags() -> Mapping[str, Mapping[str, Any]]:
    """Of each program its version and date, and the `flags` that its parser takes."""
    return read_json(_FILE, "the flags of other programs")


_GIVEN: Mapping[str, Callable[[str], Mapping[str, Any]]] = {
    "maxtext": maxtext_read.own_flags,
    "megatron": lambda text: megatron_read.parsed(text).given,
    "torchtitan": torchtitan_read.given_values,
    **dict.fromkeys(TRAINERS, lambda text: dict.fromkeys(given_of(text, whole=False).sections)),
}
"""What a text of each program says, by key."""


def target_of(text: str) -> str | None:
    """The program that a text is for, by the flags of each that it holds; None for a plan of ours,
    and where it is for none."""
    if (given := _given_of(text)) is not None and given.dialect is not None:
        return str(given.values.get(_ENGINE, TRAINERS[0]))
    if _OURS.search(text) and not script_of(text):
        return None
    counts = {target: len(_given(target, text) & _known(target)) for target in _GIVEN}
    if not _given(TRAINERS[0], text) & _OF_TRAINERS:
        counts |= dict.fromkeys(TRAINERS, 0)
    best = max(counts, key=lambda target: counts[target])
    return best if counts[best] >= _FEWEST else _started(text)


def _started(text: str) -> str | None:
    """The program whose own module or script a launch line starts, with whichever flags, or whose
    modules Python imports."""
    if (found := _IMPORTED.search(text)) is not None:
        return _OF_MODULE[found[1]]
    try:
        launch = launch_of(text)
    except BadRequest:
        return None
    return next((name for name in _MODULES if launch and name in launch.words), None)


_MODULES = ("torchtitan", "maxtext")
"""Programs that are started by a module of their name."""
_OF_MODULE = {"torchtitan": "torchtitan", "megatron.bridge": "megatron"}
_IMPORTED = re.compile(r"^from (torchtitan|megatron\.bridge)\.\S+ import ", re.MULTILINE)
"""Modules of a program whose configs are Python."""


def dialect_named(text: str) -> Dialect | None:
    """The program like transformers' Trainer whose own keys a text has, if any."""
    given = _given_of(text)
    return None if given is None else given.dialect


_ENGINE = "engine_program"
"""In a row of the dialects the program of ours that reads a text instead of the Trainer."""


def _given_of(text: str) -> Given | None:
    try:
        return given_of(text, whole=False)
    except BadRequest:
        return None


def unread_notes(text: str, target: str) -> list[str]:
    """A line for each flag that the program does not know, with the nearest that it does, and for
    what was read as something near it."""
    if target not in _GIVEN:
        return []
    if target in TRAINERS:
        idle = re.compile(_keys()["trainer"]["idle"])
        known = set().union(*map(_known, TRAINERS))
        return [*notes(text, idle, known), *_left_by_script(text)]
    near = _NEAR[target](text)
    model = maxtext_read.unknown_model(text) if target == maxtext_read.TARGET else None
    other = [f"{model}; not read, because the model is given"] if model else []
    return [
        *_unknown_flags(text, target),
        *other,
        *near,
        *_left_by_script(text),
        *_not_read(text, target),
    ]


def _of_megatron(text: str) -> list[str]:
    given = megatron_read.parsed(text)
    near = megatron_read.read_nearly(given)
    named = any(flag in given for flag in RECIPES)
    if "--num-layers" not in given and (named or recipe_of(text) is not None):
        said = "the recipe that this file changes is missing"
        near = [f"{said}: what it leaves out is read as bf16_mixed and Megatron's defaults", *near]
        words = [given.given.get(flag, "") for flag in RECIPES]
        adapted = next((w for w in words if re.search(r"(?i)(^|_)(peft|lora|dora)(_|$)", w)), "")
        told = f"{adapted} trains adapters: read as training all parameters"
        return [told, *near] if adapted else near
    try:
        if "--num-layers" not in given or vocabulary(given) is not None:
            return near
    except BadRequest:
        pass
    kind = given.given.get("--tokenizer-type", "")
    known = f"--tokenizer-type {kind} does not fix the vocabulary" if kind else "no --vocab-size"
    return [f"{known}: it is read as the model's", *near]


_NEAR: Mapping[str, Callable[[str], list[str]]] = {
    "maxtext": maxtext_read.read_nearly,
    "megatron": _of_megatron,
    "torchtitan": torchtitan_read.read_nearly,
}
"""What each program's text says otherwise than a plan can, as it is read."""


def _not_read(text: str, target: str) -> list[str]:
    """Known keys that say something and are not read, each with its value; and those without effect
    on a plan, as one remark."""
    given, known = values_in(text, target), _known(target)
    if target == torchtitan_read.TARGET:
        other = torchtitan_read.not_understood(text)
        known = known | {k for k in given if k.partition(".")[0] not in _sections(known)}
        idle = [key for key, value in given.items() if is_idle(key, value)]
        idle += torchtitan_read.without_effect(given)
        read = [*torchtitan_read.READ - {"module", "flavor"}]
    else:
        row = _keys()[target]
        read, usual = row["read"].split(), row["usual"]
        idle = [k for k in given if re.match(row["idle"], k) and k not in (*read, *usual)]
        idle += [k for k, value in given.items() if str(value) in usual.get(k, ())]
        if target == megatron_read.TARGET:
            idle += idle_keys(text)
            idle += [k for k in given if k not in known and re.match(row["former"], k)]
            idle += [k for k in _OF_HYBRIDS if k in given] if PATTERN in given else []
            read = read if with_sinks(megatron_read.parsed(text)) else [*{*read} - {*WINDOWED}]
        if target == maxtext_read.TARGET:
            if jax_trainers.flags_of(text) is not None:
                idle += [k for k in given if jax_trainers.IDLE.match(k)]
            dropless = given.get("sparse_matmul", "true") == "true" and "capacity_factor" in given
            idle += ["capacity_factor"] if dropless else []
            model = maxtext_read.own_models().get(str(given.get("model_name")), {})
            idle += [k for k, value in given.items() if k in model and written(model[k]) == value]
        degrees = re.compile(r"(ici|dcn)_\w+_parallelism")
        read += [*maxtext_read.DEGREES, "--nproc-per-node", "--nnodes"]
        idle += [k for k, value in given.items() if degrees.fullmatch(k) and value == "1"]
        done = {*read, *idle, jax_trainers.BATCH, jax_trainers.HUB}
        other = {k: value for k, value in given.items() if k not in done}
    said = [
        f"{key}{'' if value == '' else f' = {shown(value)}'} is unknown and was not read"
        for key, value in other.items()
        if key in known
    ]
    if heading("training", target)[0] in text:  # where each key is one of ours
        return said
    same = {*same_without(text, target, read)} - {*idle}
    about = {"no effect on the plan": {*idle}, "it does not change the plan": same}
    return [*said, *(Remark(f"{k}: {', '.join(sorted(v))}") for k, v in about.items() if v)]


_OF_HYBRIDS = ("--spec", "--is-hybrid-model", "--squared-relu")
"""What Megatron's arguments say beside a pattern of layers, which says it, too."""


@cache
def _keys() -> Mapping[str, Any]:
    """What the readers make of each program's keys."""
    return read_toml(_FILE.with_name("keys.toml"), "the keys of other programs")


def values_in(text: str, target: str) -> Mapping[str, Any]:
    """What a text says by key, if it can be read as one of the program's; nothing of a target that
    is none of these."""
    try:
        return _GIVEN[target](text) if target in _GIVEN else {}
    except BadRequest:
        return {}


def _left_by_script(text: str) -> list[str]:
    """What a script leaves to its caller, and that it starts more than is read."""
    if recipe_of(text) is not None:
        return []  # no script
    try:
        launch = launch_of(text)
    except BadRequest:
        return []
    if launch is None:
        return []
    names = ", ".join(f"${name}" for name in sorted({*launch.unset} - _OF_SHELL))
    empty = [f"the script takes {names} from its caller: read as empty"] if names else []
    flags = [name for name in _OF_XLA if name in launch.environment and NOTE not in text]
    empty += [f"{name} was not read; XLA is priced with default flags" for name in flags]
    if not launch.others:
        return empty
    many = f"{launch.others} more program{'s' if launch.others > 1 else ''}"
    return [*empty, f"the script starts {many}; read is {launch.program or 'the longest'}"]


_OF_XLA = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Variables with options of the compiler."""
_OF_SHELL = {"PWD", "HOME", "USER", "HOSTNAME"}
"""Variables that every shell has: of a folder's name, most often."""


_OF_LAUNCHES = re.compile(
    r"--(model-family|account|partition|time-limit|container|custom-|log-dir|hf-token|nemo-home|wandb"
    r"|dryrun|enable-(vboost|nsys)|lock-gpu|peak-mem|pytorch-prof|record-mem|gpus-per-node|task|data$)"
)
"""Flags of Megatron-Bridge's scripts/performance about where and how a job is started."""


def _unknown_flags(text: str, target: str) -> list[str]:
    known, said = _known(target), []
    values = values_in(text, target)
    if target == maxtext_read.TARGET and jax_trainers.flags_of(text) is not None:
        known = known | {jax_trainers.BATCH, jax_trainers.HUB}
        known |= {name for name in values if jax_trainers.IDLE.match(name)}
    for name in sorted(_given(target, text) - known):
        if target == torchtitan_read.TARGET and is_idle(name, values[name]):
            continue
        if target == megatron_read.TARGET and name in (*RECIPES, megatron_read.GPU):
            continue  # which is read
        if target == megatron_read.TARGET and re.match(_keys()[target]["former"], name):
            continue
        if RECIPES[1] in values and _OF_LAUNCHES.match(name):
            continue
        if target == "torchtitan" and name.partition(".")[0] not in _sections(known):
            continue  # a model's or the data's own, of which there is no list
        near = get_close_matches(name, known, n=1, cutoff=0.7)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        version = known_flags()[target]["version"]
        said.append(f"{target} {version} has no {shown(name)}, so it was not read{hint}")
    return said


def _given(target: str, text: str) -> set[str]:
    """The flags of a text, if it can be read as one of the program's."""
    return set(values_in(text, target)) - set(_LAUNCHER)


def _known(target: str) -> set[str]:
    return set(known_flags()[target]["flags"])


def _sections(flags: set[str]) -> set[str]:
    return {flag.partition(".")[0] for flag in flags}
