"""Closed forms of the pipeline schedules, on arrays: what the search uses.

For uniform stages they equal the event timeline (`timeline.py`), which the tests check; the best
plans of a search are laid out in time afterwards. F, B, W below are seconds of a microbatch through
ALL chunks of a rank: forward, input gradient with recompute, weight gradient; t is one transfer.
S ranks, M microbatches, v chunks per rank.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from shardwise.errors import unknown
from shardwise.scheduling import PipelineKind
from shardwise.scheduling.pipeline import PIPELINE_KINDS
from shardwise.work import Quantity

Path = tuple[Quantity, Quantity, Quantity, Quantity]
"""How many F, B and W passes of single chunks a critical path has beyond those of M microbatches
(fewer where negative), and how many transfers."""


def pipeline_seconds(
    kind: PipelineKind,
    stages: Quantity,
    microbatches: Quantity,
    virtual_stages: Quantity,
    forward: Quantity,
    backward: Quantity,
    weight: Quantity,
    transfer: Quantity = 0.0,
) -> Quantity:
    """Seconds from the first pass to the last, of uniform stages; every argument broadcasts.

    M (F + B + W) plus the longest of a few waits (a maximum over critical paths, each a sum of
    passes and transfers of single chunks, f = F/v, b = B/v, w = W/v):

    - gpipe, 1f1b: (S-1) (F + B + W). interleaved: 1/v of it.
    - zb_h1, M >= S: (S-1) max(F + B - W, F, B). The paper has the first (its table 1), which takes
      W to be no longer than F and B; with F = B = W it is a third of 1F1B's.
    - zb_v: (S-1) f if f = b = w: what the first activation takes to reach the last rank. The paper
      calls this zero, as each rank by itself never waits. Otherwise more, see `_zb_v`.
    - dualpipe: (S/2-1) (F + B - W) if F = B = W. The report's (S/2-1) (F&B + B' - 3W), with whole
      passes B' = B + W and F&B = F + B', is (S/2-1) (F + 2B - W): there a gradient leaves after
      the whole backward pass, here after B.

    Exact without transfers. With them exact while t <= min(f, b), and a lower bound beyond, as then
    sends queue up. gpipe and interleaved pay 2(S-1) and 2(vS-1) transfers once. 1f1b has no slack:
    of S microbatches in flight each waits for a round trip, 2(S-1) t for every S microbatches. The
    paths are found by tracing the event timeline's critical path, not derived in the papers.
    Counts are those that `scheduling.pipeline_schedule` takes.
    """
    if kind not in PIPELINE_KINDS:
        raise unknown("pipeline schedule", kind, PIPELINE_KINDS)
    chunks = np.where(np.asarray(stages) > 1, virtual_stages, 1)
    # A microbatch meets one of dualpipe's two chunks, which is a whole stage.
    parts: Quantity = np.ones_like(chunks) if kind == "dualpipe" else chunks
    costs = [forward / parts, backward / parts, weight / parts, transfer]
    waits: Quantity = -np.inf
    for path in _PATHS[kind](np.asarray(stages), np.asarray(microbatches), parts):
        waits = np.maximum(waits, sum(n * cost for n, cost in zip(path, costs, strict=True)))
    alone = np.asarray(stages) == 1
    return microbatches * (forward + backward + weight) + np.where(alone, 0.0, waits)


def takes(
    kind: PipelineKind, stages: Quantity, microbatches: Quantity, virtual_stages: Quantity
) -> np.ndarray:
    """Whether `scheduling.pipeline_schedule` takes these counts, on arrays: the rule of legality.

    On one stage every kind takes one chunk. Else interleaved two chunks or more and whole rounds of
    S microbatches, zb_v two chunks and 2S-1 microbatches or more, dualpipe two chunks, an even S
    and an even number of microbatches from 2S on, the others one chunk.
    """
    if kind not in PIPELINE_KINDS:
        raise unknown("pipeline schedule", kind, PIPELINE_KINDS)
    S, M, v = np.asarray(stages), np.asarray(microbatches), np.asarray(virtual_stages)
    legal = {
        "interleaved": (v >= 2) & (M % S == 0),
        "zb_v": (v == 2) & (M >= 2 * S - 1),
        "dualpipe": (v == 2) & (S % 2 == 0) & (M % 2 == 0) & (M >= 2 * S),
    }.get(kind, v == 1)
    return np.where(S == 1, v == 1, legal) & (M >= 1)


def in_flight(
    kind: PipelineKind, stages: Quantity, microbatches: Quantity, virtual_stages: Quantity
) -> Quantity:
    """Microbatches whose activations the fullest rank holds, in units of a whole stage's.

    gpipe M; 1f1b and zb_h1 min(S, M); interleaved ((v+1) S - 1)/v, at most M; zb_v S; dualpipe
    S + 1, and twice the parameters. An activation counts until the end of its W, though parts of it
    may go after B.
    """
    if kind not in PIPELINE_KINDS:
        raise unknown("pipeline schedule", kind, PIPELINE_KINDS)
    S, M, v = np.asarray(stages), np.asarray(microbatches), np.asarray(virtual_stages)
    if kind == "gpipe":
        return M * np.ones_like(S * v)
    held = {
        "1f1b": S,
        "zb_h1": S,
        "interleaved": ((v + 1) * S - 1) / v,
        "zb_v": S,
        "dualpipe": S + 1,
    }[kind]
    return np.where(S == 1, 1, np.minimum(held, M))


_SPLIT = ("zb_h1", "zb_v", "dualpipe")


def _gpipe(S: Quantity, M: Quantity, v: Quantity) -> Iterator[tuple[Quantity, ...]]:
    yield S - 1, S - 1, S - 1, 2 * (S - 1)


def _one_forward_one_backward(
    S: Quantity, M: Quantity, v: Quantity
) -> Iterator[tuple[Quantity, ...]]:
    yield S - 1, S - 1, S - 1, 2 * (S - 1) + 2 * _hops(S, M)


def _interleaved(S: Quantity, M: Quantity, v: Quantity) -> Iterator[tuple[Quantity, ...]]:
    yield S - 1, S - 1, S - 1, 2 * (v * S - 1)


def _hops(S: Quantity, M: Quantity) -> Quantity:
    """Ranks that a critical path of 1F1B climbs, and descends again, between first and last F.

    It can leave the last rank after the B of a microbatch j, climb d ranks with that gradient and
    come back with the F of microbatch j+d+1: as many passes as staying (d F and d B), 2d transfers
    more. M-1 microbatches have room for so many climbs of the S-1 ranks, and a rest.
    """
    rounds, rest = np.divmod(M - 1, S)
    return (S - 1) * rounds + np.maximum(rest - 1, 0)


def _zb_h1(S: Quantity, M: Quantity, v: Quantity) -> Iterator[tuple[Quantity, ...]]:
    k, m = S - 1, np.minimum(M, S)
    short = S - m
    late = 2 * np.minimum(k, np.maximum(M - 2, 0))
    climbs = _hops(S, M)
    yield short, k, 0, 2 * k
    yield k, short, 0, k + short + late
    yield k, k, 1 - m, 2 * k + late
    # A climb as in 1F1B leaves out a W: it pays where a round of two transfers takes longer.
    yield k, k, -np.maximum(climbs, m - 1), 2 * k + 2 * climbs


def _zb_v(S: Quantity, M: Quantity, v: Quantity) -> Iterator[tuple[Quantity, ...]]:
    """Chunks are half stages. With f = b = w the longest is k f (all but t cancels)."""
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


def _dualpipe(S: Quantity, M: Quantity, v: Quantity) -> Iterator[tuple[Quantity, ...]]:
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
    for f, b, w, t in deeper:
        # Of two ranks both are in the middle: these paths do not exist, and count for nothing.
        yield tuple(np.where(h > 0, n, 0) for n in (f, b, w, t))


_PATHS = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "zb_h1": _zb_h1,
    "zb_v": _zb_v,
    "dualpipe": _dualpipe,
}


def _largest(values: Sequence[Quantity]) -> Quantity:
    largest: Quantity = 0.0
    for value in values:
        largest = np.maximum(largest, value)
    return largest
