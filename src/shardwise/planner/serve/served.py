"""The cheapest servers for a load: searched in closed form, confirmed by simulation.

`planner/serve/fleet.py` ranks every mesh, number in flight and chunk by closed forms. Short runs
say roughly what the best of them hold (`planner/simulate/rates.py`), and the cheapest by those is
simulated in full: without a rate, until the largest is found that it holds; with one, until it
has the fewest servers that hold it. What is answered are the figures of the
simulation, and a plan's file says all that they came from, so that `plan show` gives the same ones.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf, prod

from shardwise.errors import NoFeasiblePlan
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.planner.serve.answer import MILLION
from shardwise.planner.serve.fleet import Fleet, FleetSearch, ranked, search_fleets
from shardwise.planner.serve.planning import nothing_found
from shardwise.planner.serve.replica import averaged, fleet_of, scaled
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.simulate.demand import Demand
from shardwise.planner.simulate.metrics import Objectives
from shardwise.planner.simulate.rates import (
    PROMISED,
    STEEP,
    about_rate,
    cautiously,
    largest_rate,
    rounded,
)
from shardwise.planner.simulate.run import SimulatedFleet
from shardwise.planner.simulate.steady import LIMIT, RUNS, Held, hold
from shardwise.plans import ServePlan, Workload

CONTENDERS, CLOSE = 3, 1.05
"""Plans that are simulated, at most, and by how much dearer than the best their closed forms may
be: those are right to a few per cent."""

_TRIES = 12
"""Numbers of servers that are tried for a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A plan under the load that it was made for, as simulated."""

    plan: ServePlan
    cfg: ModelConfig
    piece: Slice
    prefill_piece: Slice
    demand: Demand
    held: Held

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.held.rate

    @property
    def chips(self) -> int:
        """Of all servers."""
        return chips_of(self.plan, self.piece, self.prefill_piece)

    @property
    def tokens_per_second(self) -> float:
        """Of answers."""
        return self.rate * self.demand.output

    @property
    def prefill_chips(self) -> int:
        """Of the servers that only prefill."""
        return self.chips - chips_of(
            replace(self.plan, prefill_replicas=0, prefill=None), self.piece, self.piece
        )

    @property
    def usd_per_hour(self) -> float | None:
        """Of all chips; None where no price is known."""
        price, other = self.piece.chip.price, self.prefill_piece.chip.price
        if self.piece.chip.id == self.prefill_piece.chip.id or not self.prefill_chips:
            return None if price is None else self.chips * price.usd_per_chip_hour
        if price is None or other is None:
            return None
        prefill = self.prefill_chips * other.usd_per_chip_hour
        return (self.chips - self.prefill_chips) * price.usd_per_chip_hour + prefill

    def per_million(self, per_hour: float) -> dict[str, float]:
        """What an hour costs, per million tokens of prompts, of answers, and of both together."""
        second, share = per_hour / 3600 / self.rate * MILLION, self.held.prompt_share
        prompt, output = self.demand.prompt, self.demand.output
        return {
            "input": second * share / prompt,
            "output": second * (1 - share) / output,
            "all": second / (prompt + output),
        }

    @property
    def usd_per_million(self) -> dict[str, float | None]:
        """Dollars; None where no price is known."""
        usd = self.usd_per_hour
        return (
            dict.fromkeys(("input", "output", "all")) if usd is None else {**self.per_million(usd)}
        )

    @property
    def dearness(self) -> tuple[bool, float]:
        """What plans are ordered by: dollars, or chip-hours where there is no price."""
        usd = self.usd_per_million["all"]
        return usd is None, self.per_million(self.chips)["all"] if usd is None else usd


def _each(plan: ServePlan, pieces: tuple[Slice, Slice]) -> int:
    """Chips of one server that answers."""
    return chips_of(replace(plan, replicas=1, prefill_replicas=0, prefill=None), *pieces)


def chips_of(plan: ServePlan, piece: Slice, prefill_piece: Slice) -> int:
    """Chips of all servers of a plan."""
    own = prod(plan.box) * piece.count * plan.replicas
    return own + prod(plan.prefill_plan.box) * prefill_piece.count * plan.prefill_replicas


def _beyond(request: ServeRequest, plan: ServePlan, pieces: tuple[Slice, Slice]) -> bool:
    """Whether a plan, with the servers that may be lost, takes more chips than there are."""
    whole = plan.with_more(request.spare)
    answering = whole.replicas * _each(plan, pieces)
    return bool(request.beyond(answering, chips_of(whole, *pieces) - answering))


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What a search found: the cheapest plan that holds, as simulated, and its closed form."""

    searched: FleetSearch
    fleet: Fleet
    served: Served
    simulated: int

    @property
    def request(self) -> ServeRequest:
        return self.searched.request


