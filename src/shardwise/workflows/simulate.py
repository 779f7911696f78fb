"""A serving plan under a load: the plan becomes a fleet, the load a list of requests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import Slice
from shardwise.models import ModelConfig, load_model
from shardwise.models.describe import unpriced
from shardwise.planner.serve.answer import check_serve_plan
from shardwise.planner.serve.replica import replica_of
from shardwise.planner.simulate.clock import TICKS, seconds
from shardwise.planner.simulate.cost import ReplicaModel
from shardwise.planner.simulate.metrics import Objectives, summary
from shardwise.planner.simulate.run import Fleet, Outcome, Pool, simulate
from shardwise.planner.simulate.traces import (
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
from shardwise.roofline.engines import engine_warning
from shardwise.scheduling import Request, SchedulerConfig, Speculation
from shardwise.units import format_seconds
from shardwise.workflows.inputs import Hardware
from shardwise.workflows.plan_file import stale


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests: a trace, or `requests` made ones of `input` and `output` tokens.

    `requests` cuts a trace (0: all of it) before `tile` repeats it. `rate` in requests per second
    is the made ones', else the trace is sped up to it; `speed` speeds it up by a factor. `cv` is
    that of the gaps between made ones. `lengths` is a file with ServeGen's quantiles and the
    category in it, for made requests and for traces that hold rates alone.
    """

    trace: Path | str | None = None
    requests: int = 0
    tile: int = 1
    rate: float | None = None
    speed: float | None = None
    cv: float | None = None
    input: int | None = None
    output: int | None = None
    lengths: tuple[Path | str, str] | None = None
    seed: int = 0


MADE = 1000
"""Requests that are made where nobody says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a plan did under a load."""

    plan: ServePlan
    fleet: Fleet
    outcome: Outcome
    result: dict[str, Any]
    warnings: list[str]


