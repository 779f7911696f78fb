"""Everything that is counted of a model: parameters, FLOPs, weights, cache and activations."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.boundary.records import Record, part
from shardwise.models.activations import activation_bytes
from shardwise.models.config import ModelConfig
from shardwise.models.counts import (
    params_active,
    params_by_component,
    params_text,
    params_total,
    weight_bytes,
)
from shardwise.models.describe import Decision, design_decisions, mixing_text, mlp_text
from shardwise.models.flops import (
    TRAINING,
    attention_crossover,
    flops_by_component,
    forward_flops_per_token,
    model_flops_per_token,
    six_nd,
)
from shardwise.models.kv import index_bytes, kv_bytes, kv_bytes_per_token, state_bytes
from shardwise.models.remat import REMAT_POLICIES, remat_row
from shardwise.models.specs import LatentAttention, Layer, Moe
from shardwise.units import dtype_bytes, format_bytes


@dataclass(frozen=True, kw_only=True)
class LayerGroup(Record):
    """Layers of one kind; null is what they have not."""

    layers: int
    """How many there are."""
    mixer: str
    """What mixes tokens, in words."""
    heads: int | None
    """Query heads N."""
    kv_heads: int | None
    """Key and value heads K; null for latent attention."""
    head_dim: int | None
    """Width H of a head's queries and keys."""
    v_head_dim: int | None
    """Width of a head's values."""
    window: int | None
    """Tokens that attention looks back at most."""
    mlp: str
    """The MLP, in words."""
    d_ff: int | None
    """Width F of the MLP, or of one expert."""
    experts: int | None
    """Experts E."""
    experts_per_token: int | None
    """Experts that a token goes to."""
    shared_d_ff: int | None
    """Width of the experts that every token goes to."""
    norms: tuple[str, ...]
    """Where norms are."""
    parallel: bool
    """Whether mixer and MLP read the same input."""


@dataclass(frozen=True, kw_only=True)
class TokenFlops(Record):
    """FLOPs of one token."""

    forward: float
    """FLOPs of the forward pass."""
    training: float
    """FLOPs of forward and backward pass."""


@dataclass(frozen=True, kw_only=True)
class SequenceCache(Record):
    """What a sequence keeps, of a model that keeps more than keys and values."""

    kv_bytes_per_token: float
    """Bytes of keys and values of a token."""
    index_bytes_per_token: float
    """Bytes of an indexer's keys of a token, in fp8 with their scales."""
    state_bytes: float
    """Bytes of state of a sequence, whatever its length: recurrences in f32, the last inputs of
    convolutions in bf16."""

    def __str__(self) -> str:
        token = f"{self.kv_bytes_per_token:,.0f} B of keys and values"
        if self.index_bytes_per_token:
            token += f" and {self.index_bytes_per_token:,.0f} B of indexer keys"
        state = f"{format_bytes(self.state_bytes)} of state, whatever its length"
        if not self.kv_bytes_per_token:
            return state
        return f"{token} a token" + (f"; {state}" if self.state_bytes else "")


def sequence_cache(cfg: ModelConfig, context: int, dtype: str) -> SequenceCache | None:
    """What a sequence of `context` tokens keeps; None where that is keys and values alone."""
    keys, state = index_bytes(cfg, context), state_bytes(cfg)
    if not keys and not state:
        return None
    return SequenceCache(
        kv_bytes_per_token=kv_bytes_per_token(cfg, dtype),
        index_bytes_per_token=keys / context,
        state_bytes=state,
    )


