"""Plan -> Layout of every parameter: which mesh axes cut which dim, said once.

The planner divides bytes by it, the runtime turns it into a PartitionSpec.
"""

from collections.abc import Mapping
from math import prod

from shardwise.models.parameters import Parameter
from shardwise.sharding import Layout
from shardwise.work import Quantity

TENSOR_LETTERS = frozenset("FNKV")
"""Dims that the tensor axis cuts: d_ff, query heads, KV heads, vocabulary (ch. 5.1.3)."""


def axes_of_letter(letter: str, *, expert_row: bool) -> tuple[str, ...]:
    """Mesh axes that cut a dim, major first.

    D is cut by fsdp, and by expert too outside the experts; E by expert; F, N, K and V by tensor.
    """
    if letter == "D":
        return ("fsdp",) if expert_row else ("fsdp", "expert")
    if letter == "E":
        return ("expert",)
    return ("tensor",) if letter in TENSOR_LETTERS else ()


def is_expert(parameter: Parameter) -> bool:
    """Whether the parameter has one copy per expert."""
    return any(letter == "E" for letter, _ in parameter.dims) and parameter.active < 1


def cut_axes(parameter: Parameter) -> tuple[str, ...]:
    """All mesh axes that cut a parameter. A tensor without D is cut by fsdp over its largest dim."""
    expert_row = is_expert(parameter)
    axes = [a for d, _ in parameter.dims for a in axes_of_letter(d, expert_row=expert_row)]
    storage = ("fsdp",) if expert_row else ("fsdp", "expert")
    return tuple(dict.fromkeys([*axes, *storage]))
