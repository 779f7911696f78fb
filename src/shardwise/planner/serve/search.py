"""The servers of one slice for objective "smallest": meshes and batches as columns of arrays.

For each part of the slice and each way to cut the KV cache, every legal mesh is tried with batches
up to the largest that memory holds, counted, placed and priced at once by the methods that price a
single plan (`server.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol, TypeVar

import numpy as np

from shardwise.hardware import Slice, boxes
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.server import Bounds, Server, servers, usable_bytes

_MAX_BATCH = 2**17
_BATCHES = tuple(sorted({round(2 ** (i / 2)) for i in range(35)}))
"""Batches looked at below the largest: powers of the square root of two."""
_PROBES, _ROUNDS = 24, 32
_PROBE_AT = np.arange(1, _PROBES + 1) / (_PROBES + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A server with a batch as the search saw it; `memory` is bytes per device."""

    server: Server
    batch: int
    ttft: Bounds
    tpot: Bounds
    memory: float

    @property
    def times(self) -> tuple[float, float]:
        """Expected TTFT and TPOT."""
        return float(self.ttft.expected), float(self.tpot.expected)

    @property
    def tokens_per_second_per_chip(self) -> float:
        """Answer tokens per expected second and chip of the slice, while decoding."""
        return self.batch / float(self.tpot.expected) / self.server.piece.chips

    @property
    def rank(self) -> tuple[float, float, int]:
        """Of the front: the fastest step first, then most tokens, then fewest chips."""
        return self.times[1], -self.tokens_per_second_per_chip, self.server.piece.chips


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceFound:
    """What one slice can do. `points` fit in memory; `need` is the least memory per device of any
    mesh at the smallest batch, that of the server `leanest` (None where no mesh is legal)."""

    piece: Slice
    points: tuple[Point, ...]
    need: float
    leanest: Server | None

    @property
    def usable(self) -> float:
        """HBM bytes that one device can use."""
        return usable_bytes(self.piece)


def search_slice(request: ServeRequest, piece: Slice, *, exact: bool = True) -> SliceFound:
    """All servers on a slice. Fewer chips than it has are used only where no mesh uses them all.

    Not `exact`, the largest batches within the targets are found to a few per cent, from below.
    """
    need, leanest, points = inf, None, []
    for box in boxes(piece):
        for columns in servers(request, piece, box, request.dtypes[0]):
            lean = columns.peak_bytes(max(request.batch, 1))
            best = int(np.argmin(lean))
            if lean[best] < need:
                need, leanest = float(lean[best]), columns.at(best)
            columns = columns.take(np.flatnonzero(lean <= columns.usable_bytes))
            if len(columns):
                points += _points(columns, exact)
        if points:
            break
    return SliceFound(piece=piece, points=tuple(points), need=need, leanest=leanest)


def _points(meshes: Server, exact: bool) -> list[Point]:
    """Every mesh with a ladder of batches up to what fits, and the largest within the targets."""
    request, prefill = meshes.request, meshes.prefill().bounds
    if request.batch:
        which, batch = np.arange(len(meshes)), np.full(len(meshes), request.batch)
    else:
        largest = _largest(_fits, meshes, np.full(len(meshes), _MAX_BATCH))
        targeted = largest
        if request.goal.given:
            rounds = _ROUNDS if exact else 1
            targeted = _largest(partial(_in_time, prefill), meshes, largest, rounds)
        which, batch = _ladder(largest, targeted)
    columns = meshes.take(which)
    tpot = columns.decode(batch.astype(float)).bounds
    ttft, memory = prefill.take(which) + tpot, columns.peak_bytes(batch.astype(float))
    return [
        Point(
            server=columns.at(i),
            batch=int(batch[i]),
            ttft=ttft.take(i),
            tpot=tpot.take(i),
            memory=float(memory[i]),
        )
        for i in range(len(which))
    ]


def _fits(meshes: Server, which: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Whether batches fit in memory on the meshes at `which`."""
    return meshes.take(which).peak_bytes(batch) <= meshes.usable_bytes


def _in_time(prefill: Bounds, meshes: Server, which: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Whether the expected times of batches meet the targets."""
    tpot = np.asarray(meshes.take(which).decode(batch).bounds.expected)
    first = np.asarray(prefill.expected)[which] + tpot
    return (tpot <= meshes.request.goal.tpot) & (first <= meshes.request.goal.ttft)


def _largest(
    holds: Callable[[Server, np.ndarray, np.ndarray], np.ndarray],
    meshes: Server,
    most: np.ndarray,
    rounds: int = _ROUNDS,
) -> np.ndarray:
    """The largest batch of each mesh, up to `most`, for which a condition that more sequences can
    only break still holds; 0 where it never does. After fewer rounds it is found from below.

    Each round tries many batches between the bounds at once: the cost of a call is its overhead.
    """
    low, high = np.zeros(len(most)), most + 1.0
    which = np.repeat(np.arange(len(most)), _PROBES)
    while np.any(high - low > 1) and rounds:
        rounds -= 1
        steps = low[:, None] + (high - low)[:, None] * _PROBE_AT
        batch = np.clip(np.floor(steps), low[:, None] + 1, high[:, None] - 1)
        batch = np.maximum(batch, 1.0)
        good = holds(meshes, which, batch.ravel()).reshape(batch.shape)
        low = np.maximum(low, np.max(np.where(good, batch, 0.0), axis=1))
        high = np.minimum(high, np.min(np.where(good, np.inf, batch), axis=1))
        low = np.minimum(low, high - 1)  # a condition that is not quite monotone keeps the order
    return low.astype(int)


def _ladder(largest: np.ndarray, targeted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of mesh index and batch: the steps below the largest, the largest, the targeted one."""
    which, batch = [], []
    for i, (top, wanted) in enumerate(zip(largest.tolist(), targeted.tolist(), strict=True)):
        steps = {b for b in _BATCHES if b < top} | {top} | ({wanted} if wanted else set())
        which += [i] * len(steps)
        batch += sorted(steps)
    return np.array(which), np.array(batch)


class Ranked(Protocol):
    """Something with a time and a cost, the first two of `rank`; what follows breaks ties."""

    @property
    def rank(self) -> tuple[float, ...]: ...


R = TypeVar("R", bound=Ranked)


def front(found: Iterable[R]) -> tuple[R, ...]:
    """Those that no other beats in both time and cost, fastest first (the Pareto front)."""
    kept: list[R] = []
    for one in sorted(found, key=lambda one: one.rank):
        if not kept or one.rank[1] < kept[-1].rank[1]:
            kept.append(one)
    return tuple(kept)
