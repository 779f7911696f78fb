"""Run a trace through a fleet of replicas: events in order of time, nothing in between.

Events are arrivals, ends of runs and caches that reach their decode replica. All of one moment are
taken in before anything is planned, ends first; then whoever is touched plans its next step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from shardwise.errors import BadRequest
from shardwise.planner.simulate.clock import ticks
from shardwise.planner.simulate.cost import ReplicaModel
from shardwise.planner.simulate.replica import Replica
from shardwise.scheduling import Request, SchedulerConfig, Speculation, make_router
from shardwise.scheduling.requests import Sequence as Job
from shardwise.scheduling.routing import Router, Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """`replicas` copies of one server under one scheduler, and how requests are spread over them.

    `bound` and `affinity` (pages of a prompt that are hashed) belong to routing "bounded_hash".
    """

    model: ReplicaModel
    config: SchedulerConfig
    replicas: int = 1
    routing: Routing = "shortest_queue"
    bound: float = 1.25
    affinity: int = 1

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise BadRequest(f"replicas is {self.replicas}; it must be at least 1")

    def router(self) -> Router:
        """A router over the replicas, at its start."""
        return make_router(self.routing, self.replicas, self.bound, self.affinity)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFleet:
    """All replicas: `pool` answers requests; where there is a pool `prefill`, it prefills them
    first and hands their caches over (disaggregated serving)."""

    pool: Pool
    prefill: Pool | None = None
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        if self.prefill is not None and self.prefill.config.policy != "prefill":
            raise BadRequest(
                f"the prefill pool has policy '{self.prefill.config.policy}'; it must be 'prefill'"
            )
        if self.pool.config.policy == "prefill":
            raise BadRequest("policy 'prefill' emits no answers; give it to a prefill pool")
        if self.prefill is not None and self.pool.config.policy == "static":
            raise BadRequest("static batches prefill for themselves; use another policy to decode")
        guesses = self.speculation.tokens if self.speculation else 0
        if self.pool.config.lookahead != guesses:
            raise BadRequest(
                f"the scheduler looks {self.pool.config.lookahead} tokens ahead and speculation "
                f"guesses {guesses}; make them equal"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a trace: every request's state at the end, on which replica, whether that was
    answering others as it came there (`met`), and what each replica did. Times in ticks; `replicas`
    are those that answer, then those that prefill."""

    fleet: SimulatedFleet
    jobs: Sequence[Job]
    placed: Sequence[int]
    met: Sequence[bool]
    replicas: Sequence[Replica]
    start: int
    end: int


Progress = Callable[[int, int], None]


