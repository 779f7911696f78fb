"""LFM2's mixer: a short causal convolution of each channel between two gates.

u = b * x;  y_t = sum_j w_j u_(t-j), j < W;  out = c * y        with b, c, x projections
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.models.specs import ShortConv
from shardwise.runtime.cache_entry import states
from shardwise.runtime.call import Call, Past
from shardwise.runtime.linear import into, out_of
from shardwise.runtime.recurrence import Channels, Scan, States, carried_apart

Params = Mapping[str, jax.Array]
PROJECTIONS = {
    "conv.gate_in": "BTD,DF->BTF",
    "conv.gate_out": "BTD,DF->BTF",
    "conv.x": "BTD,DF->BTF",
}


def short_conv(
    p: Params, x_BTD: jax.Array, m: ShortConv, call: Call, past: Past | None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The mixer's output [B, T, D], and the cache arrays of the group ({} without a past)."""
    mark = call.options.mark
    b_BTF, c_BTF, x_BTF = into(p, PROJECTIONS, x_BTD, call)
    u_BTF = mark("qkv", b_BTF * x_BTF)

    def scan(channels: Channels) -> Scan:
        kernel_FW, *bias = channels

        def run(u_RQF: Any, positions_RQ: jax.Array, before: States) -> tuple[Any, States]:
            held = kernel_FW, bias[0] if bias else None
            y_RQF, after = convolved(*held, u_RQF, positions_RQ, before["conv"])
            return y_RQF, {"conv": after}

        return run

    channels = tuple(p[n] for n in ("conv.kernel", "conv.kernel.bias") if n in p)
    y_BTF, arrays = carried_apart(scan, channels, u_BTF, states(m, (1,)), call, past)
    gated_BTF = mark("attention", c_BTF * mark("attention", y_BTF))
    return mark("attention_out", out_of(p, "conv.out", "BTF,FD->BTD", gated_BTF, call)), arrays


def convolved(
    kernel_FW: jax.Array,
    bias_F: jax.Array | None,
    u_RQF: jax.Array,
    positions_RQ: jax.Array,
    before_RVF: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The convolution of each channel, and the inputs of the last W - 1 tokens, its state."""
    Q, back = u_RQF.shape[1], kernel_FW.shape[1] - 1
    held_RSF = jnp.concatenate((before_RVF.astype(u_RQF.dtype), u_RQF), axis=1)
    weights_WF = kernel_FW.T.astype(u_RQF.dtype)[:, None, None]
    y_RQF = jnp.zeros_like(u_RQF)
    for j in range(back, -1, -1):
        shifted_RQF = held_RSF[:, back - j : back - j + Q]
        y_RQF += weights_WF[back - j] * jnp.where(positions_RQ[..., None] >= j, shifted_RQF, 0)
    if bias_F is not None:
        y_RQF += bias_F.astype(u_RQF.dtype)[None, None]
    count_R1 = (positions_RQ >= 0).sum(1, keepdims=True)
    last_RV = count_R1 + jnp.arange(back)[None]
    after_RVF = jnp.take_along_axis(held_RSF, last_RV[..., None], axis=1)
    return y_RQF, after_RVF.astype(before_RVF.dtype)
