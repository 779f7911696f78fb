"""Fleets of servers for a load, from the columns of `grid.py`: what each costs and how fast it is.

Cost is chip-seconds per request: the chips of all replicas over the requests that come. With a rate
the replicas are whole numbers that carry it; without one, a single replica, or as many as fill the
chips, are as full as the objectives let them be. Prompts and answers share the cost by the time
that each takes: what a step takes longer for its chunks, or the chips of each pool.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from shardwise.hardware import Slice
from shardwise.planner.serve.answer import MILLION, mesh_text
from shardwise.planner.serve.grid import IDLE, LADDER, Grid, grid_of, grids
from shardwise.planner.serve.load import most_busy, waiting
from shardwise.planner.serve.prefill import (
    POOLS,
    Choice,
    Prefiller,
    cheapest_prefillers,
    prefill_columns,
    prefillers,
)
from shardwise.planner.serve.request import Pools, ServeRequest
from shardwise.planner.serve.server import Server
from shardwise.planner.simulate.cost import Lag
from shardwise.planner.simulate.metrics import Objectives
from shardwise.plans import ServePlan
from shardwise.plans.serve import PrefillServer
from shardwise.work import Quantity

Layout = Literal["mixed", "disaggregated"]
LAYOUTS: tuple[Layout, ...] = ("mixed", "disaggregated")
LAYOUTS_OF: Mapping[Pools, tuple[Layout, ...]] = {
    "one": ("mixed",),
    "two": ("disaggregated",),
    "any": LAYOUTS,
}
"""What a request's `pools` allow."""

SIZES = 4
"""Slices looked at from the first that fits, each at least twice as large as the one before."""

WORTH = 1.02
"""Pools of their own have to be cheaper by more than this: the closed forms are not that sharp."""

_SIMPLER = 1.05
"""A ratio of smaller numbers is taken where it costs at most so much more (ours)."""

_AROUND = np.geomspace(2**-0.5, 2**0.5, 17)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One way to serve the load. Times are seconds at the percentile, `rate` requests per second
    of all replicas, `running` sequences decoding on one of them at the mean and `slots` at the
    percentile; `prompt_share` is the share of the cost that prompts have. `step` is the mean decode
    step. `prefiller` is the server of the prefill pool where it is not that of the decode pool.
    """

    server: Server
    layout: Layout
    chunk: int
    running: float
    slots: int
    replicas: int
    prefill_replicas: int
    rate: float
    ttft: float
    tpot: float
    e2e: float
    chip_seconds: float
    prompt_share: float
    step: float
    prefiller: Prefiller | None = None

    def __str__(self) -> str:
        """Slices and meshes of the pools, and the layout."""
        pools = [self.server] if self.prefiller is None else [self.server, self.prefiller.server]
        slices = " + ".join(str(pool.piece) for pool in pools)
        return f"{slices} ({' + '.join(mesh_text(pool.mesh) for pool in pools)}, {self.layout})"

    @property
    def piece(self) -> Slice:
        """The slice of a replica that decodes."""
        return self.server.piece

    @property
    def prefill_server(self) -> Server:
        """The server of the prefill pool."""
        return self.server if self.prefiller is None else self.prefiller.server

    @property
    def chips(self) -> int:
        """Chips of all replicas."""
        prefill = self.prefill_server.chips * self.prefill_replicas
        return self.server.chips * self.replicas + prefill

    def chips_with(self, spare: int) -> int:
        """Chips of all replicas and of `spare` more in each pool."""
        prefill = self.prefill_server.chips if self.prefill_replicas else 0
        return self.chips + spare * (self.server.chips + prefill)

    def cost_with(self, spare: int) -> float:
        """Chip-seconds of a request where so many servers of each pool only stand by."""
        return self.chip_seconds * self.chips_with(spare) / self.chips

    @property
    def rank(self) -> tuple[float, float]:
        """Of the front: time per output token, and cost."""
        return self.tpot, self.chip_seconds

    @property
    def usd_per_million(self) -> dict[str, float | None]:
        """Dollars per million prompt tokens, answer tokens, and tokens of both together; None where
        the chip has no price."""
        price, request = self.piece.chip.price, self.server.request
        if price is None:
            return dict.fromkeys(("input", "output", "all"))
        cost = MILLION * (price.usd_per_chip_hour / 3600) * self.chip_seconds
        return {
            "input": cost * self.prompt_share / request.input_length,
            "output": cost * (1 - self.prompt_share) / request.output_length,
            "all": cost / (request.input_length + request.output_length),
        }

    def meets(self, goal: Objectives) -> bool:
        """Whether all times are within the objectives."""
        return self.excess(goal) <= 1

    def excess(self, goal: Objectives) -> float:
        """By which factor the worst objective is missed."""
        return goal.excess(self.ttft, self.tpot, self.e2e, self.pace)

    @property
    def pace(self) -> float:
        """Seconds of a whole request for each token of its answer."""
        return self.e2e / self.server.request.output_length

    def plan(self) -> ServePlan:
        """The fleet as a plan that can be saved, priced and simulated."""
        other = None
        if self.prefiller is not None:
            own = self.prefiller.server
            other = PrefillServer(slice=str(own.piece), mesh=own.mesh, box=own.box)
        return self.server.plan(
            batch=self.slots,
            chunk=self.chunk,
            replicas=self.replicas,
            prefill_replicas=self.prefill_replicas,
            prefill=other,
            scheduling=self.server.request.scheduling,
        )


@dataclass(frozen=True, kw_only=True)
class FleetSearch:
    """All columns of a request, priced once, to be asked for any objectives."""

    request: ServeRequest
    grids: tuple[Grid, ...]
    prefillers: tuple[Prefiller, ...] = ()

    @property
    def columns(self) -> int:
        """Servers (mesh, number in flight, chunk) that were priced."""
        return sum(map(len, self.grids))

    @cached_property
    def best(self) -> Fleet:
        """The cheapest fleet within the request's objectives, or the nearest miss."""
        return cheapest(self, self.request.within)


