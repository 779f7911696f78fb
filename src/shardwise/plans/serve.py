"""ServePlan: how a model is laid out to answer requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from shardwise.errors import BadRequest
from shardwise.plans.train import check_mesh
from shardwise.units import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeDtypes:
    """Dtypes of weights and KV cache in memory, of activations on the wire, and of the matmuls."""

    weights: str = "bf16"
    kv: str = "bf16"
    activations: str = "bf16"
    compute: str = "bf16"

    def __post_init__(self) -> None:
        for name in (self.weights, self.kv, self.activations, self.compute):
            dtype_bytes(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """The choices of one model server.

    One replica of the model spans `mesh` on `slice` and decodes `batch` sequences at once; prompts
    of `input_length` tokens are prefilled one at a time on the same chips, answers are
    `output_length` tokens long.
    """

    model: str
    model_hash: str
    slice: str
    mesh: Mapping[str, int]
    box: tuple[int, ...]
    batch: int
    input_length: int
    output_length: int
    kv_sharding: Literal["heads", "heads_then_batch"] = "heads_then_batch"
    dtypes: ServeDtypes = field(default_factory=ServeDtypes)
    constants: Literal["vendor", "book"] = "vendor"

    def __post_init__(self) -> None:
        check_mesh(self.mesh)
        for name in ("batch", "input_length", "output_length"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return prod(self.mesh.values())

    def degree(self, axis: str) -> int:
        """Degree of a mesh axis; 1 where the mesh does not name it."""
        return self.mesh.get(axis, 1)
