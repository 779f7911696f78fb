"""Documents packed into one sequence: a token attends to its own document only.

A batch says by `segments` and `positions` which documents its rows hold. Where it does not, all
rows hold those that the plan was made for.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.plans.train import TrainPlan

Batch = Mapping[str, jax.Array]


def with_documents(batch: Batch, plan: TrainPlan) -> Batch:
    """The batch with segments [B, T], from 1, and positions that restart at each document; as it
    is where it has segments, or the plan no `packed_lengths`."""
    if not plan.packed_lengths or "segments" in batch:
        return batch
    lengths = plan.packed_lengths
    segments_T = np.repeat(np.arange(1, len(lengths) + 1, dtype=np.int32), lengths)
    positions_T = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    shape = batch["tokens"].shape
    made = {"segments": segments_T, "positions": positions_T}
    return {**{name: jnp.broadcast_to(x[None], shape) for name, x in made.items()}, **batch}
