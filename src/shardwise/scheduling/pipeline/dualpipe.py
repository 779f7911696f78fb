"""DualPipe: each stage exists twice, and microbatches enter from both ends (arXiv 2412.19437).

DeepSeek-V3, section 3.2.1. Chunk 0 is stage r and takes microbatches 0 to M/2-1 from rank 0
upwards; chunk 1 is stage S-1-r and takes the others from rank S-1 downwards. Where the paper runs a
whole backward pass, the table has B and, right after it, its W. The paper runs an F and the B next
to it as one interleaved pass, to hide their all-to-alls: in the table they are neighbours.

A rank holds S + 1 microbatches, and twice the parameters. It waits (S/2-1) (F + B - W) if
F = B = W. The report's (S/2-1) (F&B + B' - 3W), with whole passes B' = B + W and F&B = F + B', is
(S/2-1) (F + 2B - W): there a gradient leaves after the whole backward pass, here after B.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from shardwise.scheduling.pipeline.passes import Action, numbered
from shardwise.scheduling.pipeline.row import Path, ScheduleRow
from shardwise.scheduling.pipeline.zb_h1 import ZB_H1
from shardwise.scheduling.pipeline.zb_v import ZB_V
from shardwise.work import Quantity


def _order(rank: int, stages: int, microbatches: int, chunks: int) -> Iterable[Action]:
    """The eight steps of the bidirectional schedule, seen from the nearer end of the pipeline.

    `near` is the chunk whose microbatches enter at that end, `far` the other; `depth` counts ranks
    from it. While both directions flow, each forward pass stands next to a backward pass of the
    other direction. On one rank nothing goes the other way.
    """
    if stages == 1:
        return ZB_H1.order(rank, stages, microbatches, chunks)
    second = rank >= stages // 2
    near, far = (1, 0) if second else (0, 1)
    depth = stages - 1 - rank if second else rank
    inward = stages // 2 - depth - 1
    both = depth + 1
    # Of the last 2 x both backward passes the first half runs whole, the others owe their W.
    end = [f"B{far}", f"B{near}"] * both
    whole = [f"{name} W" for name in end[:both]]
    phases = [
        (f"F{near}", 2 * inward),
        (f"F{near} F{far}", both),
        (f"B{far} W F{far}", inward),
        (f"F{near} B{far} W F{far} B{near} W", microbatches // 2 - stages + both),
        (f"B{far} W F{far} B{near} W", inward),
        (" ".join([*whole, *end[both:]]), 1),
        (f"W B{near}", inward),
        ("W", both),
    ]
    return numbered(phases, first=(0, microbatches // 2))


def _paths(S: Quantity, M: Quantity, v: Quantity) -> Iterator[Path]:
    """h ranks before the middle one, from either end."""
    h = S // 2 - 1
    yield -1, h, 0, 4 * h
    yield -1, 2 * h, -h, 5 * h
    yield -1, 2 * h, -2 * h - 1, 6 * h + 2
    yield h, 0, 0, 3 * h
    yield h - 1, h, -2 * h - 1, 6 * h + 2
    yield h, h, -2 * h - 1, 5 * h + 2
    yield h, h, -h, 4 * h
    yield 2 * h, -h, -h, 3 * h + 1
    yield 2 * h, 0, -2 * h - 1, 5 * h + 2
    deeper = (
        (-1, 2 * h, 1 - 2 * h, 6 * h),
        (h - 2, 1, 0, 3 * h + 2),
        (h - 2, h + 1, -np.maximum(2 * h - 2, 1), 6 * h - 2),
        (h - 2, h + 1, 1 - 2 * h, 6 * h),
        (h, h, 1 - 2 * h, 5 * h),
        (2 * h, -h, -h - 1, 4 * h + 2),
        (2 * h - 1, 1 - h, 1 - h, 4 * h),
        (2 * h - 1, 1, 1 - 2 * h, 5 * h),
    )
    for path in deeper:
        # Of two ranks both are in the middle: these paths do not exist, and count for nothing.
        f, b, w, t = (np.where(h > 0, n, 0) for n in path)
        yield f, b, w, t


def _refusal(stages: int, microbatches: int) -> str:
    if stages % 2:
        return (
            f"stages is {stages}; the schedule 'dualpipe' pairs the ranks from both ends, so "
            f"use {stages + 1} or the schedule '{ZB_V.name}'"
        )
    nearest = max(2 * stages, microbatches + microbatches % 2)
    return (
        f"microbatches is {microbatches}; the schedule 'dualpipe' sends half of them each "
        f"way and takes an even number from 2 x {stages} stages on, so use {nearest}"
    )


DUALPIPE = ScheduleRow(
    name="dualpipe",
    chunks=(2,),
    arrangement="mirror",
    splits_backward=True,
    pairs_passes=True,
    order=_order,
    held=lambda S, M, v, rank: np.where(S == 1, 1, S + 1),
    paths=_paths,
    counts=lambda S, M: (S % 2 == 0) & (M % 2 == 0) & (M >= 2 * S),
    law="stages and microbatches even, microbatches >= 2 stages",
    refusal=_refusal,
)
