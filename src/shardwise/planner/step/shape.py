"""What counting sees of a plan: numbers that may be arrays over candidates, and its choices.

`TrainShape` is a whole training step, `LayerShape` what one device sees of one layer, training or
serving. `strategies` of either says which files of `strategies/` some candidate uses: what stands
there is asked for its ops, nothing else is called.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod

import numpy as np

from shardwise.models import Parameter
from shardwise.models.activations import ActivationKind
from shardwise.models.specs import SoftmaxMixer
from shardwise.plans.adapters import ADAPTERS, quantized_bytes
from shardwise.plans.layouts import DATA_AXES, compute_share, replica_axes, stored_share
from shardwise.plans.train import STORAGE_AXES, USUAL, Structure
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity, total

Yield = tuple[ActivationKind, Op]
"""An op of the forward pass, and the kind of activation that it yields."""

EXACT = frozenset({"router", "lm_head"})
"""Components that fp8 recipes leave in 16 bits (Transformer Engine quantises the layers' linears
alone; DeepSeek-V3, section 3.3.1: embedding, head and gating)."""

GRAPH_ROOM, GRAPH_KEPT = 1.5, 1.2
"""Rows over the mean for which a CUDA graph of a whole step of Megatron-LM has room in the experts,
and in the pages that keep their activations for the backward pass: moe_expert_rank_capacity_factor
and moe_paged_stash_buffer_size_factor_cuda of NVIDIA's recipes (Megatron-Bridge,
scripts/performance/configs/qwen/qwen3_llm_pretrain.py, set_full_iter_cg_configs)."""


def kv_heads(mixer: SoftmaxMixer) -> int:
    """KV heads as computed with: latent attention expands its latent to every query head."""
    return getattr(mixer, "kv_heads", mixer.heads)


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """What one device sees of one layer: `tokens` of its microbatch, `context` tokens attended.

    `tokens` are this device's after batch and context sharding, before tensor. `exact` are
    components whose matmuls run in the activations' dtype whatever `compute` is. A server may cut D
    of its weights over `stationary` devices, and leave them there; its `choices` are the defaults.
    """

    tokens: Quantity
    context: Quantity
    degrees: Mapping[str, Quantity]
    compute: str
    weights: str
    activations: str
    choices: Structure = USUAL
    causal: bool = True
    exact: frozenset[str] = frozenset()
    stationary: Quantity = 1.0

    def degree(self, axis: str) -> Quantity:
        """Degree of a mesh axis; 1 where there is none."""
        return self.degrees.get(axis, 1)

    @cached_property
    def strategies(self) -> frozenset[str]:
        """The strategies that change a layer of some candidate."""
        axes = ("tensor", "context")
        return frozenset(
            [
                *(axis for axis in axes if np.any(np.asarray(self.degree(axis)) > 1)),
                *(["stationary"] if np.any(np.asarray(self.stationary) > 1) else []),
                *(["packing"] if self.choices.packed_lengths else []),
            ]
        )

    @property
    def norm_tokens(self) -> Quantity:
        """Tokens per device between blocks: also cut by tensor under sequence parallelism."""
        return (
            self.tokens / self.degree("tensor") if self.choices.sequence_parallel else self.tokens
        )

    @property
    def mixer_tokens(self) -> Quantity:
        """Tokens per device between a mixer's projections: cut over `stationary`, too."""
        return self.tokens / self.stationary

    @property
    def together(self) -> Quantity:
        """Devices that work on the same tokens. What each of them has a copy of (norms, KV heads
        fewer than devices) one could read and send to the others, so a bound counts it once."""
        return self.degree("tensor") * self.stationary

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """Axes over which whole experts lie apart."""
        return ("expert", "tensor") if self.choices.expert_over_tensor else ("expert",)

    @property
    def expert_group(self) -> Quantity:
        """Devices that share the experts between them, whole ones each."""
        group: Quantity = 1.0
        for axis in self.expert_axes:
            group = group * self.degree(axis)
        return group

    @property
    def expert_load(self) -> Quantity:
        """By what the work of the experts is multiplied: the busiest device's load over the mean,
        at most that of all tokens, or the slots over it."""
        choices = self.choices
        if not choices.ragged:
            return choices.expert_capacity
        uneven = choices.expert_imbalance
        return uneven if uneven == 1 else np.minimum(uneven, self.expert_group)

    @property
    def expert_tokens(self) -> Quantity:
        """Tokens that one device sends to experts: its own, in pieces where tensor cuts experts
        apart rather than their width."""
        return (
            self.tokens / self.degree("tensor") if self.choices.expert_over_tensor else self.tokens
        )

    def compute_share(self, row: Parameter) -> Quantity:
        """Share of a row that one device computes with."""
        return compute_share(row, self.degrees, self.choices.expert_over_tensor)


