"""The engine: requests in, tokens out. A scheduler decides what a step runs, an executor runs it.

    engine = Engine(config, executor)
    answer = engine.add([3, 14, 15], Sampling(max_tokens=8))
    while not engine.idle:
        for generation in engine.step():
            ...                                # it has new tokens, or has ended

A step is given to the executor before the tokens of the one before it are read, so that the device
never waits for Python: lengths are known ahead, and rows take their last token on the device. What
only a token tells (a stop token) then ends its sequence one step later; the token that this step
made for it is dropped. Rows whose next step depends on the host hold that back (`_held_back`).

Guesses of the next tokens, which a step checks: where they come from on the host's side.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from shardwise.errors import BadRequest
from shardwise.runtime.engine.generation import (
    NO_NUMBERS,
    Finish,
    FormError,
    Generation,
    LogitsError,
    Sampling,
)
from shardwise.runtime.engine.replica import EnginePool, EngineReplica, UnderWay
from shardwise.runtime.engine.step_batch import (
    NO_GUESS,
    Executor,
    PageMove,
    RowTokens,
    StepBatch,
    StepTokens,
)
from shardwise.scheduling import Request, SchedulerConfig
from shardwise.scheduling.forecast import pages_for
from shardwise.scheduling.requests import Sequence as Job
from shardwise.scheduling.routing import Routing, make_router, shortest_queue
from shardwise.scheduling.speculation import PastTokens
from shardwise.scheduling.step import StepPlan, StepShape

Guesser = Callable[[Sequence[Generation]], np.ndarray]
"""Guesses [D, K] of D sequences; NO_GUESS where there is none from some place on."""


def by_past(count: int, end_ids: frozenset[int]) -> Guesser:
    """What followed the last tokens of a sequence when they stood in it before."""

    def guess(rows: Sequence[Generation]) -> np.ndarray:
        guesses_DK = np.full((len(rows), count), NO_GUESS, np.int32)
        for i, generation in enumerate(rows):
            if not generation.is_held(end_ids):
                found = _past(generation).guess(count)
                guesses_DK[i, : len(found)] = found
        return guesses_DK

    return guess


def by_draft(count: int, end_ids: frozenset[int]) -> Guesser:
    """A draft model makes the guesses on the device: here it is only said for whom. Whose next
    token depends on what the host knows of the one before has none."""

    def guess(rows: Sequence[Generation]) -> np.ndarray:
        free = [0 if not generation.is_held(end_ids) else NO_GUESS for generation in rows]
        return np.repeat(np.array(free, np.int32)[:, None], count, axis=1)

    return guess


def _past(generation: Generation) -> PastTokens:
    if generation.past is None:
        generation.past = PastTokens(generation.prompt)
    known = len(generation.past.tokens) - len(generation.prompt)
    generation.past.extend(generation.tokens[known:])
    return generation.past


DEFAULT = Sampling()


class StepRecord(NamedTuple):
    """One step for logs and traces: what it computed, when it was given to the executor, and when
    its tokens were read. `steps` decoding steps in one; `replica` is the number of who ran it."""

    shape: StepShape
    steps: int
    begun: float
    ended: float
    waiting: int
    pages_used: int
    replica: int = 0
    seconds: float = 0.0
    """From the end of the replica's step before it, or from when it was given, to its own end."""
    guessed: int = 0
    accepted: int = 0
    """Of the tokens guessed, those that held."""


