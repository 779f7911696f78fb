"""MLPs: two or three matmuls and what is between them."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.models.numerics import Numerics
from shardwise.runtime.call import Call
from shardwise.runtime.linear import into, out_of
from shardwise.runtime.options import Apart

Params = Mapping[str, jax.Array]


def activate(
    up: jax.Array, gate: jax.Array | None, n: Numerics, apart: Apart = "passes"
) -> jax.Array:
    """act(gate) * up, or act(up) without a gate.

    "clamped_silu" is gpt-oss's: gate sigmoid(alpha gate) (up + 1), both clamped first. Its gradient
    is made of up and gate alone: autodiff would keep every factor. `apart` says what compilers are
    kept from where there is a gradient (`Apart`).
    """
    out: Any = _activate(up, gate, n, apart)
    return out


def _of_inputs(up: jax.Array, gate: jax.Array | None, n: Numerics, apart: Apart) -> jax.Array:
    return _activated(up, gate, n)


def _activate_forward(
    up: jax.Array, gate: jax.Array | None, n: Numerics, apart: Apart
) -> tuple[jax.Array, Any]:
    if apart != "matmuls" or gate is None:
        return _activated(up, gate, n), (up, gate)
    up, gate = lax.optimization_barrier((up, gate))
    return lax.optimization_barrier(_activated(up, gate, n)), (up, gate)


def _activate_backward(n: Numerics, apart: Apart, kept: Any, dout: jax.Array) -> tuple[Any, Any]:
    alone = apart == "matmuls" and kept[1] is not None
    if alone:
        dout = lax.optimization_barrier(dout)
    elif apart != "nothing":
        kept = lax.optimization_barrier(kept)
    up, gate = kept
    _, pull = jax.vjp(lambda up, gate: _activated(up, gate, n), up, gate)
    return lax.optimization_barrier(pull(dout)) if alone else pull(dout)


def _activated(up: jax.Array, gate: jax.Array | None, n: Numerics) -> jax.Array:
    if n.activation == "clamped_silu":
        assert gate is not None
        gate = jnp.minimum(gate, n.gate_limit)
        up = jnp.clip(up, -n.gate_limit, n.gate_limit)
        return gate * jax.nn.sigmoid(n.gate_alpha * gate) * (up + 1)
    return _plain(up, n) if gate is None else _plain(gate, n) * up


_activate = jax.custom_vjp(_of_inputs, nondiff_argnums=(2, 3))
_activate.defvjp(_activate_forward, _activate_backward)


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
    specs = {n: "BTD,DF->BTF" for n in (f"{name}.up", f"{name}.gate") if n in p}
    up_BTF, *gate_BTF = (mark("mlp_in", y) for y in into(p, specs, x_BTD, call))
    gate = gate_BTF[0] if gate_BTF else None
    act_BTF = activate(up_BTF, gate, call.numerics, call.options.apart)
    out_BTD = out_of(p, f"{name}.down", "BTF,FD->BTD", mark("activation", act_BTF), call)
    return mark("mlp_out", out_BTD)
