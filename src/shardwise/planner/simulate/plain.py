"""Plain loads on one pool, in counts: what `run.simulate` says of them, several times as fast.

A load is plain where prompts share nothing and requests have no class and no deadline; a pool,
where it takes whoever came first, mixes chunks of prompts into decode steps and recomputes what it
had to preempt, as servers do unless told otherwise. Then pages need no names: a sequence of n
cached tokens holds the pages of n tokens, and the scheduler of `scheduling/` comes down to a few
sums. It stays the one that decides: every line here is one of its rules, and tests hold both equal
to the last femtosecond. A search of servers asks this tens of times; `simulate` runs the scheduler
itself.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import cycle
from math import inf

import numpy as np

from shardwise.planner.simulate.clock import ticks
from shardwise.planner.simulate.run import Pool, SimulatedFleet
from shardwise.scheduling import Request
from shardwise.scheduling.step import StepShape


def is_plain(fleet: SimulatedFleet) -> bool:
    """Whether a fleet serves requests without keys, classes and deadlines by sums alone."""
    config, routing = fleet.pool.config, fleet.pool.routing
    return (
        fleet.prefill is None
        and fleet.speculation is None
        and (config.policy, config.order) == ("chunked", "fcfs")
        and (config.admission, config.preemption) == ("optimistic", "recompute")
        and not config.max_waiting
        and routing in ("shortest_queue", "round_robin")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Of each request in the order of arrival, its arrival, first and last token in ticks (infinite
    where it was refused), and its prompt and answer; and the share of the busy time that prompts
    took."""

    arrival: np.ndarray
    first: np.ndarray
    last: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    prompt_share: float


class _PlainJob:
    """A request under way. Decoding, it has cached `base` tokens, and one more for each beat."""

    __slots__ = (
        "arrival", "base", "cached", "emitted", "end", "first", "last", "number", "output",
        "prompt", "target",
    )  # fmt: skip

    def __init__(self, number: int, arrival: int, prompt: int, output: int) -> None:
        self.number, self.arrival = number, arrival
        self.prompt, self.output, self.target = prompt, output, prompt
        self.cached = self.emitted = self.base = self.end = 0
        self.first = self.last = inf


