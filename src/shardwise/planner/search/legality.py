"""The one table of rules that a training plan must keep to be looked at by the search.

`kind` says what breaks a rule: "law" rules are those of the model, the hardware or the schedule
(`evaluate_train` refuses such a plan too, or could not tell it from another one); "scope" rules
bound what the search looks at, and a plan file may go beyond them. `docs/legality.md` is this table
(`scripts/legality.py`), and a test holds the two together. All functions
take columns of candidates and give a mask.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from shardwise.planner.search.columns import Columns, Degrees
from shardwise.planner.search.request import TrainRequest
from shardwise.plans.context_methods import context_row
from shardwise.plans.laws import (
    BATCH,
    BATCH_AXES,
    EXPERTS,
    HEADS,
    MICROBATCHES,
    SEQUENCE,
    ULYSSES,
    Law,
)
from shardwise.plans.software import Candidates, Limit
from shardwise.plans.train import STORAGE_AXES, USUAL, Structure
from shardwise.scheduling.pipeline import SCHEDULES

MAX_TENSOR, MAX_CONTEXT, MAX_MICROBATCHES = 64, 64, 512

Mask = np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a plan must keep and why; `holds` says for which candidates it does."""

    name: str
    kind: Literal["law", "scope"]
    rule: str
    reason: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRule(Rule):
    """About degrees alone. A mesh that keeps it keeps it with any degree replaced by a divisor, so
    that a search may build meshes prime by prime and drop them as soon as one is broken."""

    holds: Callable[[TrainRequest, Degrees], Mask]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule(Rule):
    """About degrees and microbatches."""

    holds: Callable[[TrainRequest, Columns], Mask]


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureRule(Rule):
    """About structural choices on given degrees and microbatches; `about` names those it reads."""

    about: tuple[str, ...]
    holds: Callable[[TrainRequest, Columns, Structure], Mask]


def _divides(number: int, degree: np.ndarray) -> Mask:
    return number % degree == 0


def _replica(request: TrainRequest, d: Degrees) -> Mask:
    switched = len(request.piece.shape) == 1
    return d["replica"] == 1 if switched else _divides(request.piece.count, d["replica"])


def _pinned(request: TrainRequest, d: Degrees) -> Mask:
    kept = np.ones(len(d["tensor"]), bool)
    for axis, degree in request.pins.items():
        kept &= _divides(degree, d[axis])
    return kept


def _words(law: Law) -> dict[str, Any]:
    """What the table says of a law."""
    words = {name: getattr(law, name) for name in ("name", "rule", "reason", "source")}
    return {"kind": "law", **words}


MESH_RULES: tuple[MeshRule, ...] = (
    MeshRule(**_words(HEADS), holds=lambda request, d: HEADS.holds(request.cfg, d)),
    MeshRule(**_words(EXPERTS), holds=lambda request, d: EXPERTS.holds(request.cfg, d)),
    MeshRule(
        **_words(SEQUENCE), holds=lambda request, d: SEQUENCE.holds(request.sequence_length, d)
    ),
    MeshRule(
        name="layers",
        kind="law",
        rule="stage is at most the number of layers",
        reason="every pipeline stage needs a layer; layers may be spread unevenly",
        holds=lambda request, d: d["stage"] <= request.cfg.layers,
    ),
    MeshRule(
        name="slices",
        kind="scope",
        rule="replica divides the slices in use; behind switches it is 1",
        reason="replica is the axis that crosses slices; behind switches data does the same",
        holds=_replica,
    ),
    MeshRule(
        name="tensor_limit",
        kind="scope",
        rule=f"tensor is at most {MAX_TENSOR}",
        reason="its collectives run between the matmuls of every layer",
        holds=lambda request, d: d["tensor"] <= MAX_TENSOR,
    ),
    MeshRule(
        name="context_limit",
        kind="scope",
        rule=f"context is at most {MAX_CONTEXT}",
        reason="its collectives run within the attention of every layer",
        holds=lambda request, d: d["context"] <= MAX_CONTEXT,
    ),
    MeshRule(
        name="pins",
        kind="scope",
        rule="a pinned axis has its degree",
        reason="the request sets it",
        holds=_pinned,  # of the finished mesh the degree is exactly the pin, see pinned_exactly
    ),
)


