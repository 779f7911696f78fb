"""Mixture of experts: routing, and two dispatches that give the same sums.

"dense" computes every expert for every token and weighs (E/k times the FLOPs; the fallback that
needs nothing but einsums). "ragged" sorts the tokens by expert and multiplies each group by its
expert (`lax.ragged_dot`): dropless, k MLPs per token. Expert parallelism is a strategy's business.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models import Moe
from shardwise.models.numerics import Routing
from shardwise.runtime.call import Call
from shardwise.runtime.mlp import activate, mlp
from shardwise.runtime.precision import wide
from shardwise.runtime.quant import Quantized, Weight, dequantise, product

Params = Mapping[str, jax.Array]


def moe(p: Params, x_BTD: jax.Array, m: Moe, call: Call) -> jax.Array:
    """Routed experts plus shared ones, [B, T, D]."""
    weights_BTk, chosen_BTk = route(p, x_BTD, m.experts_per_token, call.numerics.routing)
    weights_BTk = weights_BTk.astype(x_BTD.dtype)
    if call.options.dispatch is not None:
        return call.options.dispatch(p, x_BTD, weights_BTk, chosen_BTk, call)
    run = ragged_experts if call.options.experts == "ragged" else dense_experts
    return with_shared(run(p, x_BTD, weights_BTk, chosen_BTk, call), p, x_BTD, call)


@jax.named_scope("shared_experts")
def with_shared(
    out_BTD: jax.Array,
    p: Params,
    x_BTD: jax.Array,
    call: Call,
    summed: Callable[[jax.Array], jax.Array] = lambda x: x,
) -> jax.Array:
    """What routed experts give plus that of shared ones, where a layer has any; `summed` adds up
    products whose x is cut along D."""
    if "shared.up" not in p:
        return out_BTD
    shared_BTD = mlp(p, "shared", x_BTD, call)
    if "shared.gate_weight" in p:
        gate_BT = summed(product("BTD,D->BT", x_BTD, p["shared.gate_weight"]))
        shared_BTD = jax.nn.sigmoid(gate_BT)[..., None] * shared_BTD
    return out_BTD + shared_BTD


@jax.named_scope("router")
def route(
    p: Params, x_BTD: jax.Array, per_token: int, routing: Routing
) -> tuple[jax.Array, jax.Array]:
    """Weights (f32) and indices of the chosen experts, each [B, T, k]. Logits are float32: equal
    bf16 scores would make the choice depend on the order of the experts."""
    dtype = wide(x_BTD)
    logits_BTE = product("BTD,DE->BTE", x_BTD.astype(dtype), p["router"])
    if "router.bias" in p:
        logits_BTE = logits_BTE + p["router.bias"].astype(dtype).reshape(1, 1, -1)
    if routing.scoring == "softmax_chosen":
        top_BTk, chosen_BTk = lax.top_k(logits_BTE, per_token)
        return jax.nn.softmax(top_BTk, axis=-1), chosen_BTk
    sigmoid = routing.scoring == "sigmoid"
    scores_BTE = jax.nn.sigmoid(logits_BTE) if sigmoid else jax.nn.softmax(logits_BTE, axis=-1)
    ranking_BTE = scores_BTE
    if routing.correction:
        bias_E = lax.stop_gradient(p["router.correction"]).astype(dtype)
        ranking_BTE = scores_BTE + bias_E.reshape(1, 1, -1)
    if routing.groups > 1:
        ranking_BTE = _within_groups(ranking_BTE, routing)
    _, chosen_BTk = lax.top_k(ranking_BTE, per_token)
    weights_BTk = jnp.take_along_axis(scores_BTE, chosen_BTk, axis=-1)
    if routing.normalise:
        weights_BTk = weights_BTk / (weights_BTk.sum(-1, keepdims=True) + 1e-20)
    return weights_BTk * routing.scale, chosen_BTk


def _within_groups(ranking_BTE: jax.Array, routing: Routing) -> jax.Array:
    """Only the experts of the best groups stay eligible (DeepSeek-V2, section 2.2.2)."""
    B, T, E = ranking_BTE.shape
    grouped = ranking_BTE.reshape(B, T, routing.groups, E // routing.groups)
    best_of = 1 if routing.group_score == "best" else 2
    score = lax.top_k(grouped, best_of)[0].sum(-1)
    _, best = lax.top_k(score, routing.top_groups)
    eligible = jax.nn.one_hot(best, routing.groups, dtype=jnp.bool_).any(axis=-2)
    return jnp.where(eligible[..., None], grouped, -jnp.inf).reshape(B, T, E)


def dense_experts(
    p: Params,
    x_BTD: jax.Array,
    weights_BTk: jax.Array,
    chosen_BTk: jax.Array,
    call: Call,
    *,
    first: jax.Array | None = None,
    summed: Callable[[jax.Array], jax.Array] = lambda x: x,
    copied: bool = False,
) -> jax.Array:
    """Every expert of this device on every token; `first` and `summed` as of `ragged_experts`. With
    the tokens `copied` for each expert its weights are read as they lie: for a product whose E and
    F are free XLA for TPUs copies each layer's (docs/lab/log.md)."""
    mark, E = call.options.mark, _experts(p["experts.up"])
    hot_BTkE = jax.nn.one_hot(chosen_BTk - (0 if first is None else first), E, dtype=x_BTD.dtype)
    share_BTE = jnp.einsum("BTk,BTkE->BTE", weights_BTk, hot_BTkE)
    spec, x = "BTD,EDF->EBTF", x_BTD
    if copied:
        spec, x = f"E{spec}", lax.optimization_barrier(jnp.broadcast_to(x, (E, *x.shape)))
    up = mark("mlp_in", _every(p, "experts.up", spec, x, summed))
    gate = None
    if "experts.gate" in p:
        gate = mark("mlp_in", _every(p, "experts.gate", spec, x, summed))
    act_EBTF = mark("activation", activate(up, gate, call.numerics))
    out_EBTD = _every(p, "experts.down", "EBTF,EFD->EBTD", act_EBTF, lambda x: x)
    return mark("mlp_out", jnp.einsum("EBTD,BTE->BTD", out_EBTD, share_BTE))


