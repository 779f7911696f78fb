"""The scheduler of one replica: it decides what every step runs. Simulator and engine share it.

    plan = scheduler.schedule(now)             # admit, preempt, take pages: what to run
    ...                                        # the caller runs it, or prices it
    result = scheduler.postprocess(plan, now)  # tokens are out: finish, cache prefixes

It holds no clock: `now` is passed in, on whatever scale the requests' arrivals are. What a step
costs here depends on what changes, not on how many sequences decode: all of them advance by one
*beat*, and a sequence's length, its next page and its end are fixed beats. So a caller that wants
to run the same decoding step `plan.repeat` times over says so (`extend`) and pays once.
"""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush

from shardwise.scheduling.config import SchedulerConfig
from shardwise.scheduling.decoding import Decoding
from shardwise.scheduling.forecast import pages_for, peak_pages
from shardwise.scheduling.pages import PagePool
from shardwise.scheduling.policies import POLICIES, Decision, Room, Want
from shardwise.scheduling.prefix import PrefixTree
from shardwise.scheduling.queue import OrderedQueue
from shardwise.scheduling.requests import Request, Sequence, Time, order_key
from shardwise.scheduling.step import (
    PromptChunk,
    StaticBatch,
    StepPlan,
    StepResult,
    StepShape,
    padded_shape,
    step_shape,
)

FOREVER = float("inf")


