"""What of a text nobody read, and what was read as something near it."""

import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches

from shardwise.errors import BadRequest, Remark, shown
from shardwise.planner.export.trainer.given import MODEL, Given, given_of, model_named
from shardwise.planner.export.trainer.read import EACH, LENGTH, fields_of, is_open

_COUNTS = (None, *(times << n for n in range(14) for times in (1, 3)))
"""Devices for which a text is tried where only its keys are asked for: as many as it says itself,
else as machines come."""


def notes(text: str, idle: re.Pattern[str], known: Collection[str]) -> list[str]:
    """A line for each key that says something and was not read, with the nearest of the `known`
    where it is none; what is read as the nearest that a plan can say; and the keys without effect
    on a plan as one remark."""
    try:
        given = given_of(text, whole=False)
    except BadRequest:
        return []
    _read(given)
    near = list(_nearly(given))
    left = {given.called(k): value for k, value in given.values.items() if k not in given.read}
    other = {k: v for k, v in left.items() if not (_idle(k, given, idle) or _says_nothing(v))}
    said = [
        f"{key} = {shown(value)} is unknown and was not read{_hint(key, known)}"
        for key, value in other.items()
    ]
    without = ", ".join(sorted((set(left) | given.silent) - set(other)))
    remarks = [Remark(f"no effect on the plan: {without}")] if without else []
    return [*said, *near, *remarks]


def _idle(key: str, given: Given, idle: re.Pattern[str]) -> bool:
    return idle.match(key) is not None or given.row.is_idle(key)


def _hint(key: str, known: Collection[str]) -> str:
    near = [] if key in known else get_close_matches(key, known, n=1, cutoff=0.8)
    return f"; did you mean '{near[0]}'?" if near else ""


def _read(given: Given) -> None:
    """Take every key that a plan is made of; the devices are as many as make it one, if any do."""
    for devices in _COUNTS:
        try:
            fields_of(given, devices)
        except BadRequest:
            continue
        return


def _says_nothing(value: object) -> bool:
    """A switch that is off, an empty list: what is not there."""
    return value is False or value in ("none", "no", "auto") or value == [] or value == {}


def _nearly(given: Given) -> Iterator[str]:
    """What is read as the nearest that a plan can say."""
    packed = [key for key in ("packing", "sample_packing") if given.on(key)]
    lacks = [keys[0] for keys in (LENGTH, EACH) if not any(key in given for key in keys)]
    if given.row.open_length and LENGTH[0] in lacks:
        lacks.remove(LENGTH[0])
        key = next(
            own for own, name in [*given.row.names.items(), LENGTH[:1] * 2] if name == LENGTH[0]
        )
        yield (
            f"no key gives the sequence length, and {given.row.title} takes it from the data: "
            f"read as {given.defaults[LENGTH[0]]:,} tokens; give {key}"
        )
    name = str(given.take(*MODEL, default=""))
    if name and model_named(name) is None:
        key = next(key for key in MODEL if key in given)
        yield f"{given.called(key)} = {shown(name)} is not a known model; read with the given model"
    if (
        given.values.get("bf16") is False
        and given.called("bf16") == "bf16"
        and not given.on("fp16")
    ):
        yield "bf16 = False: matmuls run in the dtype of the loaded model"
    if is_open(given):
        yield "bf16.enabled is auto, and no key gives the dtype: read as bf16"
    adapted = any(given.on(key) for key in ("use_peft", "use_lora") if key in given)
    if adapted and "lora_target_modules" not in given:
        lacks.append("lora_target_modules")
    if lacks:
        yield f"not in the text, so read as the program's defaults: {', '.join(lacks)}"
    if packed:
        yield (
            f"{given.called(packed[0])}: the text does not give document lengths, so a sequence "
            "is read as one document (packed_lengths of a plan sets them)"
        )
    elif not given.on("pad_to_sequence_len"):
        yield "without packing, a batch has the length of its longest text: read as max_length"
    if given.on("fsdp_config.fsdp_offload_params", "fsdp_config.offload_params"):
        yield "fsdp_offload_params moves parameters and gradients too; read as offload_optimizer"
