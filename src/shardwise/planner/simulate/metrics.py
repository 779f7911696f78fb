"""What a simulation says: latencies, throughput, goodput, load, cache and dollars.

Names and definitions are those of `vllm bench serve` where it has them, so that a measured run can
be laid beside a simulated one; `DEFINITIONS` says each in a line.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from shardwise.errors import BadRequest
from shardwise.planner.simulate.clock import TICKS
from shardwise.planner.simulate.figures import OverTime, ReplicaLoad, RunFigures, UsdOfRun
from shardwise.planner.simulate.replica import Replica
from shardwise.planner.simulate.run import Outcome
from shardwise.scheduling.requests import Sequence as Job

PERCENTILES = (50, 90, 95, 99)
"""Percentiles of each time that a simulation reports."""

DEFINITIONS = {
    "ttft": "from the arrival of a request to its first token: queueing, and what the software was "
    "measured to add before it looks at a request",
    "tpot": "(E2EL - TTFT) / (output tokens - 1) of each request with more than one",
    "itl": "between two tokens of a request, over all tokens of all requests; with speculation "
    "between two steps that brought some",
    "e2el": "from the arrival of a request to its last token",
    "request_throughput": "completed requests per second of the duration; in the steady state of "
    "the duration or of the time in which their answers begin, whichever is longer",
    "request_goodput": "completed requests that met every objective, per second of the duration",
    "output_throughput": "tokens emitted per second of the duration",
    "total_token_throughput": "prompt and emitted tokens per second of the duration",
    "duration": "from the first arrival to the last token, in seconds; in the steady state the "
    "seconds in which as many requests come as are counted",
    "hit_rate": "prompt tokens found in the prefix cache over all prompt tokens",
    "utilisation": "share of the duration in which a replica ran a step",
    "usd_per_million_tokens": "all chips for the duration; split by the time of prompts (what a "
    "step takes longer for its chunks) and of answers, idle time in proportion",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """Service-level objectives of a request, in seconds; a request meets all or is no goodput.
    `pace` is of the whole request for each token of its answer: 1 / interactivity, as InferenceX
    draws its front."""

    ttft: float = float("inf")
    tpot: float = float("inf")
    e2el: float = float("inf")
    pace: float = float("inf")

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise BadRequest(f"objective {field.name} is {getattr(self, field.name)} s; it "
                                 "must be positive")  # fmt: skip

    @property
    def given(self) -> bool:
        """Whether any is set."""
        return any(getattr(self, f.name) < float("inf") for f in fields(self))

    def over(self, own: "Objectives") -> "Objectives":
        """These, and `own` for times that these say nothing of."""
        set_ = {f.name: v for f in fields(self) if (v := getattr(self, f.name)) < float("inf")}
        return replace(own, **set_)

    def met(self, ttft: float, tpot: float, e2el: float = 0.0, pace: float = 0.0) -> bool:
        """Whether times are within all of them."""
        return self.excess(ttft, tpot, e2el, pace) <= 1

    def excess(self, ttft: float, tpot: float, e2el: float = 0.0, pace: float = 0.0) -> float:
        """By which factor the worst is missed; at most 1 where none is."""
        return max(ttft / self.ttft, tpot / self.tpot, e2el / self.e2el, pace / self.pace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Seconds of the completed requests, in the order of their arrival; `tpot` is NaN where a
    request has one token, `pace` is `e2el` over the tokens. `itl` is over all their tokens."""

    ttft: np.ndarray
    tpot: np.ndarray
    e2el: np.ndarray
    pace: np.ndarray
    itl: np.ndarray


def latencies(outcome: Outcome) -> Latencies:
    """The four times of every completed request."""
    done = completed(outcome)
    met = [m for m, job in zip(outcome.met, outcome.jobs, strict=True) if not job.refusal]
    arrival = np.array([job.request.arrival for job in done], float)
    first = np.array([job.first_token for job in done], float)
    last = np.array([job.finished for job in done], float)
    later = np.array([job.emitted - 1 for job in done], float)
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(later > 0, (last - first) / later, np.nan)
    prompt = np.array([job.request.prompt for job in done], float)
    after, step = (first - arrival) / TICKS, np.nan_to_num(tpot / TICKS)
    lag = outcome.fleet.pool.model.lag.of(prompt, step, np.array(met, float))
    whole = (last - arrival) / TICKS + lag
    return Latencies(
        ttft=after + lag,
        tpot=tpot / TICKS,
        e2el=whole,
        pace=whole / (later + 1),
        itl=_gaps(outcome.replicas),
    )