def search_fleets(request: ServeRequest) -> FleetSearch:
    """Price every column on the first slices that hold the model; those whose decode step is longer
    than the goal's time per output token are left out. Where no others keep the goal, servers are
    priced that mostly stand idle (for a rate), and that take more of the memory."""
    first = None
    for share in request.shares:
        asked = replace(request, shares=(share,))
        for running in (LADDER, IDLE) if request.rate else (LADDER,):
            searched = _search(asked, running)
            if searched.grids and searched.best.meets(request.within):
                return searched
            first = first or searched
    assert first is not None
    return first


def _search(request: ServeRequest, running: np.ndarray) -> FleetSearch:
    """The columns of some numbers in flight."""
    found: list[Grid] = []
    pools: list[Prefiller] = []
    for dtypes in request.dtypes:
        fitted: list[Slice] = []
        for piece in request.pieces:
            if len(fitted) == SIZES or (fitted and piece.chips < 2 * fitted[-1].chips):
                continue
            here = grids(request, piece, dtypes, running)
            apart = request.pools != "one" and not request.prefill_pieces
            if apart and piece.chip.data_centre is not None:
                pools += prefillers(request, piece, dtypes)
            if here:
                fitted.append(piece)
                found += here
        pools += [p for piece in request.prefill_pieces for p in prefillers(request, piece, dtypes)]
    return FleetSearch(request=request, grids=tuple(found), prefillers=tuple(pools))


def cheapest(
    searched: FleetSearch, goal: Objectives, *, layouts: Sequence[Layout] | None = None
) -> Fleet:
    """The cheapest fleet within the objectives, in one pool unless two are `WORTH` it; where there
    is none, the nearest miss (ask `meets`)."""
    best = ranked(searched, goal, layouts=layouts)
    good = [fleet for fleet in best if fleet.meets(goal)]
    return min(good or best, key=lambda f: (f.chip_seconds * _burden(f), f.chips))


