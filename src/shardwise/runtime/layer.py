"""One layer: a mixer and an MLP with their norms, added to the residual stream."""

from collections.abc import Mapping

import jax
from jax.ad_checkpoint import checkpoint_name

from shardwise.models import Attention, LatentAttention, Layer, Moe
from shardwise.models.numerics import Rope
from shardwise.models.specs import DeltaNet, ShortConv
from shardwise.runtime.attention_block import attention_block
from shardwise.runtime.call import Call, Past
from shardwise.runtime.delta_net import delta_net
from shardwise.runtime.mla import latent_attention
from shardwise.runtime.mlp import mlp
from shardwise.runtime.moe import moe
from shardwise.runtime.norms import norm
from shardwise.runtime.short_conv import short_conv

Params = Mapping[str, jax.Array]


def run_layer(
    p: Params,
    x_BTD: jax.Array,
    layer: Layer,
    rope: Rope | None,
    call: Call,
    past: Past | None,
    wanted: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """x + attention(norm x), then x + mlp(norm x); parallel layers add both to the same x.

    Norms named "post_..." are taken of what is added; "input" is shared by a parallel layer's two
    branches. Returns x, of the `wanted` places of T alone where these are given, and the cache
    arrays of the group ({} without a past).
    """
    scale = call.numerics.residual_scale
    x_BTD = call.options.mark("block_input", x_BTD)
    with jax.named_scope("attention" if layer.attention else "linear_attention"):
        normed_BTD = _normed(p, "attention", x_BTD, layer, call)
        mixed_BTD, arrays = _mix(p, normed_BTD, layer, rope, call, past)
        mixed_BTD = _post(p, "post_attention", mixed_BTD, layer, call)
    if wanted is not None:
        x_BTD, mixed_BTD, normed_BTD = (x[:, wanted] for x in (x_BTD, mixed_BTD, normed_BTD))
    if layer.parallel:
        shared_BTD = normed_BTD if "input" in layer.norms else None
        out_BTD = _feed(p, x_BTD, layer, call, shared_BTD)
        return _added(x_BTD, scale, mixed_BTD + out_BTD), arrays
    x_BTD = _added(x_BTD, scale, mixed_BTD)
    out_BTD = _feed(p, x_BTD, layer, call)
    return _added(x_BTD, scale, out_BTD), arrays


@jax.named_scope("norms")
def _added(x_BTD: jax.Array, scale: float, out_BTD: jax.Array) -> jax.Array:
    return x_BTD + scale * out_BTD


def _mix(
    p: Params, x_BTD: jax.Array, layer: Layer, rope: Rope | None, call: Call, past: Past | None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    m = layer.mixer
    if isinstance(m, ShortConv):
        return short_conv(p, x_BTD, m, call, past)
    if isinstance(m, DeltaNet):
        return delta_net(p, x_BTD, m, call, past)
    if isinstance(m, LatentAttention):
        return latent_attention(p, x_BTD, m, rope, call, past)
    assert isinstance(m, Attention)
    return attention_block(p, x_BTD, m, rope, call, past)


def _feed(
    p: Params, x_BTD: jax.Array, layer: Layer, call: Call, normed_BTD: jax.Array | None = None
) -> jax.Array:
    """The MLP between its norms, of what is `normed` already where it shares the mixer's norm."""
    m = layer.mlp if isinstance(layer.mlp, Moe) else None
    with jax.named_scope("routed_experts" if m else "mlp_dense"):
        x_BTD = _normed(p, "mlp", x_BTD, layer, call) if normed_BTD is None else normed_BTD
        out_BTD = moe(p, x_BTD, m, call) if m else mlp(p, "mlp", x_BTD, call)
        return out_BTD if layer.parallel else _post(p, "post_mlp", out_BTD, layer, call)


def _normed(p: Params, branch: str, x_BTD: jax.Array, layer: Layer, call: Call) -> jax.Array:
    name = "input" if "input" in layer.norms else branch
    at = (
        "routed"
        if name == "mlp" and isinstance(layer.mlp, Moe) and layer.mlp.routes_all
        else "norm"
    )
    # Named before the hook, which may gather it over tensor: what is kept are pieces.
    if name in layer.norms:
        x_BTD = norm(p, f"norm.{name}", x_BTD, call.numerics)
    pieces_BTD = checkpoint_name(x_BTD, "norm")
    return call.options.at(at, pieces_BTD)


def _post(p: Params, name: str, x_BTD: jax.Array, layer: Layer, call: Call) -> jax.Array:
    return norm(p, f"norm.{name}", x_BTD, call.numerics) if name in layer.norms else x_BTD