class Engine:
    """Replicas behind one queue of requests. Not thread-safe: one thread adds, cancels and steps.

    `executors` have equal replicas, whose pools are scheduled by `config`; where there are
    `prefilling` ones prompts are computed there, by `prefill` (policy prefill), and the pages of
    each are moved to one of the others for its answer. `routing` says who gets a request.
    `end_ids` are the model's own stop tokens, `most_tokens` its longest sequence (prompt and answer
    together), `multi_step` how many decoding steps may run without the host in between. `ahead`
    gives a step to the executor before the last one's tokens are read. Where `config.lookahead`
    tokens are guessed, that is by the sequence's own past, or `drafted` by the executors. With
    several `variants` of the weights executor i has number i mod `variants`.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *executors: Executor,
        prefilling: Sequence[Executor] = (),
        prefill: SchedulerConfig | None = None,
        routing: Routing = "shortest_queue",
        end_ids: Iterable[int] = (),
        most_tokens: int | None = None,
        multi_step: int = 1,
        ahead: bool = True,
        drafted: bool = False,
        variants: int = 1,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.end_ids = frozenset(end_ids)
        fits = config.pages * config.page_size
        self.most_tokens = min(most_tokens or fits, fits)
        self.vocabulary = min(executor.vocabulary for executor in executors)
        self.multi_step = min(multi_step, config.page_size) if config.kept else multi_step
        self.ahead = ahead
        self.observers: list[Callable[[StepRecord], None]] = []
        """Called with every step once its tokens are read."""
        self._generations: dict[int, Generation] = {}
        kinds = [(executor, prefill or config) for executor in prefilling]
        kinds += [(executor, config) for executor in executors]
        self.replicas = [
            EngineReplica(executor, own, self.most_tokens, self._generations)
            for executor, own in kinds
        ]
        for replica in self.replicas:
            if replica.lookahead:
                made = by_draft if drafted else by_past
                replica.guess = made(replica.lookahead, self.end_ids)
        self._answering = [p for r in self.replicas if not r.prefills for p in r.pools]
        self._entry = [p for r in self.replicas if r.prefills for p in r.pools] or self._answering
        self._variants = [
            [pool for pool in self._entry if self.replicas.index(pool.replica) % variants == i]
            for i in range(variants)
        ]
        self._routes = [make_router(routing, len(pools)) for pools in self._variants]
        self._moving: dict[int, tuple[EnginePool, Job]] = {}  # its pages are where it was prefilled
        self._ended: list[int] = []  # generations to forget once the step has let go of them
        self._draw = random.Random(seed)
        self._count = 0

    @property
    def pools(self) -> list[EnginePool]:
        """All pools of all replicas."""
        return [pool for replica in self.replicas for pool in replica.pools]

    @property
    def idle(self) -> bool:
        """Whether there is nothing to run and nothing to read."""
        under_way = any(replica.under_way for replica in self.replicas)
        return not under_way and self.outstanding == 0

    @property
    def outstanding(self) -> int:
        """Requests that have not finished."""
        return sum(pool.scheduler.outstanding for pool in self.pools)

    @property
    def queued(self) -> int:
        """Requests that wait, for their first step or to come back."""
        return sum(pool.scheduler.queued for pool in self.pools)

    @property
    def pages(self) -> int:
        """Pages of all pools."""
        return sum(pool.scheduler.config.pages for pool in self.pools)

    @property
    def available(self) -> int:
        """Pages that are free or can be evicted."""
        return sum(pool.scheduler.available for pool in self.pools)

    def check(self) -> None:
        """Raise AssertionError unless pages, references and sums agree with a recount."""
        for pool in self.pools:
            pool.scheduler.check()

    def add(
        self,
        prompt: Sequence[int],
        sampling: Sampling = DEFAULT,
        *,
        answers: int = 1,
        priority: int = 0,
        deadline: float = float("inf"),
        variant: int = 0,
    ) -> list[Generation]:
        """Take in a prompt; one Generation for each of its `answers`, by a `variant` of the
        weights. Those that can never run, or that the queue has no room for, come back refused.
        Raises BadRequest for an empty prompt, for one that is longer than the model takes, and for
        tokens that it does not have."""
        now = self.clock()
        room = self.most_tokens - len(prompt)
        if not prompt:
            raise BadRequest("the prompt is empty; give at least 1 token")
        if room < 1:
            raise BadRequest(
                f"the prompt has {len(prompt):,} tokens, and the model takes "
                f"{self.most_tokens:,} in prompt and answer together; shorten it"
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocabulary:
            wrong = min(prompt) if min(prompt) < 0 else max(prompt)
            raise BadRequest(
                f"the prompt has token {wrong}; the model's vocabulary has ids from 0 to below "
                f"{self.vocabulary:,}"
            )
        seed = self._draw.getrandbits(32) if sampling.seed is None else sampling.seed
        made = [self._generation(prompt, sampling, (seed + i) % 2**32, now) for i in range(answers)]
        requests = [
            Request(
                id=generation.id,
                arrival=now,
                prompt=len(prompt),
                output=min(sampling.max_tokens, room),
                keys=self._prompt_keys(prompt, sampling),
                priority=priority,
                deadline=deadline,
            )
            for generation in made
        ]
        pool, jobs = self._enter(requests, now, variant)
        for generation, job in zip(made, jobs, strict=True):
            generation.job, generation.pool = job, pool
            self._generations[generation.id] = generation
            if job.refusal:
                self._refuse(generation)
        return made

    def cancel(self, generation: Generation, reason: str = "cancelled") -> None:
        """Drop a generation wherever it is; its pages are free for the next step."""
        if not generation.done:
            generation.finish, generation.refusal = "abort", reason
            self._release(generation)
            generation.pool.scheduler.cancel(generation.job, self.clock(), reason)
            self._ended.append(generation.id)

    def stop(self, generation: Generation) -> None:
        """End a generation as a stop token does: its caller has seen a stop string."""
        if not generation.done:
            self._end(generation, "stop")

    def step(self) -> list[Generation]:
        """Give each executor its next step and read the one before; the generations with news."""
        return [generation for replica in self.replicas for generation in self._step(replica)]

    # One step.

    def _step(self, replica: EngineReplica) -> list[Generation]:
        news: list[Generation] = []
        step, ahead = replica.under_way, self.ahead and not replica.lookahead
        if step is not None and (not ahead or step.is_held(self.end_ids)):
            news += self._read(replica)
        plans = replica.schedule(self.clock())
        refused = [job for plan in plans for job in plan.refused]
        news += [self._refuse(self._generations[job.request.id]) for job in refused]
        if all(plan.shape == StepShape() for plan in plans):
            return news + self._read(replica)
        if self._waits_for_tokens(replica, plans):
            news += self._read(replica)
        before, replica.under_way = replica.under_way, self._give(replica, plans)
        if before is not None:
            news += self._tokens_of(replica, before)
        replica.counted(self.clock())
        for number in self._ended:
            self._generations.pop(number, None)
        self._ended.clear()
        return news

    def _give(self, replica: EngineReplica, plans: Sequence[StepPlan]) -> UnderWay:
        replica.take_in(plans)
        for pool, plan in zip(replica.pools, plans, strict=True):
            for job in plan.changes.joined if plan.changes is not None else ():
                self._fetch(pool, job)
        steps = replica.steps(plans, self.multi_step, self.end_ids)
        return replica.give(plans, steps, self.clock())

    def _waits_for_tokens(self, replica: EngineReplica, plans: Sequence[StepPlan]) -> bool:
        """Whether a step puts in tokens of an answer that are still under way."""
        if replica.under_way is None:
            return False
        for plan in plans:
            for chunk in plan.chunks:
                if chunk.start + chunk.tokens > self._generations[chunk.sequence.request.id].known:
                    return True
            for job in plan.changes.joined if plan.changes is not None else ():
                known = self._generations[job.request.id].known
                if job.cached >= job.target and job.cached >= known:
                    return True
        return False

    def _read(self, replica: EngineReplica) -> list[Generation]:
        step, replica.under_way = replica.under_way, None
        return self._tokens_of(replica, step) if step is not None else []

    def _tokens_of(self, replica: EngineReplica, step: UnderWay) -> list[Generation]:
        found = step.tokens()
        now = self.clock()
        news: list[Generation] = []
        for batch, tokens in zip(step.batches, found, strict=True):
            self._read_rows(batch, tokens, now, news)
        for pool, job in step.handed:
            self._hand_over(pool, job)
        waiting, used = self.queued, self.pages - self.available
        number = self.replicas.index(replica)
        seconds, replica.ended = now - max(step.begun, replica.ended), now
        guesses = step.guesses() if replica.lookahead else (0, 0)
        of_replica = waiting, used, number, seconds, *guesses
        record = StepRecord(step.shape, step.steps, step.begun, now, *of_replica)
        for observer in self.observers:
            observer(record)
        return news

    def _read_rows(
        self, batch: StepBatch, tokens: StepTokens, now: float, news: list[Generation]
    ) -> None:
        for generation, row in zip(batch.generations, tokens.decodes, strict=True):
            if self._take(generation, row, now):
                news.append(generation)
        for chunk, row, prompt in zip(batch.chunks, tokens.chunks, tokens.prompts, strict=True):
            if prompt is not None and not chunk.generation.done:
                chunk.generation.prompt_logprobs += prompt.reported()
            if row is not None and self._take(chunk.generation, row, now):
                news.append(chunk.generation)

    # Between replicas.

    def _enter(
        self, requests: Sequence[Request], now: float, variant: int
    ) -> tuple[EnginePool, list[Job]]:
        """The answers to one prompt, as jobs of one pool. Who only prefills keeps no forks: the
        second answer finds the prompt in its cache."""
        pools = self._variants[variant]
        targets = [pool.scheduler for pool in pools]
        pool = pools[self._routes[variant](requests[0], targets)]
        scheduler = pool.scheduler
        if pool.replica.prefills:
            jobs = [scheduler.add(request, now) for request in requests]
            for job in jobs:
                misfit = job.refusal or self._answering[0].scheduler.misfit(job.request)
                if misfit and not job.refusal:
                    scheduler.cancel(job, now, misfit)
            return pool, jobs
        first = scheduler.add(requests[0], now)
        return pool, [first, *scheduler.fork(first, requests[1:], now)]

    def _hand_over(self, source: EnginePool, job: Job) -> None:
        """Let another replica answer a prompt that is computed; its pages stay until it joins."""
        generation = self._generations.get(job.request.id)
        if generation is None or generation.done:
            return
        target = self._answering[shortest_queue([pool.scheduler for pool in self._answering])]
        generation.job, generation.pool = target.scheduler.receive(job), target
        self._moving[generation.id] = source, job

    def _fetch(self, target: EnginePool, job: Job) -> None:
        """Move the pages of a sequence that joins from where its prompt was computed."""
        if job.request.id not in self._moving:
            return
        source, held = self._moving.pop(job.request.id)
        count = pages_for(job.cached, self.config.page_size)
        tables = [(held.pages[:count], job.pages[:count])]
        for kept, own in zip(held.kept, job.kept, strict=True):
            places = [place for place in own if place in kept]
            tables.append(([kept[place] for place in places], [own[place] for place in places]))
        for group, (sources, targets) in enumerate(tables):
            contents = source.replica.executor.extract(source.number, group, sources)
            target.moves.append(PageMove(group, contents, targets))
        source.scheduler.hand_over(held)

    def _release(self, generation: Generation) -> None:
        """Give up the pages that wait to be moved."""
        if generation.id in self._moving:
            source, held = self._moving.pop(generation.id)
            source.scheduler.hand_over(held)

    def _take(self, generation: Generation, row: RowTokens, now: float) -> bool:
        """Add what a row emitted, up to where the generation ends; whether anything came."""
        if generation.done:
            return False
        reported = row.reported()
        finish: Finish | None = None
        for i, token in enumerate(row.tokens):
            if token < 0:
                generation.refusal, generation.failure = NO_NUMBERS, LogitsError
                finish = "abort"
                break
            generation.tokens.append(token)
            generation.logprobs += reported[i : i + 1]
            if finish := self._finish(generation, token):
                break
        if generation.first is None:
            generation.first = now
        generation.last = now
        self._name_pages(generation)
        if finish:
            self._end(generation, finish)
        return True

    def _name_pages(self, generation: Generation) -> None:
        """Keys for the pages that are full by now: equal keys mean equal tokens."""
        if generation.sampling.prompt_logprobs is not None:
            return  # its prompt is to be computed, and none of it found
        job: Job = generation.job
        size = self.config.page_size
        for page in range(len(job.keys), generation.known // size):
            job.keys += (generation.between(page * size, (page + 1) * size).tobytes(),)

    def _finish(self, generation: Generation, token: int) -> Finish | None:
        count, form = len(generation.tokens), generation.form
        if token in generation.ends(self.end_ids) and count >= generation.sampling.min_tokens:
            generation.ender = token
            return "stop"
        if form is not None:
            if wrong := form.take(token):
                generation.refusal = f"the answer cannot continue in the requested form: {wrong}"
                generation.failure = FormError
                return "abort"
            if form.done:
                return "stop"
        return "length" if count == generation.job.request.output else None

    def _end(self, generation: Generation, finish: Finish) -> None:
        generation.finish = finish
        self._release(generation)
        generation.pool.scheduler.stop(generation.job, self.clock())
        self._ended.append(generation.id)

    def _refuse(self, generation: Generation) -> Generation:
        generation.refusal = generation.job.refusal
        self._ended.append(generation.id)
        return generation

    def _generation(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, now: float
    ) -> Generation:
        self._count += 1
        return Generation(self._count, prompt, sampling, seed, now)

    def _prompt_keys(self, prompt: Sequence[int], sampling: Sampling) -> tuple[bytes, ...]:
        size = self.config.page_size
        if sampling.prompt_logprobs is not None:
            return ()
        tokens, full = np.array(prompt, np.int32), len(prompt) // size
        return tuple(tokens[i * size : (i + 1) * size].tobytes() for i in range(full))
