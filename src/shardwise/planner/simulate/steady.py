"""A fleet in the steady state: requests come at random at one rate; does it hold that rate?

A run has three parts: requests that fill the servers, `COUNTED` requests that are looked at, and
some that keep the servers full until those are answered. `demand.py` draws them.

A run's load on its targets is the multiple of them that `SHARE` of its requests keep. A rate holds
if over `RUNS` runs, or twice as many where the tails of these differ by `NOISY`,

- the mean of that, and twice by how much the runs differ, leaves `ROOM` of the targets;
- what is answered is at least `ANSWERED` of what comes: all but what the queue grows by;
- the runs' 90th percentiles lie together, the longest within `TOGETHER` of their mean;
- in none of them waiting grows from one third of the run to the next.

A server on the edge of its queue answers one run well and the next badly; it holds no rate there.
The times that are given with a rate are those of a slow run, which 98 of 100 further runs stay
below: of n runs with mean m and standard deviation s that is m + t s sqrt(1 + 1/n), t the quantile
of Student's distribution with n - 1 degrees of freedom.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil, inf

import numpy as np

from shardwise.planner.kept_plans import searched_once
from shardwise.planner.simulate.clock import TICKS
from shardwise.planner.simulate.cost import NO_LAG, Lag
from shardwise.planner.simulate.demand import Demand
from shardwise.planner.simulate.figures import RunFigures, UsdOfRun
from shardwise.planner.simulate.metrics import Objectives, summary
from shardwise.planner.simulate.moments import Moments, prompt_share
from shardwise.planner.simulate.plain import is_plain, plain_moments
from shardwise.planner.simulate.run import Outcome, Pool, SimulatedFleet, simulate
from shardwise.scheduling.step import StepShape

COUNTED, RUNS = 2000, 5
SHARE, ROOM, ANSWERED = 0.95, 0.05, 0.99
APART, LEAST_APART = 2.0, 0.02
"""Deviations above the mean of the runs that the load on a target is taken at, and what a deviation
is at least, of the mean, as few runs may lie together by chance."""
NOISY = 1.03
"""The longest tail of some runs over their mean from which twice as many tell more."""
SLOW_RUN = {5: 3.285, 10: 2.515}
"""Deviations above the mean of so many runs that 98 of 100 further ones stay below: Student's t."""
TOGETHER = 1.25
LIMIT = 1 - ROOM
"""Of the load on the targets."""
PERCENTILE = 0.9
"""Of the times that are printed."""

FULL = 250.0
"""Requests in flight in the part of a fleet that is simulated, at least."""

_FILL, _KEEP = 1.6, 1.2
"""Requests before and after the counted ones, in those in flight."""

_TELLING = 20
"""Counted requests below which nothing is said of a trend."""

_GROWS, _OF_ALL = 1.3, 0.1
"""Factor from third to third, and share of a whole answer, by which a growing wait rises."""