@dataclass(frozen=True, kw_only=True)
class TrainShape(Structure):
    """One training step as numbers that may be arrays over candidates.

    `sequences` is per batch shard and microbatch; `stage_share` the share of the layers that the
    busiest stage holds (1 without pipelining). The choices of `Structure` have one value for all
    candidates. `loss_stored`: a compiler stores the gradient of the logits before matmuls read it,
    as XLA does for GPUs; for TPUs it is computed where it is read. `rings`: the compiler takes
    matmuls whose weights travel apart into rings. `room`: bytes that a device can use, which a
    compiler goes by where memory is short.
    """

    degrees: Mapping[str, Quantity]
    sequences: Quantity
    sequence_length: int
    microbatches: Quantity
    stage_share: Quantity
    loss_stored: bool = False
    rings: bool = True
    room: float = inf

    def degree(self, axis: str) -> Quantity:
        """Degree of a mesh axis; 1 where there is none."""
        return self.degrees.get(axis, 1)

    @cached_property
    def strategies(self) -> frozenset[str]:
        """The strategies that some candidate uses, those of its layers among them."""
        used = {
            "fsdp": self.has(*self.storage_axes),
            "data": self.has(*DATA_AXES, *(set(STORAGE_AXES) - set(self.storage_axes))),
            "accumulation": bool(np.any(np.asarray(self.microbatches) > 1)),
            "pipeline": self.has("stage"),
            "lora": self.lora_rank > 0,
            "mtp": self.mtp_layers > 0,
        }
        return self.layer_shape.strategies | {name for name, is_used in used.items() if is_used}

    def under(self, structure: Structure) -> "TrainShape":
        """The same numbers under other choices."""
        return replace(self, **structure.choices)

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
    def reduces_once(self) -> bool:
        """Whether gradients of parameters stored in pieces are reduced once a step."""
        return self.gradient_reduce == "per_step"

    @property
    def whole_gradients(self) -> Quantity:
        """1 where a device holds its whole gradients until they are reduced, else 0: of a single
        microbatch each layer's are reduced when they are made."""
        several = np.asarray(self.microbatches) > 1
        return np.where(several, 1.0, 0.0) if self.reduces_once else 0.0

    @property
    def eager(self) -> bool:
        """Whether ops run one by one, as PyTorch does: every cast makes a copy. XLA cuts arrays
        evenly instead: KV heads that tensor does not divide are all on every device."""
        return self.stack_row.eager

    @property
    def tapes(self) -> bool:
        """Whether what is elementwise lies in memory for the backward pass: op by op, where no
        compiler makes one kernel of an elementwise chain."""
        return self.eager and not self.fuses_elementwise

    @property
    def expert_room(self) -> Quantity:
        """Rows that a device holds for its experts over the mean of all devices. A compiled program
        fixes its shapes before tokens choose: a dropless exchange has room for all rows of the
        devices that share the experts, k per token, however few come (`lax.ragged_all_to_all` and
        MaxText's buffers alike). Op by op there are as many as came, or `GRAPH_ROOM` where a graph
        holds the whole step; slots are fixed in number."""
        dropless = self.ragged and not self.eager
        return self.layer_shape.expert_group if dropless else self._fixed(GRAPH_ROOM)

    @property
    def expert_kept(self) -> Quantity:
        """Rows that a device keeps for the backward pass of its experts over the mean."""
        return self._fixed(GRAPH_KEPT) if self.eager else self.expert_room

    def _fixed(self, least: float) -> Quantity:
        """The load of the experts, and at least so much where a graph of the whole step fixes the
        shapes of what experts get."""
        load, group = self.layer_shape.expert_load, self.layer_shape.expert_group
        whole = self.ragged and "full" in self.cuda_graph
        return np.maximum(load, np.minimum(least, group)) if whole else load

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

    def replicas(self, row: Parameter) -> Quantity:
        """How many devices hold the same stored piece of a row; ZeRO-1/2 cut its state."""
        return prod((self.degree(axis) for axis in replica_axes(row, self.storage_axes)), start=1.0)

    def held(self, row: Parameter) -> Quantity:
        """1 for a row with storage of its own; a tied head has its own copy only where the
        embedding lies on another stage."""
        return self.apart if row.shares else 1.0

    def stored(self, rows: Sequence[Parameter]) -> Quantity:
        """Parameters of one layer on one device between uses."""
        return total(self.held(row) * row.size * self.stored_share(row) for row in rows)

    def quantised(self, row: Parameter) -> bool:
        """Whether a row is stored quantised: a frozen matrix of the layers."""
        matrix = row.role == "matmul" and row.group is not None
        return self.quantize != "none" and matrix and not row.name.endswith(ADAPTERS)

    def stored_bytes(self, row: Parameter) -> float:
        """Bytes of an element of a row between uses."""
        if self.quantised(row):
            return quantized_bytes(self.quantize, row)
        return dtype_bytes(self.dtypes.param)

    def gathered_bytes(self, row: Parameter) -> float:
        """Bytes of an element of a row as it is gathered before use."""
        return self.stored_bytes(row) if self.quantised(row) else dtype_bytes(self.weights)

    def in_flight(self, rank: Quantity) -> Quantity:
        """Microbatches whose activations a rank of `stage` holds, in units of a whole stage's. One
        stage computes them one after another, whatever the schedule."""
        stages, row = self.degree("stage"), self.schedule
        held = row.in_flight(stages, self.microbatches, self.virtual_stages, rank)
        return np.where(np.equal(stages, 1), 1, held)

    def trains(self, row: Parameter) -> bool:
        """Whether a row gets gradients: not if its component is frozen, nor beside adapters."""
        if self.lora_rank:
            return row.name.endswith(ADAPTERS)
        return row.component not in self.frozen

    @cached_property
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
            exact=EXACT | frozenset(self.wide),
        )

    @property
    def quantises_kept(self) -> bool:
        """Whether inputs of matmuls narrower than 16 bits are kept as narrow as they are read."""
        return self.stack_row.keeps_quantised and dtype_bytes(self.dtypes.compute) < 2

    @property
    def weights(self) -> str:
        """The dtype that matmuls read their weights in."""
        return self.dtypes.compute if self.dtypes.compute != "f32" else self.dtypes.param