def _burden(fleet: Fleet) -> float:
    apart = WORTH if fleet.layout == "disaggregated" else 1.0
    return apart if fleet.prefiller is None else WORTH * apart


def ranked(
    searched: FleetSearch, goal: Objectives, *, layouts: Sequence[Layout] | None = None
) -> list[Fleet]:
    """The best fleet of every grid, mesh and layout (the request's, unless told), cheapest first;
    the nearest miss alone where none is within the objectives."""
    layouts = layouts or LAYOUTS_OF[searched.request.pools]
    good: list[Fleet] = []
    missed: list[Fleet] = []
    percentile = searched.request.percentile
    other = cheapest_prefillers(searched.prefillers, goal.ttft, percentile)
    for grid in searched.grids:
        columns = [_mixed(grid, goal)] if "mixed" in layouts else []
        if "disaggregated" in layouts and grid.server.piece.chip.data_centre is not None:
            choices = (other,) if searched.request.prefill_pieces else (None, other)
            columns += [_parted(grid, goal, choice) for choice in choices]
        for fleets in columns:
            inside = np.flatnonzero(fleets.excess <= 1)
            good += [fleets.at(index) for index in fleets.one_per_mesh(inside)]
            if not len(inside):
                missed.append(fleets.at(int(np.argmin(fleets.excess))))
    if good:
        return sorted(good, key=lambda f: (f.chip_seconds, f.chips))
    return sorted(missed, key=lambda f: f.excess(goal))[:1]


