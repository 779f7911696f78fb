"""Prefill pools of servers of their own: which mesh answers prompts cheapest within their TTFT.

Prompts are bound by math and answers by memory (ch. 7.4), so the mesh that suits one need not suit
the other. Of the servers that a search looked at, the one with fewest chip-seconds per prompt is
offered to every decode server with the same dtypes and chunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.hardware import Chip, Slice
from shardwise.planner.serve_grid import FleetRequest, Grid, Server, handover
from shardwise.planner.serve_load import Steady, most_busy
from shardwise.plans.serve import SERVE_AXES, KvSharding, ServeDtypes

POOLS = np.arange(1.0, 9.0)
"""Replicas of either pool where no rate says how many: ratios up to 8 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefiller:
    """A server that only prefills: `seconds` of a prompt alone in steps of `chunk` tokens."""

    piece: Slice
    box: tuple[int, ...]
    mesh: Mapping[str, int]
    kv_sharding: KvSharding
    dtypes: ServeDtypes
    chunk: int
    chips: int
    seconds: float

    def on(self, request: FleetRequest, chip: Chip) -> "Prefiller":
        """The same server on a changed chip."""
        piece = replace(self.piece, chip=chip)
        server = Server(
            request=request,
            piece=piece,
            box=self.box,
            degrees={axis: np.array([self.mesh.get(axis, 1)]) for axis in SERVE_AXES},
            kv_sharding=self.kv_sharding,
            dtypes=self.dtypes,
        )
        load = Steady(
            running=1.0,
            input_length=request.input_length,
            output_length=request.output_length,
            chunk=self.chunk,
            percentile=request.percentile,
        )
        chunks = max(request.input_length / self.chunk, 1.0)
        seconds = float(server.seconds(load.prompt_step())[0]) * chunks
        return replace(self, piece=piece, seconds=seconds)


def prefillers(grids: Sequence[Grid]) -> tuple[Prefiller, ...]:
    """Every server of some grids with every chunk, once."""
    found: dict[tuple, Prefiller] = {}
    for grid in grids:
        server, chunks = grid.server, np.asarray(grid.load.chunk)
        columns = np.stack([*(server.degrees[a] for a in SERVE_AXES), chunks])
        _, first = np.unique(columns, axis=1, return_index=True)
        for index in first.tolist():
            mesh, chunk = server.mesh_at(index), int(chunks[index])
            key = (str(server.piece), server.box, tuple(mesh.items()), server.dtypes, chunk)
            found.setdefault(
                key,
                Prefiller(
                    piece=server.piece,
                    box=server.box,
                    mesh=mesh,
                    kv_sharding=server.kv_sharding,
                    dtypes=server.dtypes,
                    chunk=chunk,
                    chips=server.chips,
                    seconds=float(grid.prefill[index]),
                ),
            )
    return tuple(found.values())


Choice = Mapping[tuple[ServeDtypes, int], Prefiller]
"""The prefill server of a decode server, by dtypes and chunk."""


def cheapest_prefillers(found: Sequence[Prefiller], ttft: float, percentile: float) -> Choice:
    """The one with fewest chip-seconds per prompt in a large pool within a time to first token."""
    seconds = np.array([p.seconds for p in found])
    busy = np.asarray(most_busy(seconds, ttft, percentile, POOLS[-1]))
    best: dict[tuple[ServeDtypes, int], tuple[float, Prefiller]] = {}
    for p, share in zip(found, busy.tolist(), strict=True):
        cost = p.chips * p.seconds / share if share else np.inf
        key = (p.dtypes, p.chunk)
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
        shape = np.ones(len(grid))
        return PrefillColumns(
            seconds=grid.prefill, chips=own * shape, handover=grid.handover * shape
        )
    chunks = np.asarray(grid.load.chunk)
    seconds, chips = np.full(len(grid), np.inf), np.full(len(grid), own)
    for (dtypes, chunk), p in choice.items():
        if dtypes == grid.server.dtypes:
            seconds[chunks == chunk], chips[chunks == chunk] = p.seconds, p.chips
    slower = {n: handover(grid.server, n) for n in np.unique(np.minimum(chips, own)).tolist()}
    return PrefillColumns(
        seconds=seconds,
        chips=chips,
        handover=np.array([slower[n] for n in np.minimum(chips, own).tolist()]),
    )
