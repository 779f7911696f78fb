"""A serving plan under a load: the plan becomes a fleet, the load a list of requests."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np

from shardwise.boundary import number
from shardwise.boundary.options import option
from shardwise.commands.base.inputs import (
    PLAN_CONSTANTS,
    HardwareWords,
    places_of,
    plan_changes,
    whole_number,
)
from shardwise.commands.pricing.plans import Priced, stale
from shardwise.errors import BadRequest, NoFeasiblePlan, Remark
from shardwise.models import ModelConfig, load_model
from shardwise.models.describe import unpriced
from shardwise.planner.serve.replica import fleet_of
from shardwise.planner.serve.served import Served, served_plan
from shardwise.planner.simulate.clock import seconds
from shardwise.planner.simulate.demand import Demand, demand_of
from shardwise.planner.simulate.figures import RunFigures
from shardwise.planner.simulate.metrics import Objectives, over_time, summary
from shardwise.planner.simulate.rates import about_rate, largest_rate
from shardwise.planner.simulate.run import Outcome, SimulatedFleet, simulate
from shardwise.planner.simulate.steady import (
    COUNTED,
    guessed_rate,
    part_of,
    steady_outcome,
    steady_summary,
)
from shardwise.planner.simulate.traces import (
    MOST_REQUESTS,
    Lengths,
    check_count,
    from_quantiles,
    from_rates,
    poisson,
    rates_of,
    read_quantiles,
    read_trace,
    scaled,
    tiled,
    with_lengths,
)
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

_TRACES = (
    "Azure, Vidur (arrived_at in seconds), Mooncake or LLMServingSim (timestamp in milliseconds), "
    "ServeGen, or own JSONL: arrival in seconds, prompt and output in tokens."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(HardwareWords):
    """The requests: a trace, or made ones; and how the chips of the plan are read.

    `requests` cuts a trace before `tile` repeats it. `cv` is that of the gaps between made ones.
    `lengths` is for made requests and for traces that hold rates alone.
    """

    trace: Path | str | None = option(_TRACES, kind="file")
    requests: int | str | None = option(
        "The first so many of a trace, or how many to make (see above).",
        group="The load",
        meaning="how many requests",
    )
    tile: int | str = option(
        "Repeat the load so many times.", default="1", before="cv", group="The load"
    )
    rate: float | str | None = option(
        "Requests per second: make them, or speed a trace up; else the plan's own load."
    )
    speed: float | str | None = option("Replay a trace so many times as fast.", group="The load")
    cv: float | str | None = option(
        "Burstiness of made requests; 1 (default) is Poisson.", group="The load"
    )
    input: int | str | None = option("Prompt tokens of made requests; else the plan's.")
    output: int | str | None = option("Answer tokens of made requests; else the plan's.")
    lengths: str | None = option(
        "Draw lengths from ServeGen's quantiles.", metavar="FILE:CATEGORY", group="The load"
    )
    seed: int | str = option(
        "Of everything that is drawn.", default="0", show_default=True, group="The machine"
    )
    constants: str | None = option(PLAN_CONSTANTS)

    def number(self, name: str) -> float | None:
        """A rate, speed or variation as a number; None where it is not given."""
        least, most = (0, 100) if name == "cv" else (1e-9, 1e6)
        words = getattr(self, name)
        if words is None:
            return None
        return number(words, f"--{name}", least=least, most=most, suffix=True)

    def whole(self, name: str, most: int = 2**31) -> int:
        """A count; 0 where it is not given."""
        words = getattr(self, name)
        return 0 if words is None else whole_number(words, f"--{name}", least=1, most=most)

    @property
    def plain(self) -> bool:
        """Whether nothing but a rate and lengths is said of the load."""
        odd = (self.trace, self.speed, self.cv, self.lengths)
        return all(words is None for words in odd) and self.whole("tile") == 1

    @property
    def own_lengths(self) -> bool:
        """Whether lengths are left to the plan."""
        return self.input is None and self.output is None

    @property
    def first_seed(self) -> int:
        """Of everything that is drawn; NumPy takes 32 bits."""
        return whole_number(self.seed, "--seed", most=2**32 - 1)

    def drawn_lengths(self) -> tuple[Lengths, Lengths]:
        """What draws prompts and answers."""
        file, _, category = str(self.lengths).rpartition(":")
        prompts = read_quantiles(Path(file), category, "input_tokens")
        outputs = read_quantiles(Path(file), category, "output_tokens")
        return from_quantiles(prompts), from_quantiles(outputs)

    def verify(self) -> None:
        """Raise BadRequest for words that make no sense, whether they are used or not."""
        for name in ("rate", "speed", "cv"):
            self.number(name)
        if self.lengths is not None and ":" not in str(self.lengths):
            raise BadRequest(f"--lengths '{self.lengths}' is not FILE:CATEGORY")


MADE = 1000
"""Requests that are made where their number is not given."""


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
    progress: Callable[[int, int], None] | None = None,
) -> Simulated:
    """Run a load through the replicas of a serving plan, priced by its own engine and chip.

    Where the plan has a workload and no other load is given, and to find the largest rate within
    the objectives, it is simulated in the steady state (`planner/simulate/steady.py`).

    Raises BadRequest for a plan or load that makes no sense, NoFeasiblePlan where the weights leave
    no room for a cache.
    """
    if isinstance(plan, TrainPlan):
        raise BadRequest("a training plan answers no requests; give a serving plan to simulate")
    chips = replace(load, sets=plan_changes(load.sets)[1]).hardware
    hardware = replace(chips, constants=load.constants or plan.constants).of_plan(plan)
    cfg, piece = load_model(plan.model), hardware.slice(plan.slice).slice
    given = objectives if objectives is not None and objectives.given else targets(plan)
    steady = find_rate or (plan.workload is not None and load.plain)
    up = plan.worst if steady else plan
    fleet = fleet_of(up, cfg, piece, hardware.slice(plan.prefill_plan.slice).slice)
    if steady:
        price = price_of(piece.chip)
        found = _steady(plan, cfg, fleet, price, load, given, find_rate, progress)
        kept = hardware.kept_of(*places_of(plan))
        return replace(found, chips=kept)
    objectives = given
    requests = requests_of(load, plan)
    _check_size(requests, plan)
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


def targets(plan: ServePlan) -> Objectives:
    """The targets of the load that a plan was made for; none where it was made for none."""
    load = plan.workload
    given = {} if load is None else {"ttft": load.ttft, "tpot": load.tpot, "e2el": load.e2e}
    return Objectives(**{name: time for name, time in given.items() if time is not None})


def demand_for(plan: ServePlan, load: Load | None = None) -> Demand:
    """What the requests of a plan's load hold, or those of another load."""
    load = load or Load()
    trace = load.trace
    if trace is None and load.own_lengths and plan.workload is not None:
        trace = plan.workload.trace
    if trace is not None:
        return demand_of(read_trace(Path(trace), plan.scheduling.page_size))
    prompt = load.whole("input") or plan.input_length
    return Demand(prompts=(prompt,), outputs=(load.whole("output") or plan.output_length,))


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
    _check_places(counted, part.pool.replicas + (part.prefill.replicas if part.prefill else 0))
    _check_tokens(counted * demand.output)
    if find_rate:
        goal = objectives if objectives.given else Objectives(ttft=TTFT_TARGET)
        steps = iter(range(1, 1000))
        near = about_rate(fleet, demand, goal, rate or guessed_rate(fleet, demand))
        held = near and largest_rate(
            fleet,
            demand,
            goal,
            near.rate,
            progress=lambda: progress(next(steps), 0) if progress else None,
        )
        if held is None:
            raise NoFeasiblePlan(
                "no rate holds: even a request alone misses the targets; allow more time (--ttft, "
                "--tpot), or use more chips per server"
            )
        objectives, rate, found = goal, held.rate, held
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
    said = engine_warning(plan.engine, "--set engine=vllm")
    up = plan.worst
    whole = up.replicas + up.prefill_replicas
    if up.replicas < plan.replicas:
        spare = plan.replicas + plan.prefill_replicas - whole
        said.append(
            f"{many(spare, 'server')} may be lost (workload.spare) and had no part in this run; "
            "its chips and cost are those of the others"
        )
    if parts < whole:
        said.append(
            f"{parts:,} of {whole:,} servers were simulated, with their share of the load: "
            "requests fill them"
        )
    return Simulated(
        plan=plan,
        fleet=fleet,
        outcome=outcome,
        result=result,
        warnings=[*unpriced(cfg), *stale(plan, cfg), *said],
        objectives=objectives,
    )


