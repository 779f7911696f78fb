"""Fleets of a plan's servers that follow the load of a trace, for `simulate --start-up`."""

from collections.abc import Sequence
from dataclasses import replace

from shardwise.commands.plan_serve.load import Load, demand_for, requests_of
from shardwise.commands.plan_serve.loaded import Simulated
from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.planner.simulate.growth import following
from shardwise.planner.simulate.metrics import Objectives
from shardwise.planner.simulate.rates import about_rate
from shardwise.planner.simulate.steady import guessed_rate
from shardwise.plans.serve import TTFT_TARGET
from shardwise.results.simulated import FollowingFleet


def fleets_that_follow(found: Simulated, load: Load, start_ups: Sequence[float]) -> Simulated:
    """The run with fleets of its servers that follow the trace, each held by its start-up."""
    plan, fleet = found.plan, found.fleet
    if load.trace is None or plan.prefill_replicas:
        what = "two pools" if plan.prefill_replicas else "no trace"
        raise BadRequest(
            f"--start-up needs a load that rises and falls, and there is {what}; give a file of "
            "requests with --trace, and a plan whose servers both prefill and decode"
        )
    goal = found.objectives if found.objectives.given else Objectives(ttft=TTFT_TARGET)
    demand = demand_for(plan, load)
    held = about_rate(fleet, demand, goal, guessed_rate(fleet, demand))
    if held is None:
        raise NoFeasiblePlan("no rate holds: even one request alone misses the targets")
    arrivals = [request.arrival for request in requests_of(load, plan)]
    price = found.result.price
    hour = price and price.usd_per_chip_hour * found.result.chips / fleet.pool.replicas
    fleets = [
        FollowingFleet.part_of(one, usd_per_hour=hour and hour * one.servers)
        for one in following(arrivals, held.rate / fleet.pool.replicas, start_ups)
    ]
    return replace(found, result=replace(found.result, following=fleets))
