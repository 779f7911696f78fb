"""Plans as columns of arrays, or one as columns of length one: what limits of software read."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.plans.laws import BATCH_AXES
from shardwise.plans.train import STORAGE_AXES, Structure, TrainPlan
from shardwise.work import Quantity


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Plans of one structure for a model on a slice; `degrees` and `microbatches` broadcast.

    `layers` are the layers of every stage of a plan; a search spreads them evenly, which None
    stands for. `box` and `slices` are the part of the slice in use.
    """

    cfg: ModelConfig
    piece: Slice
    structure: Structure
    degrees: Mapping[str, Quantity]
    microbatches: Quantity
    sequences: int
    sequence_length: int
    box: tuple[int, ...]
    slices: int
    layers: tuple[int, ...] | None = None

    def degree(self, axis: str) -> np.ndarray:
        """Degrees of a mesh axis."""
        return np.asarray(self.degrees.get(axis, 1))

    def value(self, field: str) -> Any:
        """A choice of the structure by its dotted name."""
        found: Any = self.structure
        for name in field.split("."):
            found = getattr(found, name)
        return found

    @cached_property
    def shards(self) -> np.ndarray:
        """Into how many parts the sequences of the batch are cut."""
        return np.asarray(prod((self.degree(axis) for axis in BATCH_AXES), start=np.asarray(1)))

    @property
    def copies(self) -> np.ndarray:
        """How many devices hold the same piece of a parameter outside the experts."""
        kept = [a for a in STORAGE_AXES if a not in self.structure.storage_axes]
        axes = ("replica", "data", *kept)
        return np.asarray(prod((self.degree(axis) for axis in axes), start=np.asarray(1)))

    @property
    def stored(self) -> np.ndarray:
        """Where some axis stores parameters in pieces."""
        axes = self.structure.storage_axes
        return prod((self.degree(axis) for axis in axes), start=np.asarray(1)) > 1

    @property
    def uneven(self) -> np.ndarray:
        """Where chunks of layers are not all of one size."""
        virtual = self.structure.virtual_stages
        if self.layers is None:
            return np.asarray(self.cfg.layers % (self.degree("stage") * virtual) > 0)
        return np.asarray(len(set(self.layers)) > 1 or self.layers[0] % virtual > 0)


def candidates_of_plan(plan: TrainPlan, cfg: ModelConfig, piece: Slice) -> Candidates:
    """One plan as columns of length one."""
    return Candidates(
        cfg=cfg,
        piece=piece,
        structure=plan,
        degrees=plan.mesh,
        microbatches=plan.microbatches,
        sequences=plan.global_batch_sequences,
        sequence_length=plan.sequence_length,
        box=plan.box,
        slices=plan.slices,
        layers=plan.layers_per_stage,
    )


def _everywhere(c: Candidates) -> np.ndarray:
    return np.asarray(True)


def _experts(c: Candidates) -> np.ndarray:
    return np.asarray(c.cfg.has_experts)


EFFECTS = {
    "pipeline_schedule": lambda c: c.degree("stage") > 1,
    "virtual_stages": lambda c: c.degree("stage") > 1,
    "sequence_parallel": lambda c: c.degree("tensor") > 1,
    "expert_over_tensor": lambda c: (c.degree("tensor") > 1) & c.cfg.has_experts,
    "context_method": lambda c: c.degree("context") > 1,
    "expert_dispatch": _experts,
    "expert_capacity": lambda c: _experts(c) & (not c.structure.ragged),
    "zero": lambda c: c.copies > 1,
    "storage_axes": lambda c: c.degree("expert") * c.degree("context") > 1,
    "weight_gather": lambda c: c.stored,
    "gradient_reduce": lambda c: c.stored & (np.asarray(c.microbatches) > 1),
}
"""Where a choice makes a difference; one that is not here always does."""


def matters(field: str, c: Candidates) -> np.ndarray:
    """For which candidates a choice makes a difference."""
    return np.asarray(EFFECTS.get(field, _everywhere)(c))
