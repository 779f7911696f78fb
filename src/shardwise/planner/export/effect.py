"""Which keys of another program's file say something where they stand: each is left out in turn,
and what is read of the others is compared. No list can be behind what is read.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from shardwise.errors import BadRequest
from shardwise.planner.export import maxtext_read, megatron_read, torchtitan_read
from shardwise.planner.export.flags import Flags
from shardwise.planner.export.jax_trainers import flags_of
from shardwise.planner.export.megatron_former import FORMER
from shardwise.planner.export.megatron_shape import UNBUILT, WINDOWED
from shardwise.planner.export.which_model import MAXTEXT_SHAPE, megatron_named

_COUNTS = (None, *(times << n for n in range(14) for times in (1, 3)))
"""Devices for which a text is read where only its keys are asked for: as many as it says itself,
else as machines come."""
_KEPT = frozenset(("--nnodes", "--nproc-per-node", *UNBUILT, *WINDOWED))
"""The launcher's words, and arguments of models that the others do not describe."""
Read = Callable[[Collection[str], int | None], Any]
"""What a text says of a plan without some keys, on so many devices."""


def same_without(text: str, target: str, among: Collection[str]) -> list[str]:
    """Of the keys `among`, and Megatron's former spellings, those without which a text says the
    same plan of the same model; none where it says no plan.

    >>> plain = "--num-layers 2 --seq-length 8 --micro-batch-size 1 --nproc-per-node 1 "
    >>> same_without(plain + "--bf16 --use-flash-attn", "megatron", ["--seq-length"])
    ['--use-flash-attn']
    """
    with suppress(BadRequest):
        return list(_unneeded(*_READERS[target](text, among)))
    return []


def _unneeded(keys: Iterable[str], fields: Read, model: Read) -> Iterator[str]:
    """Keys that may be left out together: the model is asked for where the fields stay as they are,
    as it is found among all that are known."""
    counts = (n for n in _COUNTS if _tried(fields, (), n) is not None)
    devices, out = next(counts, 0), frozenset[str]()
    whole, named = _tried(fields, (), devices), _tried(model, (), devices)
    for key in keys if devices != 0 else ():
        less = out | {key}
        same = _tried(fields, less, devices) == whole
        if same and _tried(model, less, devices) == named:
            out = less
            yield key


def _tried(read: Read, out: Collection[str], devices: int | None) -> Any:
    """What is read; None where it is refused."""
    try:
        return read(out, devices)
    except BadRequest:
        return None


Reader = tuple[list[str], Read, Read]
"""Keys that a text may say without effect, and how its plan and its model are read."""


def _of_megatron(text: str, among: Collection[str]) -> Reader:
    spelt = megatron_read.as_spelt(text)

    def left(out: Collection[str]) -> Flags:
        given = {flag: value for flag, value in spelt.given.items() if flag not in out}
        return megatron_read.of_spelt(replace(spelt, given=given))

    asked = [k for k in reversed([*spelt.given]) if (k in FORMER or k in among) and k not in _KEPT]
    return (
        sorted(asked, key=lambda flag: flag not in FORMER),
        lambda out, devices: megatron_read.fields_of(left(out), devices),
        lambda out, _: megatron_named(left(out)),
    )


def _of_maxtext(text: str, among: Collection[str]) -> Reader:
    given = maxtext_read.own_flags(text)

    def left(out: Collection[str]) -> Flags:
        return maxtext_read.with_model({k: v for k, v in given.items() if k not in out})

    return (
        [k for k in given if k in among and flags_of(text) is None],
        lambda out, devices: maxtext_read.fields_of(left(out), devices),
        lambda out, _: {k: v for k, v in left(out).given.items() if k in _OF_MODEL},
    )


_OF_MODEL = frozenset(
    (
        *(*MAXTEXT_SHAPE, *maxtext_read.BASE),
        *("model_name", "logits_via_embedding", "global_parameter_scale"),
    )
)
"""MaxText's keys by which a model is found."""


def _of_torchtitan(text: str, among: Collection[str]) -> Reader:
    given = torchtitan_read.given_values(text)

    def left(out: Collection[str], devices: int | None) -> Any:
        return torchtitan_read.fields_of({k: v for k, v in given.items() if k not in out}, devices)

    asked = [key for key in given if key in among or key.startswith(torchtitan_read.OF_ENDS)]
    return [key for key in asked if key not in _CONVERTED], left, lambda _, __: None


_CONVERTED = ("activation_checkpoint.mode", "model.converters", "float8.enable_float8_linear")
"""TorchTitan's keys of before that `of_today` has read already."""


_READERS = {
    maxtext_read.TARGET: _of_maxtext,
    megatron_read.TARGET: _of_megatron,
    torchtitan_read.TARGET: _of_torchtitan,
}
