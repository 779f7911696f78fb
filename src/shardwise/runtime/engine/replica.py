"""A replica: an executor, and the pools of pages whose sequences step together on it.

One device has one pool. Where data-parallel attention or `heads_then_batch` lays sequences apart
over devices, each part has a pool with a scheduler and slots of its own, and a step is one step of
each; a pool with nothing to do has no rows in it. Who gets which request is routing
(`scheduling/routing.py`), between pools of a replica as between replicas.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardwise.runtime.engine.generation import Generation
from shardwise.runtime.engine.slots import Slots
from shardwise.runtime.engine.step_batch import (
    ChunkRow,
    Executor,
    PageMove,
    Pending,
    RowTokens,
    StepBatch,
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

    @property
    def shape(self) -> StepShape:
        """What the pools' steps compute together."""
        return StepShape(*map(sum, zip(*(plan.shape for plan in self.plans), strict=True)))

    @property
    def steps(self) -> int:
        """Decoding steps in this one."""
        return self.batches[0].steps

    def generations(self) -> Iterator[Generation]:
        """Whose rows it has."""
        for batch in self.batches:
            yield from batch.generations
            yield from (chunk.generation for chunk in batch.chunks)

    def rows(self) -> Iterator["EmittedRow"]:
        """What came out, once it is out."""
        for batch, tokens in zip(self.batches, self.pending.result(), strict=True):
            for generation, row in zip(batch.generations, tokens.decodes, strict=True):
                yield EmittedRow(generation, row, None)
            of_chunks = zip(batch.chunks, tokens.chunks, tokens.prompts, strict=True)
            for chunk, row, prompt in of_chunks:
                yield EmittedRow(chunk.generation, row, prompt)


class EmittedRow(NamedTuple):
    """What one row of a step brought; `prompt` has the logprobs of its prompt's tokens."""

    generation: Generation
    row: RowTokens | None
    prompt: RowTokens | None


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
            batches.append(pool.slots.batch(plan, steps, moves))
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
        """The step under way is counted: who ends by length, whose prompt is whole."""
        step = self.under_way
        assert step is not None
        for pool, plan in zip(self.pools, step.plans, strict=True):
            if plan.shape != StepShape():
                result = pool.scheduler.postprocess(plan, now, step.steps)
                step.handed += [(pool, job) for job in result.handoffs]


def chunks_of(batches: Sequence[StepBatch]) -> Iterator[ChunkRow]:
    """The chunks of all pools."""
    for batch in batches:
        yield from batch.chunks
