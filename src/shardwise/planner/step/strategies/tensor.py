"""Tensor parallelism: heads, d_ff and vocabulary are cut over `tensor` (ch. 5.1.3).

Between blocks the stream is `x[B, T_tensor, D]` with sequence parallelism (Megatron-LM, arXiv
2205.05198): a block gathers it to `x[B, T, D]`, multiplies into `h[B, T, F_tensor]`, and its result
`y[B, T, D]{U_tensor}` is reduce-scattered back to `y[B, T_tensor, D]`. Without, the stream is
`x[B, T, D]` and an all-reduce after the block does both.
"""

import numpy as np

from shardwise.models import ModelConfig
from shardwise.planner.step.shape import LayerShape
from shardwise.units import dtype_bytes
from shardwise.work import CollectiveKind, Op, Quantity, exchange


def tensor_step(
    op_id: str,
    kind: CollectiveKind,
    component: str,
    cfg: ModelConfig,
    shape: LayerShape,
    share: Quantity = 1.0,
) -> list[Op]:
    """The gather or scatter of activations over tensor; an all-reduce after the block without
    sequence parallelism. `share` multiplies the bytes (0 where a candidate needs none)."""
    if not np.any(np.asarray(shape.degree("tensor")) > 1) or not np.any(share):
        return []
    if not shape.choices.sequence_parallel:
        if kind == "all_gather":
            return []
        kind = "all_reduce"
    size = shape.tokens * cfg.d_model * dtype_bytes(shape.activations) * share / shape.stationary
    # Counted as never where empty: a collective of no bytes would still pay its latency.
    count = np.where(np.asarray(share) > 0, 1.0, 0.0)
    return [exchange(op_id, kind, component, ("tensor",), size, count=count)]