@dataclass(frozen=True, kw_only=True)
class SteadyRun:
    """One run: when its requests came and were answered, and the places of the counted ones among
    them; `servers` decode."""

    moments: Moments
    first: int
    count: int
    servers: int
    lag: Lag = NO_LAG

    @cached_property
    def counted(self) -> slice:
        """The places of the counted requests."""
        return slice(self.first, self.first + self.count)

    @cached_property
    def times(self) -> np.ndarray:
        """Rows of TTFT, TPOT and E2E; infinite of a refused request, and TPOT 0 of one token."""
        found = self.moments
        arrival, first, last = (m[self.counted] for m in (found.arrival, found.first, found.last))
        with np.errstate(invalid="ignore"):  # of refused requests
            tpot = (last - first) / np.maximum(found.output[self.counted] - 1, 1)
        answered = np.isfinite(last)
        step = np.where(answered, tpot, 0) / TICKS
        prompt, met, after = found.prompt[self.counted], found.met[self.counted], first - arrival
        late = self.lag.of(prompt, step, met) * TICKS
        tpot = np.where(answered, tpot, np.inf)
        return np.array([after + late, tpot, last - arrival + late]) / TICKS

    def percentiles(self, share: float = PERCENTILE) -> np.ndarray:
        """TTFT, TPOT and E2E that so many requests keep."""
        return _kept_by(share, self.times)

    def worst(self, goal: Objectives) -> np.ndarray:
        """Of each request, the largest of its times over their targets."""
        goals = np.array([goal.ttft, goal.tpot, goal.e2el, goal.pace])[:, None]
        times = np.vstack([self.times, self.times[2] / self.moments.output[self.counted]])
        done = np.isfinite(times)
        return np.max(np.divide(times, goals, out=np.full_like(times, np.inf), where=done), axis=0)

    def good(self, goal: Objectives) -> float:
        """Share of the requests within all targets."""
        return float(np.mean(self.worst(goal) <= 1))

    def load(self, goal: Objectives) -> float:
        """The multiple of the targets that `SHARE` of the requests keep."""
        return float(_kept_by(SHARE, self.worst(goal)))

    @property
    def window(self) -> tuple[int, int]:
        """Ticks of the first and after the last counted arrival."""
        arrival = self.moments.arrival[self.counted]
        start, end = int(arrival[0]), int(arrival[-1])
        return start, end + (end - start) // max(self.count - 1, 1)

    @cached_property
    def answered(self) -> float:
        """Tokens answered over tokens asked for: all but those by which refused requests and the
        queue before the first token grow while the counted requests come. (Ends against arrivals
        would say the same, but for the 1.5 % by which the number that decodes swings.)"""
        found = self.moments
        queued = [
            np.sum(found.output[(found.arrival < moment) & (found.first > moment)])
            for moment in self.window
        ]
        grew = float((queued[1] - queued[0]) / np.sum(found.output[self.counted]))
        return max(0.0, 1 - grew)

    @property
    def span(self) -> tuple[int, int]:
        """Ticks after which the counted requests come, and by which all have: as long as so many
        take at the rate, never empty, and none but they come in it. (`window` differs by a gap or
        two, which among its hundreds of requests is nothing, and among a few is much.)"""
        arrival = self.moments.arrival
        return int(arrival[self.first - 1]), int(arrival[self.first + self.count - 1])

    @property
    def begun(self) -> float:
        """Tokens answered over tokens asked for, by how fast the counted answers begin: those of
        requests that were not refused, times the span over the time from the first tokens before
        them to their last one, or over their share of all the time to there, where one of these is
        longer. From 0 to 1, of one request as of thousands."""
        start, end = self.span
        found, counted = self.moments, self.counted
        known = np.isfinite(found.first)
        asked = found.output[counted]
        answered = np.sum(asked[known[counted]]) / np.sum(asked)
        if not answered:
            return 0.0
        first, alone = np.where(known, found.first, start), np.min(found.first - found.arrival)
        last = np.max(first[counted])
        each = (last - alone - found.arrival[0]) / (self.first + self.count)
        took = max(last - np.max(first[: self.first]), self.count * each, end - start)
        return float(answered * (end - start) / took)

    @property
    def settled(self) -> bool:
        """Whether the last counted request waits no longer for its first token than one alone, and
        as long again."""
        waits = (self.moments.first - self.moments.arrival)[: self.first + self.count]
        return bool(waits[-1] <= 2 * np.min(waits))

    @property
    def grows(self) -> bool:
        """Whether requests wait longer and longer; not said of a few."""
        if self.count < _TELLING:
            return False
        a, b, c = (float(np.mean(part)) for part in np.array_split(self.times[0], 3))
        return b > _GROWS * a and c > _GROWS * b and c - a > _OF_ALL * float(np.mean(self.times[2]))

    def holds(self, goal: Objectives) -> bool:
        """Whether this run alone does not say that the rate is too high: the mean of a few runs and
        `APART` deviations are never below the largest of them."""
        return self.load(goal) <= LIMIT and not self.grows

    def keeps(self, goal: Objectives) -> bool:
        """Whether the requests of this run are answered as they come, `SHARE` of them within all
        targets. (What one run answers swings by less than a hundredth.)"""
        answered = self.begun >= ANSWERED - 0.01 or self.settled
        return answered and not self.grows and self.good(goal) >= SHARE

    @property
    def running(self) -> float:
        """Answers under way on one of the servers that decode, by Little's law; a refused request
        is never under way."""
        start, end = self.window
        ttft, _, whole = self.times[:, np.isfinite(self.times[2])]
        return float(np.sum(whole - ttft)) * TICKS / (end - start) / self.servers


