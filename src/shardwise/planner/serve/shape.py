"""ServeShape: a replica as the numbers that counting its steps and its memory needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from shardwise.models import ModelConfig, Parameter, weight_dtype
from shardwise.models.parameters import parameters
from shardwise.models.specs import Attention, Mixer, SoftmaxMixer
from shardwise.planner.step.layer import LayerShape
from shardwise.planner.step.strategies.stationary import cut_by_width
from shardwise.plans.engine_memory import EngineMemory
from shardwise.plans.layouts import compute_share
from shardwise.plans.serve import CHECKPOINT, KvSharding, ServeDtypes
from shardwise.work import Quantity

SPLIT_AXES = ("data", "expert")
"""Axes that cut the batch in decode and the tokens of the prompt in prefill."""

MIXER_AXES = (*SPLIT_AXES, "fsdp")
"""Axes that cut them for attention: where weights are cut along D, it has tokens of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeShape:
    """One replica as numbers that may be arrays over candidates; `batch` is the replica's.

    `compute_of` names the dtype of matmuls by the dtype of their stored weights, where that is not
    `dtypes.compute`: what the chip multiplies quantized weights in. Without `kv_scales` those of an
    int8 cache are left out, as the book does. `engine` is how the engine counts its memory; None
    where nothing is known of it.
    """

    degrees: Mapping[str, Quantity]
    batch: Quantity
    input_length: int
    output_length: int
    prefill_chunk: int
    kv_sharding: KvSharding
    dtypes: ServeDtypes
    compute_of: Mapping[str, str] = field(default_factory=dict)
    kv_scales: bool = True
    engine: EngineMemory | None = None

    def degree(self, axis: str) -> Quantity:
        """Degree of a mesh axis; 1 where there is none."""
        return self.degrees.get(axis, 1)

    @property
    def parts(self) -> Quantity:
        """Into how many parts `data` and `expert` cut the batch, or the prompt."""
        return self.degree("data") * self.degree("expert")

    @property
    def splits(self) -> Quantity:
        """Into how many they are cut with those that are under way on each stage."""
        return self.parts * self.degree("stage")

    @property
    def stationary(self) -> Quantity:
        """Over how many devices weights are cut along D."""
        return self.degree("fsdp")

    @property
    def sequences(self) -> Quantity:
        """Sequences of the fullest part of the batch."""
        return np.ceil(self.batch / self.splits)

    @property
    def context(self) -> float:
        """Tokens in the cache at the mean decode step: the prompt and half of the answer."""
        return self.input_length + self.output_length / 2

    @property
    def longest(self) -> int:
        """Tokens of a finished sequence."""
        return self.input_length + self.output_length

    @property
    def chunks(self) -> int:
        """Chunks of the prefill of one prompt."""
        return -(-self.input_length // self.prefill_chunk)

    @property
    def chunk_tokens(self) -> Quantity:
        """Tokens of one chunk on one device, before tensor."""
        return np.ceil(self.input_length / self.chunks / self.parts)

    def has(self, *axes: str) -> bool:
        """Whether any candidate uses one of the axes."""
        return any(np.any(np.asarray(self.degree(a)) > 1) for a in axes)

    def seen(self, tokens: Quantity, context: Quantity) -> LayerShape:
        """What one device sees of a layer; the weights' dtype is each row's own."""
        return LayerShape(
            tokens=tokens,
            context=context,
            degrees=self.degrees,
            compute=self.dtypes.compute,
            weights="bf16",
            activations=self.dtypes.activations,
            stationary=self.stationary,
        )

    def spread(self, mixer: Mixer | None) -> Quantity:
        """Over how many devices of `tensor` the sequences of one KV head are spread."""
        if self.kv_sharding == "heads" or not isinstance(mixer, SoftmaxMixer):
            return 1.0
        return np.maximum(np.floor(self.degree("tensor") / cached_heads(mixer)), 1.0)

    def cuts(self, mixer: Mixer | None, sequences: Quantity) -> Quantity:
        """Into how many parts the cache of one sequence is cut: as many devices as would idle."""
        if self.kv_sharding != "heads_then_batch_then_sequence":
            return 1.0
        return np.maximum(np.floor(self.spread(mixer) / np.maximum(sequences, 1.0)), 1.0)

    def held(self, mixer: Mixer | None, sequences: Quantity) -> Quantity:
        """Sequences of which a device holds the cache of one KV head; a fraction of one where
        each is cut along its tokens."""
        sequences = np.ceil(sequences / self.stationary)
        cuts = self.cuts(mixer, sequences)
        return np.ceil(sequences / (self.spread(mixer) / cuts)) / cuts

    def stored(self, cfg: ModelConfig, row: Parameter) -> str:
        """The dtype that a parameter is stored in."""
        if self.dtypes.weights == CHECKPOINT:
            return weight_dtype(cfg, row.component, row.name)
        return self.dtypes.weights

    def as_stored(self, cfg: ModelConfig, row: Parameter, seen: LayerShape) -> LayerShape:
        """What a device sees, with the dtypes that this row is stored and multiplied in."""
        stored = self.stored(cfg, row)
        return replace(seen, weights=stored, compute=self.compute_of.get(stored, seen.compute))

    def share(self, row: Parameter) -> Quantity:
        """Share of a parameter that a device computes with."""
        return compute_share(row, {a: self.degree(a) for a in ("tensor", "expert")})

    def held_share(self, row: Parameter) -> Quantity:
        """Share of a parameter in a device's memory."""
        cut = self.stationary if cut_by_width(row) else 1.0
        return self.share(row) / cut / self.degree("stage")


def served_rows(cfg: ModelConfig) -> tuple[Parameter, ...]:
    """The parameters that serve text; towers are left out."""
    return tuple(r for r in parameters(cfg) if r.role != "tower")


def cached_heads(mixer: SoftmaxMixer) -> int:
    """Heads that the cache can be cut by: K, or 1 where all queries share one latent entry."""
    return mixer.kv_heads if isinstance(mixer, Attention) else 1