def _near(fleet: SimulatedFleet, demand: Demand, rate: float) -> float:
    """Where to look for a rate that holds: near the one that does not, unless that is far off."""
    guess = guessed_rate(fleet, demand)
    return rate if rate <= 10 * guess else guess


MOST_REPLICAS = 10_000
"""Replicas of one simulation: each takes about 10 kB (ours)."""
MOST_PLACINGS = 50_000_000
"""Requests times replicas: a router looks at every replica for each request, 15 s in all (ours)."""
MOST_TOKENS = 1e9
"""Tokens of all answers: up to a minute of scheduling (ours)."""


def _check_size(requests: list[Request], plan: ServePlan) -> None:
    """Raise BadRequest for a simulation that would not end in time or take too much memory."""
    _check_places(len(requests), plan.replicas + plan.prefill_replicas)
    _check_tokens(sum(r.output for r in requests))


def _check_places(requests: int, replicas: int) -> None:
    if replicas > MOST_REPLICAS:
        raise BadRequest(
            f"the plan has {replicas:,} replicas; at most {MOST_REPLICAS:,} can be simulated, so "
            "simulate a share of them under the same share of the load (--set replicas=N)"
        )
    if requests * replicas > MOST_PLACINGS:
        raise BadRequest(
            f"{requests:,} requests on {replicas:,} replicas are "
            f"{requests * replicas:,} places to weigh; at most {MOST_PLACINGS:,} can be "
            "simulated, so simulate fewer of both (--requests, --set replicas=N)"
        )