def _moments_of(outcome: Outcome) -> Moments:
    """When each request of an outcome came and was answered, and what prompts took of all chips'
    time."""
    rows = [
        (
            job.request.arrival,
            inf if job.refusal or job.first_token is None else job.first_token,
            inf if job.refusal or job.finished is None else job.finished,
            job.request.prompt,
            job.request.output,
            met,
        )
        for job, met in zip(outcome.jobs, outcome.met, strict=True)
    ]
    arrival, first, last, prompt, output, met = np.array(rows, float).T
    return Moments(
        arrival=arrival,
        first=first,
        last=last,
        prompt=prompt,
        output=output,
        met=met,
        prompt_share=prompt_share_of(outcome),
    )


def prompt_share_of(outcome: Outcome) -> float:
    """Share of the chips' time that prompts take, of what schedulers did."""
    records = [r.record for r in outcome.replicas[: outcome.fleet.pool.replicas]]
    prompts, busy = sum(r.prompt_ticks for r in records), sum(r.busy for r in records)
    return prompt_share(outcome.fleet, prompts, busy)


def steady_summary(run: SteadyRun, outcome: Outcome, objectives: Objectives) -> RunFigures:
    """What `metrics.summary` says, of the counted requests; rates are of what is answered while as
    many come, which under overload is less, and dollars are for that; load of the servers over the
    whole run."""
    start, end = run.span
    mine = {name: getattr(outcome, name)[run.counted] for name in ("jobs", "placed", "met")}
    counted = replace(outcome, **mine, start=start, end=end)
    whole, found = summary(outcome, objectives), summary(counted, objectives)
    rates = ("request_throughput", "output_throughput", "total_token_throughput")
    rates += ("request_goodput",) if objectives.given else ()
    found = replace(
        found,
        **{name: getattr(found, name) * run.begun for name in rates},
        utilisation=whole.utilisation,
        steps=whole.steps,
        replicas=whole.replicas,
    )
    if found.usd is None or run.begun <= 0:
        return found
    whole_cost, share = 1e6 * found.usd / run.begun, run.moments.prompt_share
    prompt, emitted = found.total_input_tokens, found.total_output_tokens
    usd = UsdOfRun(
        input=whole_cost * share / prompt,
        output=whole_cost * (1 - share) / emitted,
        all=whole_cost / (prompt + emitted),
    )
    return replace(found, usd_per_million_tokens=usd)


def guessed_rate(fleet: SimulatedFleet, demand: Demand) -> float:
    """A rate to begin with: what full batches answer, their prompts beside them."""
    pool = fleet.pool
    cost, context = pool.model.cost, demand.prompt + demand.output / 2
    room = max(1, min(pool.config.batch, int(pool.model.kv_tokens / context)))
    line = cost.decode_line(room, round(room * context))
    step = line.base + line.per_token * room * context
    alone = cost.seconds(_prompt_alone(demand))
    return pool.replicas * room / (demand.output * step + room * alone) / 2


def _prompt_alone(demand: Demand) -> StepShape:
    tokens, before = round(demand.fresh), demand.prefix
    pairs = tokens * before + tokens * (tokens + 1) // 2
    return StepShape(0, 0, 0, 1, tokens, before, pairs, 1)


def steady_run(
    fleet: SimulatedFleet, demand: Demand, rate: float, *, seed: int = 0, counted: int = COUNTED
) -> SteadyRun:
    """One run of a fleet at a rate: in counts where its load is plain (`plain.py`), else by its
    schedulers."""
    if demand.prefix or not is_plain(fleet):
        return steady_outcome(fleet, demand, rate, seed=seed, counted=counted)[0]
    parts = _parts(fleet, demand, rate, counted)
    return _run(plain_moments(demand.drawn(rate, parts, seed), fleet), fleet, parts)


def steady_outcome(
    fleet: SimulatedFleet, demand: Demand, rate: float, *, seed: int = 0, counted: int = COUNTED
) -> tuple[SteadyRun, Outcome]:
    """The same run by the fleet's schedulers, with all that they did."""
    parts = _parts(fleet, demand, rate, counted)
    size = fleet.pool.config.page_size
    outcome = simulate(demand.requests(rate, parts, seed, size), fleet, seed=seed)
    return _run(_moments_of(outcome), fleet, parts), outcome