class _PlainServer:
    """One replica: who waits, whose prompt is under way, who decodes, and the run of steps: `steps`
    of them from `start`, of which the first takes `first` ticks and each next `rise` more."""

    def __init__(self, pool: Pool) -> None:
        config = pool.config
        self.cost, self.size, self.pages = pool.model.cost, config.page_size, config.pages
        self.batch, self.budget = config.batch, config.budget
        self.margin = int(config.margin * config.pages)
        self.free = config.pages
        self.outstanding = self.beats = self.context = 0
        self.waiting: deque[_PlainJob] = deque()
        self.prefilling: list[_PlainJob] = []
        self.decoding: dict[_PlainJob, None] = {}
        self.ends: list[tuple[int, int, _PlainJob]] = []
        self.due = [0] * config.page_size  # who needs a page at beats that are so modulo its size
        self.running = False
        self.start = self.steps = self.first = self.rise = self.end = 0
        self.chunks: list[tuple[_PlainJob, int]] = []
        self.decodes = 0
        self.busy = self.prompts = 0
        self.lines: dict[int, tuple[int, int, int, float]] = {}

    def begin(self, now: int) -> None:
        """Plan the next run, if there is work."""
        size, decoding, free = self.size, self.decoding, self.free
        needing = self.due[self.beats % size]
        preempted = needing > free
        if preempted:
            needing = self._make_room(needing)
            free = self.free
        decodes = len(decoding)
        chunks: list[tuple[_PlainJob, int]] = []
        tokens = contexts = pairs = whole = 0
        if self.prefilling or self.waiting:
            budget = self.budget - decodes
            for job in self.prefilling:
                if budget < 1:
                    break
                took = min(budget, job.target - job.cached)
                chunks.append((job, took))
                budget -= took
            if self.waiting and budget > 0 and not preempted:
                self._admit(budget, free - needing, chunks)
            for job, took in chunks:
                start = job.cached
                tokens += took
                contexts += start
                pairs += took * start + took * (took + 1) // 2
                whole += start + took == job.target
        self.running = bool(decodes or chunks)
        if not self.running:
            return
        self.free -= needing
        self.start, self.chunks, self.decodes = now, chunks, decodes
        if chunks:
            shape = StepShape(
                decodes, decodes, self.context, len(chunks), tokens, contexts, pairs,
                decodes + whole,
            )  # fmt: skip
            self.steps, self.first, self.rise = 1, ticks(float(self.cost.seconds(shape))), 0
            self.end = now + self.first
            return
        base, slope, until = self._line(decodes, self.context)
        steps = 1 if preempted else self._repeat()
        if steps > 1 and until < inf:
            steps = max(1, min(steps, -int((self.context - until) // decodes)))
        self.steps, self.first, self.rise = steps, base + slope * self.context, slope * decodes
        self.end = now + steps * self.first + self.rise * (steps * (steps - 1) // 2)

    def interrupt(self, now: int) -> bool:
        """End the run after the step that is under way; whether that changes its end."""
        steps, span, first, rise = self.steps, now - self.start, self.first, self.rise
        if steps == 1:
            return False
        low, high = 1, steps
        if first > 0 < span:
            low = min(high, -(-span // (first + rise * (steps - 1))))
            high = min(high, -(-span // first))
        while low < high:
            middle = (low + high) // 2
            if middle * first + rise * (middle * (middle - 1) // 2) >= span:
                high = middle
            else:
                low = middle + 1
        if low == steps:
            return False
        self.steps = low
        self.end = self.start + low * first + rise * (low * (low - 1) // 2)
        return True

    def finish(self) -> None:
        """The run is over: tokens are out, and who is through leaves."""
        now, steps, decodes, chunks = self.end, self.steps, self.decodes, self.chunks
        self.running = False
        self.busy += now - self.start
        if chunks:
            self.prompts += self.first
            if decodes:
                base, slope, _ = self._line(decodes, self.context)
                self.prompts -= base + slope * self.context
        if decodes:
            self._beat(steps, now)
        for job, took in chunks:
            job.cached += took
            if job.cached == job.target:
                self._answer(job, now)

    def _beat(self, steps: int, now: int) -> None:
        """One token for all that decode, so many times over."""
        if steps > 1:  # pages of the first step were taken as it was planned
            self.free -= self._pages_of(steps - 1)
        self.beats += steps
        self.context += self.decodes * steps
        ends, beats = self.ends, self.beats
        while ends and ends[0][0] <= beats:
            end, _, job = heappop(ends)
            if job.end == end and job in self.decoding:
                self._leave(job)
                job.last = now
                self.outstanding -= 1

    def _pages_of(self, steps: int) -> int:
        """Pages that so many steps after the next take."""
        size, due, start = self.size, self.due, self.beats + 1
        rounds, rest = divmod(steps, size)
        found = rounds * len(self.decoding)
        for i in range(start, start + rest):
            found += due[i % size]
        return found

    def _answer(self, job: _PlainJob, now: int) -> None:
        """A prompt is through: it yields a token, and decodes from here on."""
        self.prefilling.remove(job)
        job.emitted += 1
        if job.first == inf:
            job.first = now
        if job.emitted == job.output:
            job.last = now
            self.free += -(-job.cached // self.size)
            self.outstanding -= 1
            return
        job.base = job.cached - self.beats
        job.end = self.beats + job.output - job.emitted
        self.decoding[job] = None
        self.due[-job.base % self.size] += 1
        heappush(self.ends, (job.end, job.number, job))
        self.context += job.cached

    def _leave(self, job: _PlainJob) -> None:
        """Take a decoding sequence and its pages out."""
        job.cached = job.base + self.beats
        job.emitted = job.cached - job.prompt + 1
        del self.decoding[job]
        self.due[-job.base % self.size] -= 1
        self.context -= job.cached
        self.free += -(-job.cached // self.size)

    def _admit(self, budget: int, spare: int, chunks: list[tuple[_PlainJob, int]]) -> None:
        """Start waiting requests that fit, in order, with their first chunks."""
        running = len(self.decoding) + len(self.prefilling)
        waiting, size = self.waiting, self.size
        while waiting and budget > 0 and running < self.batch:
            job = waiting[0]
            spare -= -(-(job.target + 1) // size)
            if spare < (self.margin if running else 0):
                return
            waiting.popleft()
            self.prefilling.append(job)
            self.free -= -(-job.target // size)
            running += 1
            took = min(job.target, budget)
            budget -= took
            chunks.append((job, took))

    def _make_room(self, needing: int) -> int:
        """Preempt the last that came until the next step has its pages; returns those."""
        while needing > self.free:
            victim = max((*self.decoding, *self.prefilling), key=_number)
            if victim in self.decoding:
                self._leave(victim)
            else:
                self.prefilling.remove(victim)
                self.free += -(-victim.target // self.size)
            victim.cached = 0
            victim.target = victim.prompt + victim.emitted
            self.waiting.appendleft(victim)
            needing = self.due[self.beats % self.size]
        return needing

    def _repeat(self) -> int:
        """How often a step that only decodes can be run before one ends or pages are used up."""
        ends = self.ends
        while ends[0][2].end != ends[0][0] or ends[0][2] not in self.decoding:
            heappop(ends)
        most = ends[0][0] - self.beats
        size, alive, free = self.size, self.decodes, self.free
        if alive * -(-most // size) <= free:
            return most
        rounds = free // alive
        steps, left = 1 + rounds * size, free - rounds * alive
        while steps < most:
            left -= self.due[(self.beats + steps) % size]
            if left < 0:
                break
            steps += 1
        return min(steps, most)

    def _line(self, decodes: int, context: int) -> tuple[int, int, float]:
        """Base and slope in ticks of steps that only decode, and the context up to which they
        hold."""
        known = self.lines.get(decodes)
        if known is not None and known[2] <= context < known[3]:
            return known[0], known[1], known[3]
        line = self.cost.decode_line(decodes, context)
        base, slope = ticks(line.base), ticks(line.per_token)
        self.lines[decodes] = (base, slope, context, line.until)
        return base, slope, line.until


def _number(job: _PlainJob) -> int:
    return job.number


def plain_moments(requests: Iterable[Request], pool: Pool) -> Moments:
    """Serve plain requests, in the order of their arrival, whose arrivals are seconds."""
    jobs = [_PlainJob(i, ticks(r.arrival), r.prompt, r.output) for i, r in enumerate(requests)]
    servers = [_PlainServer(pool) for _ in range(pool.replicas)]
    _serve(jobs, servers, pool)
    rows = np.array([(j.arrival, j.first, j.last, j.prompt, j.output) for j in jobs], float).T
    busy = sum(server.busy for server in servers)
    return Moments(
        arrival=rows[0],
        first=rows[1],
        last=rows[2],
        prompt=rows[3],
        output=rows[4],
        prompt_share=sum(server.prompts for server in servers) / busy if busy else 0.0,
    )


def _serve(jobs: list[_PlainJob], servers: list[_PlainServer], pool: Pool) -> None:
    """Ends of runs and arrivals in order of time; at one moment ends come first."""
    turn = cycle(servers) if pool.routing == "round_robin" else None
    events: list[tuple[int, int]] = []
    coming, total = 0, len(jobs)
    while coming < total or events:
        arrival = jobs[coming].arrival if coming < total else inf
        if events and events[0][0] < arrival:
            now, number = heappop(events)
            server = servers[number]
            if server.running and server.end == now:
                server.finish()
                server.begin(now)
                if server.running:
                    heappush(events, (server.end, number))
            continue
        now = int(arrival)
        touched: set[int] = set()
        while events and events[0][0] == now:
            number = heappop(events)[1]
            if servers[number].running and servers[number].end == now:
                servers[number].finish()
                touched.add(number)
        while coming < total and jobs[coming].arrival == now:
            server = min(servers, key=_outstanding) if turn is None else next(turn)
            job = jobs[coming]
            coming += 1
            if -(-(job.prompt + job.output) // server.size) <= server.pages:
                server.waiting.append(job)
                server.outstanding += 1
                touched.add(servers.index(server))
        for number in touched:
            server = servers[number]
            if server.running:
                if not server.interrupt(now):
                    continue
                if server.end == now:
                    server.finish()
            if not server.running:
                server.begin(now)
            if server.running:
                heappush(events, (server.end, number))


def _outstanding(server: _PlainServer) -> int:
    return server.outstanding