def refined(request: ServeRequest, fleet: Fleet, goal: Objectives) -> list[Fleet]:
    """The same server with numbers in flight around that of a fleet."""
    running = np.unique(np.maximum(np.round(fleet.running * _AROUND), 1.0))
    one = replace(request, chunks=(fleet.chunk,))
    grid = grid_of(replace(fleet.server, request=one), running)
    if grid is None:
        return []
    if fleet.layout == "mixed":
        fleets = _mixed(grid, goal)
    else:
        p = fleet.prefiller
        choice = None if p is None else {(p.server.dtypes, p.chunk): p}
        fleets = _parted(grid, goal, choice)
    cost = np.where(fleets.excess <= 1, fleets.cost, np.inf)
    return [fleets.at(int(np.argmin(cost if np.any(np.isfinite(cost)) else fleets.excess)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleets:
    """The fleets that the columns of a grid make under one layout, with the prefill servers of a
    `choice`: `figures` are the numbers of `Fleet`, `excess` by which factor they miss the goal."""

    grid: Grid
    layout: Layout
    choice: Choice | None
    excess: np.ndarray
    figures: Mapping[str, np.ndarray]

    @property
    def cost(self) -> np.ndarray:
        """Chip-seconds per request."""
        return self.figures["chip_seconds"]

    def at(self, index: int) -> Fleet:
        """The fleet of one column."""
        server = self.grid.server.at(index)
        figures: dict[str, Any] = {k: v[index].item() for k, v in self.figures.items()}
        other = (self.choice or {}).get((server.dtypes, figures["chunk"]))
        if other and (other.server.piece, other.server.mesh) == (server.piece, server.mesh):
            other = None
        return Fleet(server=server, layout=self.layout, prefiller=other, **figures)

    def one_per_mesh(self, inside: np.ndarray) -> list[int]:
        """The cheapest of some columns for every mesh."""
        order = inside[np.argsort(self.cost[inside], kind="stable")]
        degrees = self.grid.server.take(order).degrees
        _, first = np.unique(
            np.stack([degrees[a] for a in sorted(degrees)]), axis=1, return_index=True
        )
        return [int(order[i]) for i in np.sort(first)]


def _fleets(
    grid: Grid,
    goal: Objectives,
    layout: Layout,
    choice: Choice | None,
    *,
    slots: np.ndarray,
    replicas: np.ndarray,
    prefill_replicas: np.ndarray,
    **figures: np.ndarray,
) -> Fleets:
    """The figures of all columns, made complete."""
    output = grid.server.request.output_length
    ttft, tpot = figures["ttft"], figures["tpot"]
    e2e = ttft + ((output - 1) * tpot if output > 1 else 0.0)
    with np.errstate(invalid="ignore"):  # infinite times without a target
        excess = np.maximum(np.maximum(ttft / goal.ttft, tpot / goal.tpot), e2e / goal.e2el)
        excess = np.maximum(excess, e2e / output / goal.pace)
    chips = np.rint(figures["chip_seconds"] * figures["rate"])
    answering = replicas * grid.server.chips
    excess = np.where(grid.server.request.beyond(answering, chips - answering), np.inf, excess)
    counts = {
        "chunk": grid.chunks,
        "slots": slots,
        "replicas": replicas,
        "prefill_replicas": prefill_replicas,
    }
    return Fleets(
        grid=grid,
        layout=layout,
        choice=choice,
        excess=np.where(np.isnan(excess), np.inf, excess),
        figures={
            **{name: count.astype(int) for name, count in counts.items()},
            **figures,
            "e2e": e2e,
            "running": np.asarray(grid.load.running),
            "step": grid.decode,
        },
    )


def _mixed(grid: Grid, goal: Objectives) -> Fleets:
    """Every replica takes prompts and answers."""
    each, request, chips = np.asarray(grid.mixed.rate), grid.server.request, grid.server.chips
    replicas, rate = np.ones_like(each), each
    if request.rate:
        replicas, rate = np.ceil(request.rate / each), np.full_like(each, request.rate)
    elif request.fill:
        replicas = np.maximum(np.floor(np.full_like(each, request.max_chips / chips)), 1.0)
        rate = each * replicas
    return _fleets(
        grid,
        goal,
        "mixed",
        None,
        slots=grid.mixed_slots,
        replicas=replicas,
        prefill_replicas=np.zeros_like(each),
        rate=rate,
        ttft=_late(grid, grid.lag(pools=False), np.asarray(grid.mixed.ttft), grid.mixed.tpot),
        tpot=np.asarray(grid.mixed.tpot),
        chip_seconds=grid.server.chips * replicas / rate,
        prompt_share=np.asarray(grid.mixed.prompt_share),
    )


def _parted(grid: Grid, goal: Objectives, choice: Choice | None) -> Fleets:
    """Prompts on servers of their own, as busy as TTFT lets them be."""
    request, own = grid.server.request, grid.server.chips
    answers = np.asarray(grid.load.running) / (grid.load.steps * grid.decode)
    by = prefill_columns(grid, choice)
    # Infinite seconds of a column without a prefill server would become NaN in what follows.
    prefill = np.minimum(by.seconds, _FOREVER)
    lag = grid.lag(pools=True)
    left = goal.ttft - lag.seconds - lag.per_token * request.input_length
    x, prompts = _prompts(request, left, prefill)
    if request.rate:
        # The fewest that carry the rate in time; the most that were looked at where none do.
        pick = np.where(
            np.any(prompts >= request.rate, 1), np.argmax(prompts >= request.rate, 1), -1
        )
        x = x[np.arange(len(x)), pick]
        y, rate = np.ceil(request.rate / answers), np.full_like(answers, request.rate)
    else:
        y, x, rate = _ratio(prompts, answers, by.chips, grid.server)
    chips = by.chips * x + own * y
    steps = max(request.output_length - 1, 1)
    return _fleets(
        grid,
        goal,
        "disaggregated",
        choice,
        slots=grid.alone_slots,
        replicas=y,
        prefill_replicas=x,
        rate=rate,
        ttft=_late(
            grid,
            lag,
            prefill + waiting(prefill, rate / x * prefill, request.percentile, x),
            grid.alone_tpot,
        ),
        tpot=grid.alone_tpot + by.handover / steps,
        chip_seconds=chips / rate,
        prompt_share=by.chips * x / chips,
    )


_FOREVER = 1e9
"""Seconds that stand for infinity, which would become NaN."""


def _late(grid: Grid, lag: Lag, after: np.ndarray, tpot: Quantity) -> np.ndarray:
    """Times to the first token with what the engine adds. By Little's law with requests at random,
    a server of n running sequences in the mean answers some with the chance 1 - exp(-n)."""
    busy = 1 - np.exp(-np.asarray(grid.load.running))
    late = lag.of(grid.server.request.input_length, np.asarray(tpot), busy)
    return after + np.asarray(late)


def _prompts(
    request: ServeRequest, left: float, prefill: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each column numbers of prefill replicas to try, and the prompts per second of each, that
    have `left` seconds for a first token."""
    seconds, back = np.unique(prefill, return_inverse=True)  # few: one per mesh and chunk
    x = np.floor(request.rate * seconds)[:, None] + POOLS
    busy = most_busy(seconds[:, None], left, request.percentile, x)
    prompts = x * np.maximum(busy, 0.01) / seconds[:, None]
    return x[back], prompts[back]


def _ratio(
    prompts: np.ndarray, answers: np.ndarray, prefill_chips: np.ndarray, server: Server
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of pools of at most the request's chips (the smallest pair where none has so few) the fewest
    replicas that decode and that prefill within `_SIMPLER` of the ratio that leaves least idle, and
    what they answer; `prompts` by the number that prefill."""
    chips = server.chips
    rates = np.minimum(prompts[:, None, :], (POOLS * answers[:, None])[:, :, None])
    rates = rates.reshape(len(rates), -1)
    both = (POOLS[:, None] + POOLS).ravel()
    paid = chips * POOLS[:, None] + prefill_chips[:, None, None] * POOLS
    paid = paid.reshape(len(rates), -1)
    beyond = server.request.beyond(chips * POOLS[:, None], prefill_chips[:, None, None] * POOLS)
    allowed = ~np.reshape(beyond, (len(rates), -1)) | (paid <= np.min(paid, axis=1, keepdims=True))
    cost = np.where(allowed, paid / rates, np.inf)
    near = cost <= _SIMPLER * np.min(cost, axis=1, keepdims=True)
    tie = paid / rates / np.max(paid / rates)
    best = np.argmin(np.where(near, both + tie, np.inf), axis=1)
    y, x = np.divmod(best, len(POOLS))
    return y + 1.0, x + 1.0, rates[np.arange(len(rates)), best]


def trade_off(searched: FleetSearch, goal: Objectives, points: int = 12) -> tuple[Fleet, ...]:
    """The front of latency and cost within the objectives: the cheapest fleet at times per output
    token between the fastest and the target. The last is the cheapest of all; what is cheaper than
    it by less than its second pool is `WORTH` is no point of the front."""
    best = cheapest(searched, goal)
    tighter = [replace(goal, tpot=limit) for limit in _limits(searched, goal, points)]
    found = [(cheapest(searched, each), each) for each in tighter]
    dearer = [f for f, each in found if f.meets(each) and f.chip_seconds > best.chip_seconds]
    return front([*dearer, *([best] if best.meets(goal) else [])])


def _limits(searched: FleetSearch, goal: Objectives, points: int) -> list[float]:
    """Times per output token to ask for below the target, evenly spaced in the logarithm."""
    every = np.concatenate([np.asarray(g.mixed.tpot) for g in searched.grids])
    every = every[np.isfinite(every)]
    if not len(every):
        return []
    low, high = float(np.min(every)), min(float(np.max(every)), goal.tpot)
    limits = np.geomspace(low * 1.001, high, points).tolist()
    return [b for a, b in pairwise([0.0, *limits]) if b > a]


def front(found: Iterable[Fleet]) -> tuple[Fleet, ...]:
    """Those that no other beats in both time and cost, fastest first (the Pareto front)."""
    kept: list[Fleet] = []
    for one in sorted(found, key=lambda one: one.rank):
        if not kept or one.rank[1] < kept[-1].rank[1]:
            kept.append(one)
    return tuple(kept)
