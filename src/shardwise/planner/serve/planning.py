"""plan_serve: one request, answered by its objective.

Objective "smallest" is in `smallest.py`. Objective "cost" is here: the cheapest fleet of all that
`fleet.py` found, or why there is none.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.planner.serve.answer import mesh_text
from shardwise.planner.serve.fleet import Fleet, FleetSearch, cheapest, search_fleets
from shardwise.planner.serve.grid import grids
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.serve.smallest import ServerPlanning, smallest
from shardwise.plans import ServePlan
from shardwise.plans.serve import MOST_REPLICAS
from shardwise.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlanning:
    """The cheapest fleet on one chip within its objectives, and all that was looked at."""

    searched: FleetSearch
    best: Fleet

    @property
    def request(self) -> ServeRequest:
        return self.searched.request

    @property
    def plan(self) -> ServePlan:
        """The plan to save, to simulate or to export."""
        return self.best.plan()


def plan_serve(
    request: ServeRequest, *, top: int = 3, progress: Callable[[int, int], None] | None = None
) -> ServerPlanning | FleetPlanning:
    """The best way to serve a request, with `top` runners-up where the objective is "smallest".
    Raises NoFeasiblePlan with the nearest miss."""
    if request.objective == "cost":
        return cheapest_fleet(request, progress)
    return smallest(request, top)


def cheapest_fleet(
    request: ServeRequest, progress: Callable[[int, int], None] | None = None
) -> FleetPlanning:
    """The cheapest fleet on the request's chip."""
    searched, goal = search_fleets(request, progress), request.goal
    if not searched.grids:
        raise NoFeasiblePlan(_nowhere(request))
    best = cheapest(searched, goal)
    replicas = max(best.replicas, best.prefill_replicas)
    if replicas > MOST_REPLICAS:
        raise BadRequest(
            f"{request.rate:g} requests per second take {replicas:,} replicas of {best.piece}; at "
            f"most {MOST_REPLICAS:,} can be planned, so lower the rate (--rate) or shorten the "
            "requests"
        )
    if not best.meets(goal):
        raise NoFeasiblePlan(
            f"no servers of {best.piece.chip.id} meet the objectives for {request.cfg.name}; the "
            f"nearest, on {best.piece} ({mesh_text(best.server.mesh)}), {_missed(best)}: allow "
            "more time, or use shorter prompts or another chip"
        )
    return FleetPlanning(searched=searched, best=best)


def _nowhere(request: ServeRequest) -> str:
    """Why no server was found: the model is too large, or every step too long."""
    chip, last = request.pieces[0].chip.id, max(request.pieces, key=lambda p: p.chips)
    free = replace(request, goal=replace(request.goal, tpot=inf))
    if not any(grids(free, last, dtypes) for dtypes in request.dtypes):
        return (
            f"{request.cfg.name} fits no slice of {chip} that was looked at (up to {last}): its "
            "weights and the cache of one request need more memory; use a larger slice, another "
            "chip, shorter requests or smaller dtypes (--weights, --kv)"
        )
    return (
        f"no slice of {chip} that was looked at (up to {last}) has a step of {request.cfg.name} "
        f"within TPOT {format_seconds(request.goal.tpot)}: allow a longer --tpot, use another "
        "chip, or smaller dtypes (--weights, --kv)"
    )


def _missed(fleet: Fleet) -> str:
    """The objectives that a fleet misses, in words."""
    goal = fleet.server.request.goal
    pairs = (
        ("TTFT", fleet.ttft, goal.ttft),
        ("TPOT", fleet.tpot, goal.tpot),
        ("E2E", fleet.e2e, goal.e2el),
    )
    missed = [
        f"has {name} {format_seconds(got)} for {format_seconds(limit)}"
        for name, got, limit in pairs
        if got > limit
    ]
    return " and ".join(missed)
