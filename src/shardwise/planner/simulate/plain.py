"""Plain loads in counts: what `run.simulate` says of them, several times as fast.

A load is plain where prompts share nothing and requests have no class and no deadline; a pool that
answers, where it takes whoever came first, mixes chunks of prompts into decode steps and recomputes
what it had to preempt, as servers do unless told otherwise; a pool that prefills for it, where it
takes whoever came first. Then pages need no names: a sequence of n
cached tokens holds the pages of n tokens, and the scheduler of `scheduling/` comes down to a few
sums. It stays the one that decides: every line here is one of its rules, and tests hold both equal
to the last femtosecond. A search of servers asks this tens of times; `simulate` runs the scheduler
itself.
"""

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import cycle
from math import inf
from operator import attrgetter

import numpy as np

from shardwise.planner.simulate.clock import ticks
from shardwise.planner.simulate.moments import Moments, prompt_share
from shardwise.planner.simulate.run import Pool, SimulatedFleet
from shardwise.scheduling.step import StepShape


def is_plain(fleet: SimulatedFleet) -> bool:
    """Whether a fleet serves requests without keys, classes and deadlines by sums alone."""
    pool, prefill = fleet.pool, fleet.prefill
    return (
        fleet.speculation is None
        and (pool.config.policy, pool.config.preemption) == ("chunked", "recompute")
        and all(_is_plain_pool(one) for one in (pool, prefill) if one is not None)
    )


def _is_plain_pool(pool: Pool) -> bool:
    config = pool.config
    return (config.order, config.admission, config.max_waiting) == (
        "fcfs",
        "optimistic",
        0,
    ) and pool.routing in ("shortest_queue", "round_robin")


_NEVER = 10**30
"""Ticks after all that happens."""


class _PlainJob:
    """A request under way. Decoding, it has cached `base` tokens, and one more for each beat."""

    __slots__ = (
        "arrival", "base", "cached", "emitted", "end", "first", "last", "met", "number", "output",
        "prompt", "source", "target",
    )  # fmt: skip

    def __init__(self, number: int, arrival: int, prompt: int, output: int) -> None:
        self.number, self.arrival = number, arrival
        self.prompt, self.output, self.target = prompt, output, prompt
        self.cached = self.emitted = self.base = self.end = 0
        self.first = self.last = inf
        self.met = False
        self.source: _PlainServer | None = None
        """Which has prefilled it, where that is another than the one that answers."""