def _parts(
    fleet: SimulatedFleet, demand: Demand, rate: float, counted: int
) -> tuple[int, int, int]:
    """Requests that fill the servers, that are counted, and that keep the servers full."""
    alive = in_flight(fleet, demand, rate)
    return max(ceil(_FILL * alive), 1), counted, ceil(_KEEP * alive) + 1


def _run(moments: Moments, fleet: SimulatedFleet, parts: tuple[int, int, int]) -> SteadyRun:
    fill, counted, _ = parts
    return SteadyRun(
        moments=moments,
        first=fill,
        count=counted,
        servers=fleet.pool.replicas,
        lag=fleet.pool.model.lag,
    )


def in_flight(fleet: SimulatedFleet, demand: Demand, rate: float) -> float:
    """About how many requests a fleet works on: Little's law with the step that so many take."""
    pool, each = fleet.pool, rate / fleet.pool.replicas
    cost, context = pool.model.cost, demand.prompt + demand.output / 2
    busy = 0.0
    if fleet.prefill is None:
        alone = _prompt_alone(demand)
        idle = cost.decode_line(1, round(context)).base
        busy = each * max(cost.seconds(alone) - idle, 0.0)
    alive = 1.0
    for _ in range(12):
        decodes = max(1, round(alive))
        line = cost.decode_line(decodes, round(decodes * context))
        step = line.base + line.per_token * decodes * context
        alive = min(each * demand.output * step / max(1 - busy, 0.05), float(pool.config.batch))
    return alive * pool.replicas


def part_of(
    fleet: SimulatedFleet, demand: Demand, rate: float, full: float = FULL
) -> tuple[SimulatedFleet, float]:
    """A fleet so small that `full` requests are in flight, and its part of the rate.

    Each server sees the load that it sees in the whole fleet. A router with fewer servers to choose
    from evens the load out less, so times are rather too long.
    """
    pools = [p for p in (fleet.pool, fleet.prefill) if p is not None]
    few = min(pool.replicas for pool in pools)
    alive = in_flight(fleet, demand, rate)
    wanted = max(full / alive, _LEAST / few) if alive else 1.0
    if wanted >= 1:
        return fleet, rate
    numbers = [max(1, round(pool.replicas * wanted)) for pool in pools]
    kept = min(n / pool.replicas for n, pool in zip(numbers, pools, strict=True))
    small = [replace(pool, replicas=n) for n, pool in zip(numbers, pools, strict=True)]
    prefill: Pool | None = small[1] if fleet.prefill is not None else None
    return replace(fleet, pool=small[0], prefill=prefill), rate * kept


_LEAST = 2
"""Replicas that a part of a fleet has at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a fleet does at a rate: its runs, and the targets that they are held against."""

    rate: float
    goal: Objectives
    runs: Sequence[SteadyRun]
    wanted: int
    replicas: int
    """That were simulated."""

    @property
    def kept(self) -> bool:
        """Whether the rate holds."""
        enough = len(self.runs) == self.wanted and self.load <= LIMIT
        steady = self.answered >= ANSWERED and not any(run.grows for run in self.runs)
        return enough and steady and self.together

    @property
    def why(self) -> str:
        """Why the rate does not hold, in words; empty where it does."""
        if self.kept:
            return ""
        if any(not np.all(np.isfinite(run.times)) for run in self.runs):
            return "requests are refused: longer than the cache"
        if self.answered < ANSWERED or any(run.grows for run in self.runs):
            return "more comes than is answered, so the wait grows"
        if self.load > 1:
            return f"5 % of the requests take {self.load:.2f} times a target and more"
        if self.load > LIMIT:
            return f"a slow run leaves {1 - self.load:.1%} of a target to spare, not {ROOM:.0%}"
        return "one run answers well and the next badly: the servers are on the edge of a queue"

    @property
    def together(self) -> bool:
        """Whether the runs' TTFT and TPOT are alike."""
        return _tail(self.runs) <= TOGETHER

    @property
    def load(self) -> float:
        """Of a slow run."""
        return float(_slow(np.array([[run.load(self.goal)] for run in self.runs]), APART)[0])

    @property
    def answered(self) -> float:
        """Tokens answered over tokens asked for, over all runs: in the steady state 1, but for
        what one stretch of time leaves to the next."""
        return float(np.mean([run.answered for run in self.runs]))

    @property
    def times(self) -> tuple[float, float, float]:
        """TTFT, TPOT and E2E that `PERCENTILE` of the requests keep, in a slow run."""
        apart = SLOW_RUN.get(len(self.runs), APART)
        runs = np.array([run.percentiles() for run in self.runs])
        ttft, tpot, e2e = _slow(runs, apart).tolist()
        return ttft, tpot, e2e

    @property
    def good(self) -> float:
        """Share of the requests within all targets, in the worst run."""
        return min(run.good(self.goal) for run in self.runs)

    @property
    def prompt_share(self) -> float:
        """Mean of the runs'."""
        return float(np.mean([run.moments.prompt_share for run in self.runs]))

    @property
    def running(self) -> float:
        """Mean of the runs'."""
        return float(np.mean([run.running for run in self.runs]))


