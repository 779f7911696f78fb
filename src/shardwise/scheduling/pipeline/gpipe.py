"""GPipe: every forward, then every backward pass (Huang et al., arXiv 1811.06965).

A rank holds all M microbatches. Beside M (F + B + W) it waits (S-1) (F + B + W), and 2(S-1)
transfers.
"""

from collections.abc import Iterable, Iterator

from shardwise.scheduling.pipeline.passes import Action, numbered
from shardwise.scheduling.pipeline.row import Path, ScheduleRow
from shardwise.work import Quantity


def _order(rank: int, stages: int, microbatches: int, chunks: int) -> Iterable[Action]:
    return numbered([("F0", microbatches), ("B0", microbatches)])


def _paths(S: Quantity, M: Quantity, v: Quantity) -> Iterator[Path]:
    yield S - 1, S - 1, S - 1, 2 * (S - 1)


GPIPE = ScheduleRow(
    name="gpipe",
    chunks=(1,),
    order=_order,
    held=lambda S, M, v, rank: M + 0 * S,
    paths=_paths,
)
