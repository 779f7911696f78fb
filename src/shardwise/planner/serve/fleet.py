"""The cheapest fleet of servers for a load within its objectives, from the columns of `grid.py`.

Cost is chip-seconds per request: the chips of all replicas over the requests that come. With a rate
the replicas are whole numbers that carry it; without one, a single replica is as full as the
objectives let it be. Prompts and answers share the cost by the time that each takes: what a step
takes longer for its chunks, or the chips of each pool.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from shardwise.hardware import Slice
from shardwise.planner.serve.answer import mesh_text
from shardwise.planner.serve.grid import FleetRequest, Grid, Server, grid_of, grids
from shardwise.planner.serve.load import most_busy, waiting
from shardwise.planner.serve.prefill import (
    POOLS,
    Choice,
    Prefiller,
    cheapest_prefillers,
    prefill_columns,
    prefillers,
)
from shardwise.planner.simulate.metrics import Objectives
from shardwise.plans import ServePlan, model_hash
from shardwise.plans.serve import (
    SERVE_AXES,
    KvSharding,
    PrefillServer,
    ServeDtypes,
    ServeScheduling,
)

Layout = Literal["mixed", "disaggregated"]
LAYOUTS: tuple[Layout, ...] = ("mixed", "disaggregated")

MILLION = 1e6
SIZES = 4
"""Slices looked at from the first that fits, each at least twice as large as the one before."""

WORTH = 1.02
"""Pools of their own have to be cheaper by more than this: the closed forms are not that sharp."""

_SIMPLER = 1.05
"""A ratio of smaller numbers is taken where it costs at most so much more (ours)."""

_FINE = np.geomspace(2**-0.5, 2**0.5, 17)
_REFINED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One way to serve the load. Times are seconds at the percentile, `rate` requests per second
    of all replicas, `running` sequences decoding on one of them at the mean and `slots` at the
    percentile; `prompt_share` is the share of the cost that prompts have. `step` is the mean decode
    step, `prefill` a prompt alone. `prefiller` is the server of the prefill pool where it is not
    that of the decode pool.
    """

    piece: Slice
    box: tuple[int, ...]
    mesh: Mapping[str, int]
    kv_sharding: KvSharding
    dtypes: ServeDtypes
    layout: Layout
    chunk: int
    running: float
    slots: int
    replicas: int
    prefill_replicas: int
    chips: int
    rate: float
    ttft: float
    tpot: float
    e2e: float
    chip_seconds: float
    prompt_share: float
    step: float
    prefill: float
    input_length: int
    output_length: int
    prefiller: Prefiller | None = None

    def __str__(self) -> str:
        """Slices and meshes of the pools, and the layout."""
        pools = [self] if self.prefiller is None else [self, self.prefiller]
        slices = " + ".join(str(pool.piece) for pool in pools)
        return f"{slices} ({' + '.join(mesh_text(pool.mesh) for pool in pools)}, {self.layout})"

    @property
    def chip_hours_per_million(self) -> dict[str, float]:
        """Chip-hours per million prompt tokens, answer tokens, and tokens of both together."""
        return self._per_million(1 / 3600)

    @property
    def usd_per_million(self) -> dict[str, float | None]:
        """The same in dollars; None where the chip has no price."""
        price = self.piece.chip.price
        if price is None:
            return dict.fromkeys(("input", "output", "all"))
        return dict(self._per_million(price.usd_per_chip_hour / 3600))

    def _per_million(self, each: float) -> dict[str, float]:
        cost = MILLION * each * self.chip_seconds
        return {
            "input": cost * self.prompt_share / self.input_length,
            "output": cost * (1 - self.prompt_share) / self.output_length,
            "all": cost / (self.input_length + self.output_length),
        }

    def meets(self, goal: Objectives) -> bool:
        """Whether all times are within the objectives."""
        return self.ttft <= goal.ttft and self.tpot <= goal.tpot and self.e2e <= goal.e2el

    def excess(self, goal: Objectives) -> float:
        """By which factor the worst objective is missed."""
        return max(self.ttft / goal.ttft, self.tpot / goal.tpot, self.e2e / goal.e2el)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """All columns of a request, priced once, to be asked for any objectives."""

    request: FleetRequest
    grids: tuple[Grid, ...]
    prefillers: tuple[Prefiller, ...] = ()

    @property
    def columns(self) -> int:
        """Servers (mesh, number in flight, chunk) that were priced."""
        return sum(map(len, self.grids))


