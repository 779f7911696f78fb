"""A plan as a person writes it: model, slice, mesh, batch and length; the rest is worked out.

    model: llama-3-8b
    slice: v5p:4x4x8
    mesh: {fsdp: 64, tensor: 2}
    batch: 4Mi
    length: 8192

`batch` (tokens, or 512seq) and `length` mark such a file. Every other key of a plan may stand
there too.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.errors import BadRequest, shown
from shardwise.hardware import Slice, parse_slice
from shardwise.hardware.boxes import box_of
from shardwise.models import load_model
from shardwise.plans.batch_words import parse_batch, parse_length
from shardwise.plans.train import MESH_AXES, check_mesh, model_hash, spread

NEEDED = ("model", "slice", "mesh", "batch", "length")
WORD_OF = {"global_batch_sequences": "batch", "sequence_length": "length"}
WORDS = tuple(WORD_OF.values())
COMPUTED = (
    *("model_hash", "slices", "box", "global_batch_sequences", "sequence_length", "microbatches"),
    "layers_per_stage",
)
"""Keys that are worked out where the file does not have them."""


def is_handwritten(data: Mapping[str, Any]) -> bool:
    """Whether the file of a training plan says the batch in words; a serving plan has a `batch` of
    its own."""
    return data.get("kind", "train") == "train" and any(name in data for name in WORDS)


def worked_out(data: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """The values of a whole plan; BadRequest names all keys that are missing."""
    missing = [name for name in NEEDED if name not in data]
    if missing:
        raise BadRequest(
            f"'{origin}' lacks {', '.join(missing)}; a plan written by hand needs "
            f"{', '.join(NEEDED)}"
        )
    mesh = mesh_of(data["mesh"], origin)
    cfg = load_model(str(data["model"]))
    length = parse_length(data["length"], "length")
    stages = mesh.get("stage", 1)
    computed: dict[str, Any] = {
        "kind": "train",
        "model_hash": model_hash(cfg),
        "mesh": mesh,
        "global_batch_sequences": parse_batch(data["batch"], length),
        "sequence_length": length,
        "microbatches": stages,
        "layers_per_stage": list(spread(cfg.layers, stages)),
        **_part(parse_slice(str(data["slice"])), math.prod(mesh.values())),
    }
    given = {key: value for key, value in data.items() if key not in (*WORDS, "mesh")}
    return computed | given


def mesh_of(value: Any, origin: str, axes: Sequence[str] = MESH_AXES) -> dict[str, int]:
    """The mesh, outermost axis first."""
    if not isinstance(value, Mapping) or not all(
        isinstance(n, int) and not isinstance(n, bool) for n in value.values()
    ):
        raise BadRequest(
            f"'{origin}': key 'mesh' is {shown(value)}; it maps axes to degrees, such as "
            "{fsdp: 64, tensor: 2}"
        )
    order = [axis for axis in axes if axis in value]
    mesh = {str(axis): value[axis] for axis in (*order, *(a for a in value if a not in order))}
    check_mesh(mesh)
    return mesh


def _part(piece: Slice, devices: int) -> dict[str, Any]:
    """The slices and the box of each that so many devices take: as many slices as divide them."""
    each = piece.chip.jax_devices_per_chip
    for count in range(piece.count, 0, -1):
        if devices % (count * each):
            continue
        box = box_of(piece, devices // (count * each))
        if box is not None and piece.count % count == 0:
            return {"slices": count, "box": list(box)}
    raise BadRequest(
        f"a mesh of {devices:,} devices is no part of {piece}, which has {piece.chips * each:,}; "
        "choose degrees that multiply to those, or to a box of them"
    )
