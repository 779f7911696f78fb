"""Slices as the targets name them: Cloud TPU names with their trap, hosts, and the data centre.

A Cloud name counts TensorCores or chips and does not say the shape (`hardware/cloud_names.py`), so
a name is used only where it reads back as the same slice.
"""

import math
import re

from shardwise.errors import BadRequest
from shardwise.hardware import Slice, parse_slice
from shardwise.hardware.cloud_names import cloud_names, families
from shardwise.plans import MESH_AXES, TrainPlan

_TOPOLOGY = re.compile(r"(?P<family>[a-z0-9]+)-(?P<shape>\d+(?:x\d+)+)")


def is_tpu(piece: Slice) -> bool:
    """Whether Cloud offers the chip as a TPU."""
    return bool(cloud_names(piece.chip.id, piece.chips_each))


def safe_names(piece: Slice) -> tuple[str, ...]:
    """Cloud names of one slice that read back as this shape, in either order; maybe none.

    `v5p:4x8x16` has none: `v5p-1024` is read as 8x8x8.
    """
    return tuple(n for n in cloud_names(piece.chip.id, piece.chips_each) if _means(n, piece))


def _means(name: str, piece: Slice) -> bool:
    try:
        return sorted(parse_slice(name).shape) == sorted(piece.shape)
    except BadRequest:
        return False


def slice_fields(piece: Slice) -> dict[str, object]:
    """The fields of a plan that uses the whole of a slice."""
    return {"slice": str(piece), "slices": piece.count, "box": list(piece.shape)}


def slice_of_type(text: str, count: int) -> Slice:
    """The slices that XPK's `--tpu-type` stands for."""
    match = _TOPOLOGY.fullmatch(text)
    if match and match["family"] in families():
        text = f"{families()[match['family']].chip}:{match['shape']}"
    return parse_slice(f"{count}*{text}" if count > 1 else text)


def outer_degrees(plan: TrainPlan) -> dict[str, int]:
    """How much of each axis crosses slices, filled from the outermost axis as placement does."""
    left, outer = plan.slices, {}
    for axis in MESH_AXES:
        outer[axis] = math.gcd(left, plan.degree(axis))
        left //= outer[axis]
    if left > 1:
        raise BadRequest(
            f"the mesh does not fill {plan.slices} slices; give its outermost axes that factor"
        )
    return outer


def nodes(plan: TrainPlan, piece: Slice) -> tuple[int, int]:
    """Hosts, and devices per host, that the plan's part of the slice takes."""
    devices = math.prod(plan.box) * piece.chip.jax_devices_per_chip
    host = piece.chip.chips_per_host * piece.chip.jax_devices_per_chip
    each = devices if devices <= host else math.gcd(devices, host)
    return plan.slices * devices // each, each