def cheapest_serving(
    requests: Sequence[ServeRequest],
    demand: Demand,
    *,
    trace: str | None = None,
    anyway: bool = False,
    progress: Callable[[], None] = lambda: None,
    quick: bool = False,
) -> Serving:
    """The cheapest plan of all requests, which ask for the same on one chip. Raises NoFeasiblePlan
    with the nearest miss where none holds, which is the answer where that is wanted `anyway`. One
    pool and two are looked for by themselves, as closed forms do not tell which is cheaper. A
    `quick` answer is what short runs say."""
    found: Serving | None = None
    miss: NoFeasiblePlan | None = None
    apart = [
        replace(request, pools=pools)
        for request in _likely(requests)
        for pools in (("one", "two") if request.pools == "any" else (request.pools,))
    ]
    for request in apart:
        try:
            one = _cheapest(request, demand, trace, anyway, progress, quick)
        except NoFeasiblePlan as error:
            miss = miss or error
            continue
        if found is None or one.served.dearness < found.served.dearness:
            found = one
    if found is None:
        assert miss is not None
        raise miss
    return found


_DEPTHS = 2
"""Depths of guessing that are simulated: the cheapest by their closed forms."""


def _likely(requests: Sequence[ServeRequest]) -> Sequence[ServeRequest]:
    """The requests, of several depths of guessing those that are cheapest in closed form."""
    if not any(request.speculation for request in requests):
        return requests
    costs = dict[int, float]()
    for place, request in enumerate(requests):
        searched = search_fleets(request)
        best = searched.best if searched.grids else None
        costs[place] = best.chip_seconds if best and best.meets(request.within) else inf
    return [requests[place] for place in sorted(costs, key=costs.__getitem__)[:_DEPTHS]]


def _cheapest(
    request: ServeRequest,
    demand: Demand,
    trace: str | None,
    anyway: bool,
    progress: Callable[[], None],
    quick: bool,
) -> Serving:
    searched = search_fleets(request)
    progress()
    best, count = simulated(searched, demand, trace=trace, progress=progress, quick=quick)
    if best is None and anyway and searched.grids:
        fleet = searched.best
        best = (as_planned(request, fleet, demand, trace), fleet)
    if best is None:
        raise nothing_found(searched)
    return Serving(searched=searched, served=best[0], fleet=best[1], simulated=count)


def simulated(
    searched: FleetSearch,
    demand: Demand,
    *,
    trace: str | None = None,
    progress: Callable[[], None] = lambda: None,
    quick: bool = False,
) -> tuple[tuple[Served, Fleet] | None, int]:
    """The cheapest of a search's fleets that holds, if one does, with its closed form; and how many
    were simulated. All by short runs if `quick`."""
    request = searched.request
    best: tuple[Served, Fleet] | None = None
    count = 0
    for some in _bunches(contenders(searched), request.spare):
        tried = [one for fleet in some if (one := contender(request, fleet, demand, near=False))]
        for one in sorted(tried, key=lambda c: c.cost):
            if best is None or one.cost < _cost(best[0]):
                count += 1
                least = 0.0 if best is None else one.fleet.chips / _cost(best[0])
                served = confirmed(one, demand, trace, least, progress, quick)
                if served is not None and (best is None or _cost(served) < _cost(best[0])):
                    best = (served, one.fleet)
        if best is not None:
            break
    return best, count


def _bunches(fleets: Iterable[Fleet], spare: int) -> Iterator[list[Fleet]]:
    """The fleets that are about as cheap by their closed forms, the cheapest bunch first."""
    some: list[Fleet] = []
    for fleet in fleets:
        most = CLOSE * some[0].cost_with(spare) if some else inf
        if len(some) == CONTENDERS or fleet.cost_with(spare) > most:
            yield some
            some = []
        some.append(fleet)
    if some:
        yield some


def as_planned(request: ServeRequest, fleet: Fleet, demand: Demand, trace: str | None) -> Served:
    """A fleet under the rate of its closed form, whether it holds or not."""
    goal = request.goal
    load = workload(fleet.rate, goal, trace, request)
    pieces = (fleet.piece, fleet.prefill_server.piece)
    plan = replace(fleet.plan().with_more(request.spare), workload=load)
    return served_plan(plan, request.cfg, *pieces, demand)


