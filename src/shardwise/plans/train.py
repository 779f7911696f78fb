"""TrainPlan: how one training step is laid out on a slice."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from shardwise.errors import BadRequest, unknown
from shardwise.models import ModelConfig
from shardwise.models.parameters import parameters
from shardwise.models.training_state import training_state
from shardwise.units import dtype_bytes

MESH_AXES = ("replica", "stage", "data", "fsdp", "expert", "context", "tensor")
"""Mesh axes by role, outermost first: the first cross slices, the last sit on the nearest links."""

Remat = Literal["none", "matmul_outputs", "block", "offload"]
Placing = Literal["fastest", "finish"]
PLACINGS: tuple[Placing, ...] = ("fastest", "finish")
REMAT_POLICIES: tuple[Remat, ...] = ("none", "matmul_outputs", "block", "offload")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainDtypes:
    """Storage and compute dtypes; `master` is "none" where the optimizer keeps no own copy."""

    param: str = "bf16"
    compute: str = "bf16"
    grad: str = "bf16"
    master: str = "f32"
    moments: str = "f32"

    def __post_init__(self) -> None:
        for name in (self.param, self.compute, self.grad, self.moments):
            dtype_bytes(name)
        if self.master != "none":
            dtype_bytes(self.master)

    @property
    def optimizer_bytes(self) -> float:
        """Bytes per parameter of Adam's two moments and the master copy, if any."""
        return float(training_state(master=self.master, moments=self.moments).optimizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan:
    """The choices of one training step.

    `mesh` maps axis to degree, outermost first; it uses `slices` of the slices (or switched
    domains) and of each the `box`, the part of each physical axis; `placement` gives each axis its
    fastest part of it, or finishes physical axes already begun first, which keeps the rings of the
    others whole. `data` and `replica` replicate parameters, with `zero` 0, 1 or 2 for the optimizer
    state (1) and gradients (2); `fsdp` shards parameters, gradients and optimizer state, and so do
    `context` and `expert` for what is not an expert. With `sequence_parallel` the activations
    between matmuls are sharded over `tensor`.
    """

    model: str
    model_hash: str
    slice: str
    mesh: Mapping[str, int]
    box: tuple[int, ...]
    global_batch_sequences: int
    sequence_length: int
    microbatches: int
    layers_per_stage: tuple[int, ...]
    slices: int = 1
    placement: Placing = "fastest"
    zero: int = 1
    sequence_parallel: bool = True
    remat: Remat = "block"
    pipeline_schedule: Literal["1f1b"] = "1f1b"
    context_method: Literal["all_gather"] = "all_gather"
    optimizer: Literal["adam"] = "adam"
    dtypes: TrainDtypes = field(default_factory=TrainDtypes)
    constants: Literal["vendor", "book"] = "vendor"

    def __post_init__(self) -> None:
        check_mesh(self.mesh)
        if self.zero not in (0, 1, 2):
            raise BadRequest(
                f"zero is {self.zero}; it takes 0, 1 or 2 (ZeRO-3 is the mesh axis 'fsdp')"
            )
        for name in ("slices", "global_batch_sequences", "sequence_length", "microbatches"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} is {getattr(self, name)}; it must be at least 1")
        if len(self.layers_per_stage) != self.degree("stage"):
            raise BadRequest(
                f"layers_per_stage has {len(self.layers_per_stage)} entries for "
                f"{self.degree('stage')} stages; give one number of layers per stage"
            )
        if any(layers < 1 for layers in self.layers_per_stage):
            raise BadRequest(
                f"layers_per_stage {list(self.layers_per_stage)} leaves a stage without layers; "
                "give every stage at least one or use fewer stages"
            )
        if self.global_batch_sequences % (self.batch_shards * self.microbatches):
            raise BadRequest(
                f"global_batch_sequences {self.global_batch_sequences} does not divide into "
                f"{self.batch_shards} batch shards x {self.microbatches} microbatches; the nearest "
                f"legal batch is {self._nearest_batch()} sequences, or let microbatches divide it"
            )
        if self.sequence_length % (self.degree("context")):
            raise BadRequest(
                f"sequence_length {self.sequence_length} does not divide over context="
                f"{self.degree('context')}; use a degree that divides it"
            )

    def degree(self, axis: str) -> int:
        """Degree of a mesh axis; 1 where the mesh does not name it."""
        return self.mesh.get(axis, 1)

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return prod(self.mesh.values())

    @property
    def batch_shards(self) -> int:
        """Into how many parts the sequences of the batch are cut."""
        return prod(self.degree(axis) for axis in ("replica", "data", "fsdp", "expert"))

    @property
    def tokens(self) -> int:
        """Tokens of one step: B*T."""
        return self.global_batch_sequences * self.sequence_length

    def _nearest_batch(self) -> int:
        unit = self.batch_shards * self.microbatches
        return max(1, round(self.global_batch_sequences / unit)) * unit


def model_hash(cfg: ModelConfig) -> str:
    """A short hash of what a plan depends on: the layers and the parameter table."""
    text = repr((cfg.groups, cfg.pattern, parameters(cfg)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def mesh_text(mesh: Mapping[str, int]) -> str:
    """A mesh in one line.

    >>> mesh_text({"fsdp": 1024, "tensor": 4})
    'fsdp=1024 x tensor=4'
    """
    return " x ".join(f"{axis}={degree}" for axis, degree in mesh.items()) or "one device"


def check_mesh(mesh: Mapping[str, int]) -> None:
    """Raise BadRequest for an axis that no role has, or a degree below one."""
    for axis, degree in mesh.items():
        if axis not in MESH_AXES:
            raise unknown("mesh axis", axis, MESH_AXES, "axes are named by their role")
        if degree < 1:
            raise BadRequest(f"mesh axis '{axis}' has degree {degree}; a degree is at least 1")
    order = [axis for axis in MESH_AXES if axis in mesh]
    if list(mesh) != order:
        raise BadRequest(
            f"mesh axes stand in the order {', '.join(mesh)}; write them outermost first: "
            f"{', '.join(order)}"
        )
