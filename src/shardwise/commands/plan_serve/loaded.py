"""A serving plan under a load: the plan becomes a fleet, the load a list of requests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from shardwise.commands.base.inputs import places_of, plan_changes
from shardwise.commands.plan_serve.load import (
    Load,
    check_places,
    check_size,
    check_tokens,
    demand_for,
    requests_of,
    targets,
)
from shardwise.commands.pricing.plans import Priced, stale
from shardwise.errors import BadRequest, NoFeasiblePlan, Remark
from shardwise.models import ModelConfig, load_model
from shardwise.models.describe import unpriced
from shardwise.planner.serve.replica import fleet_of
from shardwise.planner.serve.served import Served, served_plan
from shardwise.planner.simulate.clock import seconds
from shardwise.planner.simulate.demand import Demand
from shardwise.planner.simulate.figures import RunFigures
from shardwise.planner.simulate.metrics import Objectives, over_time, summary
from shardwise.planner.simulate.rates import about_rate, rate_from
from shardwise.planner.simulate.replays import Replay
from shardwise.planner.simulate.run import Outcome, SimulatedFleet, simulate
from shardwise.planner.simulate.steady import (
    COUNTED,
    Held,
    guessed_rate,
    part_of,
    steady_outcome,
    steady_summary,
)
from shardwise.planner.simulate.traces import MOST_REQUESTS
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.chip_changes import AS_LISTED, ChipChanges
from shardwise.plans.serve import TTFT_TARGET
from shardwise.results.server import ChipPrice, price_of
from shardwise.results.simulated import (
    LargestRateFigures,
    OverloadedFigures,
    ReplicaCache,
    SteadyFigures,
    WholeLoadFigures,
)
from shardwise.roofline.engines import engine_warning
from shardwise.scheduling import Request
from shardwise.units import format_seconds, many


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a plan did under a load; `chips` is what its chips have beside the catalogue."""

    plan: ServePlan
    fleet: SimulatedFleet
    outcome: Outcome
    result: WholeLoadFigures
    warnings: list[str]
    chips: ChipChanges = AS_LISTED
    objectives: Objectives = field(default_factory=Objectives)


