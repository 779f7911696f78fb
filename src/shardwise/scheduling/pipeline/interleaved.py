"""Interleaved 1F1B: v chunks per rank, stage r + c S for chunk c (arXiv 2104.04473, section 2.2.2).

Microbatches go through a chunk in rounds of S. A rank holds (v-1) S + 2 (S - rank) - 1 chunks of
microbatches. It waits a v-th of what 1F1B does, and pays 2(vS-1) transfers once.
"""

from collections.abc import Iterable, Iterator

from shardwise.scheduling.pipeline.passes import Action
from shardwise.scheduling.pipeline.row import Path, ScheduleRow
from shardwise.work import Quantity


def _order(rank: int, stages: int, microbatches: int, chunks: int) -> Iterable[Action]:
    """1F1B over chunk-microbatches: S microbatches through chunk 0, then chunk 1, and so on.

    A rank is ahead by all rounds of its chunks but the last, and by two passes for each rank that
    follows: so many passes later its first gradient is back.
    """
    total = microbatches * chunks
    order = []
    for number in range(total):
        group, place = divmod(number, stages * chunks)
        chunk, microbatch = divmod(place, stages)
        order.append((group * stages + microbatch, chunk))
    forward = [Action("F", m, c) for m, c in order]
    backward = [Action("B", m, chunks - 1 - c) for m, c in order]
    ahead = min(2 * (stages - 1 - rank) + (chunks - 1) * stages, total)
    yield from forward[:ahead]
    for f, b in zip(forward[ahead:], backward, strict=False):
        yield f
        yield b
    yield from backward[total - ahead :]


def _paths(S: Quantity, M: Quantity, v: Quantity) -> Iterator[Path]:
    yield S - 1, S - 1, S - 1, 2 * (v * S - 1)


def _refusal(stages: int, microbatches: int) -> str:
    return (
        f"microbatches {microbatches} are no multiple of {stages} stages; the schedule "
        f"'interleaved' runs them in rounds of one per stage, so use "
        f"{-(-microbatches // stages) * stages} or the schedule '1f1b'"
    )


INTERLEAVED = ScheduleRow(
    name="interleaved",
    chunks=(2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32),
    chunks_said="2 or more; with 1 it is '1f1b'",
    order=_order,
    held=lambda S, M, v, rank: ((v - 1) * S + 2 * (S - rank) - 1) / v,
    paths=_paths,
    counts=lambda S, M: M % S == 0,
    law="stages divide microbatches",
    refusal=_refusal,
)
