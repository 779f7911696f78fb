"""An executor without a model: tokens that a person can compute, and pages that hold tokens.

The token after t_0 ... t_n is (7 + sum of (i + 1) t_i) mod vocabulary, summed over what the pages
say, not over what the request says: a page that was given away too early, copied wrong or not
filled changes the answer. Groups of layers that keep only the end of a sequence have pages of their
own, a window's with tokens, a state's with the sum, which must say the same.
"""

from collections.abc import Callable, Sequence

import numpy as np

from shardwise.runtime.engine.generation import Generation, Sampling
from shardwise.runtime.engine.step_batch import (
    NO_GUESS,
    ON_DEVICE,
    ChunkRow,
    RowTokens,
    StepBatch,
    StepTokens,
)
from shardwise.scheduling.kept import KeptGroup

EMPTY = -1


def mock_token(tokens: Sequence[int] | np.ndarray, vocabulary: int) -> int:
    """The token after `tokens`."""
    weights = np.arange(1, len(tokens) + 1)
    return int((7 + np.dot(weights, np.asarray(tokens, np.int64))) % vocabulary)


class MockExecutor:
    """In each of its `pools` `pages` pages of `page_size` tokens on the device, `host_pages` on the
    host, and those of the `kept` groups."""

    def __init__(
        self,
        *,
        pages: int,
        page_size: int,
        batch: int,
        vocabulary: int = 1000,
        host_pages: int = 0,
        kept: Sequence[KeptGroup] = (),
        pools: int = 1,
        wait: Callable[[StepBatch], None] | None = None,
    ) -> None:
        self.pools, self.vocabulary = pools, vocabulary
        self.steps = self.programs = self.most_programs = 0
        rooms = [(pages, host_pages), *((group.pages, group.host_pages) for group in kept)]
        self._parts = [_MockPool(rooms, page_size, batch, vocabulary, kept) for _ in range(pools)]
        self._wait = wait

    def run(self, batches: Sequence[StepBatch]) -> "Finished":
        """The step, at once."""
        self.steps += batches[0].steps
        if self._wait is not None:
            for batch in batches:
                self._wait(batch)
        return Finished([part.run(b) for part, b in zip(self._parts, batches, strict=True)])

    def extract(self, pool: int, group: int, pages: Sequence[int]) -> np.ndarray:
        """The tokens of pages."""
        return self._parts[pool].device[group][list(pages)]


