"""Attention kernels: functions from queries, keys and values to the weighted values.

`scoring.py` holds what all share (scale, soft cap, windows, positions, sinks) and the signature;
`dense.py` is the reference, which makes the whole matrix of scores. Projections, rotations and
caches are not here. Read `scoring.py` first.
"""

from shardwise.runtime.attention.dense import dense_attention
from shardwise.runtime.attention.scoring import Kernel, Scoring, visible

__all__ = ["Kernel", "Scoring", "dense_attention", "visible"]
