"""MLPs: two or three matmuls and what is between them."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from shardwise.models.numerics import Numerics
from shardwise.runtime.call import Call
from shardwise.runtime.quant import product

Params = Mapping[str, jax.Array]


def activate(up: jax.Array, gate: jax.Array | None, n: Numerics) -> jax.Array:
    """act(gate) * up, or act(up) without a gate.

    "clamped_silu" is gpt-oss's: gate sigmoid(alpha gate) (up + 1), both clamped first.
    """
    if n.activation == "clamped_silu":
        assert gate is not None
        gate = jnp.minimum(gate, n.gate_limit)
        up = jnp.clip(up, -n.gate_limit, n.gate_limit)
        return gate * jax.nn.sigmoid(n.gate_alpha * gate) * (up + 1)
    return _plain(up, n) if gate is None else _plain(gate, n) * up


def _plain(x: jax.Array, n: Numerics) -> jax.Array:
    match n.activation:
        case "silu":
            return jax.nn.silu(x)
        case "gelu":
            return jax.nn.gelu(x, approximate=False)
        case "gelu_tanh":
            return jax.nn.gelu(x, approximate=True)
        case "relu":
            return jax.nn.relu(x)
        case _:
            return jnp.square(jax.nn.relu(x))


def mlp(p: Params, name: str, x_BTD: jax.Array, call: Call) -> jax.Array:
    """act(x w_gate) * (x w_up) w_down, or act(x w_up) w_down; [B, T, D]."""
    mark = call.options.mark
    up_BTF = mark("mlp_in", _linear(p, f"{name}.up", "BTD,DF->BTF", x_BTD))
    gate_BTF = None
    if f"{name}.gate" in p:
        gate_BTF = mark("mlp_in", _linear(p, f"{name}.gate", "BTD,DF->BTF", x_BTD))
    act_BTF = mark("activation", activate(up_BTF, gate_BTF, call.numerics))
    return mark("mlp_out", _linear(p, f"{name}.down", "BTF,FD->BTD", act_BTF))


def _linear(p: Params, name: str, spec: str, x: jax.Array) -> jax.Array:
    out = product(spec, x, p[name])
    bias = p.get(f"{name}.bias")
    return out if bias is None else out + bias.astype(out.dtype).reshape(1, 1, -1)