class _MockPool:
    """The pages of one pool, and what each of its slots emitted last."""

    def __init__(
        self,
        rooms: Sequence[tuple[int, int]],
        page_size: int,
        batch: int,
        vocabulary: int,
        kept: Sequence[KeptGroup],
    ) -> None:
        self.vocabulary = vocabulary
        self._size = page_size
        self._kept = kept
        self.device = [np.full((count, page_size), EMPTY, np.int64) for count, _ in rooms]
        self._host = [np.full((max(count, 1), page_size), EMPTY, np.int64) for _, count in rooms]
        self._emitted = np.full(batch, EMPTY, np.int64)

    def run(self, batch: StepBatch) -> StepTokens:
        """One step of its rows."""
        for copy in batch.copies:
            source = self._host if copy.kind == "in" else self.device
            target = self._host if copy.kind == "out" else self.device
            target[copy.group][list(copy.targets)] = source[copy.group][list(copy.sources)]
        for move in batch.moves:
            self.device[move.group][list(move.targets)] = move.contents
        chunks: list[RowTokens | None] = []
        for row in batch.chunks:
            table_GM = batch.table_GRM[:, row.slot]
            self._write(table_GM, row.start, row.tokens)
            chunks.append(None)
            if row.last:
                token = self._next(table_GM, row.start + len(row.tokens))
                token = _in_form(row.generation, token, self.vocabulary)
                self._emitted[row.slot] = token
                chunks[-1] = _row([token], row.generation.sampling)
        decodes = [self._decode(batch, row) for row in range(len(batch.slots_D))]
        prompts = [_prompt(row) for row in batch.chunks]
        return StepTokens(decodes, chunks, prompts)

    def _decode(self, batch: StepBatch, row: int) -> RowTokens:
        tokens: list[int] = []
        slot = batch.slots_D[row]
        guesses: list[int] = []
        if batch.guesses_DK is not None:
            guesses = [int(g) for g in batch.guesses_DK[row]]
            guesses = guesses[: guesses.index(NO_GUESS)] if NO_GUESS in guesses else guesses
        table_GM = batch.table_GRM[:, slot]
        token = batch.tokens_D[row]
        token = int(self._emitted[slot] if token == ON_DEVICE else token)
        cached = int(batch.cached_D[row])
        if guesses:
            self._write(table_GM, cached + 1, np.array(guesses))
        for step in range(batch.steps + len(guesses)):
            self._write(table_GM, cached + step, np.array([token]))
            token = self._next(table_GM, cached + step + 1)
            token = _in_form(batch.generations[row], token, self.vocabulary)
            tokens.append(token)
            if guesses and (step == len(guesses) or token != guesses[step]):
                break
        self._emitted[slot] = token
        return _row(tokens, batch.generations[row].sampling)

    def _write(self, table_GM: np.ndarray, start: int, tokens: np.ndarray) -> None:
        """Into the pages of every group; windows must still hold what the first token sees."""
        size, end = self._size, start + len(tokens)
        for number, group in enumerate(self._kept, 1):
            held, pages = self.device[number], table_GM[number]
            if group.state:
                before = held[pages[(start - 1) // size], 0] if start else 0
                weights = np.arange(start + 1, end + 1)
                held[pages[(end - 1) // size]] = before + np.dot(weights, tokens)
                continue
            seen = range(max(0, start - group.reach * size), start)
            for place in seen:
                token = self.device[0][table_GM[0, place // size], place % size]
                assert held[pages[place // size], place % size] == token, f"place {place}"
        for number, held in enumerate(self.device):
            if number and self._kept[number - 1].state:
                continue
            for place, token in enumerate(tokens, start):
                held[table_GM[number, place // size], place % size] = token

    def _next(self, table_GM: np.ndarray, length: int) -> int:
        count = -(-length // self._size)
        held = self.device[0][table_GM[0, :count]].reshape(-1)[:length]
        assert (held >= 0).all(), f"places {np.flatnonzero(held < 0)} of {length} are empty"
        token = mock_token(held, self.vocabulary)
        for number, group in enumerate(self._kept, 1):
            if group.state:
                total = self.device[number][table_GM[number, count - 1], 0]
                assert (7 + total) % self.vocabulary == token, "another state"
        return token


class Finished:
    """A step that is over."""

    def __init__(self, tokens: list[StepTokens]) -> None:
        self._tokens = tokens

    def result(self) -> list[StepTokens]:
        """Its tokens."""
        return self._tokens


def _in_form(generation: Generation, token: int, vocabulary: int) -> int:
    """The token, or the next above it that the answer's form allows (after the last comes 0)."""
    if generation.form is None:
        return token
    bits = np.unpackbits(generation.form.allowed().view(np.uint8), bitorder="little")
    order = np.roll(np.arange(vocabulary), -token)
    return int(order[bits[order].argmax()])


def _row(tokens: list[int], sampling: Sampling) -> RowTokens:
    """A certain choice: logprob 0, and tokens next to it as the likeliest others."""
    if sampling.logprobs is None:
        return RowTokens(tokens)
    return _certain(tokens, sampling.logprobs)


def _prompt(row: ChunkRow) -> RowTokens | None:
    """Of the prompt's tokens that follow those of the chunk."""
    sampling = row.generation.sampling
    if sampling.prompt_logprobs is None:
        return None
    tokens = row.generation.prompt[row.start + 1 : row.start + len(row.tokens) + 1]
    return _certain([int(token) for token in tokens], sampling.prompt_logprobs)


def _certain(tokens: list[int], count: int) -> RowTokens:
    top = np.array(tokens)[:, None] + np.arange(count)
    falling = -np.broadcast_to(np.arange(count, dtype=np.float32), top.shape)
    return RowTokens(tokens, np.zeros(len(tokens), np.float32), top, falling)
