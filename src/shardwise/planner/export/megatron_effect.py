"""Which arguments of Megatron-LM say something where they stand: each is left out in turn, and what
is read of the others is compared. No list can be behind what is read.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from shardwise.errors import BadRequest
from shardwise.planner.export.flags import Flags
from shardwise.planner.export.megatron_former import FORMER
from shardwise.planner.export.megatron_read import as_spelt, fields_of, of_spelt
from shardwise.planner.export.megatron_shape import UNBUILT, WINDOWED
from shardwise.planner.export.which_model import megatron_named

_COUNTS = (None, *(times << n for n in range(14) for times in (1, 3)))
"""Devices for which a text is read where only its keys are asked for: as many as it says itself,
else as machines come."""
_KEPT = frozenset(("--nnodes", "--nproc-per-node", *UNBUILT, *WINDOWED))
"""The launcher's words, and arguments of models that the others do not describe."""


def same_without(text: str, among: Collection[str]) -> list[str]:
    """Of the arguments `among` and former spellings those, as the text spells them, without which
    it says the same plan of the same model; none where the text says no plan.

    >>> plain = "--num-layers 2 --seq-length 8 --micro-batch-size 1 --nproc-per-node 1 "
    >>> same_without(plain + "--bf16 --use-flash-attn", ["--seq-length"])
    ['--use-flash-attn']
    """
    left, found = as_spelt(text), []
    devices = next((n for n in _COUNTS if _tried(fields_of, left, n)), 0)
    if devices == 0:
        return []
    fields, model = _tried(fields_of, left, devices), _tried(_model, left)
    asked = [k for k in reversed([*left.given]) if k in FORMER or k in among]
    for flag in sorted(asked, key=lambda name: name not in FORMER):
        other = replace(left, given={k: v for k, v in left.given.items() if k != flag})
        if flag in _KEPT or _tried(fields_of, other, devices) != fields:
            continue
        if _tried(_model, other) == model:
            left = other
            found.append(flag)
    return found


def _model(given: Flags, _: int | None) -> str | None:
    return megatron_named(given)


def _tried(
    read: Callable[[Flags, int | None], Any], spelt: Flags, devices: int | None = None
) -> Any:
    """What is read; None where it is refused."""
    try:
        return read(of_spelt(spelt), devices)
    except BadRequest:
        return None