def _every(
    p: Params, name: str, spec: str, x: jax.Array, summed: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    out = summed(product(spec, x, p[name]))
    bias_EF = p.get(f"{name}.bias")
    return out if bias_EF is None else out + bias_EF.astype(out.dtype)[:, None, None]


def ragged_experts(
    p: Params,
    x_BTD: jax.Array,
    weights_BTk: jax.Array,
    chosen_BTk: jax.Array,
    call: Call,
    *,
    first: jax.Array | None = None,
    summed: Callable[[jax.Array], jax.Array] = lambda x: x,
) -> jax.Array:
    """Rows are (token, choice) pairs in the order of their experts. A device that has some experts
    says which is its `first`: what others run adds nothing. `summed` adds up products whose x is
    cut along D."""
    mark, (B, T, D) = call.options.mark, x_BTD.shape
    k, E = chosen_BTk.shape[-1], _experts(p["experts.up"])
    expert_M = chosen_BTk.reshape(-1)
    if first is not None:
        expert_M = expert_M - first
        expert_M = jnp.where((expert_M >= 0) & (expert_M < E), expert_M, E)
    order_M = jnp.argsort(expert_M, stable=True)
    sizes_E = jnp.bincount(expert_M, length=E)
    sorted_M = expert_M[order_M]
    x_MD = x_BTD.reshape(B * T, D)[order_M // k]
    up = mark("mlp_in", _grouped(p, "experts.up", x_MD, sizes_E, sorted_M, summed))
    gate = None
    if "experts.gate" in p:
        gate = mark("mlp_in", _grouped(p, "experts.gate", x_MD, sizes_E, sorted_M, summed))
    act_MF = mark("activation", activate(up, gate, call.numerics))
    share_M1 = weights_BTk.reshape(-1)[order_M][:, None]  # of F, which is narrower than D
    out_MD = _grouped(p, "experts.down", act_MF, sizes_E, sorted_M, lambda x: x, share_M1)
    if first is not None:
        out_MD = jnp.where((sorted_M < E)[:, None], out_MD, 0)
    out_BTD = jnp.zeros((B * T, out_MD.shape[1]), out_MD.dtype).at[order_M // k].add(out_MD)
    return mark("mlp_out", out_BTD.reshape(B, T, -1))


def _grouped(
    p: Params,
    name: str,
    x_MD: jax.Array,
    sizes_E: jax.Array,
    expert_M: jax.Array,
    summed: Callable[[jax.Array], jax.Array],
    share_M1: jax.Array | None = None,
) -> jax.Array:
    """Rows times their experts' weights, each row by its share of its token where given. Small
    numbers are made wide with their scales, as they are for the product anyway."""
    w, wide = p[name], x_MD.dtype
    w = dequantise(w, wide) if isinstance(w, Quantized) else w.astype(wide)
    x_MD = x_MD if share_M1 is None else x_MD * share_M1
    out, bias_EF = summed(lax.ragged_dot(x_MD, w, sizes_E)), p.get(f"{name}.bias")
    if bias_EF is None:
        return out
    bias_MF = bias_EF.astype(out.dtype)[expert_M]
    return out + (bias_MF if share_M1 is None else bias_MF * share_M1)


def _experts(w: Weight) -> int:
    return (w.values if isinstance(w, Quantized) else w).shape[0]