def completed(outcome: Outcome) -> list[Job]:
    """The requests that were answered."""
    return [job for job in outcome.jobs if not job.refusal]


def _gaps(replicas: Sequence[Replica]) -> np.ndarray:
    """Every time between two tokens of a request, in seconds."""
    parts = []
    for replica in replicas:
        rows = np.frombuffer(replica.record.gaps).reshape(-1, 4)
        counts, weights = rows[:, 2:].astype(int).T
        step = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        gaps = np.repeat(rows[:, 0], counts) + step * np.repeat(rows[:, 1], counts)
        parts.append(np.repeat(gaps / TICKS, np.repeat(weights, counts)))
    return np.concatenate(parts)


def summary(outcome: Outcome, objectives: Objectives | None = None) -> RunFigures:
    """Everything above: times in ms, as `vllm bench` prints them."""
    times, done = latencies(outcome), completed(outcome)
    duration = (outcome.end - outcome.start) / TICKS

    def rate(count: float) -> float | None:
        """Per second of the duration; None where all came and ended at one moment."""
        return count / duration if duration else None

    prompt = sum(job.request.prompt for job in done)
    emitted = sum(job.emitted for job in done)
    spreads = [_spread(name, getattr(times, name)) for name in ("ttft", "tpot", "itl", "e2el")]
    given = objectives if objectives is not None and objectives.given else None
    good = None if given is None else int(_good(times, given).sum())
    return RunFigures(
        **{key: value for spread in spreads for key, value in spread.items()},
        completed=len(done),
        refused=Counter(_kind(job) for job in outcome.jobs if job.refusal),
        duration=duration,
        total_input_tokens=prompt,
        total_output_tokens=emitted,
        request_throughput=rate(len(done)),
        output_throughput=rate(emitted),
        total_token_throughput=rate(prompt + emitted),
        request_goodput=None if good is None else rate(good),
        good_share=None if good is None else good / len(outcome.jobs),
        **_cache(done),
        **_load(outcome),
        **_dollars(outcome, prompt, emitted),
    )


def _kind(job: Job) -> str:
    """A refusal without its figures."""
    return "longer than the cache" if "the cache has" in job.refusal else job.refusal


def _good(times: Latencies, objectives: Objectives) -> np.ndarray:
    tpot = np.nan_to_num(times.tpot, nan=0.0)  # one token has no time between tokens to miss
    return (
        (times.ttft <= objectives.ttft)
        & (tpot <= objectives.tpot)
        & (times.e2el <= objectives.e2el)
        & (times.pace <= objectives.pace)
    )


def _spread(name: str, seconds: np.ndarray) -> dict[str, float | None]:
    """Mean, deviation and percentiles in ms; None where there is no value."""
    known = seconds[~np.isnan(seconds)] * 1e3
    keys = [f"mean_{name}_ms", f"std_{name}_ms", f"median_{name}_ms"]
    keys += [f"p{p}_{name}_ms" for p in PERCENTILES[1:]]
    if not known.size:
        return dict.fromkeys(keys)
    values = [known.mean(), known.std(), *np.percentile(known, PERCENTILES)]
    return {key: float(value) for key, value in zip(keys, values, strict=True)}


def _cache(done: Sequence[Job]) -> dict[str, Any]:
    """Prompt tokens found in the cache or computed, and those computed twice."""
    prompt = sum(job.request.prompt for job in done)
    first = sum(job.first_hit for job in done)
    return {
        "hit_rate": first / prompt if prompt else 0.0,
        "hit_tokens": sum(job.hit for job in done),
        "host_hit_tokens": sum(job.host_hit for job in done),
        "prefilled_tokens": sum(job.prefilled for job in done),
        "recomputed_tokens": sum(job.lost for job in done),
        "preemptions": sum(job.preemptions for job in done),
    }


def _load(outcome: Outcome) -> dict[str, Any]:
    """How full the replicas were."""
    span = max(outcome.end - outcome.start, 1)
    replicas = [_replica_load(r, outcome) for r in outcome.replicas]
    return {
        "utilisation": sum(r.record.busy for r in outcome.replicas) / span / len(replicas),
        "steps": sum(r.record.step_count for r in outcome.replicas),
        "host_copied_tokens": sum(r.record.host_tokens for r in outcome.replicas),
        "replicas": replicas,
    }


