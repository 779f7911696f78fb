"""ZB-H1: 1F1B with split backward passes (Qi et al., arXiv 2401.10241, section 2.1).

Rank r holds r weight gradients back, so that every rank has S microbatches in flight. With M >= S
it waits (S-1) max(F + B - W, F, B). The paper has the first (its table 1), which takes W to be no
longer than F and B; with F = B = W it is a third of 1F1B's.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from shardwise.scheduling.pipeline.one_forward_one_backward import climbs
from shardwise.scheduling.pipeline.passes import Action, numbered
from shardwise.scheduling.pipeline.row import Path, ScheduleRow
from shardwise.work import Quantity


def _order(rank: int, stages: int, microbatches: int, chunks: int) -> Iterable[Action]:
    """1F1B with `rank` weight gradients held back; they fill the wait at the end.

    Rank r has S-1-r forward passes ahead and r weight gradients behind: S in flight on each.
    """
    ahead = min(stages - 1 - rank, microbatches)
    steady = microbatches - ahead
    held = min(rank, steady)
    held_late = min(rank - held, ahead)
    return numbered(
        [
            ("F0", ahead),
            ("F0 B0", held),
            ("F0 B0 W0", steady - held),
            ("B0", held_late),
            ("B0 W0", ahead - held_late),
            ("W0", held + held_late),
        ]
    )


def _paths(S: Quantity, M: Quantity, v: Quantity) -> Iterator[Path]:
    k, m = S - 1, np.minimum(M, S)
    short = S - m
    late = 2 * np.minimum(k, np.maximum(M - 2, 0))
    hops = climbs(S, M)
    yield short, k, 0, 2 * k
    yield k, short, 0, k + short + late
    yield k, k, 1 - m, 2 * k + late
    # A climb as in 1F1B leaves out a W: it pays where a round of two transfers takes longer.
    yield k, k, -np.maximum(hops, m - 1), 2 * k + 2 * hops


ZB_H1 = ScheduleRow(
    name="zb_h1",
    chunks=(1,),
    splits_backward=True,
    order=_order,
    held=lambda S, M, v, rank: S,
    paths=_paths,
)