def simulate_plan(
    plan: ServePlan | TrainPlan,
    load: Load,
    *,
    hardware: Hardware | None = None,
    objectives: Objectives | None = None,
    keep_steps: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Simulated:
    """Run a load through the replicas of a serving plan, priced by its own engine and chip.

    Raises BadRequest for a plan or load that makes no sense, NoFeasiblePlan where the weights
    leave no room for a cache.
    """
    if isinstance(plan, TrainPlan):
        raise BadRequest("a training plan answers no requests; give a serving plan to simulate")
    hardware = hardware or Hardware(constants=plan.constants)
    cfg, piece = load_model(plan.model), hardware.slice(plan.slice).slice
    requests = requests_of(load, plan)
    _check_size(requests, plan)
    fleet = fleet_of(plan, cfg, piece, hardware.slice(plan.prefill_plan.slice).slice)
    outcome = simulate(requests, fleet, seed=load.seed, keep_steps=keep_steps, progress=progress)
    result = {**summary(outcome, objectives), "cache": cache_of(fleet)}
    return Simulated(
        plan=plan,
        fleet=fleet,
        outcome=outcome,
        result=result,
        warnings=[*unpriced(cfg), *stale(plan, cfg), *_cautions(plan, requests, outcome, result)],
    )


MOST_REPLICAS = 10_000
"""Replicas of one simulation: each takes about 10 kB (ours)."""
MOST_PLACINGS = 50_000_000
"""Requests times replicas: a router looks at every replica for each request, 15 s in all (ours)."""
MOST_TOKENS = 1e9
"""Tokens of all answers: up to a minute of scheduling (ours)."""


def _check_size(requests: list[Request], plan: ServePlan) -> None:
    """Raise BadRequest for a simulation that would not end in time or take too much memory."""
    replicas = plan.replicas + plan.prefill_replicas
    if replicas > MOST_REPLICAS:
        raise BadRequest(
            f"the plan has {replicas:,} replicas; at most {MOST_REPLICAS:,} can be simulated, so "
            "simulate a share of them under the same share of the load (--set replicas=N)"
        )
    if len(requests) * replicas > MOST_PLACINGS:
        raise BadRequest(
            f"{len(requests):,} requests on {replicas:,} replicas are "
            f"{len(requests) * replicas:,} places to weigh; at most {MOST_PLACINGS:,} can be "
            "simulated, so simulate fewer of both (--requests, --set replicas=N)"
        )
    tokens = sum(r.output for r in requests)
    if tokens > MOST_TOKENS:
        raise BadRequest(
            f"the answers have {tokens:,} tokens in all; at most {MOST_TOKENS:,.0f} can be "
            "simulated, so give fewer --requests or shorter answers (--output)"
        )


def fleet_of(
    plan: ServePlan, cfg: ModelConfig, piece: Slice, prefill_piece: Slice | None = None
) -> Fleet:
    """The replicas of a plan; `prefill_piece` is the slice of its prefill pool, where it has one of
    its own."""
    model = _replica(plan, cfg, piece)
    speculation = None
    wanted = plan.scheduling
    if wanted.guesses:
        speculation = Speculation(
            method="draft" if wanted.guess_cost else "ngram",
            tokens=wanted.guesses,
            acceptance=wanted.acceptance,
            cost=wanted.guess_cost,
        )
    config = _config(plan, model, prefill=False)
    pool = Pool(
        model=model,
        config=config,
        replicas=plan.replicas,
        routing=plan.routing,
        affinity=_affinity(plan),
    )
    prefill = None
    if plan.prefill_replicas:
        source = model
        if plan.prefill is not None:
            source = _replica(plan.prefill_plan, cfg, prefill_piece or piece)
        prefill = Pool(
            model=source,
            config=_config(plan, source, prefill=True),
            replicas=plan.prefill_replicas,
            routing=plan.routing,
            affinity=_affinity(plan),
        )
    return Fleet(pool=pool, prefill=prefill, speculation=speculation)


def _replica(plan: ServePlan, cfg: ModelConfig, piece: Slice) -> ReplicaModel:
    check_serve_plan(plan, cfg, piece)
    model = replica_of(plan, cfg, piece, memory_share=plan.scheduling.memory_share)
    if model.kv_tokens < plan.scheduling.page_size:
        raise NoFeasiblePlan(
            f"{plan.model} leaves no room for a cache on {piece}: {model.kv_tokens:,} tokens fit "
            f"beside the weights into {plan.scheduling.memory_share:.0%} of the usable memory, a "
            f"page has {plan.scheduling.page_size}; use more chips or smaller weights, or raise "
            "scheduling.memory_share"
        )
    return model


AFFINITY_TOKENS = 1024
"""Tokens of a prompt that routing by hash goes by: longer than the system prompt that all share,
shorter than a conversation (two of Mooncake's blocks; ours)."""


def _affinity(plan: ServePlan) -> int:
    return max(1, AFFINITY_TOKENS // plan.scheduling.page_size)


def _config(plan: ServePlan, model: ReplicaModel, *, prefill: bool) -> SchedulerConfig:
    wanted, size = plan.scheduling, plan.scheduling.page_size
    host = model.host_kv_tokens // size
    kept = int(host * wanted.host_cache_share)
    swaps = wanted.swap and not prefill
    if (wanted.host_cache_share or swaps) and not host:
        raise BadRequest(
            f"the hosts of {plan.slice} have no 'host_dram_bytes' in the catalogue, so nothing can "
            "be kept there; set scheduling.host_cache_share to 0 and scheduling.swap to false, or "
            "give it with --set chip.host_dram_bytes=NUMBER"
        )
    return SchedulerConfig(
        pages=model.kv_tokens // size,
        page_size=size,
        batch=plan.batch,
        budget=plan.prefill_chunk,
        policy="prefill" if prefill else wanted.policy,
        prefix_cache=wanted.prefix_cache,
        host_pages=kept,
        admission=wanted.admission,
        margin=wanted.margin,
        preemption="swap" if swaps else "recompute",
        swap_pages=host - kept if swaps else 0,
        order=wanted.order,
        age=int(wanted.age_seconds * TICKS),
        max_waiting=wanted.max_waiting,
        refuse_late=wanted.refuse_late,
        lookahead=0 if prefill else wanted.guesses,
    )


def requests_of(load: Load, plan: ServePlan) -> list[Request]:
    """The requests of a load; what it leaves open is the plan's."""
    for name in ("rate", "speed", "cv"):
        value = getattr(load, name)
        if value is not None and not (
            isfinite(value) and (value > 0 or (value, name) == (0, "cv"))
        ):
            least = "0 or more" if name == "cv" else "above 0"
            raise BadRequest(f"--{name} is {value:g}; it must be a finite number, {least}")
    check_count(load.requests * load.tile)
    requests = _made(load, plan) if load.trace is None else _traced(load, plan, Path(load.trace))
    found = tiled(requests, load.tile) if load.tile > 1 else requests
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
    if load.rate is None or load.speed is not None:
        raise BadRequest("a load needs --trace FILE, or --rate for requests that are made")
    count = load.requests or MADE
    cv = 1.0 if load.cv is None else load.cv
    requests = poisson(
        load.rate,
        count,
        load.input or plan.input_length,
        load.output or plan.output_length,
        cv=cv,
        seed=load.seed,
    )
    if load.lengths is None:
        return requests
    if load.input or load.output:
        raise BadRequest("--lengths says how long requests are; leave --input and --output out")
    prompts, outputs = map(from_quantiles, _quantiles(load.lengths))
    return with_lengths(requests, prompts, outputs, load.seed)


def _quantiles(
    lengths: tuple[Path | str, str],
) -> tuple[Mapping[float, float], Mapping[float, float]]:
    path, category = Path(lengths[0]), lengths[1]
    prompts = read_quantiles(path, category, "input_tokens")
    return prompts, read_quantiles(path, category, "output_tokens")


def _traced(load: Load, plan: ServePlan, path: Path) -> list[Request]:
    windows = rates_of(path)
    if windows is None:
        for name in ("input", "output", "cv", "lengths"):
            if getattr(load, name) is not None:
                raise BadRequest(f"--{name} takes no effect: the trace '{path}' says it itself")
        requests = read_trace(path, plan.scheduling.page_size, load.requests)
    else:
        if load.lengths is None:
            raise BadRequest(
                f"'{path}' holds rates of arrival alone; give lengths with --lengths FILE:CATEGORY"
            )
        prompts, outputs = map(from_quantiles, _quantiles(load.lengths))
        requests = from_rates(windows, prompts, outputs, most=load.requests, seed=load.seed)
    speed = load.speed
    if load.rate is not None:
        if speed is not None:
            raise BadRequest("--rate and --speed both say how fast requests come; give one")
        span = requests[-1].arrival - requests[0].arrival
        if not span:
            raise BadRequest(f"all requests of '{path}' come at once; --rate cannot stretch that")
        speed = load.rate * span / max(len(requests) - 1, 1)
    return scaled(requests, speed) if speed is not None else requests


def cache_of(fleet: Fleet) -> dict[str, int]:
    """The pages of one replica."""
    config = fleet.pool.config
    return {
        "pages": config.pages,
        "page_size": config.page_size,
        "tokens": config.pages * config.page_size,
        "host_pages": config.host_pages,
    }


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
    plan: ServePlan, requests: list[Request], outcome: Outcome, result: Mapping[str, Any]
) -> list[str]:
    """What a reader should know before trusting the figures."""
    said = []
    named = any(r.keys for r in islice(requests, 1000))
    if not named and (plan.scheduling.prefix_cache or plan.routing == "prefix_aware"):
        said.append("the load does not say what prompts hold: the prefix cache finds nothing")
    last = max(job.request.arrival for job in outcome.jobs)
    waiting = sum(
        1
        for job in outcome.jobs
        if not job.refusal and (job.first_token is None or job.first_token > last)
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
    if result["refused"]:
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in result["refused"].items())
        said.append(f"refused: {reasons}")
    if outcome.replicas[0].model.usd_per_hour is None:
        chip = plan.slice
        said.append(f"no public price for {chip} in the catalogue: chip-hours only, no dollars")
    return said + engine_warning(plan.engine, "--set engine=vllm")