def simulate(
    requests: Iterable[Request],
    fleet: SimulatedFleet,
    *,
    seed: int = 0,
    single_steps: bool = False,
    keep_steps: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Serve `requests`, whose arrivals and deadlines are seconds. `keep_steps` keeps every run for
    a trace; `single_steps` prices every step by itself (slower, the same answer)."""
    return _Simulation(requests, fleet, seed, single_steps, keep_steps).run(progress)


class _Simulation:
    def __init__(
        self,
        requests: Iterable[Request],
        fleet: SimulatedFleet,
        seed: int,
        single_steps: bool,
        keep_steps: bool,
    ) -> None:
        self.fleet = fleet
        self.requests = sorted((_on_ticks(r) for r in requests), key=lambda r: (r.arrival, r.id))
        if not self.requests:
            raise BadRequest("the trace holds no request; nothing can be simulated")
        if len({r.id for r in self.requests}) < len(self.requests):
            raise BadRequest("two requests of the trace have the same id; number them")

        def replicas(pool: Pool, first: int, speculation: Speculation | None) -> list[Replica]:
            return [
                Replica(
                    first + i,
                    pool.model,
                    pool.config,
                    speculation=speculation,
                    seed=seed,
                    single_steps=single_steps,
                    keep_steps=keep_steps,
                )
                for i in range(pool.replicas)
            ]

        self.decoders = replicas(fleet.pool, 0, fleet.speculation)
        self.prefillers: list[Replica] = []
        entry = fleet.pool
        if fleet.prefill is not None:
            entry = fleet.prefill
            self.prefillers = replicas(fleet.prefill, len(self.decoders), None)
        self.all = [*self.decoders, *self.prefillers]
        self.entrances = self.prefillers or self.decoders
        self.entry_router = entry.router()
        self.decode_router = fleet.pool.router()
        self.must_sync = "prefix_aware" in (entry.routing, fleet.pool.routing)
        self.jobs: list[Job] = []
        self.placed: list[int] = []
        self.met: list[bool] = []
        self.events: list[tuple[int, int, int, Job | None]] = []
        self.handed_from: dict[Job, Replica] = {}
        self.numbers: dict[Job, int] = {}

    def run(self, progress: Progress | None) -> Outcome:
        """Every event in order."""
        coming, arrived, total = self.requests, 0, len(self.requests)
        now = start = int(coming[0].arrival)
        while True:
            moments = [coming[arrived].arrival] if arrived < total else []
            if self.events:
                moments.append(self.events[0][0])
            if not moments:
                break
            now = int(min(moments))
            touched = self._ends(now)
            while arrived < total and coming[arrived].arrival == now:
                touched |= self._arrive(coming[arrived], now)
                arrived += 1
                if progress is not None and arrived % 1000 == 0:
                    progress(arrived, total)
            self._plan(touched, now)
        if progress is not None:
            progress(total, total)
        stuck = [job for job in self.jobs if job.finished is None]
        assert not stuck, f"{len(stuck)} requests never finished"
        return Outcome(
            fleet=self.fleet,
            jobs=self.jobs,
            placed=self.placed,
            met=self.met,
            replicas=self.all,
            start=start,
            end=now,
        )

    def _ends(self, now: int) -> set[int]:
        """Runs that end now, then caches that arrive; the replicas touched."""
        touched: set[int] = set()
        while self.events and self.events[0][0] == now:
            _, kind, number, job = heappop(self.events)
            if kind == _RUN_ENDS:
                run = self.all[number].run
                if run is not None and run.end == now:
                    self._finish(self.all[number])
                    touched.add(number)
            else:
                assert job is not None
                source = self.handed_from.pop(job)
                source.scheduler.hand_over(job)
                self._sync(self.decoders, now)
                target = self.decode_router(job.request, self.decoders)
                self.met[number] = self.decoders[target].outstanding > 0
                self.jobs[number] = self.decoders[target].scheduler.receive(job)
                self.placed[number] = target
                touched |= {source.index, target}
        return touched

    def _finish(self, replica: Replica) -> None:
        assert replica.run is not None
        end = replica.run.end
        result = replica.finish()
        ends = (replica.model.cost, self.fleet.pool.model.cost)
        for job in result.handoffs:  # the slower end's links bound the copy
            moved = end + ticks(max(cost.transfer_seconds(job.cached) for cost in ends))
            self.handed_from[job] = replica
            heappush(self.events, (moved, _CACHE_ARRIVES, self.numbers[job], job))

    def _arrive(self, request: Request, now: int) -> set[int]:
        """Route a request; the replicas touched."""
        self._sync(self.entrances, now)
        chosen = self.entrances[self.entry_router(request, self.entrances)]
        self.met.append(chosen.outstanding > 0)
        job = chosen.scheduler.add(request, now)
        if self.prefillers and not job.refusal:
            misfit = self.decoders[0].scheduler.misfit(request)
            if misfit:
                chosen.scheduler.cancel(job, now, misfit)
        if self.prefillers:
            self.numbers[job] = len(self.jobs)
        self.jobs.append(job)
        self.placed.append(chosen.index)
        return set() if job.refusal else {chosen.index}

    def _sync(self, replicas: Sequence[Replica], now: int) -> None:
        """Bring caches up to date for a router that looks at them."""
        if self.must_sync:
            for replica in replicas:
                replica.sync(now)

    def _plan(self, touched: set[int], now: int) -> None:
        """Let idle replicas begin, and end runs after the step under way where something came."""
        for number in sorted(touched):
            replica = self.all[number]
            if replica.run is not None:
                if not replica.interrupt(now):
                    continue
                if replica.run.end == now:
                    self._finish(replica)
            if replica.run is None:
                replica.begin(now)
            if replica.run is not None:
                heappush(self.events, (replica.run.end, _RUN_ENDS, number, None))


_RUN_ENDS, _CACHE_ARRIVES = 0, 1
"""Kinds of events; of two at one time the smaller comes first."""


def _on_ticks(request: Request) -> Request:
    """The request with its moments on the simulator's clock."""
    deadline = request.deadline
    return replace(
        request,
        arrival=ticks(request.arrival),
        deadline=deadline if deadline == float("inf") else ticks(deadline),
    )
