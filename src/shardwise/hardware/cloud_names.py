"""Cloud TPU accelerator names (`v5p-128`, `v5litepod-16`): what the number counts.

The number counts TensorCores in some generations and chips in others, and says nothing about the
shape. Where several shapes have that many chips, Cloud gives the most cube-like one, except that
tpu7x names need a topology. Checked against AI-Hypercomputer/maxtext@19142c2
accelerator_to_spec_map.py and AI-Hypercomputer/xpk#525.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from shardwise.errors import BadRequest
from shardwise.hardware.names import cloud_names_by_chip
from shardwise.hardware.network import Torus
from shardwise.hardware.shapes import Shape, legal_shapes, shape_text, shapes_with

_NAME = re.compile(r"(?P<family>[a-z0-9]+)-(?P<number>\d{1,9})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudFamily:
    """`per_chip` units make one chip; `needs_topology` where the name alone may mean several."""

    chip: str
    unit: str
    per_chip: int
    needs_topology: bool


@cache
def families() -> Mapping[str, CloudFamily]:
    """By the part of the name before the hyphen: the `cloud` entries of the chips' files."""
    return {
        name: CloudFamily(
            chip=chip,
            unit=entry["counts"],
            per_chip=entry["per_chip"],
            needs_topology=entry.get("needs_topology", False),
        )
        for chip, entry in cloud_names_by_chip().items()
        for name in entry["names"]
    }


def split_cloud_name(text: str) -> tuple[str, int] | None:
    """(family, number) of a Cloud TPU name, or None where the text is not one.

    >>> split_cloud_name("v5p-128"), split_cloud_name("a100-40gb")
    (('v5p', 128), None)
    """
    match = _NAME.fullmatch(text)
    if match is None or match["family"].lower() not in families():
        return None
    return match["family"].lower(), int(match["number"])


def cloud_shape(family: str, number: int, network: Torus) -> tuple[Shape, str]:
    """The shape a Cloud name stands for, and a note on how it was read.

    Raises BadRequest where the number is not a slice, or where the name needs a topology.
    """
    rule, name = families()[family], f"{family}-{number}"
    chips = number / rule.per_chip
    shapes = shapes_with(network, chips)
    if not shapes:
        raise BadRequest(
            f"cloud name '{name}' is not a slice: its number counts {rule.unit}, "
            f"{rule.per_chip} per chip, and no {rule.chip} slice has {chips:g} chips; "
            f"nearest: {_near(family, chips, network)}"
        )
    best, *others = shapes
    if others and rule.needs_topology:
        spelt = ", ".join(f"'{rule.chip}:{shape_text(s)}'" for s in shapes)
        raise BadRequest(
            f"cloud name '{name}' has {len(shapes)} topologies of {chips:g} chips; "
            f"name one: {spelt}"
        )
    note = f"{name} counts {rule.unit}: {chips:g} chips, shape {shape_text(best)}"
    if others:
        also = ", ".join(shape_text(s) for s in others)
        note += f", the most cube-like of the possible shapes (also {also})"
    return best, note


def cloud_names(chip: str, chips: int) -> tuple[str, ...]:
    """The names under which Cloud offers a slice of that many chips, none for other chips.

    >>> cloud_names("v5e", 16)
    ('v5litepod-16', 'v5e-16')
    """
    return tuple(f"{f}-{chips * r.per_chip}" for f, r in families().items() if r.chip == chip)


def _near(family: str, chips: float, network: Torus) -> str:
    sizes = sorted({math.prod(s) for s in legal_shapes(network)}, key=lambda n: abs(n - chips))
    return ", ".join(f"'{family}-{n * families()[family].per_chip}'" for n in sizes[:3])