def pinned_exactly(request: TrainRequest, d: Degrees) -> Mask:
    """The pins rule on finished meshes."""
    kept = np.ones(len(d["tensor"]), bool)
    for axis, degree in request.pins.items():
        kept &= d[axis] == degree
    return kept


def batch_shards(d: Degrees) -> np.ndarray:
    """Into how many parts each mesh cuts the sequences of the batch."""
    return prod((d[axis] for axis in BATCH_AXES), start=np.asarray(1))


COLUMN_RULES: tuple[ColumnRule, ...] = (
    ColumnRule(
        **_words(BATCH),
        holds=lambda request, c: BATCH.holds(
            request.sequences, {**c.degrees, MICROBATCHES: c.microbatches}
        ),
    ),
    ColumnRule(
        name="microbatches",
        kind="scope",
        rule=f"microbatches is a divisor of the batch, at most {MAX_MICROBATCHES}",
        reason="more of them only make each matmul smaller",
        holds=lambda request, c: c.microbatches <= MAX_MICROBATCHES,
    ),
    ColumnRule(
        name="filled_pipeline",
        kind="scope",
        rule="with pipeline stages there are at least as many microbatches",
        reason="with fewer, some stage is idle at every moment of the step",
        holds=lambda request, c: (c.degrees["stage"] == 1) | (c.microbatches >= c.degrees["stage"]),
    ),
)


def replicas(d: Degrees, storage_axes: tuple[str, ...]) -> np.ndarray:
    """How many devices hold the same piece of a parameter that is no expert."""
    copies = d["replica"] * d["data"]
    for axis in STORAGE_AXES:
        if axis not in storage_axes:
            copies = copies * d[axis]
    return copies


def usual_value(request: TrainRequest, name: str) -> Any:
    """The value of a searched choice that stands for all where they make no difference."""
    values, default = request.searched[name], getattr(USUAL, name)
    return default if default in values else values[0]


def _zero(request: TrainRequest, c: Columns, s: Structure) -> Mask:
    return (s.zero == usual_value(request, "zero")) | (replicas(c.degrees, s.storage_axes) > 1)


def _storage(request: TrainRequest, c: Columns, s: Structure) -> Mask:
    usual = usual_value(request, "storage_axes")
    cut = np.ones(len(c), np.int64)
    for axis in set(STORAGE_AXES) - {"fsdp"}:
        cut = cut * c.degrees[axis]
    return (s.storage_axes == usual) | (cut > 1)


def _reshard(request: TrainRequest, c: Columns, s: Structure) -> Mask:
    return (s.weight_gather == usual_value(request, "weight_gather")) | _stored(c, s)


def _stored(c: Columns, s: Structure) -> Mask:
    """Where some axis stores parameters in pieces."""
    stored = np.ones(len(c), np.int64)
    for axis in s.storage_axes:
        stored = stored * c.degrees[axis]
    return stored > 1


def _reduce(request: TrainRequest, c: Columns, s: Structure) -> Mask:
    if len(request.searched["gradient_reduce"]) == 1:
        return np.ones(len(c), bool)
    piped = _stored(c, s) & (c.microbatches > 1) & (c.degrees["stage"] > 1)
    usual = s.gradient_reduce == usual_value(request, "gradient_reduce")
    return np.where(piped, s.gradient_reduce == s.stack_row.piped_reduce, usual)


def _reduce_zero(request: TrainRequest, c: Columns, s: Structure) -> Mask:
    return np.full(len(c), s.zero < 2 or s.gradient_reduce != "per_step")


def _context(request: TrainRequest, c: Columns, s: Structure) -> Mask:
    usual = s.context_method == usual_value(request, "context_method")
    return usual | (c.degrees["context"] > 1)


def _ulysses(request: TrainRequest, c: Columns, s: Structure) -> Mask:
    if not context_row(s.context_method).cuts_heads:
        return np.ones(len(c), bool)
    return ULYSSES.holds(request.cfg, c.degrees)


def _schedule(request: TrainRequest, c: Columns, s: Structure) -> Mask:
    usual = s.virtual_stages == 1 and s.pipeline_schedule == usual_value(
        request, "pipeline_schedule"
    )
    return usual | (c.degrees["stage"] > 1)


