"""TrainShape: one training step as numbers that may be arrays over candidate plans."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shardwise.models import Parameter
from shardwise.planner.step.layer_shape import LayerShape
from shardwise.plans.layouts import compute_share, stored_share
from shardwise.plans.train import Structure
from shardwise.units import dtype_bytes
from shardwise.work import Quantity

EXACT = frozenset({"router", "lm_head"})
"""Components that fp8 recipes leave in 16 bits (Transformer Engine quantises the layers' linears
alone; DeepSeek-V3, section 3.3.1: embedding, head and gating)."""

ADAPTERS = (".lora_a", ".lora_b")
"""How the names of LoRA's rows end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainShape(Structure):
    """One training step as numbers that may be arrays over candidates.

    `sequences` is per batch shard and microbatch; `stage_share` the share of the layers that the
    busiest stage holds (1 without pipelining). The choices of `Structure` have one value for all
    candidates.
    """

    degrees: Mapping[str, Quantity]
    sequences: Quantity
    sequence_length: int
    microbatches: Quantity
    stage_share: Quantity

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
        return 0.0 * self.piped if self.schedule.ends_together else self.piped

    @property
    def doubled(self) -> bool:
        """Whether two devices hold every stage, if there are several."""
        return self.schedule.doubled

    @property
    def ends_share(self) -> Quantity:
        """Share of the microbatches that meet the ends of the model on a device that holds both:
        all, or half where a second device holds both too."""
        return 1.0 - 0.5 * self.piped if self.doubled else 1.0

    @property
    def eager(self) -> bool:
        """Whether ops run one by one, as PyTorch does: every cast makes a copy. XLA cuts arrays
        evenly instead: KV heads that tensor does not divide are all on every device."""
        return self.software.eager

    @property
    def expert_room(self) -> Quantity:
        """Rows that a device holds for its experts over the mean of all devices. A compiled program
        fixes its shapes before tokens choose: a dropless exchange has room for all rows of the
        devices that share the experts, k per token, however few come (`lax.ragged_all_to_all` and
        MaxText's buffers alike). Op by op there are as many as came; slots are fixed in number."""
        dropless = self.ragged and not self.eager
        return self.layer_shape.expert_group if dropless else self.expert_load

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
        return LayerShape(
            tokens=self.tokens,
            context=self.sequence_length,
            degrees=self.degrees,
            compute=self.dtypes.compute,
            weights=self.weights,
            activations="bf16" if dtype_bytes(self.dtypes.compute) < 2 else self.dtypes.compute,
            choices=self,
            exact=EXACT,
        )

    @property
    def weights(self) -> str:
        """The dtype that matmuls read their weights in."""
        return self.dtypes.compute if self.dtypes.compute != "f32" else self.dtypes.param
