"""One step as arrays: what an executor gets. Made from a StepPlan, with the scheduler left behind.

D sequences decode, in the order of their slots; then come chunks of prompts. `table_GRM` has for
each group of layers (`scheduling/kept.py`; full attention is the first) a row for every slot of the
batch, with the pages of the sequence in it; where it has none any more, any page may stand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from shardwise.runtime.engine.generation import Generation, TokenLogprobs
from shardwise.scheduling.pages import PageCopy

ON_DEVICE = -1
"""In place of a token: the one that the slot emitted last, which the host may not know yet."""
NO_GUESS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRow:
    """Tokens of a prompt that run in this step, after `start` cached ones; the `last` chunk yields
    a token for its slot."""

    generation: Generation
    slot: int
    start: int
    tokens: np.ndarray
    last: bool


class PageMove(NamedTuple):
    """Pages of a group that another replica's executor gave (`extract`), and where they go."""

    group: int
    contents: Any
    targets: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """What an executor runs in one pool: first the `copies`, then the `moves`, then chunks and
    decoding rows together, and the decoding rows `steps` times in all (1 where there are chunks).

    A decoding row puts `tokens_D` (or ON_DEVICE) after `cached_D` tokens, and behind it the guesses
    of `guesses_DK` up to the first NO_GUESS, where the host makes them. The table belongs to the
    engine, which changes it for the next step: an executor copies what it keeps.
    """

    generations: list[Generation]
    slots_D: np.ndarray
    cached_D: np.ndarray
    tokens_D: np.ndarray
    chunks: list[ChunkRow]
    table_GRM: np.ndarray
    guesses_DK: np.ndarray | None = None
    steps: int = 1
    copies: list[PageCopy]
    moves: Sequence[PageMove] = ()


class RowTokens(NamedTuple):
    """What one row emitted: its tokens [steps], or [1 + the guesses that held], and where they are
    asked for their logprobs with the likeliest tokens [., K] and theirs; for a chunk also those of
    its prompt's next tokens."""

    tokens: list[int]
    logprobs: np.ndarray | None = None
    top: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None

    def reported(self) -> list[TokenLogprobs]:
        """What it says of each token; nothing where it was not asked for it."""
        if self.logprobs is None:
            return []
        assert self.top is not None
        assert self.top_logprobs is not None
        return [
            TokenLogprobs(
                token, float(logprob), tuple(zip(top.tolist(), found.tolist(), strict=True))
            )
            for token, logprob, top, found in zip(
                self.tokens, self.logprobs, self.top, self.top_logprobs, strict=True
            )
        ]


class StepTokens(NamedTuple):
    """Per decoding row, per chunk (nothing where it is not the last) what came out, and per chunk
    the logprobs of its prompt where they were asked for."""

    decodes: list[RowTokens]
    chunks: list[RowTokens | None]
    prompts: list[RowTokens | None]


class Pending(Protocol):
    """A step that is under way."""

    def result(self) -> Sequence[StepTokens]:
        """Its tokens by pool, once they are out."""
        ...


class Executor(Protocol):
    """Runs steps in the order in which they are given, each after the one before it."""

    @property
    def pools(self) -> int:
        """Into how many pools its pages and rows are cut."""
        ...

    @property
    def vocabulary(self) -> int:
        """Tokens that its model has."""
        ...

    @property
    def programs(self) -> int:
        """Step programs compiled so far."""
        ...

    @property
    def most_programs(self) -> int:
        """How many of them there can be."""
        ...

    def run(self, batches: Sequence[StepBatch]) -> Pending:
        """Begin a step, of a batch for each pool; the next may be given before its result is asked
        for."""
        ...

    def extract(self, pool: int, group: int, pages: Sequence[int]) -> Any:
        """The contents of pages of a group after the steps given so far, for the `moves` of another
        executor."""
        ...