class Scheduler:
    """One replica's requests, pages and prefix cache."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = PagePool(config.pages)
        self.tree = PrefixTree(self.pool, config.host_pages if config.prefix_cache else 0)
        self.prefilling: list[Sequence] = []
        self.decoding = Decoding(config.page_size, config.lookahead)
        self.backlog = 0
        """Prompt tokens not computed yet, of waiting and running requests."""
        self.swapped_pages = 0
        self.handed: set[Sequence] = set()
        """Prefilled sequences whose cache another replica is still to fetch."""
        self.budget = config.budget
        self.tokens_per_decode = 1 + config.lookahead
        self._policy = POLICIES[config.policy]
        self._displaces = config.order == "priority" and config.policy != "static"
        self._closed = False  # no request starts in a step that had to preempt
        self._margin = int(config.margin * config.pages)
        self._waiting = OrderedQueue()
        self._parked = OrderedQueue()
        self._deadlines: list[tuple[Time, tuple, Sequence]] = []
        self._held = self._full = 0  # pages of running sequences: now, and at full length
        self._static = StaticBatch(0, 0)

    # What a policy sees.

    def waiting(self) -> Iterator[Sequence]:
        """Requests to admit, in order."""
        return iter(self._waiting)

    def parked(self) -> Iterator[Sequence]:
        """Sequences whose whole cache is on the host or on another replica, in order."""
        return iter(self._parked)

    @property
    def queued(self) -> int:
        """Requests that wait, for their first step or to come back."""
        return len(self._waiting) + len(self._parked)

    @property
    def outstanding(self) -> int:
        """Requests here that have not finished."""
        return self.queued + len(self.prefilling) + len(self.decoding)

    @property
    def available(self) -> int:
        """Pages that are free or can be evicted."""
        return self.pool.free + self.tree.unlocked

    def want(self, job: Sequence) -> Want:
        """What a waiting or parked sequence needs to start."""
        size, ahead = self.config.page_size, self.config.lookahead
        full = self._full_pages(job.request)
        if job.cached:  # parked
            return Want(pages_for(job.cached + 1 + ahead, size), 0, 0, full, job.cached)
        found = self.tree.peek(job.request.keys, self._most_hit(job))
        fresh = pages_for(job.target + 1 + ahead, size) - found.device
        cached = (found.device + found.host) * size
        return Want(fresh, found.unlocked, found.device, full, cached)

    def hit_tokens(self, request: Request) -> int:
        """Tokens of a new request's prompt that are cached here, on the host or not."""
        if not self.config.prefix_cache:
            return 0
        most = min(len(request.keys), (request.prompt - 1) // self.config.page_size)
        found = self.tree.peek(request.keys, most)
        return (found.device + found.host) * self.config.page_size

    def room(self) -> Room:
        """Slots and pages left."""
        needing = len(self.decoding.needing())
        running = len(self.decoding) + len(self.prefilling)
        owed = head = None
        if self.config.admission == "reserve":
            owed = self._full - self._held - needing
        elif self.config.admission == "forecast" and self.queued:
            head = self.config.pages - self._peak()
        return Room(
            slots=0 if self._closed else self.config.batch - running,
            spare=self.available - needing,
            margin=self._margin if self.config.admission == "optimistic" else 0,
            busy=running > 0,
            owed=owed,
            head=head,
        )

    # What a caller does.

    def add(self, request: Request, now: Time) -> Sequence:
        """Take a request in, or refuse it with a reason (`refusal`)."""
        job = Sequence(request, order_key(request, self.config.order, self.config.age))
        bound = self.config.max_waiting
        job.refusal = self.misfit(request)
        if bound and len(self._waiting) >= bound:
            job.refusal = job.refusal or f"{bound:,} requests were waiting already"
        if job.refusal:
            job.finished = now
            return job
        self._waiting.push(job)
        self.backlog += job.target
        if self.config.refuse_late and request.deadline < FOREVER:
            heappush(self._deadlines, (request.deadline, job.order, job))
        return job

    def misfit(self, request: Request) -> str:
        """Why a request can never run here; empty where it can."""
        need = self._full_pages(request)
        if need <= self.config.pages:
            return ""
        return (
            f"its {request.prompt + request.most:,} tokens need {need:,} pages of "
            f"{self.config.page_size} and the cache has {self.config.pages:,}"
        )

    def receive(self, job: Sequence) -> None:
        """Take in a sequence whose prompt another replica has prefilled."""
        job.order = order_key(job.request, self.config.order, self.config.age)
        self._parked.push(job)

    def hand_over(self, job: Sequence) -> None:
        """Give up the pages of a prefilled sequence: its cache has been fetched."""
        self.handed.remove(job)
        self._give_pages(job)

    def schedule(self, now: Time) -> StepPlan | None:
        """The next step, its pages taken; None where there is nothing to do."""
        refused = self._refuse_late(now) if self._deadlines else ()
        preempted, copied = self._make_room()
        decision = self._policy(self)
        self._closed = False
        copied += self._start(decision, now)
        if not decision.decode and not decision.chunks:
            assert not preempted, "preempted for nothing"
            return StepPlan(StepShape(), refused=refused) if refused else None
        chunks = tuple(PromptChunk(job, job.cached, tokens) for job, tokens in decision.chunks)
        shape = self._shape(decision, chunks)
        repeat = 1
        if decision.decode:
            self._give_due(1, 0)
            if not (chunks or decision.joins or preempted or self.config.lookahead):
                repeat = self.decoding.repeat(self.available)
        until = self._deadlines[0][0] if self._deadlines else FOREVER
        return StepPlan(shape, chunks, tuple(preempted), repeat, until, copied, refused)

    def extend(self, plan: StepPlan, done: int, steps: int) -> None:
        """Take the pages of steps `done` to `steps` of a plan that is run over and over."""
        assert steps <= plan.repeat
        self._give_due(steps - done, done)

    def postprocess(
        self,
        plan: StepPlan,
        now: Time,
        steps: int = 1,
        accepted: Mapping[Sequence, int] | None = None,
        stopped: Iterable[Sequence] = (),
    ) -> StepResult:
        """Take in what a step brought, `steps` times over.

        `accepted` is how many tokens beyond one each sequence got by speculation; `stopped` those
        that ended before their length (a stop token). Returns what finished, and when.
        """
        finished: list[Sequence] = []
        joined: list[Time] = []
        decoded = len(self.decoding) if plan.shape.decodes else 0
        if decoded:
            finished, joined = self.decoding.beat(steps, now, accepted)
            for job in finished:
                self._stop(job)
                self._finish(job, now)
        first, handoffs, resumed = self._computed(plan.chunks, now, finished)
        for job in stopped:
            if job in self.decoding:
                self.decoding.leave(job)
                self._stop(job)
                self._finish(job, now)
                finished.append(job)
        if not self.decoding:
            self._static = StaticBatch(0, 0)
        return StepResult(
            tuple(finished), tuple(handoffs), tuple(first), decoded, tuple(joined), tuple(resumed)
        )

    def cancel(self, job: Sequence, now: Time, reason: str) -> None:
        """Drop a request that has not finished, wherever it is; its pages are freed."""
        if job in self.decoding:
            self.decoding.leave(job)
            self._stop(job)
        elif job in self.prefilling:
            self.prefilling.remove(job)
            self._stop(job)
            self.backlog -= job.target - job.cached
        elif job in self.handed:
            self.handed.remove(job)
        elif job.cached:
            self._parked.remove({job})
            self.swapped_pages -= self._swapped(job)
        else:
            self._waiting.remove({job})
            self.backlog -= job.target
        self._give_pages(job)
        job.refusal, job.finished = reason, now

    def check(self) -> None:
        """Raise AssertionError unless pages, references and sums agree with a recount."""
        held = self.tree.check()
        running = [*self.decoding, *self.prefilling]
        held += [job.pages[job.borrowed :] for job in (*running, *self.handed)]
        self.pool.check(held)
        assert self._held == sum(len(job.pages) for job in running)
        assert self._full == sum(self._full_pages(job.request) for job in running)
        assert self.decoding.context == sum(map(self.decoding.cached, self.decoding))
        size = self.config.page_size
        for job in self.decoding:
            assert len(job.pages) * size >= self.decoding.cached(job)
            assert self.tree.pages_of(job.node)[: job.borrowed] == job.pages[: job.borrowed]

    # Starting, growing, leaving.

    def _most_hit(self, job: Sequence) -> int:
        """Pages that may come from the cache: the last token is computed, as it yields the next."""
        if not self.config.prefix_cache:
            return 0
        return min(len(job.request.keys), (job.target - 1) // self.config.page_size)

    def _full_pages(self, request: Request) -> int:
        """Pages of a request at its longest; a replica that only prefills keeps no answers."""
        answer = 1 if self.config.policy == "prefill" else request.most
        most = request.prompt + answer + self.config.lookahead
        return pages_for(most, self.config.page_size)

    def _peak(self) -> int:
        """Most pages that what runs now will hold at once."""
        fixed = sum(self._full_pages(job.request) for job in self.prefilling)
        return peak_pages(
            self.decoding.growing(), self.config.page_size, fixed, self.config.lookahead
        )

    def _take(self, count: int) -> list[int]:
        if count > self.pool.free:
            self.tree.evict(count - self.pool.free)
        return self.pool.take(count)

    def _start(self, decision: Decision, now: Time) -> int:
        """Admit and join; returns the tokens copied from the host."""
        if not decision.admits and not decision.joins:
            return 0
        size, ahead = self.config.page_size, self.config.lookahead
        copied = 0
        for job in decision.admits:  # all are locked before any page is evicted
            taken = self._waiting.pop()
            assert taken is job
            job.node = self.tree.lock(job.request.keys, self._most_hit(job))
        for job in decision.admits:
            missing = self.tree.missing(job.node)
            if missing > self.pool.free:
                self.tree.evict(missing - self.pool.free)
            self.tree.load(job.node)
            job.pages = self.tree.pages_of(job.node)
            job.borrowed = len(job.pages)
            job.cached = job.borrowed * size
            job.hit += job.cached
            job.host_hit += missing * size
            copied += missing * size
            self.backlog -= job.cached
            job.pages += self._take(pages_for(job.target + ahead, size) - job.borrowed)
            self._enter(job)
            self.prefilling.append(job)
            if job.started is None:
                job.started, job.first_hit = now, job.cached
        for job in decision.joins:
            taken = self._parked.pop()
            assert taken is job
            job.node = self.tree.root
            job.pages = self._take(pages_for(job.cached + ahead, size))
            self.swapped_pages -= self._swapped(job)
            copied += job.cached if job.preemptions else 0
            self._enter(job)
            self.decoding.join(job)
        return copied

    def _enter(self, job: Sequence) -> None:
        """It runs: count its pages."""
        self._held += len(job.pages)
        self._full += self._full_pages(job.request)

    def _stop(self, job: Sequence) -> None:
        """It runs no more."""
        self._held -= len(job.pages)
        self._full -= self._full_pages(job.request)

    def _swapped(self, job: Sequence) -> int:
        """Pages of swap space that a parked sequence takes; none where its cache came from another
        replica."""
        return pages_for(job.cached, self.config.page_size) if job.preemptions else 0

    def _give_pages(self, job: Sequence) -> None:
        self.pool.release(job.pages[job.borrowed :])
        if job.node is not None:
            self.tree.release(job.node)
        job.pages, job.borrowed, job.node = [], 0, None

    def _finish(self, job: Sequence, now: Time) -> None:
        """The last token is out: cache what has keys, free the rest."""
        self._remember(job)
        self._give_pages(job)
        job.finished = job.last_token = now

    def _remember(self, job: Sequence) -> None:
        """Hang the full pages that have keys into the prefix tree."""
        if not self.config.prefix_cache:
            return
        known = min(len(job.request.keys), job.cached // self.config.page_size)
        if known <= job.borrowed:
            return
        keys, pages = job.request.keys[job.borrowed : known], job.pages[job.borrowed : known]
        job.node, used = self.tree.insert(job.node, keys, pages)
        job.pages[job.borrowed : known] = used
        job.borrowed = known

    def _computed(
        self, chunks: Iterable[PromptChunk], now: Time, finished: list[Sequence]
    ) -> tuple[list[Sequence], list[Sequence], list[Time]]:
        """Prompts that went on; a whole one yields a token. Returns those with their first token,
        those to hand over, and of the others when they had emitted one before."""
        first: list[Sequence] = []
        handoffs: list[Sequence] = []
        resumed: list[Time] = []
        for chunk in chunks:
            job = chunk.sequence
            job.cached += chunk.tokens
            job.prefilled += chunk.tokens
            self.backlog -= chunk.tokens
            if job.cached < job.target:
                continue
            self.prefilling.remove(job)
            self._stop(job)
            self._remember(job)
            job.emitted += 1
            if job.first_token is None:
                job.first_token = now
                first.append(job)
            elif job.last_token is not None:
                resumed.append(job.last_token)
            job.last_token = now
            if job.emitted == job.request.output:
                self._finish(job, now)
                finished.append(job)
            elif self.config.policy == "prefill":
                self.handed.add(job)
                handoffs.append(job)
            else:
                self._enter(job)
                self.decoding.join(job)
        return first, handoffs, resumed

    # Pages.

    def _give_due(self, steps: int, skip: int) -> None:
        """Pages to every sequence that outgrows its own in `steps` steps after `skip`."""
        for job, count in self.decoding.outgrowing(steps, skip):
            job.pages += self._take(count)
            self._held += count

    def _shape(self, decision: Decision, chunks: tuple[PromptChunk, ...]) -> StepShape:
        if decision.padded:
            self._static, shape = padded_shape(chunks, self.decoding.beats)
            return shape
        decodes, context = 0, 0
        if decision.decode:
            decodes, context = len(self.decoding), self.decoding.context
            if self._static.size:
                decodes = self._static.size
                context = decodes * (self._static.base + self.decoding.beats)
        return step_shape(decodes, context, self.tokens_per_decode, chunks)

    def _make_room(self) -> tuple[list[Sequence], int]:
        """Preempt until the next decoding step has its pages, and until the first waiting request
        is not blocked by a less urgent class. Returns who, and the tokens copied to the host."""
        preempted: list[Sequence] = []
        copied = 0
        while len(self.decoding.needing()) > self.available:
            victim = max((*self.decoding, *self.prefilling), key=_order_of)
            copied += self._preempt(victim)
            preempted.append(victim)
        self._closed = bool(preempted)
        if self._displaces and self._waiting and not preempted:
            while (victim := self._displaced()) is not None:
                copied += self._preempt(victim)
                preempted.append(victim)
        return preempted, copied

    def _displaced(self) -> Sequence | None:
        """Who has to go for the first waiting request: the last of a less urgent class, where the
        request does not fit otherwise."""
        head = next(iter(self._waiting))
        victim = max((*self.decoding, *self.prefilling), key=_order_of, default=None)
        if victim is None or victim.request.priority <= head.request.priority:
            return None
        want = self.want(head)
        # Caches that wait to be fetched stay: beside them it may not fit whoever goes.
        left = self.config.pages - sum(len(job.pages) for job in self.handed)
        if max(want.fresh, want.full - want.shared) + want.unlocked > left:
            return None
        return None if self.room().take(want) else victim

    def _preempt(self, job: Sequence) -> int:
        """Take a sequence's pages; it comes back by itself. Returns the tokens copied away."""
        whole = job in self.decoding
        if whole:
            self.decoding.leave(job)
        else:
            self.prefilling.remove(job)
            self.backlog -= job.target - job.cached
        self._stop(job)
        pages = pages_for(job.cached, self.config.page_size)
        room = self.config.swap_pages - self.swapped_pages
        swap = self.config.preemption == "swap" and whole and pages <= room
        job.preemptions += 1
        self._give_pages(job)
        if swap:
            self.swapped_pages += pages
            self._parked.push(job)
            return job.cached
        job.lost += job.cached
        job.cached = 0
        job.target = job.request.prompt + job.emitted
        self.backlog += job.target
        self._waiting.push(job)
        return 0

    def _refuse_late(self, now: Time) -> tuple[Sequence, ...]:
        """Refuse requests whose deadline has passed before they started."""
        late: list[Sequence] = []
        while self._deadlines and self._deadlines[0][0] < now:
            job = heappop(self._deadlines)[2]
            if job.started is None and not job.refusal:
                job.refusal, job.finished = "its deadline passed while it waited", now
                self.backlog -= job.target
                late.append(job)
        if late:
            self._waiting.remove(set(late))
        while self._deadlines and self._deadlines[0][2].started is not None:
            heappop(self._deadlines)
        return tuple(late)


def _order_of(job: Sequence) -> tuple:
    return job.order
