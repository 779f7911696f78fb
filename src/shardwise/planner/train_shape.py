"""TrainShape: one training step as numbers that may be arrays over candidate plans."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shardwise.models import Parameter
from shardwise.planner.layer_shape import LayerShape
from shardwise.plans import TrainDtypes
from shardwise.plans.layouts import compute_share, stored_share
from shardwise.plans.train import (
    STORAGE_AXES,
    ContextMethod,
    Optimizer,
    PipelineSchedule,
    Remat,
    Saved,
    SavedKind,
)
from shardwise.units import dtype_bytes
from shardwise.work import Quantity

ADAPTERS = (".lora_a", ".lora_b")
"""How the names of LoRA's rows end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainShape:
    """One training step as numbers that may be arrays over candidates.

    `sequences` is per batch shard and microbatch; `stage_share` the share of the layers that the
    busiest stage holds (1 without pipelining). `recompute_whole`: a block that is recomputed is run
    to its end, although nobody needs its result. The other fields are the plan's choices of the
    same name, which are structural: one value for all candidates.
    """

    degrees: Mapping[str, Quantity]
    sequences: Quantity
    sequence_length: int
    microbatches: Quantity
    stage_share: Quantity
    remat: Remat
    zero: int
    sequence_parallel: bool
    dtypes: TrainDtypes
    storage_axes: tuple[str, ...] = STORAGE_AXES
    reshard_after_forward: bool = True
    remat_kinds: Mapping[SavedKind, Saved] = field(default_factory=dict)
    attention_kernel: str = "flash"
    recompute_whole: bool = False
    pipeline_schedule: PipelineSchedule = "1f1b"
    virtual_stages: int = 1
    context_method: ContextMethod = "all_gather"
    expert_dispatch: str = "dense"
    expert_capacity: float = 1.0
    expert_imbalance: float = 1.0
    expert_over_tensor: bool = False
    offload_optimizer: bool = False
    optimizer: Optimizer = "adam"
    lora_rank: int = 0
    frozen: tuple[str, ...] = ()
    mtp_layers: int = 0
    packed_lengths: tuple[int, ...] = ()

    def degree(self, axis: str) -> Quantity:
        """Degree of a mesh axis; 1 where there is none."""
        return self.degrees.get(axis, 1)

    @property
    def tokens(self) -> Quantity:
        """Tokens per device and microbatch, before tensor."""
        return self.sequences * self.sequence_length / self.degree("context")

    @property
    def piped(self) -> Quantity:
        """1 where there is more than one pipeline stage, else 0."""
        return np.where(np.asarray(self.degree("stage")) > 1, 1.0, 0.0)

    def has(self, *axes: str) -> bool:
        """Whether any candidate uses one of the axes."""
        return any(np.any(np.asarray(self.degree(a)) > 1) for a in axes)

    def compute_share(self, row: Parameter) -> Quantity:
        """Share of a row that one device computes with."""
        return compute_share(row, self.degrees, self.expert_over_tensor)

    def stored_share(self, row: Parameter) -> Quantity:
        """Share of a row that one device stores between uses."""
        return stored_share(row, self.degrees, self.storage_axes, self.expert_over_tensor)

    def trains(self, row: Parameter) -> bool:
        """Whether a row gets gradients: not if its component is frozen, nor beside adapters."""
        if self.lora_rank:
            return row.name.endswith(ADAPTERS)
        return row.component not in self.frozen

    @property
    def layer_shape(self) -> LayerShape:
        """The shape that one layer sees; causal attention sees half of the context on average."""
        ragged = self.expert_dispatch == "ragged"
        return LayerShape(
            tokens=self.tokens,
            context=self.sequence_length,
            degrees=self.degrees,
            compute=self.dtypes.compute,
            weights=self.weights,
            activations="bf16" if dtype_bytes(self.dtypes.compute) < 2 else self.dtypes.compute,
            sequence_parallel=self.sequence_parallel,
            context_method=self.context_method,
            attention_kernel=self.attention_kernel,
            documents=self.packed_lengths,
            ragged=ragged,
            expert_load=self.expert_imbalance if ragged else self.expert_capacity,
            expert_over_tensor=self.expert_over_tensor,
        )

    @property
    def weights(self) -> str:
        """The dtype that matmuls read their weights in."""
        return self.dtypes.compute if self.dtypes.compute != "f32" else self.dtypes.param
