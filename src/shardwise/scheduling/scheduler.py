"""The scheduler of one replica: it decides what every step runs. Simulator and engine share it.

    plan = scheduler.schedule(now)             # admit, preempt, take pages: what to run
    ...                                        # the caller runs it, or prices it
    result = scheduler.postprocess(plan, now)  # the step is counted: finish, cache prefixes

An engine may postprocess a step once it is under way, and schedule the next before its tokens are
out: lengths are known ahead. What only tokens tell comes later by `stop` and `cancel`.

It holds no clock: `now` is passed in, on whatever scale the requests' arrivals are. What a step
costs here depends on what changes, not on how many sequences decode: all of them advance by one
*beat*, and a sequence's length, its next page and its end are fixed beats. So a caller that wants
to run the same decoding step `plan.repeat` times over says so (`extend`) and pays once.
"""

from collections.abc import Iterable, Iterator, Mapping

from shardwise.scheduling.backlog import Backlog
from shardwise.scheduling.cache_manager import CacheManager
from shardwise.scheduling.config import SchedulerConfig
from shardwise.scheduling.decoding import Decoding
from shardwise.scheduling.forecast import peak_pages
from shardwise.scheduling.policies import POLICIES, Decision, Room, Want
from shardwise.scheduling.preemption import displace, drop_fork, make_room
from shardwise.scheduling.requests import Request, Sequence, Time, order_key
from shardwise.scheduling.step import (
    Changes,
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
        self.cache = CacheManager(config)
        self.pool, self.tree = self.cache.pool, self.cache.tree
        self.prefilling: list[Sequence] = []
        self.decoding = Decoding(config.page_size, config.lookahead)
        self.handed: set[Sequence] = set()
        """Prefilled sequences whose cache another replica is still to fetch."""
        self.budget = config.budget
        self.tokens_per_decode = 1 + config.lookahead
        reused = self.cache.kept if config.prefix_cache else None
        self.grain = 1 if reused is None else reused.grain
        self._policy = POLICIES[config.policy]
        self._displaces = config.order == "priority" and config.policy != "static"
        self._closed = False  # no request starts in a step that had to preempt
        self._margin = int(config.margin * config.pages)
        self.idle = Backlog()
        self._static = StaticBatch(0, 0)
        self._under_way = False
        self._ending: dict[Sequence, str] = {}  # after the step, for a reason; "": its stop token

    # What a policy sees.

    def waiting(self) -> Iterator[Sequence]:
        """Requests to admit, in order."""
        return iter(self.idle.waiting)

    def parked(self) -> Iterator[Sequence]:
        """Sequences whose whole cache is on the host or on another replica, in order."""
        return iter(self.idle.parked)

    @property
    def backlog(self) -> int:
        """Prompt tokens not computed yet, of waiting and running requests."""
        return self.idle.tokens

    @property
    def queued(self) -> int:
        """Requests that wait, for their first step or to come back."""
        return len(self.idle)

    @property
    def outstanding(self) -> int:
        """Requests here that have not finished."""
        running = len(self.prefilling) + len(self.decoding)
        return self.queued + running + len(self.idle.unborn)

    @property
    def available(self) -> int:
        """Pages that are free or can be evicted."""
        return self.pool.free + self.tree.unlocked

    def want(self, job: Sequence) -> Want:
        """What a waiting or parked sequence needs to start."""
        return self.cache.want(job)

    def hit_tokens(self, request: Request) -> int:
        """Tokens of a new request's prompt that are cached here, on the host or not."""
        return self.cache.hit_tokens(request)

    def room(self) -> Room:
        """Slots and pages left."""
        needing = len(self.decoding.needing())
        running = len(self.decoding) + len(self.prefilling)
        seats = len(self.handed) if self.config.kept else 0  # their pages belong to slots
        owed = head = None
        if self.config.admission == "reserve":
            owed = self.cache.full - self.cache.held - needing
        elif self.config.admission == "forecast" and self.queued:
            head = self.config.pages - self._peak()
        return Room(
            slots=0 if self._closed else self.config.batch - running - seats,
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
        if bound and len(self.idle.waiting) >= bound:
            job.refusal = job.refusal or f"{bound:,} requests were waiting already"
        if job.refusal:
            job.finished = now
            return job
        self.idle.wait(job)
        if self.config.refuse_late and request.deadline < FOREVER:
            self.idle.refuse_after(job)
        return job

    def misfit(self, request: Request) -> str:
        """Why a request can never run here; empty where it can."""
        return self.cache.misfit(request)

    def fork(self, parent: Sequence, requests: Iterable[Request], now: Time) -> list[Sequence]:
        """More answers to the prompt of a request that was just added: it is computed once, and
        its pages are shared. What is refused for length is refused as by `add`."""
        forks = [Sequence(r, order_key(r, self.config.order, self.config.age)) for r in requests]
        for job in forks:
            assert job.request.prompt == parent.request.prompt, "a fork has another prompt"
            job.refusal = parent.refusal or self.misfit(job.request)
            job.finished = now if job.refusal else None
        parent.forks += [job for job in forks if not job.refusal]
        self.idle.expect(parent.forks, parent)
        return forks

    def receive(self, handed: Sequence) -> Sequence:
        """Take in a sequence whose prompt another replica has prefilled: its state here, which
        joins with pages of its own. `hand_over` lets go of those there."""
        job = handed.moved(order_key(handed.request, self.config.order, self.config.age))
        self.idle.parked.push(job)
        return job

    def hand_over(self, job: Sequence) -> None:
        """Give up the pages of a prefilled sequence: its cache has been fetched."""
        self.handed.remove(job)
        self.cache.release(job)

    def schedule(self, now: Time) -> StepPlan | None:
        """The next step, its pages taken; None where there is nothing to do."""
        refused = self.idle.late(now)
        preempted, copied = make_room(self)
        self._closed = bool(preempted)
        if self._displaces and not preempted:
            preempted, more = displace(self)
            copied += more
        decision = self._policy(self)
        while not decision.decode and not decision.chunks and drop_fork(self):
            decision = self._policy(self)
        self._closed = False
        copied += self._start(decision, now)
        if not decision.decode and not decision.chunks:
            assert not preempted, "preempted for nothing"
            return StepPlan(StepShape(), refused=refused) if refused else None
        chunks = tuple(PromptChunk(job, job.cached, tokens) for job, tokens in decision.chunks)
        for job, start, tokens in chunks:
            self.cache.cover(job, start, start + tokens)
        shape = self._shape(decision, chunks)
        repeat = 1
        if decision.decode:
            self.cache.grow(self.decoding.outgrowing(1, 0))
            if not (chunks or decision.joins or preempted or self.config.lookahead):
                repeat = self.decoding.repeat(self.available)
        self._under_way = True
        changes = self.cache.changes()
        return StepPlan(
            shape, chunks, tuple(preempted), repeat, self.idle.until, copied, refused, changes
        )

    def extend(self, plan: StepPlan, done: int, steps: int) -> Changes | None:
        """Take the pages of steps `done` to `steps` of a plan that is run over and over; what
        changes by that."""
        assert steps <= plan.repeat
        self.cache.grow(self.decoding.outgrowing(steps - done, done))
        return self.cache.changes()

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
        self._under_way = False
        finished: list[Sequence] = []
        joined: list[Time] = []
        first: list[Sequence] = []
        decoded = len(self.decoding) if plan.shape.decodes else 0
        if decoded:
            finished, joined, first = self.decoding.beat(steps, now, accepted)
            for job in finished:
                self._finish(job, now)
        for job in stopped:
            self._ending.setdefault(job, "")
        handoffs, resumed = self._computed(plan.chunks, now, first, finished)
        if self._ending:
            finished += self._end_early(now)
            handoffs = [job for job in handoffs if job.finished is None]
        if not self.decoding:
            self._static = StaticBatch(0, 0)
        return StepResult(
            tuple(finished), tuple(handoffs), tuple(first), decoded, tuple(joined), tuple(resumed)
        )

    def stop(self, job: Sequence, now: Time) -> None:
        """End a sequence whose stop token came out; its cache may serve others. Where a step is
        under way it ends with that; one that has ended stays as it is."""
        self._end(job, now, "")

    def cancel(self, job: Sequence, now: Time, reason: str) -> None:
        """Drop a request wherever it is; its pages are freed. Where a step is under way that runs
        it, it ends with the step; one that has ended stays as it is."""
        self._end(job, now, reason)

    def check(self) -> None:
        """Raise AssertionError unless pages, references and sums agree with a recount."""
        running = [*self.decoding, *self.prefilling]
        self.cache.check(running, [*self.idle.parked, *self.handed])
        assert self.decoding.context == sum(map(self.decoding.cached, self.decoding))
        size = self.config.page_size
        for job in self.decoding:
            assert len(job.pages) * size >= self.decoding.cached(job)

    # Starting, growing, leaving.

    def _peak(self) -> int:
        """Most pages that what runs now will hold at once."""
        fixed = sum(self.cache.full_pages(job.request) for job in self.prefilling)
        return peak_pages(
            self.decoding.growing(), self.config.page_size, fixed, self.config.lookahead
        )

    def _start(self, decision: Decision, now: Time) -> int:
        if not decision.admits and not decision.joins:
            return 0
        copied = 0
        for job in decision.admits:  # all are locked before any page is evicted
            taken = self.idle.waiting.pop()
            assert taken is job
            self.cache.lock_prefix(job)
        for job in decision.admits:
            copied += self.cache.start(job)
            self.idle.tokens -= job.cached
            self.prefilling.append(job)
            if job.started is None:
                job.started, job.first_hit = now, job.cached
        for job in decision.joins:
            taken = self.idle.parked.pop()
            assert taken is job
            copied += self.cache.resume(job)
            if job.started is None:
                job.started, job.first_hit = now, job.cached
            self.decoding.join(job)
        return copied

    def _finish(self, job: Sequence, now: Time) -> None:
        """The last token is out: cache what has keys, free the rest."""
        self.cache.leave(job)
        self.cache.remember(job)
        self.cache.release(job)
        job.finished = job.last_token = now

    def _computed(
        self,
        chunks: Iterable[PromptChunk],
        now: Time,
        first: list[Sequence],
        finished: list[Sequence],
    ) -> tuple[list[Sequence], list[Time]]:
        """Prompts that went on; a whole one yields a token. Adds those with their `first` token,
        and the `finished`; returns those to hand over, and of the others when they had emitted one
        before."""
        handoffs: list[Sequence] = []
        resumed: list[Time] = []
        for chunk in chunks:
            job = chunk.sequence
            job.cached += chunk.tokens
            job.prefilled += chunk.tokens
            self.idle.tokens -= chunk.tokens
            self.cache.computed(job, chunk.start)
            if job.cached < job.target:
                continue
            self.prefilling.remove(job)
            job.emitted += 1
            if job.first_token is None:
                job.first_token = now
                first.append(job)
            elif job.last_token is not None:
                resumed.append(job.last_token)
            job.last_token = now
            if job.forks:
                self._share_prompt(job)
            if job.emitted == job.request.output:
                self._finish(job, now)
                finished.append(job)
            elif self.config.policy == "prefill":
                self.cache.leave(job)
                self.handed.add(job)
                handoffs.append(job)
            else:
                self.decoding.join(job)
        return handoffs, resumed

    def _share_prompt(self, parent: Sequence) -> None:
        """The forks of a prompt that is cached now: they wait with its pages, or, where those are
        not shared, as requests of their own, which may find it in the prefix cache."""
        for job in parent.forks:
            del self.idle.unborn[job]
            elsewhere = self.config.policy in ("prefill", "static")
            if job.request.prompt == 1 or elsewhere or self.config.kept:
                self.idle.wait(job)
            else:
                self.cache.share(parent, job)
                self.idle.parked.push(job)
        parent.forks.clear()

    # Ending before the last token.

    def _end(self, job: Sequence, now: Time, reason: str) -> None:
        if job.finished is not None:
            return
        if job.slot >= 0 and self._under_way:
            if reason or job not in self._ending:
                self._ending[job] = reason
        else:
            self._end_now(job, now, reason)

    def _end_early(self, now: Time) -> list[Sequence]:
        """Those asked for while the step was under way; the ones that stopped by themselves."""
        ending, self._ending = self._ending, {}
        stopped: list[Sequence] = []
        for job, reason in ending.items():
            if job.finished is None:
                self._end_now(job, now, reason)
                if not reason:
                    stopped.append(job)
        return stopped

    def _end_now(self, job: Sequence, now: Time, reason: str) -> None:
        holds = job.slot >= 0 or job in self.handed
        if job in self.decoding:
            self.decoding.leave(job)
            self.cache.leave(job)
        elif job in self.prefilling:
            self.prefilling.remove(job)
            self.cache.leave(job)
            self.idle.tokens -= job.target - job.cached
        elif job in self.handed:
            self.handed.remove(job)
        else:
            self.idle.drop(job)
        self.idle.orphan(job)
        if not reason:
            job.last_token = now
            if holds:
                self.cache.remember(job)
        self.cache.release(job)
        job.refusal, job.finished = reason, now

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
