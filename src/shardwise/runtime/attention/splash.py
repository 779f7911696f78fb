"""JAX's Pallas kernel on TPUs, `splash_attention`, for whole rows and for rows that are cut.

Its mask says which blocks of scores there are before anything runs, and is computed in the kernel
from the place of each query in its row; so queries may be any rows of a matrix of scores whose
columns are in order. Where the tokens of a row are cut over a mesh axis and keys are gathered, each
device takes its own rows of the mask, `CutRows`: blocks in order, or dealt in zig-zag. Such a call,
and one of chunks, is named by the keys that a query sees in the mean (`keys_4096`), which no
compiled text tells.
"""

from contextlib import nullcontext
from dataclasses import fields
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

from shardwise.runtime.attention.scoring import Scoring
from shardwise.runtime.attention.zigzag import zigzag_order

LANES = 128


class CutRows(NamedTuple):
    """Rows whose tokens a mesh axis cuts, in order or `dealt` in zig-zag."""

    axis: str
    dealt: bool


def splash_serves(q_BTNH: jax.Array, s: Scoring) -> bool:
    """Whether the kernel has all that is asked for of queries in known places."""
    chunks = s.chunk is None or s.chunk & (s.chunk - 1) == 0
    return chunks and q_BTNH.shape[1] % LANES == 0


def splash(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKU: jax.Array,
    s: Scoring,
    cut: CutRows | None = None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Causal attention by place in the row, [B, T, N, U]: positions are not looked at. Keys are
    whole rows in order; so are queries, or the part of them that `cut` leaves a device, inside
    `shard_map`. The scale is put into q; `interpret` runs it on a CPU."""
    kernel = _kernel(q_BTNH, k_BSKH.shape[1], s, cut, interpret)
    ids = None
    if s.q_segments_BT is not None and s.k_segments_BS is not None:
        ids = splash_attention.SegmentIds(s.q_segments_BT, s.k_segments_BS)
    q, k, v = (x.swapaxes(1, 2) for x in (q_BTNH * s.scale, k_BSKH, v_BSKU))
    sinks = None if s.sinks_N is None else s.sinks_N.astype(jnp.float32)
    run: Any = jax.vmap(lambda q, k, v, ids: kernel(q, k, v, ids, sinks=sinks))
    seen = keys_seen(k.shape[2], s.window, s.chunk)
    with jax.named_scope(f"keys_{seen}") if cut or s.chunk else nullcontext():
        out_BNTU: Any = run(q, k, v, ids)
    return out_BNTU.swapaxes(1, 2).astype(v_BSKU.dtype)


def keys_seen(S: int, window: int | None, chunk: int | None = None) -> int:
    """Keys that a query of a row of S tokens sees, in the mean.

    >>> keys_seen(4095, None), keys_seen(4096, 512), keys_seen(4096, None, 1024)
    (2048, 480, 512)
    """
    row = min(chunk or S, S)
    most = min(window or row, row)
    return int(most - most * (most - 1) / (2 * row))


class RowMask(splash_attention.LocalMask):
    """What queries of a row of S tokens see: all before, those of a window, or those of a chunk of
    2^k tokens.

    Blocks that are seen as a whole, or not at all, are answered by their corners: JAX asks each
    block of all rows three times, and only whether any and all of it is seen. 65,536 tokens take
    0.6 s so, not 21.
    """

    def __init__(self, S: int, window: int | None, chunk: int | None = None) -> None:
        super().__init__((S, S), (None if window is None else window - 1, 0), 0)
        self.bits = None if chunk is None else chunk.bit_length() - 1
        if (bits := self.bits) is not None:
            before = self.mask_function
            self.mask_function = lambda q, k: before(q, k) & (q >> bits == k >> bits)

    def __eq__(self, other: object) -> bool:
        """JAX keeps what it made of a mask, and asks by equality."""
        return super().__eq__(other) and self.bits == getattr(other, "bits", None)

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.bits))

    def __getitem__(self, idx: Any) -> np.ndarray:
        """The scores of `idx`, two slices; where they are alike, one for all."""
        queries, keys = idx
        rows, reach, bits = self.q_sequence[queries], self.window_size[0], self.bits
        first, last, least, most = rows.min(), rows.max(), keys.start, keys.stop - 1
        none, every = last < least, first >= most
        if reach is not None:
            none, every = none or first - reach > most, every and last - reach <= least
        if bits is not None:
            none, every = (
                none or first >> bits > most >> bits,
                every and last >> bits == least >> bits,
            )
        if none or every:
            return np.full((1, 1), every, np.bool_)
        return super().__getitem__(idx)


def _kernel(q_BTNH: jax.Array, S: int, s: Scoring, cut: CutRows | None, interpret: bool) -> Any:
    T, N = q_BTNH.shape[1:3]
    mask, places = RowMask(S, s.window, s.chunk), S // T if cut else 1
    if cut and cut.dealt:
        mask.q_sequence = zigzag_order(S, places).astype("int32")
    kernel = splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([mask] * N),
        head_shards=1,
        q_seq_shards=places,
        block_sizes=blocks(T // 2 if cut and cut.dealt and T // 2 % LANES == 0 else T),
        attn_logits_soft_cap=s.softcap,
        residual_checkpoint_name="attention",
        interpret=interpret,
    )
    return _own(kernel, cut.axis) if cut else kernel


def _own(kernel: Any, axis: str) -> Any:
    """The kernel of this device's rows: their part of each array of the masks, [heads or 1, blocks
    of all rows, blocks of keys] and [tokens of all rows]."""
    (masks, static), places = kernel.tree_flatten(), lax.axis_size(axis)

    def own(x: jax.Array) -> jax.Array:
        dim = 0 if x.ndim == 1 else 1
        size = x.shape[dim] // places
        return lax.dynamic_slice_in_dim(x, lax.axis_index(axis) * size, size, dim)

    return splash_attention_kernel.SplashAttentionKernel.tree_unflatten(
        static, jax.tree.map(own, masks)
    )


def blocks(T: int) -> splash_attention.BlockSizes:
    """The largest of 512, 256 and 128 that divides T, tokens in order, for all loops."""
    size = next(b for b in (512, 256, LANES) if T % b == 0)
    names = [field.name for field in fields(splash_attention.BlockSizes)]
    sizes: dict[str, Any] = {name: size for name in names if name.startswith("block_")}
    return splash_attention.BlockSizes(**sizes)
