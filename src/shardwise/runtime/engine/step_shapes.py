"""The few shapes that steps are padded to, and inputs of each in which every row is padding."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from shardwise.plans.served_steps import (
    LEAST_ROWS,
    MIXED_ROWS,
    QUERY_BLOCK,
    emitting_rows,
    most_rows,
    power,
)
from shardwise.runtime.attention.paged import NOWHERE
from shardwise.runtime.engine.model_step import StepInputs
from shardwise.runtime.engine.row_settings import settings_of
from shardwise.runtime.engine.sampling import EVERY, TOKEN_ALONE, WITH_PROMPTS, Choices
from shardwise.runtime.engine.step_batch import NO_GUESS

StepKey = tuple[int, int, int, Choices]
"""What one program of a step is compiled for: D, T, steps, and what rows ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShapes:
    """Of a server with so many `pools`, each with rows for `batch` sequences, steps of `budget`
    tokens and, of each of `groups` of layers, tables of `table_width` pages. Of each row that
    decodes `lookahead` guesses are checked; a step without prompts may be `multi_step` of them."""

    pools: int
    batch: int
    budget: int
    groups: int
    table_width: int
    lookahead: int = 0
    multi_step: int = 1

    @property
    def slots(self) -> int:
        """Rows of all pools; the one after them takes what padding emits."""
        return self.pools * self.batch

    def all(self) -> Iterator[tuple[int, int, int]]:
        """All (D, T, steps) that a step may be padded to: rows and tokens of each pool."""
        rows = sorted({self.rows(n) for n in range(1, self.batch + 1)})
        steps = 1
        while steps <= self.multi_step:
            yield from ((D, 0, steps) for D in rows)
            steps *= 2
        most, T = self.budget + self.batch * (QUERY_BLOCK - 1), QUERY_BLOCK
        while True:
            yield from ((D, T, 1) for D in sorted({0, *map(self.mixed, rows)}))
            if most <= T:
                return
            T *= 2

    def programs(self) -> list[StepKey]:
        """All programs that there can be."""
        found = [(*shape, choices) for choices in (TOKEN_ALONE, EVERY) for shape in self.all()]
        return found + [(D, T, steps, WITH_PROMPTS) for D, T, steps in self.all() if T]

    def rows(self, count: int) -> int:
        """D of a step without prompts: a power of two, or the batch in whole eights."""
        return min(power(count, LEAST_ROWS), self.most)

    @property
    def most(self) -> int:
        """D of the whole batch."""
        return most_rows(self.batch)

    def mixed(self, rows: int) -> int:
        """D of a step with prompts."""
        return min(MIXED_ROWS, self.most) if rows <= MIXED_ROWS else self.most

    def padded(self, rows: int, tokens: int) -> tuple[int, int]:
        """D and T of a step of so many rows and, in whole blocks, tokens of a pool at most."""
        T = power(tokens, QUERY_BLOCK) if tokens else 0
        D = self.rows(rows) if rows else 0
        return self.mixed(D) if T and rows else D, T

    def few(self, D: int, T: int) -> tuple[int, int]:
        """The same for steps in parts, of which there are fewer: two D, and every second T."""
        most = QUERY_BLOCK * 4
        while most < T:
            most *= 4
        return self.mixed(D) if D else 0, min(most, self.most_tokens) if T else 0

    @property
    def most_tokens(self) -> int:
        """The largest T."""
        return power(self.budget + self.batch * (QUERY_BLOCK - 1), QUERY_BLOCK)

    def padding(self, D: int, T: int) -> StepInputs:
        """The inputs of a step in which every row is padding; to be filled in."""
        each = emitting_rows(T, self.batch)
        D, T, E = D * self.pools, T * self.pools, each * self.pools
        C, G, M = T // QUERY_BLOCK, self.groups, self.table_width
        whole = partial(np.full, dtype=np.int32)
        return StepInputs(
            slots_D=whole(D, self.slots),
            cached_D=whole(D, NOWHERE),
            tokens_D=whole(D, 0),
            guesses_DK=whole((D, self.lookahead), NO_GUESS),
            table_GDM=whole((G, D, M), 0),
            tokens_T=whole(T, 0),
            positions_T=whole(T, NOWHERE),
            targets_T=whole(T, 0),
            table_GCM=whole((G, C, M), 0),
            starts_C=whole(C, 0),
            ends_E=whole(E, 0),
            slots_E=whole(E, self.slots),
            rows=settings_of([None] * (D + E), Choices(), frozenset(), 1),
        )
