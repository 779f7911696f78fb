"""1F1B: a rank starts with as many forward passes as ranks follow it, then alternates.

PipeDream-flush; Narayanan et al., arXiv 2104.04473, section 2.2.1. A rank holds a microbatch for
itself and for each rank that follows. It waits (S-1) (F + B + W) as GPipe does. It has no slack for
transfers: of S microbatches in flight each waits for a round trip, 2(S-1) t for every S
microbatches.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from shardwise.scheduling.pipeline.passes import Action, numbered
from shardwise.scheduling.pipeline.row import Path, ScheduleRow
from shardwise.work import Quantity


def _order(rank: int, stages: int, microbatches: int, chunks: int) -> Iterable[Action]:
    """As many forward passes first as ranks follow: then their first gradient comes back."""
    ahead = min(stages - 1 - rank, microbatches)
    return numbered([("F0", ahead), ("F0 B0", microbatches - ahead), ("B0", ahead)])


def _paths(S: Quantity, M: Quantity, v: Quantity) -> Iterator[Path]:
    yield S - 1, S - 1, S - 1, 2 * (S - 1) + 2 * climbs(S, M)


def climbs(S: Quantity, M: Quantity) -> Quantity:
    """Ranks that a critical path of 1F1B climbs, and descends again, between first and last F.

    It can leave the last rank after the B of a microbatch j, climb d ranks with that gradient and
    come back with the F of microbatch j+d+1: as many passes as staying (d F and d B), 2d transfers
    more. M-1 microbatches have room for so many climbs of the S-1 ranks, and a rest.
    """
    rounds, rest = np.divmod(M - 1, S)
    return (S - 1) * rounds + np.maximum(rest - 1, 0)


ONE_FORWARD_ONE_BACKWARD = ScheduleRow(
    name="1f1b",
    chunks=(1,),
    order=_order,
    held=lambda S, M, v, rank: S - rank,
    paths=_paths,
)
