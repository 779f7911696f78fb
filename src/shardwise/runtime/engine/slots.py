"""The engine's own record of its slots: which sequence is in each, its pages, what is cached.

It follows the changes that the scheduler names, and never looks into the scheduler.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shardwise.runtime.engine.generation import Generation
from shardwise.runtime.engine.step_batch import ON_DEVICE, ChunkRow, PageMove, StepBatch
from shardwise.scheduling.pages import PageCopy
from shardwise.scheduling.step import Changes, PromptChunk, StepPlan


class Slots:
    """`batch` rows of at most `pages` pages in each of `groups`; `generations` are found by their
    requests' ids."""

    def __init__(
        self, groups: int, batch: int, pages: int, generations: Mapping[int, Generation]
    ) -> None:
        self._table_GRM = np.zeros((groups, batch, pages), np.int32)
        self._cached_R = np.zeros(batch, np.int32)
        self._decodes_R = np.zeros(batch, bool)
        self._tokens_R = np.full(batch, ON_DEVICE, np.int32)
        self._by_id = generations
        self._held: list[Generation | None] = [None] * batch
        self._copies: list[PageCopy] = []

    def take_in(self, changes: Changes | None) -> None:
        """What differs from the step before. Tokens of the answers that joined must be known."""
        if changes is None:
            return
        for _, slot in changes.left:
            self._decodes_R[slot] = False
            self._held[slot] = None
        for job in changes.joined:
            slot, generation = job.slot, self._by_id[job.request.id]
            self._held[slot] = generation
            self._table_GRM[0, slot, : len(job.pages)] = job.pages
            for group, kept in enumerate(job.kept, 1):
                self._table_GRM[group, slot, list(kept)] = list(kept.values())
            self._cached_R[slot] = job.cached
            self._tokens_R[slot] = ON_DEVICE
            if job.cached >= job.target:
                self._decodes_R[slot] = True
                self._tokens_R[slot] = generation.token_at(job.cached)
        for job, group, at, pages in changes.grown:
            if job.slot >= 0:  # who has left since has no row
                self._table_GRM[group, job.slot, at : at + len(pages)] = pages
        self._copies += changes.copies

    def decoding(self) -> list[Generation]:
        """Who decodes, in the order of slots."""
        return [self._generation(slot) for slot in self._decodes_R.nonzero()[0].tolist()]

    def batch(
        self,
        plan: StepPlan,
        steps: int,
        moves: Sequence[PageMove] = (),
        guess: Callable[[Sequence[Generation]], np.ndarray] | None = None,
    ) -> StepBatch:
        """The step of a plan whose changes are taken in, and the slots as they are after it, but
        for what guesses bring (`advance`)."""
        decoding = self._decodes_R.nonzero()[0] if plan.shape.decodes else np.arange(0)
        copies, self._copies = self._copies, []
        generations = [self._generation(slot) for slot in decoding.tolist()]
        batch = StepBatch(
            generations=generations,
            guesses_DK=guess(generations) if guess is not None else None,
            slots_D=decoding.astype(np.int32),
            cached_D=self._cached_R[decoding],
            tokens_D=self._tokens_R[decoding],
            chunks=[self._chunk(chunk) for chunk in plan.chunks],
            table_GRM=self._table_GRM,
            steps=steps,
            copies=copies,
            moves=moves,
        )
        self._cached_R[decoding] += steps
        self._tokens_R[decoding] = ON_DEVICE
        for chunk in batch.chunks:
            self._cached_R[chunk.slot] = chunk.start + len(chunk.tokens)
            self._decodes_R[chunk.slot] = chunk.last
        return batch

    def advance(self, slots: np.ndarray, accepted: Sequence[int]) -> None:
        """Tokens that guesses brought the sequences of a step beyond one."""
        self._cached_R[slots] += np.array(accepted, np.int32)

    def _generation(self, slot: int) -> Generation:
        generation = self._held[slot]
        assert generation is not None, f"slot {slot} decodes and holds nobody"
        return generation

    def _chunk(self, chunk: PromptChunk) -> ChunkRow:
        generation = self._by_id[chunk.sequence.request.id]
        return ChunkRow(
            generation=generation,
            slot=chunk.sequence.slot,
            start=chunk.start,
            tokens=generation.between(chunk.start, chunk.start + chunk.tokens),
            last=chunk.last,
        )
