"""Expert parallelism: routed experts lie apart over `expert`, tokens travel to them (ch. 12.6).

Stored `W[E_expert, D, F_tensor]`, or with `expert_over_tensor` `W[E_{expert,tensor}, D, F]`, where
tensor cuts the experts apart rather than their width. Dispatch sends every token to the devices of
its k experts, combine brings the results back:

- dense: an all-to-all of k slots per token times the capacity factor, filled or not;
- ragged: a token travels once to every device that holds one of its experts; the busiest device
  has `expert_imbalance` times the mean. Of the dispatchers, alltoall sends it once per expert, and
  hybridep sends with it the f32 weights of all experts (DeepEP, branch hybrid-ep).

Under sequence parallelism a device of tensor dispatches its piece of the tokens, and where tensor
cuts the experts' width, what arrives is gathered over tensor: k tokens for one (Megatron-LM's
all-to-all dispatcher). Without an expert axis the block's own gather does that for one.
"""

import numpy as np

from shardwise.models import ModelConfig
from shardwise.models.specs import Moe
from shardwise.planner.step.shape import LayerShape
from shardwise.planner.step.strategies.tensor import tensor_step
from shardwise.units import dtype_bytes
from shardwise.work import Op, Quantity, exchange, make_op


def expert_steps(cfg: ModelConfig, moe: Moe, shape: LayerShape) -> tuple[list[Op], list[Op]]:
    """Ops between router and experts, and between experts and their sum: sorting tokens by expert
    (read one, write k), the exchange over expert, and what tensor needs on top."""
    width, size = moe.latent_dim or cfg.d_model, dtype_bytes(shape.activations)
    slots = moe.computed_per_token * shape.expert_load
    moved = _sorted_tokens(shape) * width * size * (1 + slots)
    probabilities = 3 * 4.0 * shape.norm_tokens * moe.experts
    route = make_op("router.softmax", "router", "elementwise", hbm_bytes=probabilities)
    into = [route, make_op("experts.permute", "routed_experts", "gather", hbm_bytes=moved)]
    out = [make_op("experts.unpermute", "routed_experts", "gather", hbm_bytes=moved)]
    dispatch, combine = _exchanges(width, moe, shape)
    gathers, scatters = _over_tensor(width, moe, cfg, shape)
    return [*into, *dispatch, *gathers], [*scatters, *combine, *out]


def _sorted_tokens(shape: LayerShape) -> Quantity:
    """Tokens that one device sorts: a piece where they are then exchanged, else all it has."""
    apart = np.asarray(shape.expert_group) > 1
    return np.where(apart, shape.norm_tokens, shape.tokens)


def _exchanges(width: int, moe: Moe, shape: LayerShape) -> tuple[list[Op], list[Op]]:
    """Dispatch and combine. V is what all devices of the group send together."""
    group = shape.expert_group
    if not np.any(np.asarray(group) > 1):
        return [], []
    choices = shape.choices
    tokens = shape.expert_tokens if choices.expert_over_tensor else shape.norm_tokens
    total = tokens * group * width * dtype_bytes(shape.activations) * shape.expert_load
    if choices.ragged and choices.dispatcher != "alltoall":
        # A copy of every token for every device; the pricer knows which of them are needed.
        total, kind, fan_out = total * group, "ragged_all_to_all", float(moe.computed_per_token)
    else:
        total, kind, fan_out = total * moe.computed_per_token, "all_to_all", None
    size = width * dtype_bytes(shape.activations)
    weights = 4.0 * moe.experts if choices.dispatcher == "hybridep" else 0.0
    ops = [
        exchange(
            f"experts.{step}", kind, "routed_experts", shape.expert_axes, sent, fan_out=fan_out
        )
        for step, sent in (("dispatch", total * (1 + weights / size)), ("combine", total))
    ]
    return ops[:1], ops[1:]


def _over_tensor(
    width: int, moe: Moe, cfg: ModelConfig, shape: LayerShape
) -> tuple[list[Op], list[Op]]:
    """Dispatched tokens gathered over tensor, and results scattered, where tensor cuts F."""
    if "tensor" not in shape.strategies:
        return [], []
    if shape.choices.expert_over_tensor or not shape.choices.sequence_parallel:
        return [], []
    apart = np.where(np.asarray(shape.degree("expert")) > 1, 1.0, 0.0)
    share = apart * moe.computed_per_token * shape.expert_load * width / cfg.d_model
    return (
        tensor_step("experts.gather", "all_gather", "routed_experts", cfg, shape, share),
        tensor_step("experts.scatter", "reduce_scatter", "routed_experts", cfg, shape, share),
    )


def block_share(moe: Moe, shape: LayerShape) -> Quantity:
    """Share of the block's own gather and scatter over tensor that is left: all of it where some
    part of the block sees every token, or where routed experts are not apart."""
    if moe.shared_d_ff or moe.dense is not None or not shape.choices.sequence_parallel:
        return 1.0
    if shape.choices.expert_over_tensor:
        return 0.0
    return np.where(np.asarray(shape.degree("expert")) > 1, 0.0, 1.0)


def expert_batch(active: float, experts: int, shape: LayerShape) -> tuple[Quantity, Quantity]:
    """Tokens per expert, and experts at work, on one device.

    Of E experts a batch of B tokens hits E (1 - (1 - k/E)^B) with random routing: only those are
    read, each with its share of the tokens.
    """
    group = shape.expert_group
    hit = 1.0 - (1.0 - active) ** (shape.expert_tokens * group)
    tokens = shape.expert_tokens * active * group / hit * shape.expert_load
    return tokens, experts / group * hit
