"""Attention kernels: functions from queries, keys and values to the weighted values.

`scoring.py` holds what all share (scale, soft cap, windows, positions, sinks) and the signature.
`dense.py` is the reference, which makes the whole matrix of scores; `flash.py` goes through it in
tiles (`tiles.py`), `paged.py` reads keys from pages, on TPUs by JAX's kernel of `ragged.py` where
it serves and by ours of `paged_softmax.py` elsewhere, on GPUs by ours of `paged_triton.py`, and
`best.py` picks a library's kernel where there is a faster one. Where tokens are cut over a mesh
axis, `ring.py`, `all_gather.py` and `ulysses.py` stand in for them, inside `jax.shard_map`, where
`varying.py` makes several values vary over the same axes; `zigzag.py` deals the tokens so that
devices share the work. `splash.py` is JAX's kernel on TPUs, of rows that are cut, too;
`ring_kernel.py` runs it for rings of rows that are dealt.
`causal.py` is what calibration times.
Projections, rotations and caches are not here. Read `scoring.py` first, then `flash.py`.
"""

from shardwise.runtime.attention.all_gather import all_gather_attention
from shardwise.runtime.attention.best import attention_on, best_attention, cudnn_head_dim
from shardwise.runtime.attention.dense import dense_attention
from shardwise.runtime.attention.flash import flash_attention
from shardwise.runtime.attention.ring import ring_attention
from shardwise.runtime.attention.scoring import Kernel, Scaled, Scoring
from shardwise.runtime.attention.ulysses import ulysses_attention
from shardwise.runtime.attention.zigzag import from_zigzag, to_zigzag, zigzag_order

__all__ = [
    "Kernel",
    "Scaled",
    "Scoring",
    "all_gather_attention",
    "attention_on",
    "best_attention",
    "cudnn_head_dim",
    "dense_attention",
    "flash_attention",
    "from_zigzag",
    "ring_attention",
    "to_zigzag",
    "ulysses_attention",
    "zigzag_order",
]