def _chunks(request: TrainRequest, c: Columns, s: Structure) -> Mask:
    alone = (c.degrees["stage"] == 1) & (s.virtual_stages == 1)
    return alone | (request.cfg.layers // c.degrees["stage"] >= s.virtual_stages)


def _counts(request: TrainRequest, c: Columns, s: Structure) -> Mask:
    stages, microbatches = c.degrees["stage"], c.microbatches
    return s.schedule.takes(stages, microbatches, s.virtual_stages)


STRUCTURE_RULES: tuple[StructureRule, ...] = (
    StructureRule(
        name="zero",
        kind="law",
        about=("zero", "storage_axes"),
        rule="a ZeRO stage is chosen only where an axis replicates parameters",
        reason="without replicas the stages 0, 1 and 2 are the same plan",
        holds=_zero,
    ),
    StructureRule(
        name="storage",
        kind="law",
        about=("storage_axes",),
        rule="which axes store parameters is chosen only where expert or context is above 1",
        reason="otherwise fsdp is the only axis that can",
        holds=_storage,
    ),
    StructureRule(
        name="reshard",
        kind="law",
        about=("weight_gather", "storage_axes"),
        rule="keeping gathered parameters is chosen only where some axis shards them",
        reason="otherwise nothing is gathered",
        holds=_reshard,
    ),
    StructureRule(
        name="reduce",
        kind="law",
        about=("gradient_reduce", "storage_axes"),
        rule="gradients of sharded parameters are reduced after every microbatch, or as the "
        "software's pipeline does it",
        reason="no software offers a choice",
        holds=_reduce,
    ),
    StructureRule(
        name="reduce_zero",
        kind="law",
        about=("zero", "gradient_reduce"),
        rule="with ZeRO-2 gradients are reduced after every microbatch",
        reason="a device keeps only its shards of them",
        holds=_reduce_zero,
    ),
    StructureRule(
        name="context_method",
        kind="law",
        about=("context_method",),
        rule="a context method is chosen only where context is above 1",
        reason="otherwise every device has whole sequences",
        holds=_context,
    ),
    StructureRule(
        **_words(ULYSSES),
        about=("context_method",),
        holds=_ulysses,
    ),
    StructureRule(
        name="schedule",
        kind="law",
        about=("pipeline_schedule", "virtual_stages"),
        rule="a pipeline schedule is chosen only where there are pipeline stages",
        reason="otherwise all schedules are the same loop over microbatches",
        holds=_schedule,
    ),
    StructureRule(
        name="chunks",
        kind="law",
        about=("pipeline_schedule", "virtual_stages"),
        rule="every stage has at least one layer per chunk",
        reason="a chunk without layers would only forward activations",
        holds=_chunks,
    ),
    StructureRule(
        name="schedule_counts",
        kind="law",
        about=("pipeline_schedule", "virtual_stages"),
        rule="; ".join(f"{row.name}: {row.law}" for row in SCHEDULES.values() if row.law),
        reason="the rounds of the schedule's table (scheduling/pipeline/)",
        holds=_counts,
    ),
)


def legal_meshes(request: TrainRequest, d: Degrees) -> Mask:
    """Meshes, finished or still being built, that break no mesh rule."""
    kept = np.ones(len(d["tensor"]), bool)
    for rule in MESH_RULES:
        kept &= rule.holds(request, d)
    return kept


def legal_columns(request: TrainRequest, columns: Columns) -> Mask:
    """Candidates that break no rule about degrees and microbatches."""
    kept = np.ones(len(columns), bool)
    for rule in COLUMN_RULES:
        kept &= rule.holds(request, columns)
    return kept


def limits_of(request: TrainRequest) -> tuple[Limit, ...]:
    """What the software that plans are wanted for cannot run."""
    return () if request.software is None else request.software.limits


def columns_for(
    request: TrainRequest, columns: Columns, structure: Structure, box: tuple[int, ...]
) -> Candidates:
    """Columns under one structure on a part of the slice, as limits of software read them."""
    return Candidates(
        cfg=request.cfg,
        piece=request.piece,
        structure=structure,
        degrees=columns.degrees,
        microbatches=columns.microbatches,
        sequences=request.sequences,
        sequence_length=request.sequence_length,
        box=box,
        slices=request.piece.count,
    )
