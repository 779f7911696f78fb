"""What a search of training plans is asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.remat import REMAT_POLICIES, RematPolicy
from shardwise.plans import TrainDtypes
from shardwise.plans.stacks import StackName
from shardwise.plans.train import (
    CONTEXT_METHODS,
    STORAGE_AXES,
    ContextMethod,
    Optimizer,
)
from shardwise.scheduling.pipeline import PIPELINE_KINDS, PipelineKind, schedule_row

Objective = Literal["time", "cost", "chips"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

SCHEDULES: tuple[tuple[PipelineKind, int], ...] = tuple(
    (kind, chunks) for kind in PIPELINE_KINDS for chunks in schedule_row(kind).chunks
)
"""Every schedule with every count of chunks per stage that it takes."""

STORAGES: tuple[tuple[str, ...], ...] = (STORAGE_AXES, ("fsdp",))
"""Ways of storing parameters: over every axis that sums gradients anyway, or over fsdp alone, so
that context and expert replicate what is not an expert (Megatron-LM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What is to be trained, and what the search may choose from. `pins` fixes mesh degrees.

    `model` is what the user called it, for the plan file; `max_hbm_bytes` is per device. Every
    tuple lists what the search may use. `objective`: "time" is the fastest step on the slice;
    "cost" the fewest dollars per token, where only the chips in use are paid for; "chips" the
    smallest part of the slice on which a plan fits, and the fastest plan there. `settings` are
    further fields of `TrainPlan`, the same for every plan that is looked at.
    """

    cfg: ModelConfig
    model: str
    piece: Slice
    sequences: int
    sequence_length: int
    dtypes: TrainDtypes
    pins: Mapping[str, int]
    max_hbm_bytes: float
    remat: tuple[RematPolicy, ...] = REMAT_POLICIES
    schedules: tuple[PipelineKind, ...] = PIPELINE_KINDS
    zeros: tuple[int, ...] = (0, 1, 2)
    storages: tuple[tuple[str, ...], ...] = STORAGES
    reshards: tuple[bool, ...] = (True, False)
    context_methods: tuple[ContextMethod, ...] = CONTEXT_METHODS
    microbatches: tuple[int, ...] = ()
    objective: Objective = "time"
    optimizer: Optimizer = "adam"
    stack: StackName = "xla"
    constants: Literal["vendor", "book"] = "vendor"
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens of one step: B*T."""
        return self.sequences * self.sequence_length
