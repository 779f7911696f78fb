"""The gated delta rule (Yang et al. 2024, arXiv 2412.06464), as Qwen3-Next computes it.

Each value head carries a matrix S [H, U] that forgets and is corrected: with decay g <= 0 and
strength b of a token, S' = e^g S and then S'' = S' + k b (v - S'^T k)^T; its answer is S''^T q.
Tokens are taken `CHUNK` at a time. With G the sum of decays so far and u_t = b (v_t - S'^T k_t),

    (I + A) u = b (v - e^G S_0^T k),   A_tj = b_t e^(G_t - G_j) k_t.k_j for j < t
    o_t = e^(G_t) S_0^T q_t + sum_(j <= t) e^(G_t - G_j) (q_t.k_j) u_j

Queries, keys and values come through a short convolution and a SiLU; queries and keys have length
one, and there may be fewer of their heads. A gated norm follows. All in float32.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular

from shardwise.models.specs import DeltaNet
from shardwise.runtime.cache_entry import states
from shardwise.runtime.call import Call, Past
from shardwise.runtime.linear import into, out_of
from shardwise.runtime.precision import wide
from shardwise.runtime.recurrence import States, carried
from shardwise.runtime.short_conv import convolved

Params = Mapping[str, jax.Array]
CHUNK = 64
"""Tokens that are taken at once."""
UNIT_EPS = 1e-6
"""Added to the squared length of queries and keys (transformers' Qwen3-Next)."""
MIXED = {"delta.q": "BTD,DKH->BTKH", "delta.k": "BTD,DKH->BTKH", "delta.v": "BTD,DNU->BTNU"}
GATES = {"delta.gate": "BTD,DNU->BTNU", "delta.beta": "BTD,DN->BTN", "delta.decay": "BTD,DN->BTN"}


def delta_net(
    p: Params, x_BTD: jax.Array, m: DeltaNet, call: Call, past: Past | None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The mixer's output [B, T, D], and the cache arrays of the group ({} without a past)."""
    mark, B, T = call.options.mark, *x_BTD.shape[:2]
    parts = (y.reshape(B, T, -1) for y in into(p, MIXED, x_BTD, call))
    mixed_BTF = mark("qkv", jnp.concatenate(tuple(parts), axis=-1))
    z_BTNU, b_BTN, a_BTN = into(p, GATES, x_BTD, call)
    dtype = wide(x_BTD)
    rate_N = -jnp.exp(p["delta.a_log"].astype(dtype))
    step_BTN = jax.nn.softplus(a_BTN.astype(dtype) + p["delta.dt_bias"].astype(dtype)[None, None])
    decay_BTN = rate_N[None, None] * step_BTN
    kernels = (p[f"delta.conv_{n}"].reshape(-1, m.conv_width) for n in "qkv")
    kernel_FW = jnp.concatenate(tuple(kernels))

    def scan(x: Any, positions_RQ: jax.Array, before: States) -> tuple[jax.Array, States]:
        mixed_RQF, strength_RQN, decay_RQN = x
        through_RQF, conv = convolved(kernel_FW, None, mixed_RQF, positions_RQ, before["conv"])
        q, k, v = _heads(jax.nn.silu(through_RQF).astype(dtype), m)
        out, state = _delta_rule(q, k, v, decay_RQN, strength_RQN, positions_RQ, before["delta"])
        return out, {"conv": conv, "delta": state}

    strength_BTN = jax.nn.sigmoid(b_BTN).astype(dtype)
    inputs = mixed_BTF, strength_BTN, decay_BTN
    o_BTNU, arrays = carried(scan, inputs, states(m, (1,)), call, past)
    o_BTNU = mark("attention", o_BTNU.astype(x_BTD.dtype))
    gated_BTNU = mark("attention", _gated_norm(p["delta.norm"], o_BTNU, z_BTNU, call))
    return mark("attention_out", out_of(p, "delta.out", "BTNU,NUD->BTD", gated_BTNU, call)), arrays


def _heads(x_RQF: jax.Array, m: DeltaNet) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries and keys [R, Q, N, H] of length one (and 1/sqrt(H)), and values [R, Q, N, U]."""
    R, Q, width = *x_RQF.shape[:2], m.key_heads * m.key_head_dim
    q, k, v = jnp.split(x_RQF, (width, 2 * width), axis=-1)
    q, k = (x.reshape(R, Q, m.key_heads, m.key_head_dim) for x in (q, k))
    q, k = (x * lax.rsqrt((x * x).sum(-1, keepdims=True) + UNIT_EPS) for x in (q, k))
    q, k = (jnp.repeat(x, m.value_heads // m.key_heads, axis=2) for x in (q, k))
    return q * m.key_head_dim**-0.5, k, v.reshape(R, Q, m.value_heads, m.value_head_dim)


def _delta_rule(
    q_RQNH: jax.Array,
    k_RQNH: jax.Array,
    v_RQNU: jax.Array,
    decay_RQN: jax.Array,
    strength_RQN: jax.Array,
    positions_RQ: jax.Array,
    state_RNHU: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """All chunks one after another; padding neither decays nor corrects."""
    R, Q = positions_RQ.shape
    size = min(CHUNK, Q)
    counts = -(-Q // size)
    valid_RQ1 = (positions_RQ >= 0)[..., None]
    tokens = (
        q_RQNH,
        k_RQNH,
        v_RQNU,
        jnp.where(valid_RQ1, decay_RQN, 0),
        jnp.where(valid_RQ1, strength_RQN, 0),
        (positions_RQ == 0).astype(jnp.int32),
    )

    def cut(x: jax.Array) -> jax.Array:
        padded = jnp.pad(x, ((0, 0), (0, counts * size - Q), *((0, 0),) * (x.ndim - 2)))
        return jnp.moveaxis(padded.reshape(R, counts, size, *x.shape[2:]), 1, 0)

    dtype = state_RNHU.dtype
    state, out = lax.scan(_chunk, state_RNHU.astype(v_RQNU.dtype), tuple(map(cut, tokens)))
    out_RQNU = jnp.moveaxis(out, 0, 1).reshape(R, counts * size, *out.shape[3:])
    return out_RQNU[:, :Q], state.astype(dtype)


def _chunk(state_RNHU: jax.Array, tokens: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
    q, k, v, decay_RQN, strength_RQN, begins_RQ = tokens
    sum_RQN, document_RQ = jnp.cumsum(decay_RQN, axis=1), jnp.cumsum(begins_RQ, axis=1)
    order_Q = jnp.arange(q.shape[1])
    before_QS = order_Q[:, None] >= order_Q[None]
    same_RQS = document_RQ[:, :, None] == document_RQ[:, None]
    seen_RNQS = (same_RQS & before_QS[None])[:, None]
    sum_RNQ = jnp.moveaxis(sum_RQN, 1, 2)
    apart_RNQS = sum_RNQ[..., :, None] - sum_RNQ[..., None, :]
    kept_RNQS = jnp.where(seen_RNQS, jnp.exp(jnp.where(seen_RNQS, apart_RNQS, 0)), 0)
    old_RQN = jnp.where((document_RQ == 0)[..., None], jnp.exp(sum_RQN), 0)

    strength_RNQ1 = jnp.moveaxis(strength_RQN, 1, 2)[..., None]
    likeness_RNQS = strength_RNQ1 * kept_RNQS * jnp.einsum("RQNH,RSNH->RNQS", k, k)
    known_RQNU = old_RQN[..., None] * jnp.einsum("RNHU,RQNH->RQNU", state_RNHU, k)
    wanted_RNQU = strength_RNQ1 * jnp.moveaxis(v - known_RQNU, 1, 2)
    u_RNQU = solve_triangular(likeness_RNQS, wanted_RNQU, lower=True, unit_diagonal=True)

    out_RQNU = old_RQN[..., None] * jnp.einsum("RNHU,RQNH->RQNU", state_RNHU, q)
    weights_RNQS = kept_RNQS * jnp.einsum("RQNH,RSNH->RNQS", q, k)
    out_RQNU += jnp.einsum("RNQS,RNSU->RQNU", weights_RNQS, u_RNQU)
    last_RNQ = kept_RNQS[:, :, -1]
    state_RNHU = old_RQN[:, -1][..., None, None] * state_RNHU
    return state_RNHU + jnp.einsum("RNQ,RQNH,RNQU->RNHU", last_RNQ, k, u_RNQU), out_RQNU


def _gated_norm(scale_U: jax.Array, x_BTNU: jax.Array, z_BTNU: jax.Array, call: Call) -> jax.Array:
    """RMSNorm of each head, times its scale and the SiLU of the gate."""
    dtype = wide(x_BTNU)
    y = x_BTNU.astype(dtype)
    y = y * lax.rsqrt((y * y).mean(-1, keepdims=True) + call.numerics.norm_eps)
    y = scale_U.astype(x_BTNU.dtype)[None, None, None] * y.astype(x_BTNU.dtype)
    return (y.astype(dtype) * jax.nn.silu(z_BTNU.astype(dtype))).astype(x_BTNU.dtype)