def look(request: FleetRequest, progress: Callable[[int, int], None] | None = None) -> Looked:
    """Price every column on the first slices that hold the model."""
    found: list[Grid] = []
    pools: list[Prefiller] = []
    for number, dtypes in enumerate(request.dtypes):
        fitted: list[Slice] = []
        for piece in request.pieces:
            if len(fitted) == SIZES or (fitted and piece.chips < 2 * fitted[-1].chips):
                continue
            here = grids(request, piece, dtypes)
            if request.disaggregate and piece.chip.data_centre is not None:
                pools += prefillers(request, piece, dtypes)
            if here:
                fitted.append(piece)
                found += here
        if progress is not None:
            progress(number + 1, len(request.dtypes))
    return Looked(request=request, grids=tuple(found), prefillers=tuple(pools))


def cheapest(looked: Looked, goal: Objectives, *, layouts: Sequence[Layout] = LAYOUTS) -> Fleet:
    """The cheapest fleet within the objectives, in one pool unless two are `WORTH` it; where there
    is none, the nearest miss (ask `meets`). The number in flight of the best few is refined."""
    best = ranked(looked, goal, layouts=layouts)
    fine = [f for fleet in best[:_REFINED] for f in refined(looked.request, fleet, goal)]
    good = [f for f in (*best, *fine) if f.meets(goal)]
    if good:
        return min(good, key=lambda f: (f.chip_seconds * _burden(f), f.chips))
    return min((*best, *fine), key=lambda f: f.excess(goal))


def _burden(fleet: Fleet) -> float:
    apart = WORTH if fleet.layout == "disaggregated" else 1.0
    return apart if fleet.prefiller is None else WORTH * apart


def ranked(looked: Looked, goal: Objectives, *, layouts: Sequence[Layout] = LAYOUTS) -> list[Fleet]:
    """The best fleet of every grid, mesh and layout, cheapest first; the nearest miss alone where
    none is within the objectives."""
    good: list[Fleet] = []
    missed: list[Fleet] = []
    other = cheapest_prefillers(looked.prefillers, goal.ttft, looked.request.percentile)
    for grid in looked.grids:
        tables = [_mixed(looked.request, grid, goal)] if "mixed" in layouts else []
        if "disaggregated" in layouts and _can_part(looked.request, grid):
            tables += [_parted(looked.request, grid, goal, c) for c in (None, other)]
        for table in tables:
            inside = np.flatnonzero(table.excess <= 1)
            for index in _one_per_mesh(grid, table, inside):
                good.append(_fleet(looked.request, grid, table, index))
            if not len(inside):
                missed.append(_fleet(looked.request, grid, table, int(np.argmin(table.excess))))
    if good:
        return sorted(good, key=lambda f: (f.chip_seconds, f.chips))
    return sorted(missed, key=lambda f: f.excess(goal))[:1]


def _can_part(request: FleetRequest, grid: Grid) -> bool:
    return request.disaggregate and np.isfinite(grid.handover)


def refined(request: FleetRequest, fleet: Fleet, goal: Objectives) -> list[Fleet]:
    """The same server with numbers in flight around that of a fleet."""
    running = np.unique(np.maximum(np.round(fleet.running * _FINE), 1.0))
    one = replace(request, chunks=(fleet.chunk,))
    grid = grid_of(server_of(one, fleet), running)
    if grid is None:
        return []
    if fleet.layout == "mixed":
        table = _mixed(one, grid, goal)
    else:
        p = fleet.prefiller
        table = _parted(one, grid, goal, None if p is None else {(p.dtypes, p.chunk): p})
    cost = np.where(table.excess <= 1, table.cost, np.inf)
    index = int(np.argmin(cost if np.any(np.isfinite(cost)) else table.excess))
    return [_fleet(one, grid, table, index)]


