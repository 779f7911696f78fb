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
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from shardwise.errors import BadRequest
from shardwise.runtime.engine.generation import (
    Finish,
    Generation,
    Sampling,
    TokenLogprobs,
)
from shardwise.runtime.engine.slots import Slots
from shardwise.runtime.engine.step_batch import (
    Executor,
    Pending,
    RowTokens,
    StepBatch,
)
from shardwise.scheduling import Request, Scheduler, SchedulerConfig
from shardwise.scheduling.forecast import pages_for
from shardwise.scheduling.requests import Sequence as Job
from shardwise.scheduling.step import StepPlan, StepShape

DEFAULT = Sampling()


class UnderWay(NamedTuple):
    """A step whose tokens are not read yet."""

    batch: StepBatch
    shape: StepShape
    pending: Pending
    begun: float


class StepRecord(NamedTuple):
    """One step for logs and traces: what it computed, when it was given to the executor, and when
    its tokens were read. `steps` decoding steps in one."""

    shape: StepShape
    steps: int
    begun: float
    ended: float
    waiting: int
    pages_used: int


class Engine:
    """One replica. Not thread-safe: one thread adds, cancels and steps.

    `end_ids` are the model's own stop tokens, `most_tokens` its longest sequence (prompt and answer
    together), `multi_step` how many decoding steps may run without the host in between. `ahead`
    gives a step to the executor before the last one's tokens are read.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        executor: Executor,
        *,
        end_ids: Iterable[int] = (),
        most_tokens: int | None = None,
        multi_step: int = 1,
        ahead: bool = True,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        self.scheduler = Scheduler(config)
        self.executor = executor
        self.clock = clock
        self.end_ids = frozenset(end_ids)
        fits = config.pages * config.page_size
        self.most_tokens = min(most_tokens or fits, fits)
        self.multi_step = min(multi_step, config.page_size) if config.kept else multi_step
        self.ahead = ahead
        self.observers: list[Callable[[StepRecord], None]] = []
        """Called with every step once its tokens are read."""
        self._generations: dict[int, Generation] = {}
        pages = pages_for(self.most_tokens + config.lookahead, config.page_size)
        self._slots = Slots(1 + len(config.kept), config.batch, pages, self._generations)
        self._under_way: UnderWay | None = None
        self._ended: list[int] = []  # generations to forget once the step has let go of them
        self._draw = random.Random(seed)
        self._count = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to run and nothing to read."""
        return self._under_way is None and self.scheduler.outstanding == 0

    def add(
        self,
        prompt: Sequence[int],
        sampling: Sampling = DEFAULT,
        *,
        answers: int = 1,
        priority: int = 0,
        deadline: float = float("inf"),
    ) -> list[Generation]:
        """Take in a prompt; one Generation for each of its `answers`. Those that can never run, or
        that the queue has no room for, come back refused. Raises BadRequest for an empty prompt
        and for one that is longer than the model takes."""
        now = self.clock()
        room = self.most_tokens - len(prompt)
        if not prompt:
            raise BadRequest("the prompt is empty; give at least 1 token")
        if room < 1:
            raise BadRequest(
                f"the prompt has {len(prompt):,} tokens and the model takes {self.most_tokens:,} "
                "with the answer; shorten it"
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
        first = self.scheduler.add(requests[0], now)
        jobs = [first, *self.scheduler.fork(first, requests[1:], now)]
        for generation, job in zip(made, jobs, strict=True):
            generation.job = job
            self._generations[generation.id] = generation
            if job.refusal:
                self._refuse(generation)
        return made

    def cancel(self, generation: Generation, reason: str = "cancelled") -> None:
        """Drop a generation wherever it is; its pages are free for the next step."""
        if not generation.done:
            generation.finish, generation.refusal = "abort", reason
            self.scheduler.cancel(generation.job, self.clock(), reason)
            self._ended.append(generation.id)

    def stop(self, generation: Generation) -> None:
        """End a generation as a stop token does: its caller has seen a stop string."""
        if not generation.done:
            self._end(generation, "stop")

    def step(self) -> list[Generation]:
        """Give the executor its next step and read the one before; the generations with news."""
        news: list[Generation] = []
        if not self.ahead or self._held_back():
            news += self._read()
        plan = self.scheduler.schedule(self.clock())
        if plan is None:
            return news + self._read()
        news += [self._refuse(self._generations[job.request.id]) for job in plan.refused]
        if plan.shape == StepShape():
            return news + self._read()
        if self._waits_for_tokens(plan):
            news += self._read()
        before, self._under_way = self._under_way, self._give(plan)
        if before is not None:
            news += self._tokens_of(before)
        self.scheduler.postprocess(plan, self.clock(), self._under_way.batch.steps)
        for number in self._ended:
            self._generations.pop(number, None)
        self._ended.clear()
        return news

    # One step.

    def _give(self, plan: StepPlan) -> UnderWay:
        self._slots.take_in(plan.changes)
        steps = self._steps(plan)
        if steps > 1:
            self._slots.take_in(self.scheduler.extend(plan, 1, steps))
        batch = self._slots.batch(plan, steps)
        for chunk in batch.chunks:
            job = chunk.generation.job
            chunk.generation.cached_tokens = job.first_hit
            chunk.generation.preemptions = job.preemptions
        begun = self.clock()
        return UnderWay(batch, plan.shape, self.executor.run(batch), begun)

    def _steps(self, plan: StepPlan) -> int:
        """How many decoding steps run as one: a power of two, and none ends a sequence but a step
        by itself, as the tokens before its last are to be known then (they name its pages)."""
        most = min(self.multi_step, plan.repeat - 1)
        if most < 2 or plan.until < float("inf") or self.scheduler.queued:
            return 1
        if any(g.is_held(self.end_ids) for g in self._slots.decoding()):
            return 1
        return 1 << (most.bit_length() - 1)

    def _held_back(self) -> bool:
        """Whether a row under way decides on the host what its next step may emit."""
        if self._under_way is None:
            return False
        batch = self._under_way.batch
        rows = (*batch.generations, *(chunk.generation for chunk in batch.chunks))
        return any(generation.is_held(self.end_ids) for generation in rows)

    def _waits_for_tokens(self, plan: StepPlan) -> bool:
        """Whether a step puts in tokens of an answer that are still under way."""
        if self._under_way is None:
            return False
        for chunk in plan.chunks:
            if chunk.start + chunk.tokens > self._generations[chunk.sequence.request.id].known:
                return True
        joined = plan.changes.joined if plan.changes is not None else ()
        return any(
            job.cached >= job.target and job.cached >= self._generations[job.request.id].known
            for job in joined
        )

    def _read(self) -> list[Generation]:
        """The tokens of the step under way, if there is one."""
        step, self._under_way = self._under_way, None
        return self._tokens_of(step) if step is not None else []

    def _tokens_of(self, step: UnderWay) -> list[Generation]:
        tokens = step.pending.result()
        now = self.clock()
        news: list[Generation] = []
        for generation, row in zip(step.batch.generations, tokens.decodes, strict=True):
            if self._take(generation, row, now):
                news.append(generation)
        for chunk, row, prompt in zip(
            step.batch.chunks, tokens.chunks, tokens.prompts, strict=True
        ):
            if prompt is not None and not chunk.generation.done:
                chunk.generation.prompt_logprobs += _logprobs(prompt)
            if row is not None and self._take(chunk.generation, row, now):
                news.append(chunk.generation)
        record = StepRecord(
            step.shape,
            step.batch.steps,
            step.begun,
            now,
            self.scheduler.queued,
            self.scheduler.config.pages - self.scheduler.available,
        )
        for observer in self.observers:
            observer(record)
        return news

    def _take(self, generation: Generation, row: RowTokens, now: float) -> bool:
        """Add what a row emitted, up to where the generation ends; whether anything came."""
        if generation.done:
            return False
        reported = _logprobs(row)
        finish: Finish | None = None
        for i, token in enumerate(row.tokens):
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
        size = self.scheduler.config.page_size
        for page in range(len(job.keys), generation.known // size):
            job.keys += (generation.between(page * size, (page + 1) * size).tobytes(),)

    def _finish(self, generation: Generation, token: int) -> Finish | None:
        count, form = len(generation.tokens), generation.form
        if token in generation.ends(self.end_ids) and count >= generation.sampling.min_tokens:
            generation.ender = token
            return "stop"
        if form is not None:
            if wrong := form.take(token):
                generation.refusal = f"no token goes on in the form that was asked for: {wrong}"
                return "abort"
            if form.done:
                return "stop"
        return "length" if count == generation.job.request.output else None

    def _end(self, generation: Generation, finish: Finish) -> None:
        generation.finish = finish
        self.scheduler.stop(generation.job, self.clock())
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
        size = self.scheduler.config.page_size
        if sampling.prompt_logprobs is not None:
            return ()
        tokens, full = np.array(prompt, np.int32), len(prompt) // size
        return tuple(tokens[i * size : (i + 1) * size].tobytes() for i in range(full))


def _logprobs(row: RowTokens) -> list[TokenLogprobs]:
    """What a row reports of each token; nothing where it was not asked for it."""
    if row.logprobs is None:
        return []
    assert row.top is not None
    assert row.top_logprobs is not None
    return [
        TokenLogprobs(token, float(logprob), tuple(zip(top.tolist(), values.tolist(), strict=True)))
        for token, logprob, top, values in zip(
            row.tokens, row.logprobs, row.top, row.top_logprobs, strict=True
        )
    ]
