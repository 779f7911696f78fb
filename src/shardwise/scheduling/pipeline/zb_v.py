"""ZB-V: two chunks per rank, folded into a V, with split backward passes (arXiv 2405.15362).

Rank 0 runs 2S-1 forward passes until its first microbatch comes back up: 2S chunk-microbatches are
in flight, as much as 1F1B's S whole ones. With f = b = w, the passes of a half stage, it waits
(S-1) f: what the first activation takes to reach the last rank. The paper calls this zero, as each
rank by itself never waits. With other passes it waits longer.
"""

from collections.abc import Iterable, Iterator

from shardwise.scheduling.pipeline.passes import Action, numbered
from shardwise.scheduling.pipeline.row import Path, ScheduleRow
from shardwise.scheduling.pipeline.zb_h1 import ZB_H1
from shardwise.work import Quantity


def _order(rank: int, stages: int, microbatches: int, chunks: int) -> Iterable[Action]:
    """Down the V and up again; the phases of the paper's figure for F = B = W.

    Ranks further in have their two chunks closer together: they alternate them earlier, and hold
    the last weight gradients back. On one rank there is nothing to fold.
    """
    if stages == 1:
        return ZB_H1.order(rank, stages, microbatches, chunks)
    inward = stages - rank
    return numbered(
        [
            ("F0", 2 * inward - 1),
            ("F1 F0", rank),
            ("F1 B1 W1", inward),
            ("F0 B0 W0 F1 B1 W1", microbatches - 2 * stages + 1 + rank),
            ("B0 W0 F1 B1 W1", inward - 1),
            ("B0 B1", rank),
            ("B0 W0", inward),
            ("W1", rank),
            ("W0", rank),
        ]
    )


def _paths(S: Quantity, M: Quantity, v: Quantity) -> Iterator[Path]:
    """Counts of (f, b, w, t) beyond M (F + B + W), k = S - 1; chunks are half stages.

    A path is a chain of passes and transfers that must follow one another, so the pipeline takes at
    least as long as each; a negative count is of passes that the path leaves out. The rows were
    found by tracing the critical paths of event timelines, not derived, and a test holds their
    maximum equal to the timeline for any f, b and w. Which is longest depends on them: with long f
    one with 2k f, with long b one with 2k b, with long w one with (k - 1) w. With f = b = w it is
    k f.
    """
    k = S - 1
    yield 0, 1, k - 1, 3 * k
    yield 0, k, 0, 5 * k - 2
    yield 0, k, -1, 5 * k
    yield 0, 2 * k, -2 * k - 1, 6 * k
    yield 0, 2 * k, -2 * k, 6 * k - 2
    yield 1, 0, k - 1, 3 * k - 2
    yield k - 1, 1, 0, 5 * k - 2
    yield k, 0, -1, 5 * k
    yield k, k, -2 * k - 1, 6 * k
    yield k - 1, k + 1, -2 * k, 6 * k - 2
    yield 2 * k - 1, 1 - k, 0, 3 * k - 2
    yield 2 * k - 1, 1, -2 * k, 4 * k - 2
    yield 2 * k, -k, -1, 3 * k
    yield 2 * k, 0, -2 * k - 1, 4 * k


def _refusal(stages: int, microbatches: int) -> str:
    return (
        f"microbatches is {microbatches}; the schedule 'zb_v' fills both arms of its V with "
        f"2 x {stages} - 1 microbatches, so use {2 * stages - 1} or more, or '{ZB_H1.name}'"
    )


ZB_V = ScheduleRow(
    name="zb_v",
    chunks=(2,),
    arrangement="fold",
    splits_backward=True,
    order=_order,
    held=lambda S, M, v, rank: S,
    paths=_paths,
    counts=lambda S, M: M >= 2 * S - 1,
    law="microbatches >= 2 stages - 1",
    refusal=_refusal,
)