class _PlainServer:
    """One replica: who waits, who comes with a cache (`parked`, by number), whose prompt is under
    way, who decodes, and the run of steps: `steps` of them from `start`, of which the first takes
    `first` ticks and each next `rise` more. One that prefills keeps the `handed` of the last run
    for whoever fetches them."""

    def __init__(self, pool: Pool, place: int) -> None:
        config, self.place = pool.config, place
        self.cost, self.size, self.pages = pool.model.cost, config.page_size, config.pages
        self.batch, self.budget = config.batch, config.budget
        self.margin = int(config.margin * config.pages)
        self.prefills = config.policy == "prefill"
        self.parked: list[tuple[int, _PlainJob]] = []
        self.handed: list[_PlainJob] = []
        self.free = config.pages
        self.outstanding = self.beats = self.context = 0
        self.waiting: deque[_PlainJob] = deque()
        self.prefilling: list[_PlainJob] = []
        self.decoding: dict[_PlainJob, None] = {}
        self.ends: list[tuple[int, int, _PlainJob]] = []
        self.due = [0] * config.page_size  # who needs a page at beats that are so modulo its size
        self.running = False
        self.start = self.steps = self.first = self.rise = 0
        self.end = _NEVER
        self.chunks: list[tuple[_PlainJob, int]] = []
        self.decodes = 0
        self.busy = self.prompts = 0
        self.lines: dict[int, tuple[int, int, int, float]] = {}

    def begin(self, now: int) -> None:
        """Plan the next run, if there is work."""
        needing = self.due[self.beats % self.size]
        preempted = needing > self.free
        if preempted:
            needing = self._make_room(needing)
        joined = False
        if self.parked and not preempted and self._join(self.free - needing):
            joined, needing = True, self.due[self.beats % self.size]
        decodes = len(self.decoding)
        chunks: list[tuple[_PlainJob, int]] = []
        if self.prefilling or self.waiting:
            budget = self.budget - decodes
            for job in self.prefilling:
                if budget < 1:
                    break
                took = min(budget, job.target - job.cached)
                chunks.append((job, took))
                budget -= took
            if self.waiting and budget > 0 and not preempted:
                self._admit(budget, self.free - needing, chunks)
        self.start, self.chunks, self.decodes = now, chunks, decodes
        self.running = bool(decodes or chunks)
        if not self.running:
            self.end = _NEVER
            return
        self.free -= needing
        if chunks:
            self._begin_mixed(chunks, decodes)
            return
        context = self.context
        base, slope, _, until = self._line(decodes, context)
        steps = 1 if preempted or joined else self._repeat()
        if steps > 1 and until < inf:
            steps = max(1, min(steps, -int((context - until) // decodes)))
        self.steps, self.first, self.rise = steps, base + slope * context, slope * decodes
        self.end = now + steps * self.first + self.rise * (steps * (steps - 1) // 2)

    def _begin_mixed(self, chunks: list[tuple[_PlainJob, int]], decodes: int) -> None:
        tokens = contexts = pairs = 0
        samples = decodes
        for job, took in chunks:
            start = job.cached
            tokens += took
            contexts += start
            pairs += took * start + took * (took + 1) // 2
            samples += start + took == job.target
        step = decodes, decodes, self.context, len(chunks), tokens, contexts, pairs, samples
        took = ticks(float(self.cost.seconds(StepShape._make(step))))
        self.steps, self.first, self.rise = 1, took, 0
        self.end = self.start + took

    def advance(self, until: int) -> bool:
        """Run on to a moment; whether a run ends right then, after which none is planned yet."""
        while self.end < until:
            self.finish()
            self.begin(self.end)
        if self.end > until:
            return False
        self.finish()
        return True

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

    def resume(self, now: int) -> None:
        """Take in what has come: plan anew once the step under way is over."""
        if self.running and self.interrupt(now) and self.end == now:
            self.finish()
        if not self.running:
            self.begin(now)

    def finish(self) -> None:
        """The run is over: tokens are out, and who is through leaves."""
        now, steps, decodes, chunks = self.end, self.steps, self.decodes, self.chunks
        self.running = False
        self.busy += now - self.start
        if chunks:
            self.prompts += self.first
            if decodes:
                base, slope, _, _ = self._line(decodes, self.context)
                self.prompts -= base + slope * self.context
        if decodes:
            if steps > 1:  # pages of the first step were taken as it was planned
                self.free -= self._pages_of(steps - 1)
            self.beats += steps
            self.context += decodes * steps
            ends, beats = self.ends, self.beats
            while ends and ends[0][0] <= beats:
                end, _, job = heappop(ends)
                if job.end == end and job in self.decoding:
                    self._leave(job)
                    job.last = now
                    self.outstanding -= 1
        for job, took in chunks:
            job.cached += took
            if job.cached == job.target:
                self._answer(job, now)

    def _pages_of(self, steps: int) -> int:
        """Pages that so many steps after the next take."""
        rounds, rest = divmod(steps, self.size)
        start = (self.beats + 1) % self.size
        found = rounds * len(self.decoding) + sum(self.due[start : start + rest])
        return found + sum(self.due[: max(start + rest - self.size, 0)])

    def _answer(self, job: _PlainJob, now: int) -> None:
        """A prompt is through: it yields a token, and decodes from here on."""
        self.prefilling.remove(job)
        job.emitted += 1
        if job.first == inf:
            job.first = now
        if job.emitted == job.output:
            job.last = now
            self.fetched(job)
            self.outstanding -= 1
        elif self.prefills:
            self.handed.append(job)
            self.outstanding -= 1
        else:
            self._decode(job)

    def fetched(self, job: _PlainJob) -> None:
        """Free the pages of a sequence that does not decode here."""
        self.free += -(-job.cached // self.size)

    def _decode(self, job: _PlainJob) -> None:
        """It decodes from the next step on."""
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

    def _join(self, spare: int) -> bool:
        """Let parked sequences that fit decode, in order, up to one that a waiting request comes
        before; whether there were any."""
        running, size = len(self.decoding) + len(self.prefilling), self.size
        parked, rival = self.parked, self.waiting[0].number if self.waiting else inf
        joined = False
        while parked and running < self.batch and parked[0][0] < rival:
            job = parked[0][1]
            spare -= -(-(job.cached + 1) // size)
            if spare < (self.margin if running else 0):
                break
            heappop(parked)
            self.free -= -(-job.cached // size)
            self._decode(job)
            running += 1
            joined = True
        return joined

    def _admit(self, budget: int, spare: int, chunks: list[tuple[_PlainJob, int]]) -> None:
        """Start waiting requests that fit, in order, with their first chunks."""
        running = len(self.decoding) + len(self.prefilling)
        waiting, size = self.waiting, self.size
        rival = self.parked[0][0] if self.parked else inf
        while waiting and budget > 0 and running < self.batch and waiting[0].number < rival:
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

    def _line(self, decodes: int, context: int) -> tuple[int, int, int, float]:
        """Base and slope in ticks of steps that only decode, and the contexts from and up to which
        they hold."""
        known = self.lines.get(decodes)
        if known is not None and known[2] <= context < known[3]:
            return known
        line = self.cost.decode_line(decodes, context)
        found = ticks(line.base), ticks(line.per_token), context, line.until
        self.lines[decodes] = found
        return found


_number, _outstanding = attrgetter("number"), attrgetter("outstanding")


def plain_moments(drawn: Iterable[tuple[float, int, int]], fleet: SimulatedFleet) -> Moments:
    """Serve requests in the order of their arrival: that in seconds, prompt and answer of each."""
    jobs = [_PlainJob(i, ticks(arrival), *tokens) for i, (arrival, *tokens) in enumerate(drawn)]
    run = _PlainRun(fleet)
    run.serve(jobs)
    return Moments(
        arrival=np.array([job.arrival for job in jobs], float),
        first=np.array([job.first for job in jobs], float),
        last=np.array([job.last for job in jobs], float),
        prompt=np.array([job.prompt for job in jobs], float),
        output=np.array([job.output for job in jobs], float),
        met=np.array([job.met for job in jobs], float),
        prompt_share=prompt_share(
            fleet, sum(s.prompts for s in run.answering), sum(s.busy for s in run.answering)
        ),
    )


class _PlainRun:
    """The servers of a fleet, those that answer first, and the events to come: ends of runs, by the
    server's place, and caches that reach who answers, by the request's number."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        self.fleet = fleet
        self.answering = [_PlainServer(fleet.pool, i) for i in range(fleet.pool.replicas)]
        self.entrances, self.entry = self.answering, fleet.pool
        self.servers = self.answering
        if fleet.prefill is not None:
            self.entry, first = fleet.prefill, fleet.pool.replicas
            places = range(first, first + self.entry.replicas)
            self.entrances = [_PlainServer(self.entry, i) for i in places]
            self.servers = [*self.answering, *self.entrances]
        self.longest, self.longest_prompt = (
            pool.config.pages * pool.config.page_size for pool in (fleet.pool, self.entry)
        )
        self.events: list[tuple[int, int, int]] = []

    def serve(self, jobs: list[_PlainJob]) -> None:
        """Serve all requests."""
        if self.fleet.prefill is None:
            self._serve_one_pool(jobs)
        else:
            self._serve_two_pools(jobs)

    def _serve_one_pool(self, jobs: list[_PlainJob]) -> None:
        """Servers of one pool meet where a request is given to one of them, and run by themselves
        from one arrival to the next."""
        enter, servers = _router(self.entry, self.answering), self.answering
        coming, total = 0, len(jobs)
        while coming < total:
            now = jobs[coming].arrival
            touched = {s: None for s in servers if s.end <= now and s.advance(now)}
            while coming < total and jobs[coming].arrival == now:
                server, job = enter(), jobs[coming]
                coming += 1
                if self._enters(job, server):
                    touched[server] = None
            for server in touched:
                server.resume(now)
        for server in servers:
            server.advance(_NEVER - 1)

    def _enters(self, job: _PlainJob, server: _PlainServer) -> bool:
        """Give a request to a server; whether its cache could ever hold it."""
        job.met = server.outstanding > 0
        if not self._fits(job):
            return False
        server.waiting.append(job)
        server.outstanding += 1
        return True

    def _serve_two_pools(self, jobs: list[_PlainJob]) -> None:
        """Events in order of time; all of one moment are taken in, ends first, before any server
        that they touch plans its next run."""
        enter = _router(self.entry, self.entrances)
        decode = _router(self.fleet.pool, self.answering)
        events, servers = self.events, self.servers
        arrivals = [*(job.arrival for job in jobs), _NEVER]
        coming, total = 0, len(jobs)
        while coming < total or events:
            now = arrivals[coming]
            if events and events[0][0] < now:
                now = events[0][0]
            touched: list[int] = []
            while events and events[0][0] == now:
                _, kind, number = heappop(events)
                if kind == _CACHE_ARRIVES:
                    touched += self._receive(jobs[number], decode())
                elif servers[number].running and servers[number].end == now:
                    self._finish(servers[number])
                    touched.append(number)
            while arrivals[coming] == now:
                server, job = enter(), jobs[coming]
                coming += 1
                if self._enters(job, server):
                    touched.append(server.place)
            for number in touched if len(touched) < 2 else sorted(set(touched)):
                server = servers[number]
                if server.running:
                    if not server.interrupt(now):
                        continue
                    if server.end == now:
                        self._finish(server)
                if not server.running:
                    server.begin(now)
                if server.running:
                    heappush(events, (server.end, _RUN_ENDS, number))

    def _fits(self, job: _PlainJob) -> bool:
        """Whether the cache of any server holds the request at its longest, where it prefills its
        prompt and a token."""
        return job.prompt + job.output <= self.longest and job.prompt < self.longest_prompt

    def _finish(self, server: _PlainServer) -> None:
        """End a run, and send off the caches of the prompts that are through."""
        server.finish()
        if not server.handed:
            return
        for job in server.handed:  # the slower end's links bound the copy
            costs = (server.cost, self.fleet.pool.model.cost)
            moved = ticks(max(cost.transfer_seconds(job.cached) for cost in costs))
            job.source = server
            heappush(self.events, (server.end + moved, _CACHE_ARRIVES, job.number))
        server.handed.clear()

    def _receive(self, job: _PlainJob, target: _PlainServer) -> tuple[int, int]:
        """A cache has reached who answers; the places of both ends."""
        assert job.source is not None
        job.source.fetched(job)
        job.met = target.outstanding > 0
        heappush(target.parked, (job.number, job))
        target.outstanding += 1
        return job.source.place, target.place


_RUN_ENDS, _CACHE_ARRIVES = 0, 1
"""Kinds of events; of two at one time the smaller comes first."""


def _router(pool: Pool, servers: list[_PlainServer]) -> Callable[[], _PlainServer]:
    """Says who takes the next."""
    if pool.routing == "round_robin" or len(servers) == 1:
        return cycle(servers).__next__
    return lambda: min(servers, key=_outstanding)
