"""Servers under load as columns of arrays: every mesh, number in flight and chunk of one slice.

A `Grid` is one slice with one set of dtypes and one way to cut the cache. Its columns are the
meshes that can be placed there, times sequences decoding at the mean, times chunk sizes; those
whose cache does not hold what is in flight at the percentile are left out. Three steps of each are
counted and priced at once (`step.py`, `roofline`); `load.py` makes latencies of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any

import numpy as np

from shardwise.hardware import Slice, boxes
from shardwise.models import ModelConfig, kv_bytes_per_token
from shardwise.planner.serve.count import ServeShape
from shardwise.planner.serve.load import LoadTimes, Steady, mixed_times, slow_step
from shardwise.planner.serve.replica import cache_tokens
from shardwise.planner.serve.search import (
    ServeRequest,
    compute_of,
    fewest_kv_heads,
    legal_degrees,
    place_mesh,
)
from shardwise.planner.serve.step import step_work
from shardwise.plans.serve import KvSharding, ServeDtypes
from shardwise.roofline import price
from shardwise.roofline.engines import IDEAL_ENGINE, Engine
from shardwise.scheduling.step import StepShape
from shardwise.work import Quantity

_LADDER = np.array(sorted({round(2 ** (i / 2)) for i in range(29)}), float)
"""Sequences in flight that are looked at: powers of the square root of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRequest:
    """What is to be served, and what the search may choose from.

    `pieces` are slices of one chip, smallest first. Requests of `input_length` prompt and
    `output_length` answer tokens come at `rate` per second, at random; with rate 0 as many as the
    servers can take. Latencies are at `percentile`; columns with a longer `slowest` time per output
    token are not looked at. Weights, cache and working memory take `memory_share` of the memory.
    """

    cfg: ModelConfig
    model: str
    pieces: tuple[Slice, ...]
    input_length: int
    output_length: int
    dtypes: tuple[ServeDtypes, ...]
    rate: float = 0.0
    percentile: float = 0.9
    slowest: float = inf
    chunks: tuple[int, ...] = (1024, 4096, 16384)
    kv_shardings: tuple[KvSharding, ...] = ("heads", "heads_then_batch_then_sequence")
    pins: Mapping[str, int] = field(default_factory=dict)
    engine: Engine = IDEAL_ENGINE
    memory_share: float = 0.9
    disaggregate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Meshes of one part of a slice, as columns, with one set of dtypes."""

    request: FleetRequest
    piece: Slice
    box: tuple[int, ...]
    degrees: Mapping[str, np.ndarray]
    kv_sharding: KvSharding
    dtypes: ServeDtypes

    def __len__(self) -> int:
        return len(self.degrees["tensor"])

    def take(self, index: np.ndarray) -> "Server":
        """The meshes at an index or mask."""
        return Server(
            request=self.request,
            piece=self.piece,
            box=self.box,
            degrees={a: d[index] for a, d in self.degrees.items()},
            kv_sharding=self.kv_sharding,
            dtypes=self.dtypes,
        )

    @property
    def chips(self) -> int:
        """Chips of one replica."""
        return prod(self.box) * self.piece.count

    def shape(self, batch: Quantity = 1.0, chunk: int = 8192) -> ServeShape:
        """The servers as counting needs them."""
        return ServeShape(
            degrees={a: d.astype(float) for a, d in self.degrees.items() if np.any(d > 1)},
            batch=batch,
            input_length=self.request.input_length,
            output_length=self.request.output_length,
            prefill_chunk=chunk,
            kv_sharding=self.kv_sharding,
            dtypes=self.dtypes,
            compute_of=compute_of(self.dtypes, self.piece.chip),
        )

    def seconds(self, step: StepShape) -> np.ndarray:
        """Expected seconds of one step on each mesh, the engine's own included."""
        shape, engine = self.shape(), self.request.engine
        placement = place_mesh(self.piece, self.degrees, self.box)
        work = step_work(self.request.cfg, shape, step)
        found = price(work, self.piece.chip, placement, stack=engine.stack).expected
        sequences = (step.decodes + step.prefills) / shape.splits
        return np.broadcast_to(found + engine.sequence_seconds * sequences, (len(self),))

    def mesh_at(self, index: int) -> dict[str, int]:
        """One mesh, without its degrees of 1."""
        return {a: int(d[index]) for a, d in self.degrees.items() if d[index] > 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Priced columns: the mesh, the load and the times of each, of prompts and answers together
    (`mixed`) and of answers alone (`alone_tpot`; infinite where the cache is too small for how the
    number in flight swings). `decode` is seconds of a mean decode step, `prefill` of a prompt
    alone, `handover` of its cache (infinite where the chip has no data-centre network)."""

    server: Server
    load: Steady
    mixed: LoadTimes
    decode: np.ndarray
    alone_tpot: np.ndarray
    alone_slots: np.ndarray
    mixed_slots: np.ndarray
    prefill: np.ndarray
    handover: float

    def __len__(self) -> int:
        return len(self.decode)


def grids(
    request: FleetRequest, piece: Slice, dtypes: ServeDtypes, running: np.ndarray = _LADDER
) -> list[Grid]:
    """The grids of a slice, one for each way to cut the cache; none where the model does not fit.
    Fewer chips than the slice has are used only where no mesh uses them all."""
    for box in boxes(piece):
        found = [grid_of(s, running) for s in servers(request, piece, box, dtypes)]
        kept = [g for g in found if g is not None]
        if kept:
            return kept
    return []


def servers(
    request: FleetRequest, piece: Slice, box: tuple[int, ...], dtypes: ServeDtypes
) -> list[Server]:
    """Legal meshes, for each way to cut the cache; spreading sequences only where tensor exceeds
    the KV heads."""
    asked = ServeRequest(
        cfg=request.cfg,
        model=request.model,
        pieces=(piece,),
        input_length=request.input_length,
        output_length=request.output_length,
        dtypes=dtypes,
        pins=request.pins,
    )
    degrees = legal_degrees(asked, piece, box)
    found = []
    for kv_sharding in request.kv_shardings:
        server = Server(
            request=request,
            piece=piece,
            box=box,
            degrees=degrees,
            kv_sharding=kv_sharding,
            dtypes=dtypes,
        )
        if kv_sharding != "heads":
            server = server.take(degrees["tensor"] > fewest_kv_heads(request.cfg))
        if len(server):
            found.append(server)
    return found


def grid_of(server: Server, running: Sequence[float] | np.ndarray) -> Grid | None:
    """The columns of some meshes that fit and are not too slow, priced; None where none is."""
    request = server.request
    mesh, n, chunk = _fitting(server, np.asarray(running, float))
    if not len(mesh):
        return None
    # Decode steps do not depend on the chunk: price each mesh and number once.
    pairs, back = np.unique(np.stack([mesh.astype(float), n]), axis=1, return_inverse=True)
    back = back.reshape(-1)
    twice = server.take(np.tile(pairs[0].astype(int), 2))
    one = steady(request, pairs[1], 1)
    steps = zip(one.decode_step(), one.decode_step(more=True), strict=True)
    doubled: list[Any] = [np.append(a, b) if np.ndim(a) else a for a, b in steps]
    decode, more = np.split(twice.seconds(StepShape(*doubled)), 2)
    slope = (more - decode) / np.sqrt(pairs[1])
    keep = decode[back] <= request.slowest
    mesh, n, chunk, back = mesh[keep], n[keep], chunk[keep], back[keep]
    if not len(mesh):
        return None
    columns, load, decode, slope = (
        server.take(mesh),
        steady(request, n, chunk),
        decode[back],
        slope[back],
    )
    mixed = mixed_times(load, decode, slope, columns.seconds(load.mixed_step()))
    alone, swing = slow_step(load, decode, slope)
    together, apart = (replace(load, swing=s) for s in (mixed.swing, swing))
    return Grid(
        server=columns,
        load=load,
        mixed=replace(mixed, tpot=np.where(holds(columns, together), mixed.tpot, inf)),
        decode=decode,
        alone_tpot=np.where(holds(columns, apart), alone, inf),
        alone_slots=np.asarray(apart.slots),
        mixed_slots=np.asarray(together.slots),
        prefill=columns.seconds(load.prompt_step()) * np.maximum(request.input_length / chunk, 1.0),
        handover=handover(server, server.chips),
    )


def steady(request: FleetRequest, running: Quantity, chunk: Quantity) -> Steady:
    """A load of so many running sequences in steps of `chunk` tokens."""
    return Steady(
        running=running,
        input_length=request.input_length,
        output_length=request.output_length,
        chunk=chunk,
        percentile=request.percentile,
    )


def _fitting(server: Server, running: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mesh index, number and chunk of the columns whose cache holds what is in flight."""
    request = server.request
    numbers = (np.arange(len(server)), running, np.array(request.chunks, float))
    mesh, n, chunk = (g.ravel() for g in np.meshgrid(*numbers, indexing="ij"))
    fits = holds(server.take(mesh), steady(request, n, chunk))
    return mesh[fits], n[fits], chunk[fits]


def holds(columns: Server, load: Steady) -> np.ndarray:
    """Whether the cache of each column holds what is in flight, beside its chunk's activations."""
    request, chunks = columns.request, np.asarray(load.chunk)
    fits = np.zeros(len(columns), bool)
    for chunk in np.unique(chunks):
        here = np.flatnonzero(chunks == chunk)
        shape = columns.take(here).shape(load.slots[here], int(chunk))  # type: ignore[index]
        room = cache_tokens(request.cfg, shape, columns.piece, request.memory_share)
        held = np.maximum(load.cached, request.input_length + request.output_length)[here]
        fits[here] = (room >= held) & (np.asarray(load.running)[here] < chunk)
    return fits


def handover(server: Server, chips: float) -> float:
    """Seconds in which the cache of a prompt reaches another replica, as the simulator has it; it
    passes the links of so many chips, those of the smaller end."""
    chip, request = server.piece.chip, server.request
    if chip.data_centre is None:
        return inf
    rate = chips * chip.data_centre.chip_oneway * chip.efficiency.outer_network
    size = request.input_length * kv_bytes_per_token(request.cfg, server.dtypes.kv)
    return chip.data_centre.hop_seconds + size / rate