def server_of(request: FleetRequest, fleet: Fleet) -> Server:
    """The mesh of a fleet as the only column of a server."""
    return Server(
        request=request,
        piece=fleet.piece,
        box=fleet.box,
        degrees={axis: np.array([fleet.mesh.get(axis, 1)]) for axis in SERVE_AXES},
        kv_sharding=fleet.kv_sharding,
        dtypes=fleet.dtypes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """What each column comes to under one layout, with the prefill servers of a `choice`."""

    layout: Layout
    choice: Choice | None
    prefill: np.ndarray
    cost: np.ndarray
    excess: np.ndarray
    ttft: np.ndarray
    tpot: np.ndarray
    e2e: np.ndarray
    rate: np.ndarray
    replicas: np.ndarray
    prefill_replicas: np.ndarray
    prompt_share: np.ndarray


def _mixed(request: FleetRequest, grid: Grid, goal: Objectives) -> _Table:
    """Every replica takes prompts and answers."""
    each = np.asarray(grid.mixed.rate)
    replicas, rate = np.ones_like(each), each
    if request.rate:
        replicas = np.ceil(request.rate / each)
        rate = np.full_like(each, request.rate)
    return _table(
        goal,
        "mixed",
        None,
        prefill=grid.prefill,
        ttft=np.asarray(grid.mixed.ttft),
        tpot=np.asarray(grid.mixed.tpot),
        output=request.output_length,
        cost=grid.server.chips * replicas / rate,
        rate=rate,
        replicas=replicas,
        prefill_replicas=np.zeros_like(each),
        prompt_share=np.asarray(grid.mixed.prompt_share),
    )


def _parted(request: FleetRequest, grid: Grid, goal: Objectives, choice: Choice | None) -> _Table:
    """Prompts on servers of their own, as busy as TTFT lets them be."""
    answers = np.asarray(grid.load.running) / (request.output_length * grid.decode)
    by = prefill_columns(grid, choice)
    # A column without a prefill server takes forever; a finite forever keeps the arithmetic.
    prefill, own = np.minimum(by.seconds, _FOREVER), grid.server.chips
    x, prompts = _prompts(request, goal, prefill)
    if request.rate:
        # The fewest that carry the rate in time; the most that were looked at where none do.
        pick = np.where(
            np.any(prompts >= request.rate, 1), np.argmax(prompts >= request.rate, 1), -1
        )
        x = x[np.arange(len(x)), pick]
        y, rate = np.ceil(request.rate / answers), np.full_like(answers, request.rate)
    else:
        y, x, rate = _ratio(prompts, answers, by.chips, own)
    ttft = prefill + waiting(prefill, rate / x * prefill, request.percentile, x)
    steps = max(request.output_length - 1, 1)
    return _table(
        goal,
        "disaggregated",
        choice,
        prefill=prefill,
        ttft=ttft,
        tpot=grid.alone_tpot + by.handover / steps,
        output=request.output_length,
        cost=(by.chips * x + own * y) / rate,
        rate=rate,
        replicas=y,
        prefill_replicas=x,
        prompt_share=by.chips * x / (by.chips * x + own * y),
    )


_FOREVER = 1e9


def _prompts(
    request: FleetRequest, goal: Objectives, prefill: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each column numbers of prefill replicas to try, and the prompts per second of each."""
    seconds, back = np.unique(prefill, return_inverse=True)  # few: one per mesh and chunk
    x = np.floor(request.rate * seconds)[:, None] + POOLS
    busy = most_busy(seconds[:, None], goal.ttft, request.percentile, x)
    prompts = x * np.maximum(busy, 0.01) / seconds[:, None]
    return x[back], prompts[back]


def _ratio(
    prompts: np.ndarray, answers: np.ndarray, prefill_chips: np.ndarray, chips: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The fewest replicas that decode and that prefill within `_SIMPLER` of the ratio that leaves
    least idle, and what they answer; `prompts` by the number that prefill."""
    rates = np.minimum(prompts[:, None, :], (POOLS * answers[:, None])[:, :, None])
    rates = rates.reshape(len(rates), -1)
    both = (POOLS[:, None] + POOLS).ravel()
    paid = chips * POOLS[:, None] + prefill_chips[:, None, None] * POOLS
    cost = paid.reshape(len(rates), -1) / rates
    near = cost <= _SIMPLER * np.min(cost, axis=1, keepdims=True)
    best = np.argmin(np.where(near, both + cost / np.max(cost), np.inf), axis=1)
    y, x = np.divmod(best, len(POOLS))
    return y + 1.0, x + 1.0, rates[np.arange(len(rates)), best]


def _table(
    goal: Objectives, layout: Layout, choice: Choice | None, *, output: int, **columns: np.ndarray
) -> _Table:
    e2e = columns["ttft"] + ((output - 1) * columns["tpot"] if output > 1 else 0.0)
    with np.errstate(invalid="ignore"):  # infinite times without a target
        excess = np.maximum(columns["ttft"] / goal.ttft, columns["tpot"] / goal.tpot)
        excess = np.maximum(excess, e2e / goal.e2el)
    excess = np.where(np.isnan(excess), np.inf, excess)
    return _Table(layout=layout, choice=choice, e2e=e2e, excess=excess, **columns)


def _one_per_mesh(grid: Grid, table: _Table, inside: np.ndarray) -> list[int]:
    """The cheapest column of every mesh."""
    order = inside[np.argsort(table.cost[inside], kind="stable")]
    names = np.stack([grid.server.degrees[a][order] for a in sorted(grid.server.degrees)])
    _, first = np.unique(names, axis=1, return_index=True)
    return [int(order[i]) for i in np.sort(first)]


def _fleet(request: FleetRequest, grid: Grid, table: _Table, index: int) -> Fleet:
    server, replicas, layout = grid.server, int(table.replicas[index]), table.layout
    prefills = int(table.prefill_replicas[index])
    chunk = int(np.asarray(grid.load.chunk)[index])
    other = (table.choice or {}).get((server.dtypes, chunk))
    if other and (other.piece, other.mesh) == (server.piece, server.mesh_at(index)):
        other = None
    prefill_chips = server.chips if other is None else other.chips
    return Fleet(
        prefiller=other,
        piece=server.piece,
        box=server.box,
        mesh=server.mesh_at(index),
        kv_sharding=server.kv_sharding,
        dtypes=server.dtypes,
        layout=layout,
        chunk=chunk,
        running=float(np.asarray(grid.load.running)[index]),
        slots=int((grid.mixed_slots if layout == "mixed" else grid.alone_slots)[index]),
        replicas=replicas,
        prefill_replicas=prefills,
        chips=server.chips * replicas + prefill_chips * prefills,
        rate=float(table.rate[index]),
        ttft=float(table.ttft[index]),
        tpot=float(table.tpot[index]),
        e2e=float(table.e2e[index]),
        chip_seconds=float(table.cost[index]),
        prompt_share=float(table.prompt_share[index]),
        step=float(grid.decode[index]),
        prefill=float(table.prefill[index]),
        input_length=request.input_length,
        output_length=request.output_length,
    )


def front(fleets: Sequence[Fleet]) -> list[Fleet]:
    """Fleets that no other beats in both time per output token and cost, fastest first."""
    kept: list[Fleet] = []
    for fleet in sorted(fleets, key=lambda f: (f.tpot, f.chip_seconds)):
        if not kept or fleet.chip_seconds < kept[-1].chip_seconds:
            kept.append(fleet)
    return kept


def trade_off(looked: Looked, goal: Objectives, points: int = 12) -> list[Fleet]:
    """The front of latency and cost within the objectives: the cheapest fleet at times per output
    token between the fastest and the target. The last is the cheapest of all; what is cheaper than
    it by less than its second pool is `WORTH` is no point of the front."""
    best = cheapest(looked, goal)
    tighter = [replace(goal, tpot=limit) for limit in _limits(looked, goal, points)]
    found = [(cheapest(looked, each), each) for each in tighter]
    dearer = [f for f, each in found if f.meets(each) and f.chip_seconds > best.chip_seconds]
    return front([*dearer, *([best] if best.meets(goal) else [])])


def _limits(looked: Looked, goal: Objectives, points: int) -> list[float]:
    """Times per output token to ask for below the target, evenly spaced in the logarithm."""
    every = np.concatenate([np.asarray(g.mixed.tpot) for g in looked.grids])
    every = every[np.isfinite(every)]
    if not len(every):
        return []
    low, high = float(np.min(every)), min(float(np.max(every)), goal.tpot)
    limits = np.geomspace(low * 1.001, high, points).tolist()
    return [b for a, b in pairwise([0.0, *limits]) if b > a]


def plan_of(request: FleetRequest, fleet: Fleet, constants: str = "vendor") -> ServePlan:
    """The fleet as a plan that can be saved, priced and simulated."""
    return ServePlan(
        model=request.model,
        model_hash=model_hash(request.cfg),
        slice=str(fleet.piece),
        mesh=fleet.mesh,
        box=fleet.box,
        batch=fleet.slots,
        input_length=request.input_length,
        output_length=request.output_length,
        prefill_chunk=fleet.chunk,
        kv_sharding=fleet.kv_sharding,
        dtypes=fleet.dtypes,
        constants=constants,  # type: ignore[arg-type]
        engine=request.engine.name,
        replicas=fleet.replicas,
        prefill_replicas=fleet.prefill_replicas,
        prefill=None
        if fleet.prefiller is None
        else PrefillServer(
            slice=str(fleet.prefiller.piece),
            mesh=fleet.prefiller.mesh,
            box=fleet.prefiller.box,
        ),
        scheduling=ServeScheduling(memory_share=request.memory_share),
    )