@dataclass(frozen=True, kw_only=True)
class ModelCounts(Record):
    """What is counted of a model, for sequences of one length with a causal mask."""

    name: str
    """The model's name."""
    architecture: str
    """The class that its config.json names."""
    layers: int
    """Layers L."""
    layer_groups: Sequence[LayerGroup]
    """Each kind of layer."""
    design: Mapping[str, Decision]
    """Decisions by name; several distinct values of the layers in order."""
    params_total: int
    """All parameters."""
    params_text: int
    """Parameters of the text model."""
    params_active: int
    """Parameters that a token uses."""
    params_by_component: Mapping[str, int]
    """Parameters of each part of the model."""
    context: int
    """Tokens of a sequence."""
    flops_per_token_by_component: Mapping[str, TokenFlops]
    """FLOPs per token of each part of the model."""
    forward_flops_per_token: float
    """FLOPs per token of the forward pass."""
    training_flops_per_token: float
    """FLOPs per token of forward and backward pass."""
    training_flops_per_token_6n: float
    """6 x active parameters."""
    attention_crossover: int | None
    """Tokens of a sequence from which attention costs as much as the layers' matmuls; null where it
    never does."""
    kv_dtype: str
    """Dtype of the KV cache."""
    kv_bytes_per_token: float
    """Bytes of KV cache that a further token takes."""
    kv_bytes_per_sequence: float
    """Bytes of KV cache of a sequence."""
    index_bytes_per_sequence: float
    """Bytes of an indexer's keys (fp8) of a sequence."""
    state_bytes_per_sequence: float
    """Bytes of state of a sequence: recurrences in f32, the last inputs of convolutions in bf16."""
    sequence_cache: SequenceCache | None = part()
    """What a sequence keeps, of a model that keeps more than keys and values."""
    activation_dtype: str
    """Dtype of kept activations: that of the cache where it has 2 bytes or more, else bf16."""
    activation_bytes_per_token: Mapping[str, float]
    """Bytes per token that the backward pass needs, by remat policy; on the host where it
    offloads."""
    weight_bytes: float
    """Bytes of the weights as published."""
    weight_dtypes: Mapping[str, str]
    """Dtypes of the published weights, by kind of parameter."""


def model_counts(cfg: ModelConfig, context: int, dtype: str) -> ModelCounts:
    """Everything that is counted of a model for sequences of `context` tokens, with a KV cache in
    `dtype`."""
    kept = dtype if dtype_bytes(dtype) >= 2 else "bf16"
    crossover = attention_crossover(cfg, causal=True)
    return ModelCounts(
        name=cfg.name,
        architecture=cfg.architecture,
        layers=cfg.layers,
        layer_groups=[_group(layer, count) for layer, count in cfg.layer_groups()],
        design=design_decisions(cfg, context, dtype),
        params_total=params_total(cfg),
        params_text=params_text(cfg),
        params_active=params_active(cfg),
        params_by_component=params_by_component(cfg),
        context=context,
        flops_per_token_by_component={
            name: TokenFlops(forward=float(forward), training=float(TRAINING * forward))
            for name, forward in flops_by_component(cfg, context).items()
        },
        forward_flops_per_token=float(forward_flops_per_token(cfg, context)),
        training_flops_per_token=float(model_flops_per_token(cfg, context)),
        training_flops_per_token_6n=float(six_nd(params_active(cfg))),
        attention_crossover=None if math.isinf(crossover) else int(crossover),
        kv_dtype=dtype,
        kv_bytes_per_token=kv_bytes_per_token(cfg, dtype),
        kv_bytes_per_sequence=kv_bytes(cfg, context, dtype),
        index_bytes_per_sequence=index_bytes(cfg, context),
        state_bytes_per_sequence=state_bytes(cfg),
        sequence_cache=sequence_cache(cfg, context, dtype),
        activation_dtype=kept,
        activation_bytes_per_token={
            policy: float(
                activation_bytes(
                    cfg,
                    policy,
                    dtype=kept,
                    place="host" if remat_row(policy).offloads else "device",
                )
            )
            for policy in REMAT_POLICIES
        },
        weight_bytes=weight_bytes(cfg),
        weight_dtypes=cfg.weight_dtypes,
    )


def _group(layer: Layer, count: int) -> LayerGroup:
    """So many layers of one kind."""
    a, mlp = layer.attention, layer.mlp
    moe = mlp if isinstance(mlp, Moe) else None
    return LayerGroup(
        layers=count,
        mixer=mixing_text(layer),
        heads=a and a.heads,
        kv_heads=None if a is None or isinstance(a, LatentAttention) else a.kv_heads,
        head_dim=a and a.head_dim,
        v_head_dim=a and a.v_head_dim,
        window=getattr(a, "window", None),
        mlp=mlp_text(mlp),
        d_ff=mlp and mlp.d_ff,
        experts=moe and moe.experts,
        experts_per_token=moe and moe.experts_per_token,
        shared_d_ff=moe and moe.shared_d_ff,
        norms=layer.norms,
        parallel=layer.parallel,
    )