def simulate_plan(
    plan: ServePlan | TrainPlan,
    load: Load,
    *,
    objectives: Objectives | None = None,
    find_rate: bool = False,
    keep_steps: bool = False,
    replay: Replay | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Simulated:
    """Run a load through the replicas of a serving plan, priced by its own engine and chip; the
    requests of a benchmark where there is a `replay`.

    Where the plan has a workload and no other load is given, and to find the largest rate within
    the objectives, it is simulated in the steady state (`planner/simulate/steady.py`).

    Raises BadRequest for a plan or load that makes no sense, NoFeasiblePlan where the weights leave
    no room for a cache.
    """
    if isinstance(plan, TrainPlan):
        raise BadRequest("this is a training plan; give a serving plan to simulate")
    chips = replace(load, sets=plan_changes(load.sets)[1]).hardware
    hardware = replace(chips, constants=load.constants or plan.constants).of_plan(plan)
    cfg, piece = load_model(plan.model), hardware.slice(plan.slice).slice
    given = objectives if objectives is not None and objectives.given else targets(plan)
    steady = find_rate or (replay is None and plan.workload is not None and load.plain)
    up = plan.worst if steady else plan
    fleet = fleet_of(up, cfg, piece, hardware.slice(plan.prefill_plan.slice).slice)
    if steady:
        price = price_of(piece.chip)
        found = _steady(plan, cfg, fleet, price, load, given, find_rate, progress)
        kept = hardware.kept_of(*places_of(plan))
        return replace(found, chips=kept)
    objectives = given
    if replay is None:
        requests = requests_of(load, plan)
    else:
        shared = load.shared(plan, min(replay.prompts))
        requests = replay.requests(plan.scheduling.page_size, shared)
    check_size(requests, plan)
    outcome = simulate(
        requests, fleet, seed=load.first_seed, keep_steps=keep_steps, progress=progress
    )
    result = WholeLoadFigures.of(
        summary(outcome, objectives),
        cache=cache_of(fleet),
        price=price_of(piece.chip),
        over_time=over_time(outcome),
    )
    return Simulated(
        plan=plan,
        fleet=fleet,
        outcome=outcome,
        result=result,
        warnings=[*unpriced(cfg), *stale(plan, cfg), *_cautions(plan, requests, outcome, result)],
        objectives=objectives,
    )


def served_under(priced: Priced) -> Served:
    """A priced serving plan under the load that it was made for."""
    answer, plan = priced.answer, priced.plan
    assert isinstance(plan, ServePlan)
    return served_plan(plan, answer.cfg, answer.piece, answer.prefill_piece, demand_for(plan))


_WHOLE = ("chip_hours", "usd", "request_throughput", "request_goodput")
_WHOLE += ("output_throughput", "total_token_throughput")


def _of_all(result: RunFigures, factor: float) -> RunFigures:
    """The figures of a part of a fleet as those of all of it."""
    known = {name: value for name in _WHOLE if (value := getattr(result, name)) is not None}
    whole = {name: value * factor for name, value in known.items()}
    return replace(result, **whole, chips=round(result.chips * factor))


def _steady(
    plan: ServePlan,
    cfg: ModelConfig,
    fleet: SimulatedFleet,
    price: ChipPrice | None,
    load: Load,
    objectives: Objectives,
    find_rate: bool,
    progress: Callable[[int, int], None] | None,
) -> Simulated:
    """One run in the steady state, at the largest rate that holds where that is asked for."""
    demand, found = demand_for(plan, load), None
    rate = load.number("rate") or (plan.workload.rate if plan.workload else 0.0)
    counted = load.whole("requests", MOST_REQUESTS) or COUNTED
    part = part_of(fleet, demand, rate)[0] if rate else fleet
    check_places(counted, part.pool.replicas + (part.prefill.replicas if part.prefill else 0))
    check_tokens(counted * demand.output)
    if find_rate:
        objectives = objectives if objectives.given else Objectives(ttft=TTFT_TARGET)
        found = _largest(fleet, demand, objectives, rate, progress)
        rate = found.rate
    part, share = part_of(fleet, demand, rate)
    run, outcome = steady_outcome(part, demand, share, seed=load.first_seed, counted=counted)
    parts = part.pool.replicas + (part.prefill.replicas if part.prefill else 0)
    result = SteadyFigures.of(
        _of_all(steady_summary(run, outcome, objectives), rate / share),
        good_share=run.good(objectives),
        cache=cache_of(fleet),
        price=price,
        over_time=over_time(outcome),
        answered=run.begun,
        warm_up_requests=run.first,
        rate=rate,
        simulated_servers=parts,
        holds=run.keeps(objectives),
    )
    if found is not None:
        result = LargestRateFigures.of(result, largest_rate=rate)
    elif not result.holds:
        near = about_rate(fleet, demand, objectives, _near(fleet, demand, rate))
        result = OverloadedFigures.of(result, holds_about=near and near.rate)
    return Simulated(
        plan=plan,
        fleet=fleet,
        outcome=outcome,
        result=result,
        warnings=[*unpriced(cfg), *stale(plan, cfg), *_left_out(plan, parts)],
        objectives=objectives,
    )


def _largest(
    fleet: SimulatedFleet,
    demand: Demand,
    objectives: Objectives,
    rate: float,
    progress: Callable[[int, int], None] | None,
) -> Held:
    """The largest rate that holds, looked for near `rate` where one is given."""
    steps = iter(range(1, 1000))
    held = rate_from(
        fleet,
        demand,
        objectives,
        rate or guessed_rate(fleet, demand),
        progress=lambda: progress(next(steps), 0) if progress else None,
    )
    if held is None:
        raise NoFeasiblePlan(
            "no rate holds: even one request alone misses the targets; allow more time (--ttft, "
            "--tpot), or use more chips per server"
        )
    return held


def _left_out(plan: ServePlan, simulated: int) -> Iterator[str]:
    """What the engine's times and a run of some of the servers leave out."""
    yield from engine_warning(plan.engine, "--set engine=vllm")
    up = plan.worst
    whole = up.replicas + up.prefill_replicas
    if up.replicas < plan.replicas:
        spare = plan.replicas + plan.prefill_replicas - whole
        yield (
            f"{many(spare, 'server')} may fail (workload.spare) and took no part in this run; "
            "chips and cost count only the others"
        )
    if simulated < whole:
        yield (
            f"{simulated:,} of {whole:,} servers were simulated, with their share of the load: "
            "requests fill them"
        )


def _near(fleet: SimulatedFleet, demand: Demand, rate: float) -> float:
    """Where to look for a rate that holds: near the one that does not, unless that is far off."""
    guess = guessed_rate(fleet, demand)
    return rate if rate <= 10 * guess else guess


def cache_of(fleet: SimulatedFleet) -> ReplicaCache:
    """The pages of one replica."""
    config = fleet.pool.config
    return ReplicaCache(
        pages=config.pages,
        page_size=config.page_size,
        tokens=config.pages * config.page_size,
        host_pages=config.host_pages,
    )


_FEWEST = 20
"""Requests below which nothing is said of a trend."""

_GROWS = 1.3
"""Factor from one third of a load to the next above which the wait rises (ours). A queue that grows
evenly has 3 and 5/3; one that has settled has 1."""


def _rise(outcome: Outcome) -> tuple[float, float] | None:
    """Mean seconds to the first token in the first and the last third of the load, where they rise
    through it by more than a tenth of what answers take and the last are late to finish."""
    times = np.array(
        [
            [seconds(t) for t in (job.request.arrival, job.first_token, job.last_token)]
            for job in sorted(outcome.jobs, key=lambda j: j.request.arrival)
            if job.first_token is not None and job.last_token is not None
        ]
    )
    if len(times) < _FEWEST:
        return None
    came, started, ended = times.T
    waits, answers = started - came, ended - started
    first, middle, last = (float(np.mean(part)) for part in np.array_split(waits, 3))
    own = first + float(np.mean(answers))
    rises = middle > _GROWS * first and last > _GROWS * middle and last - first > 0.1 * own
    return (first, last) if rises and max(ended) - came[-1] > own else None


_OVERLOADED = 0.1
"""Share of the requests still waiting at the last arrival that says the load is too much."""


def _cautions(
    plan: ServePlan, requests: list[Request], outcome: Outcome, result: WholeLoadFigures
) -> list[str]:
    """What a reader should know before trusting the figures."""
    said = list[str]()
    named = any(r.keys for r in islice(requests, 1000))
    if not named and (plan.scheduling.prefix_cache or plan.routing == "prefix_aware"):
        said.append(
            Remark(
                "the load gives the lengths of prompts and not their text, so the prefix cache "
                "finds nothing; give with --prefix TOKENS how much they share"
            )
        )
    newest = max(outcome.jobs, key=lambda job: job.request.arrival)
    last = newest.request.arrival
    waiting = sum(
        1
        for job in outcome.jobs
        if job is not newest
        and not job.refusal
        and (job.first_token is None or job.first_token > last)
    )
    if waiting > _OVERLOADED * len(outcome.jobs):
        said.append(
            f"overloaded: {waiting:,} of {len(outcome.jobs):,} requests had no token yet when the "
            "last one arrived, so latencies grow with the length of the load"
        )
    elif rise := _rise(outcome):
        first, last = map(format_seconds, rise)
        said.append(
            f"overloaded: requests of the first third of the load waited {first} for a token, "
            f"those of the last third {last}: more arrive than are answered, so latencies grow "
            "with the length of the load"
        )
    if result.refused:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in result.refused.items())
        said.append(f"refused: {reasons}")
    if outcome.replicas[0].model.usd_per_hour is None:
        chip = plan.slice
        said.append(Remark(f"no public price for {chip}: chip-hours only, no dollars"))
    return said + engine_warning(plan.engine, "--set engine=vllm")
