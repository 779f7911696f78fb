"""All-gather attention: Q[B, T_c, N, H] stays, K and V[B, S_c, K, H] are gathered over an axis.

One AllGather each of k and v before, one ReduceScatter each of their gradients after the backward
pass; nothing overlaps by itself, but any kernel can follow and masks of any shape cost nothing
more. Memory for keys and values is that of the whole row. With the tokens dealt as in `zigzag.py`
all devices compute the same. JAX's kernel for TPUs follows where places in the row tell what is
seen (`splash_gathered`), with keys put back in order: a device's queries are then rows of one mask.
Source: Llama 3, arXiv 2407.21783, section 3.3.2.
"""

from dataclasses import replace
from typing import overload

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.attention.flash import flash_attention
from shardwise.runtime.attention.scoring import Kernel, Scoring
from shardwise.runtime.attention.splash import CutRows, splash


def all_gather_attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKU: jax.Array,
    scoring: Scoring,
    *,
    axis: str,
    kernel: Kernel = flash_attention,
) -> jax.Array:
    """Attention of this device's queries to the keys of the whole axis. Inside `shard_map`.

    Shapes and scoring as for `ring_attention`; `kernel` computes what is left on one device.
    """
    whole = replace(
        scoring,
        in_order=scoring.in_order and lax.axis_size(axis) == 1,
        k_positions_BS=gathered(scoring.k_positions_BS, axis),
        k_segments_BS=gathered(scoring.k_segments_BS, axis),
    )
    return kernel(q_BTNH, gathered(k_BSKH, axis), gathered(v_BSKU, axis), whole)


def splash_gathered(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKU: jax.Array,
    scoring: Scoring,
    *,
    cut: CutRows,
    interpret: bool = False,
) -> jax.Array:
    """The same by `splash`, of rows in order, or dealt: their positions are not looked at."""
    k_BSKH, v_BSKU = (in_order(x.swapaxes(1, 2), cut).swapaxes(1, 2) for x in (k_BSKH, v_BSKU))
    ids = scoring.k_segments_BS
    ids = None if ids is None else in_order(ids[..., None], cut)[..., 0]
    return splash(
        q_BTNH, k_BSKH, v_BSKU, replace(scoring, k_segments_BS=ids), cut, interpret=interpret
    )


def in_order(x_KTH: jax.Array, cut: CutRows) -> jax.Array:
    """The tokens of whole rows, [..., T, H] -> [..., S, H]: of dealt rows the low parts of all
    devices, then the high ones from the last to the first. In this form the gradient's sums are
    scattered (`runtime/parallel/scattering.py`)."""
    *heads, T, H = x_KTH.shape
    halves = 2 if cut.dealt else 1
    parts = lax.all_gather(x_KTH.reshape(-1, T // halves, H), cut.axis, axis=1, tiled=True)
    if not cut.dealt:
        return parts.reshape(*heads, -1, H)
    parts = parts.reshape(*heads, 2, -1, T // 2, H)
    low, high = parts[..., 0, :, :, :], parts[..., 1, ::-1, :, :]
    return jnp.concatenate([low, high], -3).reshape(*heads, -1, H)


@overload
def gathered(x: jax.Array, axis: str) -> jax.Array: ...
@overload
def gathered(x: None, axis: str) -> None: ...
def gathered(x: jax.Array | None, axis: str) -> jax.Array | None:
    """The blocks of dim 1 of all devices of the axis, in order; the gradient's are summed back."""
    return None if x is None else lax.all_gather(x, axis, axis=1, tiled=True)
