"""The five verbs of the book over an executor: prefill, insert, generate, free, extract.

    engine = SlotEngine(executor, slots=4, pages=8, page_size=16)
    engine.insert(engine.prefill([3, 14, 15]), slot=0)
    engine.generate()                          # {0: token}, and so on for each slot that is held
    other.insert(engine.extract(0), slot=2)    # goes on elsewhere
    engine.free(0)

`opening.open_slots` makes one of a checkpoint. No scheduler: the caller says who is in which slot
and when it has ended. A slot owns its pages, and one slot more is where prompts are computed. What
serves requests is `core.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from shardwise.errors import BadRequest
from shardwise.runtime.engine.generation import (
    GREEDY,
    NO_NUMBERS,
    Generation,
    LogitsError,
    Sampling,
)
from shardwise.runtime.engine.step_batch import (
    ChunkRow,
    Executor,
    PageMove,
    RowTokens,
    StepBatch,
    StepTokens,
)


class Prefix(NamedTuple):
    """A sequence with its cache: the request with the tokens that it has so far, of which all but
    the last are cached, and by group the contents of its pages."""

    generation: Generation
    contents: tuple[Any, ...]


class SlotEngine:
    """So many `slots` of at most `pages` pages each on an executor of one pool, whose batch is one
    larger and whose `groups` of layers have (slots + 1) * pages pages each. A prompt is computed
    `budget` tokens at a time."""

    def __init__(
        self,
        executor: Executor,
        *,
        slots: int,
        pages: int,
        page_size: int,
        groups: int = 1,
        budget: int = 512,
    ) -> None:
        own_RM = np.arange((slots + 1) * pages, dtype=np.int32).reshape(slots + 1, pages)
        self._table_GRM = np.tile(own_RM, (groups, 1, 1))
        self._executor, self._budget, self._page_size = executor, budget, page_size
        self._slots, self._most = slots, pages * page_size
        self._held: dict[int, Generation] = {}
        self._arriving: dict[int, Prefix] = {}
        """What is inserted with the next step."""
        self._numbers = count(1)

    def prefill(self, prompt: Sequence[int], sampling: Sampling = GREEDY, seed: int = 0) -> Prefix:
        """Compute a prompt and its first token. Raises BadRequest for one that no slot holds."""
        if not 0 < len(prompt) < self._most:
            raise BadRequest(
                f"the prompt has {len(prompt):,} tokens; a slot holds 1 to {self._most - 1:,} and "
                "an answer"
            )
        if sampling.form is not None:
            raise BadRequest("a slot cannot hold an answer to a form; use the engine of core.py")
        generation = Generation(next(self._numbers), prompt, sampling, seed, 0.0)
        row: RowTokens | None = None
        for start in range(0, len(prompt), self._budget):
            end = min(start + self._budget, len(prompt))
            tokens = generation.between(start, end)
            chunk = ChunkRow(
                generation=generation,
                slot=self._slots,
                start=start,
                tokens=tokens,
                last=end == len(prompt),
            )
            (row,) = self._run([], [chunk]).chunks
        assert row is not None
        generation.tokens += row.tokens
        return Prefix(generation, self._contents(self._slots, generation))

    def insert(self, prefix: Prefix, slot: int) -> None:
        """Let a sequence go on in a free slot; the prefix may be inserted again elsewhere."""
        if not 0 <= slot < self._slots or slot in self._held:
            raise BadRequest(f"slot {slot} is in use or not one of {self._slots}; free it first")
        held = replace(prefix.generation, tokens=list(prefix.generation.tokens))
        self._held[slot] = held
        self._arriving[slot] = Prefix(held, prefix.contents)

    def generate(self) -> dict[int, int]:
        """One step of all sequences that are held: the next token by slot. The caller frees those
        that end by it. Raises BadRequest where one has filled its slot."""
        for slot, generation in self._held.items():
            if generation.known > self._most:
                raise BadRequest(f"slot {slot} is full at {self._most:,} tokens; free it")
        slots = sorted(self._held)
        rows = self._run(slots, []).decodes if slots else []
        for slot, row in zip(slots, rows, strict=True):
            self._held[slot].tokens += row.tokens
        return {slot: self._held[slot].tokens[-1] for slot in slots}

    def free(self, slot: int) -> None:
        """Give up the sequence of a slot."""
        self._of(slot)
        del self._held[slot]
        self._arriving.pop(slot, None)

    def extract(self, slot: int) -> Prefix:
        """The sequence of a slot with its cache, to be inserted here or elsewhere; it stays."""
        held = self._of(slot)
        if slot in self._arriving:
            return self._arriving[slot]
        copy = replace(held, tokens=list(held.tokens))
        return Prefix(copy, self._contents(slot, copy))

    def _of(self, slot: int) -> Generation:
        if slot not in self._held:
            raise BadRequest(f"slot {slot} holds no sequence; insert one")
        return self._held[slot]

    def _run(self, slots: Sequence[int], chunks: list[ChunkRow]) -> StepTokens:
        """A step of slots that decode, or of a chunk of a prompt."""
        held = [self._held[slot] for slot in slots]
        arrived = [slot for slot in slots if slot in self._arriving]
        batch = StepBatch(
            generations=held,
            slots_D=np.array(slots, np.int32),
            cached_D=np.array([g.known - 1 for g in held], np.int32),
            tokens_D=np.array([g.tokens[-1] for g in held], np.int32),
            chunks=chunks,
            table_GRM=self._table_GRM,
            copies=[],
            moves=[m for slot in arrived for m in self._moves(slot, self._arriving.pop(slot))],
        )
        (found,) = self._executor.run([batch]).result()
        rows = [*found.decodes, *(row for row in found.chunks if row is not None)]
        if any(token < 0 for row in rows for token in row.tokens):
            raise LogitsError(NO_NUMBERS)
        return found

    def _moves(self, slot: int, prefix: Prefix) -> list[PageMove]:
        return [
            PageMove(group, contents, self._pages(group, slot, prefix.generation))
            for group, contents in enumerate(prefix.contents)
        ]

    def _contents(self, slot: int, generation: Generation) -> tuple[Any, ...]:
        groups = range(len(self._table_GRM))
        return tuple(
            self._executor.extract(0, group, self._pages(group, slot, generation))
            for group in groups
        )

    def _pages(self, group: int, slot: int, generation: Generation) -> list[int]:
        used = -(-(generation.known - 1) // self._page_size)
        return self._table_GRM[group, slot, :used].tolist()