def _kept_by(share: float, times: np.ndarray) -> np.ndarray:
    """What so many of the last axis keep; infinite between two of which one is."""
    with np.errstate(invalid="ignore"):
        found = np.percentile(times, 100 * share, axis=-1)
    return np.where(np.isnan(found), np.inf, found)


def _tail(runs: Sequence[SteadyRun]) -> float:
    """The longest 90th percentile of TTFT or TPOT over the mean of the runs'."""
    tails = np.array([run.percentiles()[:2] for run in runs])
    longest, mean = np.max(tails, axis=0), np.mean(tails, axis=0)
    measured = np.isfinite(mean) & (mean > 0)  # one token has no TPOT, a refused request no time
    return float(np.max(longest[measured] / mean[measured], initial=1.0))


def _apart_for_good(found: Sequence[SteadyRun], runs: int) -> bool:
    """Whether so many runs cannot lie `TOGETHER`, whatever those to come are like: their mean is
    nearest to the longest tail where all of them are as long.

    With n runs found of N, mean m and longest M, the tail is at least M N / (n m + (N - n) M).
    """
    left = runs - len(found)
    return len(found) / _tail(found) + left < runs / TOGETHER


def _slow(runs: np.ndarray, apart: float) -> np.ndarray:
    """Columns of figures of runs: their mean and so many deviations, which are at least what
    `APART` of the least deviation make."""
    with np.errstate(invalid="ignore"):  # of refused requests, whose times are infinite
        spread = np.std(runs, axis=0, ddof=1) if len(runs) > 1 else 0.0
        mean = np.mean(runs, axis=0)
        found = mean + np.maximum(apart * spread, APART * LEAST_APART * mean)
    return np.where(np.isnan(found), np.inf, found)


def hold(
    fleet: SimulatedFleet,
    demand: Demand,
    rate: float,
    goal: Objectives,
    *,
    runs: int = RUNS,
    counted: int = COUNTED,
    full: float = FULL,
    patient: bool = False,
) -> Held:
    """Run a fleet at a rate, from seed 0 on, until a run fails, or the queues grew or the runs
    differ by more than the others could make good; all of them where `patient`. Full runs that
    differ are made twice as many."""
    part, share = part_of(fleet, demand, rate, full)
    found: list[SteadyRun] = []
    behind = 0.0
    while len(found) < runs:
        seed = len(found)
        run = partial(steady_run, part, demand, share, seed=seed, counted=counted)
        found.append(searched_once((share, seed, counted, demand, part), run))
        behind += 1 - found[-1].answered
        late = behind > (1 - ANSWERED) * runs
        if not patient and (late or not found[-1].holds(goal)):
            break
        if len(found) == runs == RUNS and _tail(found) > NOISY:
            runs *= 2
        if not patient and runs > RUNS and _apart_for_good(found, runs):
            break
    size = part.pool.replicas + (part.prefill.replicas if part.prefill else 0)
    return Held(rate=rate, goal=goal, runs=tuple(found), wanted=runs, replicas=size)
