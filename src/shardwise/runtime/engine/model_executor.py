"""The executor that runs a model: steps padded to a few shapes, each a program compiled once.

A step's shape is (D rows that decode, T tokens of prompts): powers of two, so that a batch of any
size finds a program at most twice as large. Rows are at least two, since XLA's product of one row
differs from that of two in the last bits. Steps with prompts take one of two D, as the prompt
decides their time. `programs` counts what was compiled; after `warm` it does not grow.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.models import ModelConfig
from shardwise.models.kv import CacheGroup
from shardwise.runtime.attention.paged import NOWHERE, paged_attention
from shardwise.runtime.engine.generation import Generation
from shardwise.runtime.engine.model_step import (
    StepInputs,
    StepOutputs,
    StepState,
    model_step,
)
from shardwise.runtime.engine.row_settings import choices_of, settings_of
from shardwise.runtime.engine.sampling import Choices
from shardwise.runtime.engine.step_batch import ChunkRow, RowTokens, StepBatch, StepTokens
from shardwise.runtime.options import Options
from shardwise.runtime.paged_cache import empty_pages
from shardwise.runtime.stack import unstacked
from shardwise.scheduling.pages import PageCopy

QUERY_BLOCK = 16
"""Tokens of a prompt that attend together; a chunk is padded to whole blocks."""
LEAST_ROWS = 2
MIXED_ROWS = 8
LIKELIEST = Choices()

Key = tuple[int, int, int, Choices]


class ModelExecutor:
    """Runs `cfg` with `params` on one device. Of each of `groups` there are `pages`, of which a
    sequence has at most `table_width`; `host_pages` of the host's take swapped sequences and the
    prefix cache's second tier. `dtype` of the cache is a float's or int8."""

    def __init__(
        self,
        params: Mapping[str, Any],
        cfg: ModelConfig,
        *,
        groups: Sequence[CacheGroup],
        pages: Sequence[int],
        page_size: int,
        table_width: int,
        batch: int,
        budget: int,
        dtype: Any,
        compute: str = "f32",
        host_pages: Sequence[int] = (),
        end_ids: frozenset[int] = frozenset(),
        multi_step: int = 1,
    ) -> None:
        self.cfg, self.batch, self.budget = cfg, batch, budget
        self.table_width, self._page_size = table_width, page_size
        self.multi_step = multi_step
        self._params = unstacked(params) if jax.default_backend() == "cpu" else params
        self._options = Options(compute=compute, kernel=paged_attention, experts="ragged")
        self._end_ids = end_ids
        self._tables, self._groups = tables_of(cfg, groups), len(groups)
        cache = empty_pages(cfg, groups, pages, page_size, dtype)
        self._state = StepState(cache, jnp.zeros(batch + 1, jnp.int32))
        room = host_pages or [0] * len(groups)
        self._host = tuple(
            jax.tree.map(lambda x, n=room[table]: np.zeros(_on_host(x, n), x.dtype), arrays)
            for table, arrays in zip(self._tables, cache, strict=True)
        )
        self._compiled: dict[Key, Callable[..., Any]] = {}
        self._copy = jax.jit(_copied, donate_argnums=0)

    @property
    def programs(self) -> int:
        """Step programs compiled so far."""
        return len(self._compiled)

    def run(self, batch: StepBatch) -> "PendingStep":
        """Give the step to the device."""
        for copy in batch.copies:
            self._move(copy)
        rows = [*batch.generations, *(chunk.generation for chunk in batch.chunks)]
        choices = choices_of(rows, self._end_ids)
        inputs = self._inputs(batch, choices)
        outputs = self._launch(inputs, choices, batch.steps)
        return PendingStep(batch, outputs, len(inputs.slots_D))

    def warm(self, choices: Choices = LIKELIEST) -> Iterator[Key]:
        """Compile every shape for some choices, one at a time."""
        for D, T, steps in self.shapes():
            inputs = self._padding(D, T)
            self._launch(inputs, choices, steps)
            yield D, T, steps, choices

    def shapes(self) -> Iterator[tuple[int, int, int]]:
        """All (D, T, steps) that a step may be padded to."""
        rows = sorted({_power(n, LEAST_ROWS) for n in range(1, self.batch + 1)})
        steps = 1
        while steps <= self.multi_step:
            yield from ((D, 0, steps) for D in rows)
            steps *= 2
        most, T = self.budget + self.batch * (QUERY_BLOCK - 1), QUERY_BLOCK
        while True:
            yield from ((D, T, 1) for D in sorted({0, *map(self._mixed, rows)}))
            if most <= T:
                return
            T *= 2

    def _mixed(self, rows: int) -> int:
        """D of a step with prompts."""
        most = _power(self.batch, LEAST_ROWS)
        return min(MIXED_ROWS, most) if rows <= MIXED_ROWS else most

    # One step.

    def _launch(self, inputs: StepInputs, choices: Choices, steps: int) -> StepOutputs:
        key = (len(inputs.slots_D), len(inputs.tokens_T), steps, choices)
        program = self._compiled.get(key)
        if program is None:
            program = self._compiled[key] = _program(
                self.cfg, self._options, choices, steps, self._tables, self._page_size
            )
        self._state, outputs = program(self._params, self._state, inputs)
        for array in jax.tree.leaves(outputs):
            array.copy_to_host_async()
        return outputs

    def _inputs(self, batch: StepBatch, choices: Choices) -> StepInputs:
        rows, chunks = len(batch.slots_D), batch.chunks
        blocks = [-(-len(chunk.tokens) // QUERY_BLOCK) for chunk in chunks]
        T = _power(sum(blocks) * QUERY_BLOCK, QUERY_BLOCK) if chunks else 0
        D = _power(rows, LEAST_ROWS) if rows else 0
        D = self._mixed(D) if chunks and rows else D
        inputs = self._padding(D, T)
        inputs.slots_D[:rows] = batch.slots_D
        inputs.cached_D[:rows] = batch.cached_D
        inputs.tokens_D[:rows] = batch.tokens_D
        inputs.table_GDM[:, :rows] = batch.table_GRM[:, batch.slots_D]
        at = 0
        for i, (chunk, count) in enumerate(zip(chunks, blocks, strict=True)):
            self._put_chunk(inputs, chunk, i, at, count, batch.table_GRM)
            at += count * QUERY_BLOCK
        who: list[Generation | None] = [None] * (D + len(inputs.ends_E))
        who[:rows] = batch.generations
        who[D : D + len(chunks)] = [chunk.generation for chunk in chunks]
        settings = settings_of(who, choices, self._end_ids, self.cfg.vocabulary)
        return inputs._replace(rows=settings)

    def _put_chunk(
        self,
        inputs: StepInputs,
        chunk: ChunkRow,
        i: int,
        at: int,
        blocks: int,
        table_GRM: np.ndarray,
    ) -> None:
        count = len(chunk.tokens)
        inputs.tokens_T[at : at + count] = chunk.tokens
        inputs.positions_T[at : at + count] = np.arange(chunk.start, chunk.start + count)
        following = chunk.generation.between(chunk.start + 1, chunk.start + 1 + count)
        inputs.targets_T[at : at + len(following)] = following
        first = at // QUERY_BLOCK
        inputs.table_GCM[:, first : first + blocks] = table_GRM[:, chunk.slot, None]
        inputs.starts_C[first : first + blocks] = chunk.start
        inputs.ends_E[i] = at + count - 1
        if chunk.last:
            inputs.slots_E[i] = chunk.slot

    def _move(self, copy: PageCopy) -> None:
        """Copy pages on the device, or between it and the host."""
        sources, targets = np.array(copy.sources), np.array(copy.targets)
        layers = [i for i, table in enumerate(self._tables) if table == copy.group]
        pages, last = self._state
        device = {i: pages[i] for i in layers}
        host = {i: self._host[i] for i in layers}
        if copy.kind == "out":
            for kept, array in zip(jax.tree.leaves(host), jax.tree.leaves(device), strict=True):
                kept[:, targets] = np.asarray(array[:, sources])
            return
        brought = jax.tree.map(lambda x: x[:, sources], host if copy.kind == "in" else device)
        moved = self._copy(device, brought, targets)
        self._state = StepState(tuple(moved.get(i, x) for i, x in enumerate(pages)), last)

    def _padding(self, D: int, T: int) -> StepInputs:
        """The inputs of a step in which every row is padding; to be filled in."""
        C, E = T // QUERY_BLOCK, _ends(T, self.batch)
        G, M = self._groups, self.table_width
        whole = partial(np.full, dtype=np.int32)
        return StepInputs(
            slots_D=whole(D, self.batch),
            cached_D=whole(D, NOWHERE),
            tokens_D=whole(D, 0),
            table_GDM=whole((G, D, M), 0),
            tokens_T=whole(T, 0),
            positions_T=whole(T, NOWHERE),
            targets_T=whole(T, 0),
            table_GCM=whole((G, C, M), 0),
            starts_C=whole(C, 0),
            ends_E=whole(E, 0),
            slots_E=whole(E, self.batch),
            rows=settings_of([None] * (D + E), Choices(), frozenset(), 1),
        )


class PendingStep:
    """A step that the device runs."""

    def __init__(self, batch: StepBatch, outputs: StepOutputs, rows: int) -> None:
        self._batch, self._outputs, self._rows = batch, outputs, rows

    def result(self) -> StepTokens:
        """Its tokens, once they are out."""
        outputs = jax.tree.map(np.asarray, self._outputs)
        decodes = [
            _row(outputs, i, generation.sampling.logprobs)
            for i, generation in enumerate(self._batch.generations)
        ]
        chunks: list[RowTokens | None] = []
        prompts: list[RowTokens | None] = []
        at = 0
        for i, chunk in enumerate(self._batch.chunks):
            wanted = chunk.generation.sampling
            row = _row(outputs, self._rows + i, wanted.logprobs) if chunk.last else None
            chunks.append(row)
            prompts.append(_prompt(outputs, chunk, at, wanted.prompt_logprobs))
            at += -(-len(chunk.tokens) // QUERY_BLOCK) * QUERY_BLOCK
        return StepTokens(decodes, chunks, prompts)


@lru_cache(maxsize=256)
def _program(
    cfg: ModelConfig,
    options: Options,
    choices: Choices,
    steps: int,
    tables: tuple[int, ...],
    page_size: int,
) -> Callable[..., Any]:
    """The step of some choices, for all executors of a model."""
    fixed = {"choices": choices, "steps": steps, "tables": tables, "page_size": page_size}
    return jax.jit(partial(model_step, cfg=cfg, options=options, **fixed), donate_argnums=1)


def _row(outputs: Any, row: int, count: int | None) -> RowTokens:
    tokens = outputs.tokens[:, row].tolist()
    if count is None:
        return RowTokens(tokens)
    chosen, top, values = outputs.logprobs
    return RowTokens(tokens, chosen[:, row], top[:, row, :count], values[:, row, :count])


def _prompt(outputs: Any, chunk: ChunkRow, at: int, count: int | None) -> RowTokens | None:
    """Of the prompt's tokens that follow those of the chunk."""
    if count is None:
        return None
    generation = chunk.generation
    end = min(chunk.start + len(chunk.tokens) + 1, len(generation.prompt))
    tokens = [int(token) for token in generation.prompt[chunk.start + 1 : end]]
    chosen, top, values = (x[at : at + len(tokens)] for x in outputs.prompts)
    return RowTokens(tokens, chosen, top[:, :count], values[:, :count])


def tables_of(cfg: ModelConfig, groups: Sequence[CacheGroup]) -> tuple[int, ...]:
    """Which group's table each layer group of a model goes by."""
    tables = {layer: number for number, group in enumerate(groups) for layer in group.layers}
    return tuple(tables[layer] for layer in range(len(cfg.groups)))


def _power(count: int, least: int) -> int:
    """The smallest power of two from `least` on that is not below."""
    return max(least, 1 << max(count - 1, 0).bit_length())


def _ends(T: int, batch: int) -> int:
    """Rows for the last tokens of chunks in T tokens."""
    return max(LEAST_ROWS, min(T // QUERY_BLOCK, _power(batch, LEAST_ROWS))) if T else 0


def _on_host(x: jax.Array, pages: int) -> tuple[int, ...]:
    return (x.shape[0], pages, *x.shape[2:])


def _copied(pages: Any, brought: Any, targets: Any) -> Any:
    return jax.tree.map(lambda x, new: x.at[:, targets].set(new), pages, brought)