def _check_tokens(tokens: float) -> None:
    if tokens > MOST_TOKENS:
        raise BadRequest(
            f"the answers have {tokens:,.0f} tokens in all; at most {MOST_TOKENS:,.0f} can be "
            "simulated, so give fewer --requests or shorter answers (--output)"
        )


def requests_of(load: Load, plan: ServePlan) -> list[Request]:
    """The requests of a load; what it leaves open is the plan's."""
    load.verify()
    tile = load.whole("tile", MOST_REQUESTS)
    check_count(load.whole("requests") * tile)
    requests = _made(load, plan) if load.trace is None else _traced(load, plan, Path(load.trace))
    check_count(len(requests) * tile)
    found = tiled(requests, tile) if tile > 1 else requests
    last = max(r.arrival for r in found)
    if not last <= _LONGEST:
        raise BadRequest(
            f"the last request comes after {last:g} s; a load of at most {_LONGEST:g} s (30 years) "
            "can be simulated: check the units of arrivals (seconds; timestamps of JSONL are "
            "milliseconds), or raise --rate or --speed"
        )
    return found


_LONGEST = 1e9
"""Seconds that the clock is asked to count (ours)."""


def _made(load: Load, plan: ServePlan) -> list[Request]:
    rate, cv, seed = load.number("rate"), load.number("cv"), load.first_seed
    if rate is None or load.speed is not None:
        raise BadRequest("a load needs --trace FILE, or --rate for requests that are made")
    requests = poisson(
        rate,
        load.whole("requests") or MADE,
        load.whole("input") or plan.input_length,
        load.whole("output") or plan.output_length,
        cv=1.0 if cv is None else cv,
        seed=seed,
    )
    if load.lengths is None:
        return requests
    if load.input or load.output:
        raise BadRequest("--lengths says how long requests are; leave --input and --output out")
    return with_lengths(requests, *load.drawn_lengths(), seed)


def _traced(load: Load, plan: ServePlan, path: Path) -> list[Request]:
    windows = rates_of(path)
    if windows is None:
        for name in ("input", "output", "cv", "lengths"):
            if getattr(load, name) is not None:
                raise BadRequest(f"--{name} takes no effect: the trace '{path}' says it itself")
        requests = read_trace(path, plan.scheduling.page_size, load.whole("requests"))
    else:
        if load.lengths is None:
            raise BadRequest(
                f"'{path}' holds rates of arrival alone; give lengths with --lengths FILE:CATEGORY"
            )
        most, seed = load.whole("requests"), load.first_seed
        requests = from_rates(windows, *load.drawn_lengths(), most=most, seed=seed)
    rate, speed = load.number("rate"), load.number("speed")
    if rate is not None:
        if speed is not None:
            raise BadRequest("--rate and --speed both say how fast requests come; give one")
        span = requests[-1].arrival - requests[0].arrival
        if not span:
            raise BadRequest(f"all requests of '{path}' come at once; --rate cannot stretch that")
        speed = rate * span / max(len(requests) - 1, 1)
    return scaled(requests, speed) if speed is not None else requests


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
        said.append(Remark("the load has no words of prompts: the prefix cache finds nothing"))
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
            "last one came, so latencies grow with the length of the load"
        )
    elif rise := _rise(outcome):
        first, last = map(format_seconds, rise)
        said.append(
            f"overloaded: requests of the first third of the load waited {first} for a token, "
            f"those of the last third {last}: more come than are answered, so latencies grow with "
            "the length of the load"
        )
    if result.refused:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in result.refused.items())
        said.append(f"refused: {reasons}")
    if outcome.replicas[0].model.usd_per_hour is None:
        chip = plan.slice
        said.append(Remark(f"no public price for {chip}: chip-hours only, no dollars"))
    return said + engine_warning(plan.engine, "--set engine=vllm")
