"""What a model is run with: its numerics, or why it has none, or plain ones for a shape alone."""

import math

from shardwise.errors import BadRequest
from shardwise.models.config import ModelConfig
from shardwise.models.numerics import ActivationName, Numerics, Rope, Routing


def numerics_of(cfg: ModelConfig) -> Numerics:
    """The numerics of a model; BadRequest names the model and why it has none."""
    if cfg.numerics is None:
        why = cfg.not_runnable or f"the runtime has no rules for '{cfg.architecture}'"
        raise BadRequest(
            f"model '{cfg.name}' cannot be run: {why}; it can be planned, and "
            "`shardwise.models.runnable.plain` gives plain numerics to a shape of your own"
        )
    return cfg.numerics


def plain(
    cfg: ModelConfig, *, activation: ActivationName | None = None, theta: float = 10_000.0
) -> Numerics:
    """RMSNorm (LayerNorm where norms carry a bias) and rotary positions unless they are learned.

    For shapes that come from no config.json, such as MaxText's 2023 benchmark models: a non-gated
    MLP gets ReLU, a gated one SiLU, one with biases GELU, unless `activation` says otherwise.
    """
    first = cfg.groups[0]
    attention, mlp = first.attention, first.mlp
    if attention is None or mlp is None:
        raise BadRequest(f"model '{cfg.name}': plain numerics need attention and an MLP per layer")
    if activation is None:
        activation = "silu" if mlp.gated else "gelu" if mlp.bias else "relu"
    rope = None if cfg.position_rows else Rope(dim=attention.head_dim, theta=theta)
    return Numerics(
        norm="layer" if cfg.norm_bias else "rms",
        norm_eps=1e-5 if cfg.norm_bias else 1e-6,
        activation=activation,
        attention_scale=1 / math.sqrt(attention.head_dim),
        ropes=(rope,),
        rope_pattern=(0,) * cfg.layers,
        routing=Routing(normalise=True),
    )
