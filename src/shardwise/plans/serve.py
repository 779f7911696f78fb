"""ServePlan: how a model is laid out to answer requests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Literal

from shardwise.errors import BadRequest
from shardwise.plans.train import check_mesh
from shardwise.units import dtype_bytes

CHECKPOINT = "checkpoint"
"""Weights in the dtypes that the checkpoint stores them in, component by component."""

SERVE_AXES = ("data", "expert", "tensor")
"""Mesh axes that a server uses: copies of the weights, experts, and heads and widths."""

KvSharding = Literal["heads", "heads_then_batch"]
KV_SHARDINGS: tuple[KvSharding, ...] = ("heads", "heads_then_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeDtypes:
    """Dtypes of weights and KV cache in memory, of activations on the wire, and of the matmuls.

    `weights` may be "checkpoint": as stored, by the model's quantization_config.
    """

    weights: str = CHECKPOINT
    kv: str = "bf16"
    activations: str = "bf16"
    compute: str = "bf16"

    def __post_init__(self) -> None:
        names = (self.kv, self.activations, self.compute)
        for name in names if self.weights == CHECKPOINT else (self.weights, *names):
            dtype_bytes(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """The choices of one model server.

    One replica of the model spans `mesh` on `slice` and decodes `batch` sequences at once; prompts
    of `input_length` tokens are prefilled one at a time on the same chips, their tokens cut over
    `data` and `expert`, in chunks of at most `prefill_chunk`; answers are `output_length` tokens
    long. `box` is the part of each physical axis that the mesh uses. The KV cache is cut by heads
    over `tensor`; beyond one KV head per device the heads are replicated ("heads") or the sequences
    are spread ("heads_then_batch").
    """

    model: str
    model_hash: str
    slice: str
    mesh: Mapping[str, int]
    box: tuple[int, ...]
    batch: int
    input_length: int
    output_length: int
    prefill_chunk: int = 8192
    kv_sharding: KvSharding = "heads_then_batch"
    dtypes: ServeDtypes = field(default_factory=ServeDtypes)
    constants: Literal["vendor", "book"] = "vendor"

    def __post_init__(self) -> None:
        check_mesh(self.mesh)
        for axis, degree in self.mesh.items():
            if axis not in SERVE_AXES and degree > 1:
                raise BadRequest(
                    f"mesh axis '{axis}' of {degree} cannot take effect in a serving plan; "
                    f"its axes are {', '.join(SERVE_AXES)}"
                )
        for name in ("batch", "input_length", "output_length", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def devices(self) -> int:
        """Devices of the mesh."""
        return prod(self.mesh.values())

    def degree(self, axis: str) -> int:
        """Degree of a mesh axis; 1 where the mesh does not name it."""
        return self.mesh.get(axis, 1)
