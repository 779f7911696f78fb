"""A plan as a person writes it: model, slice, mesh, batch and length; the rest is worked out.

    model: llama-3-8b
    slice: v5p:4x4x8
    mesh: {fsdp: 64, tensor: 2}
    batch: 4Mi
    length: 8192

`batch` is tokens, or sequences as 512seq. Every other key of a plan may stand there too. Of what
does not, this file works out what follows from the rest: the part of the slice, the layers of each
stage, and for each program that the plan may be for its stack and what its users leave as it is
(dtypes and the like). What a search of plans chooses (remat, storage, ZeRO, schedule, microbatches,
...) is searched with all that the file says pinned (`planner/left_out.py`); what stands here for it
is for a mesh that no search looks at. A file with the hash of its model is a finished plan, in
which a key that is missing has its default: so are plans of published runs (`audit:NAME`), of which
nobody chose anything but those who ran them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

from shardwise.errors import BadRequest, shown
from shardwise.hardware import Chip, Slice
from shardwise.hardware.boxes import box_of
from shardwise.models import load_model
from shardwise.plans.batch_words import parse_batch, parse_length
from shardwise.plans.identity import model_hash
from shardwise.plans.laws import BATCH_AXES
from shardwise.plans.software import (
    SoftwareRow,
    software_row,
    usual_library,
    usual_software,
    usual_stack,
)
from shardwise.plans.software.usual import usual_choices, usual_dtypes
from shardwise.plans.train import MESH_AXES, TrainPlan, check_mesh, spread
from shardwise.scheduling.pipeline import PIPELINE_KINDS, schedule_row

EXAMPLE: Mapping[str, str] = {
    "model": "llama-3-8b",
    "slice": "v5p:4x4x8",
    "mesh": "{fsdp: 64, tensor: 2}",
    "batch": "4Mi",
    "length": "8192",
}
"""The keys that such a file needs, with an example of each."""
WORD_OF = {"global_batch_sequences": "batch", "sequence_length": "length"}
WORDS = tuple(WORD_OF.values())
COMPUTED = (
    *("model_hash", "slices", "box", "global_batch_sequences", "sequence_length", "microbatches"),
    *("layers_per_stage", "software", "stack", "library"),
)
"""Keys that are worked out where the file does not have them."""
_ALSO = {
    "length": ("seq", "seq_len", "seq_length", "sequence", "max_target_length", "context"),
    "batch": ("tokens", "global_batch", "global_batch_size", "batch_size"),
    "slice": ("on", "chips", "hardware", "topology"),
    "mesh": ("axes", "parallelism", "degrees"),
    "model": ("model_name", "name", "config"),
}
"""What other commands and programs call the five keys."""


def is_handwritten(data: Mapping[str, Any]) -> bool:
    """Whether the file of a training plan is one that a person began: it says the batch or the
    length in words, or some of the five keys and no hash of its model."""
    if data.get("kind", "train") != "train":
        return False
    words = any(name in data for name in WORDS)
    return words or ("model_hash" not in data and any(name in data for name in EXAMPLE))


def check_whole(data: Mapping[str, Any], origin: str) -> None:
    """Raise BadRequest with all of the five keys that are missing, and an example."""
    long = {word: name for name, word in WORD_OF.items()}
    missing = [name for name in EXAMPLE if name not in data and long.get(name) not in data]
    if not missing:
        return
    lines = [f"'{origin}' lacks {', '.join(_told(name, data) for name in missing)}"]
    lines += ["a plan written by hand needs five keys, such as:"]
    lines += [f"  {name}: {value}" for name, value in EXAMPLE.items()]
    raise BadRequest("\n".join(lines))


def _told(name: str, data: Mapping[str, Any]) -> str:
    """A missing key, with the key of the file that seems to be meant for it."""
    strange = [key for key in data if key not in TrainPlan.__dataclass_fields__]
    close = get_close_matches(name, [key for key in strange if key not in EXAMPLE], n=1)
    given = next((key for key in strange if key in _ALSO[name]), close[0] if close else "")
    return f"{name} (for its '{given}')" if given else name


def programs(data: Mapping[str, Any], chip: Chip) -> tuple[tuple[SoftwareRow | None, ...], ...]:
    """The programs that the plan may be for, those of one group alike, None for none in particular:
    the one that it names, or those of the chip's users, none of which trains adapters."""
    if "software" in data or "stack" in data or rank_of(data):
        name = str(data.get("software", "any"))
        return ((None if name == "any" else software_row(name),),)
    return usual_software(chip)


def rank_of(data: Mapping[str, Any]) -> int:
    """The rank of the file's adapters, 0 where it has none."""
    rank = data.get("lora_rank", 0)
    return rank if isinstance(rank, int) else 0


def worked_out(
    data: Mapping[str, Any], origin: str, row: SoftwareRow | None, piece: Slice
) -> dict[str, Any]:
    """The values of a whole plan for a program, on its slice."""
    mesh = mesh_of(data["mesh"], origin)
    cfg = load_model(str(data["model"]))
    length = parse_length(data.get("length", data.get("sequence_length", 0)), "length")
    stages = mesh.get("stage", 1)
    dtypes, rank = data.get("dtypes", {}), rank_of(data)
    given = {k: v for k, v in data.items() if k not in (*WORDS, "mesh", "dtypes")}
    computed: dict[str, Any] = {
        "kind": "train",
        "software": row.name if row else "any",
        "stack": row.stack_on(piece.chip) if row else usual_stack(piece.chip, rank),
        **usual_choices(row, cfg),
        "library": usual_library(
            usual_stack(piece.chip, rank_of(data)), 0 if row else rank_of(data)
        ),
        "model_hash": model_hash(cfg),
        "mesh": mesh,
        "sequence_length": length,
        "microbatches": _microbatches(data, length, mesh),
        **_chunks(data, stages),
        "layers_per_stage": list(spread(cfg.layers, stages)),
        **_part(piece, math.prod(mesh.values())),
    }
    if "batch" in data:
        computed["global_batch_sequences"] = parse_batch(data["batch"], length)
    if isinstance(dtypes, Mapping):
        compute = str(dtypes.get("compute", "bf16"))
        dtypes = {**asdict(usual_dtypes(row, compute, dtypes.get("param"))), **dtypes}
    return computed | given | {"dtypes": dtypes}


def _microbatches(data: Mapping[str, Any], length: int, mesh: Mapping[str, int]) -> int:
    """One for each stage where the batch splits so, else one."""
    batch = data.get("global_batch_sequences")
    if "batch" in data:
        batch = parse_batch(data["batch"], length)
    stages, shards = mesh.get("stage", 1), math.prod(mesh.get(axis, 1) for axis in BATCH_AXES)
    return stages if isinstance(batch, int) and batch % (shards * stages) == 0 else 1


def _chunks(data: Mapping[str, Any], stages: int) -> dict[str, int]:
    """The fewest pieces of each stage that the schedule which the file names takes."""
    kind = data.get("pipeline_schedule")
    if stages == 1 or not isinstance(kind, str) or kind not in PIPELINE_KINDS:
        return {}
    return {"virtual_stages": min(schedule_row(kind).chunks)}


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
        f"a mesh of {devices:,} devices does not fit {piece}, which has {piece.chips * each:,}; "
        "choose degrees that multiply to that number, or to the devices of a smaller box"
    )
