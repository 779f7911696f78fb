"""The fastest kernel at hand: cuDNN's on GPUs and JAX's Pallas kernel on TPUs where they serve.

Both need rows in order (`Scoring.in_order`), since their masks are made before anything runs.
cuDNN has causal masks, windows and grouped heads in 16 bits; no soft cap, sinks, chunks or packed
rows. The Pallas kernel has them all, chunks of 2^k tokens. Neither says how its output varies over
mesh axes, so inside `shard_map` they serve only under `check_vma=False` (JAX 0.10:
"`manual_axis_type` ... must not be `None`"); under plain `jit` they always do. Whatever they lack,
and every CPU, gets `flash_attention`, which on CPUs was faster than `jax.nn.dot_product_attention`
at every length tried (`benchmarks/attention.py`).
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import ad_checkpoint

from shardwise.errors import check_known
from shardwise.runtime.attention.flash import flash_attention
from shardwise.runtime.attention.scoring import Scoring
from shardwise.runtime.attention.splash import splash, splash_serves
from shardwise.runtime.attention.varying import axes_of

PLATFORMS = ("cpu", "gpu", "tpu")
CPU_SCORES = 2**18
"""Scores of a tile, 1 MiB in f32: of blocks of 32 to 256 the least CPU time for 8, 32 and 64 heads
(`docs/lab/log.md`, 2026-11-21; a core with 1 MiB of second-level cache)."""
WIDE_TILE = 512
"""Tiles of accelerators: larger ones fill matrix units better (docs/lab/log.md, 2026-11-25)."""
CUDNN_HEAD_DIM = {8: 128, 9: 256, 10: 128, 12: 128}
"""The widest head by major compute capability; JAX's own check, and 10.x as cuDNN documents it."""


def best_attention(
    q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKU: jax.Array, scoring: Scoring
) -> jax.Array:
    """The kernel for JAX's default devices; see `attention_on`."""
    widest = cudnn_head_dim(jax.devices()[0])
    platform = jax.default_backend()
    return attention_on(q_BTNH, k_BSKH, v_BSKU, scoring, platform=platform, cudnn=widest)


def attention_on(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKU: jax.Array,
    scoring: Scoring,
    *,
    platform: str,
    cudnn: int = 0,
) -> jax.Array:
    """`dense_attention` of these inputs, by the best kernel of a platform: cpu, gpu or tpu.

    The platform is named, and the widest head that `cudnn` takes on its devices, so that a program
    can be compiled for others than it is traced on. Raises BadRequest for another name.
    """
    check_known("platform", platform, PLATFORMS)
    scoring = _plain(scoring, q_BTNH.shape[1])
    if axes_of((q_BTNH, k_BSKH, v_BSKU)):
        return _flash(q_BTNH, k_BSKH, v_BSKU, scoring, platform)
    if platform == "gpu" and cudnn_serves(q_BTNH, v_BSKU, scoring, cudnn):
        return _cudnn(q_BTNH, k_BSKH, v_BSKU, scoring)
    if platform == "tpu" and scoring.in_order and splash_serves(q_BTNH, scoring):
        return splash(q_BTNH, k_BSKH, v_BSKU, scoring)
    return _flash(q_BTNH, k_BSKH, v_BSKU, scoring, platform)


def _flash(q: jax.Array, k: jax.Array, v: jax.Array, s: Scoring, platform: str) -> jax.Array:
    """Ours, in tiles of a size measured on two CPU cores, and of `WIDE_TILE` elsewhere."""
    block = _cpu_block(q.shape[0] * q.shape[2]) if platform == "cpu" else WIDE_TILE
    return flash_attention(q, k, v, s, block_T=block, block_S=block)


def _cpu_block(heads: int) -> int:
    """The largest tile whose scores, of all heads of all rows, stay in a core's own cache."""
    return next((b for b in (256, 128) if heads * b**2 <= CPU_SCORES), 64)


def _plain(s: Scoring, T: int) -> Scoring:
    """Without windows and chunks that hide nothing."""
    return replace(
        s,
        window=None if s.in_order and s.window is not None and s.window >= T else s.window,
        chunk=None if s.in_order and s.chunk is not None and s.chunk >= T else s.chunk,
    )


def cudnn_serves(q_BTNH: jax.Array, v_BSKU: jax.Array, s: Scoring, head_dim: int) -> bool:
    """Whether cuDNN's attention has all that is asked for, up to a width of heads."""
    H, U = q_BTNH.shape[-1], v_BSKU.shape[-1]
    arrays = (s.q_segments_BT, s.k_segments_BS, s.sinks_N)
    plain = s.softcap is None and s.chunk is None and all(x is None for x in arrays)
    shapes = H == U and H % 8 == 0 and head_dim >= H
    return s.in_order and plain and shapes and q_BTNH.dtype in (jnp.bfloat16, jnp.float16)


def cudnn_head_dim(device: Any) -> int:
    """The widest head that cuDNN's attention takes on a device, here or of a topology; 0 on one
    that is no GPU of NVIDIA."""
    major, _, _ = str(getattr(device, "compute_capability", "")).partition(".")
    return CUDNN_HEAD_DIM.get(int(major), 0) if major.isdecimal() else 0


def _cudnn(q: jax.Array, k: jax.Array, v: jax.Array, s: Scoring) -> jax.Array:
    window = None if s.window is None else (s.window - 1, 0)
    out = jax.nn.dot_product_attention(
        q, k, v, scale=s.scale, is_causal=True, local_window_size=window, implementation="cudnn"
    )
    return ad_checkpoint.checkpoint_name(out, "attention")
