"""Servers under load as columns of arrays: every mesh, number in flight and chunk of one slice.

A `Grid` is one slice with one set of dtypes and one way to cut the cache. Its columns are the
meshes that can be placed there, times sequences decoding at the mean, times chunk sizes; those
whose cache does not hold what is in flight at the percentile are left out. Three steps of each are
counted and priced at once (`server.py`); `load.py` makes latencies of them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from shardwise.hardware import Slice, boxes
from shardwise.models import kv_bytes_per_token
from shardwise.planner.serve.load import LoadTimes, Steady, mixed_times, slow_step
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.server import Server, servers
from shardwise.planner.simulate.cost import Lag
from shardwise.plans.serve import KvSharding, ServeDtypes
from shardwise.scheduling.step import StepShape
from shardwise.work import Quantity

LADDER = np.array(sorted({round(2 ** (i / 12)) for i in range(14 * 12 + 1)}), float)
"""Sequences in flight that are looked at: powers of the twelfth root of two. Columns cost little
beside the pricing of any."""

IDLE = np.array([2.0**-i for i in range(6, 0, -1)])
"""Sequences in flight at the mean of servers that mostly stand idle, looked at where no busier one
will do: they need room for few requests besides the one that runs."""

_KV_SHARDINGS: tuple[KvSharding, ...] = ("heads", "heads_then_batch_then_sequence")


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Priced columns: the mesh, the load and the times of each, of prompts and answers together
    (`mixed`) and of answers alone (`alone_tpot`; infinite where the cache is too small for how the
    number in flight swings). `decode` is seconds of a mean decode step."""

    server: Server
    load: Steady
    mixed: LoadTimes
    decode: np.ndarray
    alone_tpot: np.ndarray
    alone_slots: np.ndarray
    mixed_slots: np.ndarray
    lags: dict[bool, Lag] = field(default_factory=dict)
    """What was asked of `lag`; grids of one slice that differ in their request's rate share it."""

    def __len__(self) -> int:
        return len(self.decode)

    @property
    def chunks(self) -> np.ndarray:
        """The most tokens of a step."""
        return np.asarray(self.load.chunk)

    @cached_property
    def prefill(self) -> np.ndarray:
        """Seconds of a prompt alone; what servers of prompts are chosen by."""
        steps = np.maximum(self.load.fresh / self.chunks, 1.0)
        return self.server.seconds(self.load.prompt_step()) * steps

    def lag(self, *, pools: bool) -> Lag:
        """The lag of each column, which hangs on its mesh alone: each mesh is priced once."""
        if pools not in self.lags:
            degrees = np.stack(
                [np.broadcast_to(d, len(self)) for d in self.server.degrees.values()]
            )
            _, first, back = np.unique(degrees, axis=1, return_index=True, return_inverse=True)
            found = self.server.take(first).lag(pools=pools)
            beside, start = (
                np.broadcast_to(seconds, len(first))[back.reshape(-1)]
                for seconds in (found.beside, found.start)
            )
            self.lags[pools] = found._replace(beside=beside, start=start)
        return self.lags[pools]


def grids(
    request: ServeRequest, piece: Slice, dtypes: ServeDtypes, running: np.ndarray = LADDER
) -> list[Grid]:
    """The grids of a slice, one for each way to cut the cache; none where the model does not fit.
    Fewer chips than the slice has are used only where no mesh uses them all. They are the same for
    any rate and number of servers, so that the last ones are kept (`KEPT`)."""
    asked = replace(request, pieces=(piece,), dtypes=(dtypes,), rate=0.0, fill=False, max_chips=inf)
    key = asked, running.tobytes()
    made = next((made for known, made in tuple(_KEPT) if known == key), None)
    if made is None:
        made = _grids(asked, piece, dtypes, running)
        _KEPT.append((key, made))
    return [replace(one, server=replace(one.server, request=request)) for one in made]


KEPT = 128
"""Slices whose grids are kept: an answer looks at about 90, most of them on other chips, for which
a change of chips or of rate asks again."""
_KEPT: deque[tuple[tuple[ServeRequest, bytes], list["Grid"]]] = deque(maxlen=KEPT)


def _grids(
    request: ServeRequest, piece: Slice, dtypes: ServeDtypes, running: np.ndarray
) -> list[Grid]:
    for box in boxes(piece):
        found = [grid_of(s, running) for s in servers(request, piece, box, dtypes, _KV_SHARDINGS)]
        kept = [g for g in found if g is not None]
        if kept:
            return kept
    return []


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
    alone = twice.seconds(StepShape(*doubled))
    decode, more = np.split(alone + one.guessing * alone, 2)
    slope = (more - decode) / np.sqrt(pairs[1])
    keep = decode[back] <= request.goal.tpot * one.yields
    mesh, n, chunk, back = mesh[keep], n[keep], chunk[keep], back[keep]
    if not len(mesh):
        return None
    columns, load = server.take(mesh), steady(request, n, chunk)
    decode, slope = decode[back], slope[back]
    guessing = decode * (load.guessing / (1 + load.guessing))
    mixed = mixed_times(load, decode, slope, columns.seconds(load.mixed_step()) + guessing)
    alone, swing = slow_step(load, decode, slope)
    together, apart = (replace(load, swing=s) for s in (mixed.swing, swing))
    return Grid(
        server=columns,
        load=load,
        mixed=replace(mixed, tpot=np.where(holds(columns, together), mixed.tpot, inf)),
        decode=decode,
        alone_tpot=np.where(holds(columns, apart), alone / load.yields, inf),
        alone_slots=np.asarray(apart.slots),
        mixed_slots=np.asarray(together.slots),
    )


def steady(request: ServeRequest, running: Quantity, chunk: Quantity) -> Steady:
    """A load of so many running sequences in steps of `chunk` tokens."""
    return Steady(
        running=running,
        input_length=request.input_length,
        output_length=request.output_length,
        chunk=chunk,
        percentile=request.percentile,
        prefix=request.prefix,
        **_guessing(request),
    )


def _guessing(request: ServeRequest) -> dict[str, Any]:
    guess = request.speculation
    if guess is None:
        return {}
    each = guess.tokens
    return {
        "queries": each + 1,
        "yields": guess.tokens_per_step,
        "guessing": each * guess.cost,
    }


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
        room = columns.cache_tokens(shape, request.memory_share)
        held = np.maximum(load.cached, request.input_length + request.output_length)[here]
        fits[here] = (room >= held) & (np.asarray(load.running)[here] * load.queries < chunk)
    most = request.batch or np.inf
    return fits & (np.asarray(load.slots) <= most)


def handover(server: Server, chips: float) -> float:
    """Seconds in which the cache of a prompt reaches another replica, as the simulator has it; it
    passes the links of so many chips, those of the smaller end. Infinite where the chip has no
    data-centre network."""
    chip, request = server.piece.chip, server.request
    if chip.data_centre is None:
        return inf
    rate = chips * chip.data_centre.chip_oneway * chip.efficiency.outer_network
    size = request.input_length * kv_bytes_per_token(request.cfg, server.dtypes.kv)
    return chip.data_centre.hop_seconds + size / rate
