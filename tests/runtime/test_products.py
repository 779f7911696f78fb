"""Matmuls by rows, and gradients made by hand: equal to the plain ones, and what they keep."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.models.numerics import ActivationName, Numerics
from shardwise.runtime.mlp import _activated, activate
from shardwise.runtime.model import _nats
from shardwise.runtime.options import Apart
from shardwise.runtime.quant import product, row_product

B, T, D, V = 2, 8, 16, 12
PLAIN = Numerics(attention_scale=1.0, ropes=(), rope_pattern=())
SHAPES = {
    "BTD,DNH->BTNH": ((B, T, D), (D, 4, 6)),
    "BTNU,NUD->BTD": ((B, T, 4, 6), (4, 6, D)),
    "BTD,DF->BTF": ((B, T, D), (D, 20)),
    "BTD,VD->BTV": ((B, T, D), (V, D)),
}


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize("spec", SHAPES)
def test_rows(spec: str) -> None:
    x, w = (normal(i, *shape) for i, shape in enumerate(SHAPES[spec]))
    weights = normal(2, *product(spec, x, w).shape)

    def run(multiply):
        return jax.value_and_grad(lambda x, w: (multiply(spec, x, w) * weights).sum(), (0, 1))(x, w)

    plain, rows = run(product), run(row_product)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-4), plain, rows)


def test_rows_in_f32_of_bf16() -> None:
    x, w = normal(0, B, T, D).astype(jnp.bfloat16), normal(1, V, D)
    out = row_product("BTD,VD->BTV", x, w, jnp.float32)
    exact = np.einsum("btd,vd->btv", x.astype("f4"), w.astype(jnp.bfloat16).astype("f4"))
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, exact, 1e-5, 1e-5)


def plain_nats(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)[..., 0]


def test_cross_entropy() -> None:
    logits, weights = normal(0, B, T, V), normal(1, B, T)
    targets = jnp.asarray(np.random.default_rng(2).integers(0, V, (B, T)), jnp.int32)
    ours, theirs = (
        jax.value_and_grad(lambda x, f=f: (f(x, targets) * weights).sum())(logits)
        for f in (_nats, plain_nats)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), ours, theirs)
    assert kept(lambda x: _nats(x, targets), logits) == [logits.shape]


@pytest.mark.parametrize("apart", get_args(Apart))
@pytest.mark.parametrize("name", ["silu", "gelu_tanh", "clamped_silu"])
def test_activation(name: ActivationName, apart: Apart) -> None:
    n = replace(PLAIN, activation=name, gate_limit=1.0, gate_alpha=1.7)
    up, gate = normal(0, B, T, D), normal(1, B, T, D)
    ours, theirs = (
        jax.value_and_grad(lambda u, g, f=f: jnp.square(f(u, g, n)).sum(), (0, 1))(up, gate)
        for f in (partial(activate, apart=apart), _activated)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), ours, theirs)
    assert kept(lambda u, g: activate(u, g, n, apart), up, gate) == [up.shape] * 2


def test_activation_without_a_gate() -> None:
    n, up = replace(PLAIN, activation="gelu"), normal(0, B, T, D)
    ours, theirs = (
        jax.value_and_grad(lambda u, f=f: f(u, None, n).sum())(up) for f in (activate, _activated)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), ours, theirs)


def kept(function: Callable[..., jax.Array], *inputs: jax.Array) -> list[tuple[int, ...]]:
    """Shapes of the arrays of more than B T elements that the backward pass reads."""
    leaves = jax.tree.leaves(jax.vjp(function, *inputs)[1])
    return [x.shape for x in leaves if x.size > B * T]
