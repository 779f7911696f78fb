"""A replica: an executor, and the pools of pages whose sequences step together on it.

One device has one pool. Where data-parallel attention or `heads_then_batch` lays sequences apart
over devices, each part has a pool with a scheduler and slots of its own, and a step is one step of
each; a pool with nothing to do has no rows in it. Who gets which request is routing
(`scheduling/routing.py`), between pools of a replica as between replicas.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwise.runtime.engine.generation import Generation
from shardwise.runtime.engine.slots import Slots
from shardwise.runtime.engine.step_batch import (
    NO_GUESS,
    ChunkRow,
    Executor,
    PageMove,
    Pending,
    StepBatch,
    StepTokens,
)
from shardwise.scheduling import Scheduler, SchedulerConfig
from shardwise.scheduling.forecast import pages_for
from shardwise.scheduling.requests import Sequence as Job
from shardwise.scheduling.step import StepPlan, StepShape

NOTHING = StepPlan(StepShape())


class EnginePool:
    """Pages of one part of a replica, its `number`th: who has them, and who is in which row."""

    def __init__(
        self,
        replica: "EngineReplica",
        number: int,
        config: SchedulerConfig,
        most_tokens: int,
        generations: Mapping[int, Generation],
    ) -> None:
        pages = pages_for(most_tokens + config.lookahead, config.page_size)
        self.replica, self.number = replica, number
        self.scheduler = Scheduler(config)
        self.slots = Slots(1 + len(config.kept), config.batch, pages, generations)
        self.moves: list[PageMove] = []
        """Pages that come from another replica with the next step."""


@dataclass(slots=True)
class UnderWay:
    """A step whose tokens are not read yet, a plan and a batch for each pool; `handed` has those
    whose prompt is whole and whose answer another replica gives."""

    plans: Sequence[StepPlan]
    batches: Sequence[StepBatch]
    pending: Pending
    begun: float
    handed: list[tuple[EnginePool, Job]] = field(default_factory=list)
    read: Sequence[StepTokens] | None = None

    @property
    def shape(self) -> StepShape:
        """What the pools' steps compute together."""
        return StepShape(*map(sum, zip(*(plan.shape for plan in self.plans), strict=True)))

    @property
    def steps(self) -> int:
        """Decoding steps in this one."""
        return self.batches[0].steps

    def is_held(self, end_ids: frozenset[int]) -> bool:
        """Whether a row decides on the host what its next step may emit."""
        return any(
            any(generation.is_held(end_ids) for generation in batch.generations)
            or any(chunk.generation.is_held(end_ids) for chunk in batch.chunks)
            for batch in self.batches
        )

    def guesses(self) -> tuple[int, int]:
        """How many tokens were guessed, and how many held."""
        given = [b.guesses_DK for b in self.batches if b.guesses_DK is not None]
        held = sum(len(row.tokens) - 1 for tokens in self.tokens() for row in tokens.decodes)
        return sum(int((guesses_DK != NO_GUESS).sum()) for guesses_DK in given), held

    def tokens(self) -> Sequence[StepTokens]:
        """What came out of each pool, once it is out."""
        if self.read is None:
            self.read = self.pending.result()
        return self.read


class EngineReplica:
    """An executor with its pools; with `prefills` others answer the prompts that it computes."""

    def __init__(
        self,
        executor: Executor,
        config: SchedulerConfig,
        most_tokens: int,
        generations: Mapping[int, Generation],
    ) -> None:
        self.executor = executor
        self.prefills = config.policy == "prefill"
        self.pools = [
            EnginePool(self, number, config, most_tokens, generations)
            for number in range(executor.pools)
        ]
        self.lookahead = config.lookahead
        self.guess: Callable[[Sequence[Generation]], np.ndarray] | None = None
        """Guesses [D, lookahead] of the next tokens, where the host makes them."""
        self.under_way: UnderWay | None = None
        self.ended = float("-inf")
        """When the last step's tokens were read."""

    def schedule(self, now: float) -> list[StepPlan]:
        """What each pool runs next."""
        return [pool.scheduler.schedule(now) or NOTHING for pool in self.pools]

    def take_in(self, plans: Sequence[StepPlan]) -> None:
        """What changes in the slots by a step."""
        for pool, plan in zip(self.pools, plans, strict=True):
            pool.slots.take_in(plan.changes)

    def give(self, plans: Sequence[StepPlan], steps: int, begun: float) -> UnderWay:
        """Begin a step whose changes are taken in."""
        batches = []
        for pool, plan in zip(self.pools, plans, strict=True):
            if steps > 1 and plan.shape != StepShape():
                pool.slots.take_in(pool.scheduler.extend(plan, 1, steps))
            moves, pool.moves = pool.moves, []
            batches.append(pool.slots.batch(plan, steps, moves, self.guess))
        for chunk in chunks_of(batches):
            job = chunk.generation.job
            chunk.generation.cached_tokens = job.first_hit
            chunk.generation.preemptions = job.preemptions
        return UnderWay(plans, batches, self.executor.run(batches), begun)

    def steps(self, plans: Sequence[StepPlan], most: int, end_ids: frozenset[int]) -> int:
        """How many decoding steps run as one: a power of two, and none ends a sequence but a step
        by itself, as the tokens before its last are to be known then (they name its pages)."""
        busy = [plan for plan in plans if plan.shape != StepShape()]
        most = min(most, *(plan.repeat - 1 for plan in busy))
        if most < 2 or any(plan.until < float("inf") for plan in busy):
            return 1
        if any(pool.scheduler.queued for pool in self.pools):
            return 1
        if any(g.is_held(end_ids) for pool in self.pools for g in pool.slots.decoding()):
            return 1
        return 1 << (most.bit_length() - 1)

    def counted(self, now: float) -> None:
        """The step under way is counted: who ends by length, whose prompt is whole. Where guesses
        are checked, its tokens are waited for, as they say how far each sequence is."""
        step = self.under_way
        assert step is not None
        for number, (pool, plan) in enumerate(zip(self.pools, step.plans, strict=True)):
            if plan.shape != StepShape():
                accepted = self._accepted(step, number) if self.lookahead else None
                result = pool.scheduler.postprocess(plan, now, step.steps, accepted)
                step.handed += [(pool, job) for job in result.handoffs]

    def _accepted(self, step: UnderWay, number: int) -> dict[Job, int]:
        """How many guesses of each decoding sequence of a pool held."""
        batch, tokens = step.batches[number], step.tokens()[number]
        counts = [len(row.tokens) - 1 for row in tokens.decodes]
        self.pools[number].slots.advance(batch.slots_D, counts)
        jobs = [generation.job for generation in batch.generations]
        return {job: n for job, n in zip(jobs, counts, strict=True) if n}


def chunks_of(batches: Sequence[StepBatch]) -> Iterator[ChunkRow]:
    """The chunks of all pools."""
    for batch in batches:
        yield from batch.chunks
