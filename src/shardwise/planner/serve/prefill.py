"""Prefill pools of servers of their own: which mesh answers prompts cheapest within their TTFT.

Prompts are bound by math and answers by memory (ch. 7.4), so the mesh that suits one need not suit
the other. Of all servers on the slices that a search looked at, the one with fewest chip-seconds
per prompt is offered to every decode server with the same dtypes and chunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.hardware import Chip, Slice, boxes
from shardwise.planner.serve.grid import Grid, handover, holds, steady
from shardwise.planner.serve.load import most_busy
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.server import Server, servers
from shardwise.plans.serve import ServeDtypes

POOLS = np.arange(1.0, 9.0)
"""Replicas of either pool where no rate says how many: ratios up to 8 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefiller:
    """A server that only prefills: `seconds` of a prompt alone in steps of `chunk` tokens."""

    server: Server
    chunk: int
    seconds: float

    def on(self, chip: Chip) -> "Prefiller":
        """The same server on a changed chip."""
        server = replace(self.server, piece=replace(self.server.piece, chip=chip))
        return replace(self, server=server, seconds=float(_seconds(server, self.chunk)))


def _seconds(server: Server, chunks: np.ndarray | int) -> np.ndarray:
    """A prompt alone on each mesh, with a chunk for each."""
    request = server.request
    load = steady(request, 1.0, chunks)
    steps = np.maximum(load.fresh / np.asarray(chunks), 1.0)
    return server.seconds(load.prompt_step()) * steps


def prefillers(request: ServeRequest, piece: Slice, dtypes: ServeDtypes) -> list[Prefiller]:
    """Every mesh of a slice with every chunk that a request fits beside, however slowly it would
    decode; of a prompt's steps those with the cache by heads alone move least."""
    for box in boxes(piece):
        for server in servers(request, piece, box, dtypes, ("heads",)):
            numbers = (np.arange(len(server)), np.array(request.chunks, float))
            mesh, chunks = (g.ravel() for g in np.meshgrid(*numbers, indexing="ij"))
            fits = holds(server.take(mesh), steady(request, np.ones(len(mesh)), chunks))
            if np.any(fits):
                return _priced(server.take(mesh[fits]), chunks[fits])
    return []


def _priced(server: Server, chunks: np.ndarray) -> list[Prefiller]:
    return [
        Prefiller(server=server.at(index), chunk=int(chunks[index]), seconds=float(seconds))
        for index, seconds in enumerate(_seconds(server, chunks))
    ]


Choice = Mapping[tuple[ServeDtypes, int], Prefiller]
"""The prefill server of a decode server, by dtypes and chunk."""


def cheapest_prefillers(found: Sequence[Prefiller], ttft: float, percentile: float) -> Choice:
    """The one with fewest chip-seconds per prompt in a large pool within a time to first token."""
    seconds = np.array([p.seconds for p in found])
    busy = np.asarray(most_busy(seconds, ttft, percentile, POOLS[-1]))
    best: dict[tuple[ServeDtypes, int], tuple[float, Prefiller]] = {}
    for p, share in zip(found, busy.tolist(), strict=True):
        cost = p.server.chips * p.seconds / share if share else np.inf
        key = (p.server.dtypes, p.chunk)
        if np.isfinite(cost) and (key not in best or cost < best[key][0]):
            best[key] = (cost, p)
    return {key: p for key, (_, p) in best.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillColumns:
    """The prefill server of each column of a grid: seconds of a prompt (infinite where there is
    none), chips, and seconds in which its cache reaches the decode server."""

    seconds: np.ndarray
    chips: np.ndarray
    handover: np.ndarray


def prefill_columns(grid: Grid, choice: Choice | None) -> PrefillColumns:
    """The columns' own servers, or those of a choice."""
    own = float(grid.server.chips)
    if choice is None:
        seconds, chips = grid.prefill, np.full(len(grid), own)
    else:
        seconds, chips = np.full(len(grid), np.inf), np.full(len(grid), own)
        for (dtypes, chunk), p in choice.items():
            if dtypes == grid.server.dtypes:
                here = grid.chunks == chunk
                seconds[here], chips[here] = p.seconds, p.server.chips
    chip = grid.server.piece.chip.id
    ends = {
        p.server.chips: handover(p.server, p.server.chips)
        for p in (choice or {}).values()
        if p.server.piece.chip.id != chip
    }
    if ends:  # of two chips the slower end bounds it
        mine = handover(grid.server, own)
        slower = np.array([max(mine, ends.get(n, mine)) for n in chips.tolist()])
        return PrefillColumns(seconds=seconds, chips=chips, handover=slower)
    numbers, back = np.unique(np.minimum(chips, own), return_inverse=True)
    slower = np.array([handover(grid.server, n) for n in numbers.tolist()])
    return PrefillColumns(seconds=seconds, chips=chips, handover=slower[back])
