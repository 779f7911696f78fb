"""TrainShape: one training step as numbers that may be arrays over candidate plans."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shardwise.models import Parameter
from shardwise.planner.step.layer_shape import LayerShape
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
    Stack,
)
from shardwise.units import dtype_bytes
from shardwise.work import Quantity

FOLDED = ("zb_v", "dualpipe")
"""Schedules that keep the first and the last stage on one device."""

EXACT = frozenset({"router", "lm_head"})
"""Components that fp8 recipes leave in 16 bits (Transformer Engine quantises the layers' linears
alone; DeepSeek-V3, section 3.3.1: embedding, head and gating)."""

ADAPTERS = (".lora_a", ".lora_b")
"""How the names of LoRA's rows end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainShape:
    """One training step as numbers that may be arrays over candidates.

    `sequences` is per batch shard and microbatch; `stage_share` the share of the layers that the
    busiest stage holds (1 without pipelining). The other fields are the plan's choices of the same
    name, which are structural: one value for all candidates. `stack` matters for what software does
    beside the algebra, see the properties.
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
    stack: Stack = "xla"
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

    @property
    def apart(self) -> Quantity:
        """1 where embedding and head lie on different devices of `stage`, else 0: schedules that
        fold the stages or run them both ways keep both ends on one."""
        return 0.0 * self.piped if self.pipeline_schedule in FOLDED else self.piped

    @property
    def paired(self) -> bool:
        """Whether a forward pass runs together with the backward pass of a microbatch that goes the
        other way, so that either's compute hides the other's exchange of tokens (DualPipe; on one
        stage, with one chunk, nothing goes the other way)."""
        return self.pipeline_schedule == "dualpipe" and self.virtual_stages > 1

    @property
    def ends_share(self) -> Quantity:
        """Share of the microbatches that meet the ends of the model on a device that holds both:
        all, or half where a second device holds both too (DualPipe)."""
        return 1.0 - 0.5 * self.piped if self.paired else 1.0

    @property
    def recompute_whole(self) -> bool:
        """Whether a recomputed block is run to its end, although nobody needs its result: so does
        Megatron-LM's CheckpointFunction, and nanotron's after it. PyTorch's non-reentrant
        checkpoint stops early, XLA drops what nobody reads."""
        return self.stack in ("megatron", "nanotron")

    @property
    def eager(self) -> bool:
        """Whether ops run one by one, as PyTorch does: every cast makes a copy. XLA cuts arrays
        evenly instead: KV heads that tensor does not divide are all on every device."""
        return self.stack != "xla"

    @property
    def expert_room(self) -> Quantity:
        """Rows that a device holds for its experts over the mean of all devices. A compiled program
        fixes its shapes before tokens choose: a dropless exchange has room for all rows of the
        devices that share the experts, k per token, however few come (`lax.ragged_all_to_all` and
        MaxText's buffers alike). Op by op there are as many as came; slots are fixed in number."""
        inner = self.layer_shape
        return inner.expert_group if inner.ragged and not self.eager else inner.expert_load

    @property
    def sums_apart(self) -> bool:
        """Whether a microbatch's gradients stand beside the sum of the earlier ones until all are
        there. Megatron-LM's matmuls add to the sum themselves (gradient accumulation fusion)."""
        return self.stack != "megatron"

    @property
    def keeps_gathered(self) -> bool:
        """Whether the inputs that tensor gathers are kept whole for the weight gradients, as by
        nanotron (tp_recompute_allgather off), rather than in pieces and gathered again."""
        return self.stack == "nanotron"

    def has(self, *axes: str) -> bool:
        """Whether any candidate uses one of the axes."""
        return any(np.any(np.asarray(self.degree(a)) > 1) for a in axes)

    def compute_share(self, row: Parameter) -> Quantity:
        """Share of a row that one device computes with."""
        return compute_share(row, self.degrees, self.expert_over_tensor, not self.eager)

    def stored_share(self, row: Parameter) -> Quantity:
        """Share of a row that one device stores between uses."""
        spans = self.expert_over_tensor
        return stored_share(row, self.degrees, self.storage_axes, spans, not self.eager)

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
            exact=EXACT,
        )

    @property
    def weights(self) -> str:
        """The dtype that matmuls read their weights in."""
        return self.dtypes.compute if self.dtypes.compute != "f32" else self.dtypes.param