def _cost(served: Served) -> float:
    """Chip-seconds of a request."""
    return served.chips / served.rate


def contenders(searched: FleetSearch) -> Iterator[Fleet]:
    """The plans that keep the goal in closed form, cheapest first."""
    goal = searched.request.within
    best: dict[tuple, Fleet] = {}
    for fleet in ranked(searched, goal):
        if fleet.meets(goal):
            best.setdefault(_kind(fleet), fleet)
    spare = searched.request.spare
    yield from sorted(best.values(), key=lambda f: f.cost_with(spare)) if spare else best.values()


def _kind(fleet: Fleet) -> tuple:
    """What tells plans apart: slices, meshes, layout and dtypes."""
    server, other = fleet.server, fleet.prefill_server
    places = (str(server.piece), *server.mesh.items(), str(other.piece), *other.mesh.items())
    return (fleet.layout, server.dtypes, server.kv_sharding, *places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A fleet that may be the cheapest: its plan, as the simulator has it, the rate that short runs
    say it holds, and the chip-seconds of a request then."""

    request: ServeRequest
    fleet: Fleet
    plan: ServePlan
    simulated: SimulatedFleet
    near: float
    cost: float

    @property
    def pieces(self) -> tuple[Slice, Slice]:
        """The slices of servers that answer, and of those that prefill."""
        return self.fleet.piece, self.fleet.prefill_server.piece


def contender(
    request: ServeRequest,
    fleet: Fleet,
    demand: Demand,
    *,
    decode: float = 1.0,
    prefill: float = 1.0,
    near: bool = True,
) -> Contender | None:
    """A fleet after short runs, with as many servers as hold the rate by those; None where it holds
    nothing, or the chips do not suffice. Two pools for a rate keep the numbers of the closed form:
    what one of them could do says nothing of the other. Its steps take `decode` and `prefill` times
    what they are priced at (`ScaledCost`). Unless its own rate is asked for (`near`), short runs
    end where they say how many servers hold the request's."""
    pieces = (fleet.piece, fleet.prefill_server.piece)
    plan = roomy(fleet.plan(), request)
    simulated, rate = averaged(fleet_of(plan, request.cfg, *pieces)), fleet.rate
    if (decode, prefill) != (1.0, 1.0):
        simulated = scaled(simulated, decode, prefill)
        rate /= max(decode, prefill)
    most = request.max_chips / _each(plan, pieces) - request.spare

    def same_servers(low: float, high: float) -> bool:
        if near or not request.rate:
            return False
        few, many = (_times(plan, request.rate / one, most) for one in (high, low))
        return few == many

    if not (request.rate and plan.prefill_replicas):
        held = about_rate(simulated, demand, request.goal, rate, enough=same_servers)
        if held is None:
            return None
        rate = held.rate
    if request.rate:
        plan = _scaled(plan, request.rate / rate, most)
    chips = chips_of(plan.with_more(request.spare), *pieces)
    if _beyond(request, plan, pieces):
        return None
    return Contender(
        request=request,
        fleet=fleet,
        plan=plan,
        simulated=simulated,
        near=rate,
        cost=chips / (request.rate or rate),
    )


def confirmed(
    found: Contender,
    demand: Demand,
    trace: str | None = None,
    least: float = 0.0,
    progress: Callable[[], None] = lambda: None,
    quick: bool = False,
) -> Served | None:
    """A fleet with what it holds: the largest rate, or the fewest servers for the one asked for;
    None where it does not hold, or no rate as large as `least`. All by short runs if `quick`."""
    request, plan = found.request, found.plan
    if request.rate:
        best = _fewest(found, demand, progress, cautiously if quick else hold)
    elif quick:
        rate = rounded(found.near / PROMISED)
        best = (plan, cautiously(found.simulated, demand, rate, request.goal))
    else:
        held = largest_rate(
            found.simulated, demand, request.goal, found.near, least=least, progress=progress
        )
        best = None if held is None else (plan, held)
    if best is None:
        return None
    plan, held = best
    load = workload(held.rate, held.goal, trace, request)
    return Served(
        plan=replace(plan.with_more(request.spare), workload=load),
        cfg=request.cfg,
        piece=found.pieces[0],
        prefill_piece=found.pieces[1],
        demand=demand,
        held=held,
    )


_ROOMY = 2.0
"""A roomy plan holds this many times the sequences of the closed form."""


def roomy(plan: ServePlan, request: ServeRequest) -> ServePlan:
    """The plan with room for more sequences than the closed form asks for: a server that turns them
    away lets them wait, and the simulation says whether a longer step is worse."""
    checked = plan.scheduling.guesses + 1
    most = request.batch or min(ceil(_ROOMY * plan.batch), (plan.prefill_chunk - 1) // checked)
    return replace(plan, batch=max(plan.batch, most))


def workload(rate: float, goal: Objectives, trace: str | None, request: ServeRequest) -> Workload:
    """What a plan's file says of its load."""
    times = {"ttft": goal.ttft, "tpot": goal.tpot, "e2e": goal.e2el}
    pace = goal.pace
    return Workload(
        rate=rate,
        trace=trace,
        spare=request.spare,
        prefix=request.prefix or None,
        interactivity=None if pace == inf else 1 / pace,
        **{n: None if t == inf else t for n, t in times.items()},
    )


def _scaled(plan: ServePlan, factor: float, most: float) -> ServePlan:
    """The plan with so many times the servers, of one pool at most so many."""
    prefills = ceil(plan.prefill_replicas * factor)
    return replace(plan, replicas=_times(plan, factor, most), prefill_replicas=prefills)


def _times(plan: ServePlan, factor: float, most: float) -> int:
    """So many times the servers that answer, at least one, and of one pool at most so many."""
    replicas = max(1, ceil(plan.replicas * factor))
    return floor(most) if not plan.prefill_replicas and replicas > most >= 1 else replicas


def _fewest(
    found: Contender, demand: Demand, progress: Callable[[], None], run: Callable[..., Held]
) -> tuple[ServePlan, Held] | None:
    """The fewest servers that hold the rate by such runs, near those of the short ones: of either
    pool none can be left out."""
    request, tried = found.request, dict[tuple[int, int], Held]()

    def held(plan: ServePlan) -> Held:
        numbers = (plan.replicas, plan.prefill_replicas)
        if numbers not in tried:
            progress()
            fleet = _sized(found.simulated, *numbers)
            tried[numbers] = run(fleet, demand, request.rate, request.goal)
        return tried[numbers]

    plan = found.plan
    while not held(plan).kept:
        plan = more_servers(plan, held(plan), request.goal)
        if len(tried) == _TRIES or _beyond(request, plan, found.pieces):
            return None
    for pool in ("replicas", "prefill_replicas"):
        less = max(1, getattr(plan, pool) // _COARSE)
        while less:
            fewer = getattr(plan, pool) - less
            if fewer > 0 and held(replace(plan, **{pool: fewer})).kept:
                plan = replace(plan, **{pool: fewer})
            else:
                less //= 2
    return plan, held(plan)


_COARSE = 25
"""The largest share of the servers that is left out at once is one in so many."""


def _sized(fleet: SimulatedFleet, replicas: int, prefills: int) -> SimulatedFleet:
    prefill = fleet.prefill and replace(fleet.prefill, replicas=prefills)
    return replace(fleet, pool=replace(fleet.pool, replicas=replicas), prefill=prefill)


def more_servers(plan: ServePlan, held: Held, goal: Objectives) -> ServePlan:
    """More servers, of two pools of the one whose time is missed."""
    times = held.runs[-1].percentiles(0.95)
    late, slow = float(times[0] / goal.ttft), float(times[1] / goal.tpot)
    factor = min(max(held.load / LIMIT, 1.01), 1.5) ** (1 / STEEP)
    pool = "prefill_replicas" if plan.prefill_replicas and late > slow else "replicas"
    number = getattr(plan, pool)
    return replace(plan, **{pool: max(number + 1, floor(number * factor))})


def objectives_of(load: Workload) -> Objectives:
    """The targets of a load."""
    pace = None if load.interactivity is None else 1 / load.interactivity
    given = {"ttft": load.ttft, "tpot": load.tpot, "e2el": load.e2e, "pace": pace}
    return Objectives(**{name: time for name, time in given.items() if time is not None})


def served_plan(
    plan: ServePlan,
    cfg: ModelConfig,
    piece: Slice,
    prefill_piece: Slice,
    demand: Demand,
) -> Served:
    """A plan that has a workload, as simulated under it, whether it holds or not."""
    load = plan.workload
    assert load is not None
    goal = objectives_of(load)
    fleet = averaged(fleet_of(plan.worst, cfg, piece, prefill_piece))
    held = hold(fleet, demand, load.rate, goal, runs=RUNS, patient=True)
    return Served(
        plan=plan, cfg=cfg, piece=piece, prefill_piece=prefill_piece, demand=demand, held=held
    )