def _replica_load(replica: Replica, outcome: Outcome) -> ReplicaLoad:
    """Averages over time; a level holds from its moment to the next."""
    record = replica.record
    span = max(outcome.end - outcome.start, 1)
    moment, waiting, running, pages = levels(replica).T
    lasts = np.diff(moment, append=outcome.end)
    size = replica.scheduler.config.pages
    return ReplicaLoad(
        index=replica.index,
        role="prefill" if replica.scheduler.config.policy == "prefill" else "serve",
        requests=sum(1 for place in outcome.placed if place == replica.index),
        utilisation=record.busy / span,
        steps=record.step_count,
        mean_waiting=float(waiting @ lasts / span),
        max_waiting=int(waiting.max(initial=0)),
        mean_running=float(running @ lasts / span),
        max_running=int(running.max(initial=0)),
        peak_cache_use=float(pages.max(initial=0) / size),
    )


def levels(replica: Replica) -> np.ndarray:
    """Rows of ticks, waiting requests, running sequences and pages in use, over time."""
    return np.frombuffer(replica.record.levels).reshape(-1, 4)


def _dollars(outcome: Outcome, prompt: int, emitted: int) -> dict[str, Any]:
    """All chips for the whole duration, split over prompt and answer tokens."""
    chips = sum(r.model.chips for r in outcome.replicas)
    prices = [r.model.usd_per_hour for r in outcome.replicas]
    hours = (outcome.end - outcome.start) / TICKS / 3600
    busy = sum(r.record.busy for r in outcome.replicas)
    share = sum(r.record.prompt_ticks for r in outcome.replicas) / busy if busy else 0.0
    known = [p for p in prices if p is not None]
    total = sum(known) * hours if len(known) == len(prices) else None
    usd = UsdOfRun(input=None, output=None, all=None)
    if total is not None:
        usd = UsdOfRun(
            input=1e6 * total * share / prompt if prompt else None,
            output=1e6 * total * (1 - share) / emitted if emitted else None,
            all=1e6 * total / (prompt + emitted) if prompt + emitted else None,
        )
    return {
        "chips": chips,
        "chip_hours": chips * hours,
        "prompt_share_of_time": share,
        "usd": total,
        "usd_per_million_tokens": usd,
    }


REQUEST_COLUMNS = (
    "id",
    "replica",
    "arrival_seconds",
    "prompt_tokens",
    "output_tokens",
    "hit_tokens",
    "recomputed_tokens",
    "preemptions",
    "ttft_seconds",
    "tpot_seconds",
    "e2el_seconds",
    "refusal",
)


def request_rows(outcome: Outcome) -> list[list[Any]]:
    """One row for each request, in the order of arrival."""
    times = latencies(outcome)
    rows = np.array([times.ttft, times.tpot, times.e2el]).T.tolist()
    told = ([None if np.isnan(time) else time for time in row] for row in rows)
    return [
        [
            job.request.id,
            place,
            (job.request.arrival - outcome.start) / TICKS,
            job.request.prompt,
            job.emitted,
            job.hit,
            job.lost,
            job.preemptions,
            *([None] * 3 if job.refusal else next(told)),
            job.refusal,
        ]
        for job, place in zip(outcome.jobs, outcome.placed, strict=True)
    ]


MOMENTS = 96
"""Points of a run over time."""


def over_time(outcome: Outcome, moments: int = MOMENTS) -> OverTime:
    """Waiting and running requests of all replicas at so many moments, and the median TTFT and TPOT
    of those that came between one moment and the next; None where none came."""
    # As floats: after 18,447 s ticks are beyond the integers of 64 bits.
    at = np.linspace(float(outcome.start), float(outcome.end), moments)
    waiting, running = (
        np.sum([_level(levels(one), column, at) for one in outcome.replicas], axis=0)
        for column in (1, 2)
    )
    came = np.array([job.request.arrival for job in completed(outcome)], float)
    window = np.searchsorted(at, came, side="right") - 1
    times = latencies(outcome)
    return OverTime(
        seconds=((at - outcome.start) / TICKS).tolist(),
        waiting=waiting.tolist(),
        running=running.tolist(),
        ttft_seconds=_medians(times.ttft, window, moments),
        tpot_seconds=_medians(times.tpot, window, moments),
    )


def _level(rows: np.ndarray, column: int, at: np.ndarray) -> np.ndarray:
    if not rows.size:
        return np.zeros(at.size)
    place = np.searchsorted(rows[:, 0], at, side="right") - 1
    return np.where(place >= 0, rows[place, column], 0.0)


def _medians(seconds: np.ndarray, window: np.ndarray, count: int) -> list[float | None]:
    known = [seconds[(window == i) & ~np.isnan(seconds)] for i in range(count)]
    return [float(np.median(one)) if one.size else None for one in known]
