"""The executor that runs a model: steps padded to a few shapes, each a program compiled once.

A step's shape is (D rows that decode, T tokens of prompts): powers of two, so that a batch of any
size finds a program at most twice as large. Rows are at least two, since XLA's product of one row
differs from that of two in the last bits. Steps with prompts take one of two D, as the prompt
decides their time. Each shape has three programs at most: plain ones, those with all that rows may
ask for, and those with logprobs of prompts, too. `programs` counts what was compiled, of
`most_programs`; after `warm` it does not grow.

What a step's program brought, as tokens: which rows of its outputs are whose.

Where a model has many layers on one device, a step whose program is not there yet runs as programs
of its parts (`step_parts.py`), padded to one of fewer shapes, while its own is compiled behind.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.boundary.at_once import places_for
from shardwise.errors import MissingPart
from shardwise.models import ModelConfig
from shardwise.models.kv import CacheGroup
from shardwise.plans.served_steps import QUERY_BLOCK, power
from shardwise.runtime.attention.paged import paged_attention
from shardwise.runtime.cache_entry import held_as
from shardwise.runtime.engine.compiling import BackgroundCompiler
from shardwise.runtime.engine.embedding import Embedder, vectors_of
from shardwise.runtime.engine.generation import Generation
from shardwise.runtime.engine.model_step import (
    StepInputs,
    StepOutputs,
    StepProgram,
    StepState,
    jitted_step,
)
from shardwise.runtime.engine.row_settings import choices_of, settings_of
from shardwise.runtime.engine.sampling import Choices
from shardwise.runtime.engine.server_layout import ServerLayout, paged_layers
from shardwise.runtime.engine.step_batch import ChunkRow, RowTokens, StepBatch, StepTokens
from shardwise.runtime.engine.step_parts import in_parts, run_in_parts
from shardwise.runtime.engine.step_shapes import StepKey, StepShapes
from shardwise.runtime.options import Options
from shardwise.runtime.paged_cache import empty_pages
from shardwise.runtime.stack import keeps_stacks, unstacked
from shardwise.scheduling.pages import PageCopy

COMPILE_BYTES = 4 * 2**30
"""Memory that one compile is given room for; one for training took 1.6 GiB for an 8B and 4.4 for a
70B (docs/lab/log.md), and a step of a server is less."""


class Places(NamedTuple):
    """Where a pool's rows are in a step's outputs: its first decoding row, the row of its first
    chunk, and where in T each chunk begins."""

    decodes: int
    chunks: int
    tokens: list[int]


class PendingStep:
    """A step that the device runs."""

    def __init__(
        self, batches: Sequence[StepBatch], outputs: StepOutputs, places: list[Places]
    ) -> None:
        self._batches, self._outputs, self._places = batches, outputs, places

    def result(self) -> list[StepTokens]:
        """Its tokens by pool, once they are out."""
        outputs = jax.tree.map(np.asarray, self._outputs)
        pairs = zip(self._batches, self._places, strict=True)
        return [_tokens_of(outputs, batch, places) for batch, places in pairs]


def _tokens_of(outputs: Any, batch: StepBatch, places: Places) -> StepTokens:
    decodes = [
        _row(outputs, places.decodes + i, generation.sampling.logprobs)
        for i, generation in enumerate(batch.generations)
    ]
    chunks: list[RowTokens | None] = []
    prompts: list[RowTokens | None] = []
    for i, (chunk, at) in enumerate(zip(batch.chunks, places.tokens, strict=True)):
        wanted = chunk.generation.sampling
        row = _row(outputs, places.chunks + i, wanted.logprobs) if chunk.last else None
        chunks.append(row)
        prompts.append(_prompt(outputs, chunk, at, wanted.prompt_logprobs))
    return StepTokens(decodes, chunks, prompts)


def _row(outputs: Any, row: int, count: int | None) -> RowTokens:
    emitted = slice(None if outputs.counts_R is None else outputs.counts_R[row])
    tokens = outputs.tokens[emitted, row].tolist()
    if count is None:
        return RowTokens(tokens)
    chosen, top, values = (x[emitted, row] for x in outputs.logprobs)
    return RowTokens(tokens, chosen, top[:, :count], values[:, :count])


def _prompt(outputs: Any, chunk: ChunkRow, at: int, count: int | None) -> RowTokens | None:
    """Of the prompt's tokens that follow those of the chunk."""
    if count is None:
        return None
    generation = chunk.generation
    end = min(chunk.start + len(chunk.tokens) + 1, len(generation.prompt))
    tokens = [int(token) for token in generation.prompt[chunk.start + 1 : end]]
    chosen, top, values = (x[at : at + len(tokens)] for x in outputs.prompts)
    return RowTokens(tokens, chosen, top[:, :count], values[:, :count])


class DraftModel(NamedTuple):
    """A smaller model of the same vocabulary that guesses tokens."""

    params: Mapping[str, Any]
    cfg: ModelConfig


class ModelExecutor:
    """Runs `cfg` with `params` on one device, or on those of a `layout`, by which the parameters
    lie already. Each of its pools has rows for `batch` sequences, steps of `budget` tokens and of
    each of `groups` so many `pages`, of which a sequence has at most `table_width`; `host_pages` of
    the host's take swapped sequences and the prefix cache's second tier. `dtype` of the cache is a
    float's or a small one's. Of each row that decodes `lookahead` guesses are checked; a `draft`
    model makes them, with pages of its own by the same tables."""

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
        layout: ServerLayout | None = None,
        lookahead: int = 0,
        draft: DraftModel | None = None,
    ) -> None:
        self.pools = 1 if layout is None else layout.pool_count
        self.cfg, self.batch = cfg, batch
        self.shapes = StepShapes(
            pools=self.pools,
            batch=batch,
            budget=budget,
            groups=len(groups),
            table_width=table_width,
            lookahead=lookahead,
            multi_step=multi_step,
        )
        stacks = keeps_stacks(jax.default_backend())
        self._params = params if stacks else unstacked(params)
        self._end_ids = end_ids
        self._tables = tables_of(cfg, groups)
        if draft is not None:
            own = draft.params if stacks else unstacked(draft.params)
            self._params = {"model": self._params, "draft": own}
            self._tables += (0,) * len(draft.cfg.groups)
        self._pages, self._host_pages = pages, host_pages or [0] * len(groups)
        self._program = StepProgram(
            cfg=cfg,
            options=Options(compute=compute, kernel=paged_attention, experts="ragged"),
            tables=self._tables,
            page_size=page_size,
            layout=layout,
            draft=draft and draft.cfg,
        )
        everywhere = [count * self.pools for count in pages]
        slots = self.shapes.slots + 1
        whole = partial(empty_state, self._program, groups, everywhere, dtype, slots)
        # Where steps leave it, too: with a state of no device a program is compiled twice.
        lies: Any = jax.tree.leaves(self._params)[0].sharding
        if layout is not None:
            lies = layout.state_shardings(cfg, jax.eval_shape(whole))
        self._state = jax.jit(whole, out_shardings=lies)()
        self._host = tuple(
            {n: np.zeros(self._on_host(x, table), x.dtype) for n, x in arrays.items()}
            for table, arrays in zip(self._tables, self._state.pages, strict=True)
        )
        self._compiled: dict[StepKey, Callable[..., Any]] = {}
        self._shapes_held = jax.tree.map(_held, (self._params, self._state))
        alone = layout is None and draft is None and not stacks and in_parts(cfg)
        self.compiler = BackgroundCompiler(self._whole, self._compiled) if alone else None
        self._launched: set[StepKey] = set()
        self._copies = [
            _PageCopies(layout and self._of(group, lies.pages)) for group in range(len(groups))
        ]

    @property
    def vocabulary(self) -> int:
        """Tokens that the model has."""
        return self.cfg.vocabulary

    @property
    def programs(self) -> int:
        """Step programs compiled so far."""
        return len(self._compiled)

    @property
    def most_programs(self) -> int:
        """How many there can be."""
        return len(self.shapes.programs())

    def run(self, batches: Sequence[StepBatch]) -> "PendingStep":
        """Give the step to the device."""
        for pool, batch in enumerate(batches):
            for copy in batch.copies:
                self._move(pool, copy)
            for move in batch.moves:
                targets = _padded(self._global(pool, move.group, move.targets))
                self._put(move.group, move.contents, targets)
        rows = [g for batch in batches for g in batch.generations]
        prompts = [chunk.generation for batch in batches for chunk in batch.chunks]
        choices = choices_of(rows, prompts, self._end_ids)
        steps = batches[0].steps
        inputs, places = self._inputs(batches, choices, steps)
        outputs = self.launch(inputs, choices, steps)
        return PendingStep(batches, outputs, places)

    def extract(self, pool: int, group: int, pages: Sequence[int]) -> Any:
        """The contents of pages of a group after the steps given so far, by layer group; the last
        page's stand at the end as often as a power of two needs."""
        at = np.array(_padded(self._global(pool, group, pages)), np.int32)
        device = self._of(group, self._state.pages)
        return jax.tree.map(lambda array: array[:, at], device)

    def embedder(self, folder: Path) -> Embedder:
        """Makes vectors with the same weights, as the checkpoint's folder says. Raises BadRequest,
        and MissingPart where they are cut over devices."""
        program, params = self._program, self._params
        if program.layout is not None:
            raise MissingPart("embeddings run on one device; serve the model without a mesh")
        params = params if program.draft is None else params["model"]
        fields = vectors_of(folder, self.cfg.embedding_dim or self.cfg.d_model)
        compute, budget = program.options.compute, self.shapes.budget
        return Embedder(params=params, cfg=self.cfg, compute=compute, budget=budget, **fields)

    def warm(self) -> Iterator[StepKey]:
        """Compile every program that there can be, one a core at a time, then run each once."""
        self.duplicate(0, [0], [0])
        keys = self.shapes.programs()
        pool = ThreadPoolExecutor(places_for(COMPILE_BYTES))
        try:
            for key, program in zip(keys, pool.map(self._ready, keys), strict=True):
                self._compiled[key] = program
                yield key
        finally:
            pool.shutdown(cancel_futures=True)  # who stops waits for what is begun alone
        for key in keys:
            self.launch(self._nobody(key), key[3], key[2])

    def _ready(self, key: StepKey) -> Any:
        """The program of a step, which its first call need not compile."""
        jitted = self._jitted(key)
        jitted.lower(self._params, self._state, self._nobody(key)).compile()
        return jitted

    def _nobody(self, key: StepKey) -> StepInputs:
        """Inputs of a program in which every row is padding."""
        inputs = self.shapes.padding(*key[:2])
        nobody = [None] * len(inputs.rows.seeds_R)
        rows = settings_of(nobody, key[3], self._end_ids, self.cfg.vocabulary)
        return inputs._replace(rows=rows)

    def _jitted(self, key: StepKey) -> Any:
        return jitted_step(replace(self._program, choices=key[3], steps=key[2]))

    def _whole(self, key: StepKey) -> Callable[..., Any]:
        """The program of a step, compiled for its shape; rows that change more logits than most are
        of another one, which is compiled when they come."""
        jitted, inputs = self._jitted(key), self._nobody(key)
        compiled = jitted.lower(*self._shapes_held, inputs).compile()
        width = inputs.rows.bent_RB.shape

        def run(params: Any, state: StepState, given: StepInputs) -> Any:
            program = compiled if given.rows.bent_RB.shape == width else jitted
            return program(params, state, given)

        return run

    # One step.

    def launch(self, inputs: StepInputs, choices: Choices, steps: int) -> StepOutputs:
        """Give a step to the device."""
        key = (len(inputs.slots_D), len(inputs.tokens_T), steps, choices)
        program = self._compiled.get(key)
        if program is None and self.compiler is not None and steps == 1:
            program = partial(run_in_parts, replace(self._program, choices=choices))
        elif program is None:
            program = self._compiled[key] = self._jitted(key)
        self._state, outputs = program(self._params, self._state, inputs)
        if self.compiler is not None and key not in self._launched:
            self._launched.add(key)
            self.compiler.waited()
        for array in jax.tree.leaves(outputs):
            array.copy_to_host_async()
        return outputs

    def _padded(self, rows: int, tokens: int, choices: Choices, steps: int) -> tuple[int, int]:
        """D and T of a step: those of its own program, else the few for steps in parts."""
        D, T = self.shapes.padded(rows, tokens)
        key = (D, T, steps, choices)
        if self.compiler is None or steps > 1 or key in self._compiled:
            return D, T
        self.compiler.want(key)
        return self.shapes.few(D, T)

    def _inputs(
        self, batches: Sequence[StepBatch], choices: Choices, steps: int
    ) -> tuple[StepInputs, list[Places]]:
        """A step as arrays, and where in them the rows of each pool are."""
        rows = max(len(batch.slots_D) for batch in batches)
        D, T = self._padded(rows, max(map(_block_tokens, batches)), choices, steps)
        inputs = self.shapes.padding(D, T)
        who: list[Generation | None] = [None] * len(inputs.rows.seeds_R)
        places: list[Places] = []
        end = 0
        for pool, batch in enumerate(batches):
            row, tokens = pool * D, [pool * T + at for at in _starts(batch)]
            places.append(Places(row, self.pools * D + end, tokens))
            self._put_rows(inputs, batch, row, pool)
            for i, (chunk, at) in enumerate(zip(batch.chunks, tokens, strict=True), end):
                self._put_chunk(inputs, chunk, i, at, batch.table_GRM, pool)
                who[self.pools * D + i] = chunk.generation
            who[row : row + len(batch.generations)] = batch.generations
            end += len(batch.chunks)
        settings = settings_of(who, choices, self._end_ids, self.cfg.vocabulary)
        return inputs._replace(rows=settings), places

    def _put_rows(self, inputs: StepInputs, batch: StepBatch, at: int, pool: int) -> None:
        rows = slice(at, at + len(batch.slots_D))
        inputs.slots_D[rows] = batch.slots_D + pool * self.batch
        inputs.cached_D[rows] = batch.cached_D
        inputs.tokens_D[rows] = batch.tokens_D
        if self.shapes.lookahead and batch.guesses_DK is not None:
            inputs.guesses_DK[rows] = batch.guesses_DK
        tables = batch.table_GRM[:, batch.slots_D]  # narrower where the pool has fewer pages
        inputs.table_GDM[:, rows, : tables.shape[2]] = tables

    def _put_chunk(
        self, inputs: StepInputs, chunk: ChunkRow, i: int, at: int, table_GRM: np.ndarray, pool: int
    ) -> None:
        count = len(chunk.tokens)
        inputs.tokens_T[at : at + count] = chunk.tokens
        inputs.positions_T[at : at + count] = np.arange(chunk.start, chunk.start + count)
        following = chunk.generation.between(chunk.start + 1, chunk.start + 1 + count)
        inputs.targets_T[at : at + len(following)] = following
        blocks = slice(at // QUERY_BLOCK, at // QUERY_BLOCK + _blocks(chunk))
        inputs.table_GCM[:, blocks, : table_GRM.shape[2]] = table_GRM[:, chunk.slot, None]
        inputs.starts_C[blocks] = chunk.start
        inputs.ends_E[i] = at + count - 1
        if chunk.last:
            inputs.slots_E[i] = pool * self.batch + chunk.slot

    # Pages from elsewhere.

    def _global(self, pool: int, group: int, pages: Sequence[int]) -> list[int]:
        return [page + pool * self._pages[group] for page in pages]

    def _of(self, group: int, arrays: Sequence[Any]) -> dict[int, Any]:
        """What belongs to the layers of a group, by layer group."""
        return {i: arrays[i] for i, table in enumerate(self._tables) if table == group}

    def _move(self, pool: int, copy: PageCopy) -> None:
        """Copy pages on the device, or between it and the host."""
        group, base = copy.group, pool * self._host_pages[copy.group]
        host = self._of(group, self._host)
        if copy.kind == "out":
            targets = np.array(copy.targets) + base
            brought = self.extract(pool, group, copy.sources)
            for kept, array in zip(jax.tree.leaves(host), jax.tree.leaves(brought), strict=True):
                kept[:, targets] = np.asarray(array)[:, : len(targets)]
            return
        if copy.kind == "in":
            sources = np.array(_padded(copy.sources)) + base
            brought = jax.tree.map(lambda array: array[:, sources], host)
            self._put(group, brought, _padded(self._global(pool, group, copy.targets)))
            return
        pairs = (self._global(pool, group, pages) for pages in (copy.sources, copy.targets))
        self.duplicate(group, *pairs)

    def duplicate(self, group: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy pages of a group, by their numbers among those of all pools."""
        at = (np.array(pages, np.int32) for pages in (sources, targets))
        self._keep(self._copies[group].duplicate(self._of(group, self._state.pages), *at))

    def _put(self, group: int, brought: Any, targets: Sequence[int]) -> None:
        """Write pages; those of other devices are sent to these first."""
        here: Any = self._state.last_S.sharding
        at = np.array(targets, np.int32)
        sent = jax.device_put(brought, here)
        self._keep(self._copies[group].put(self._of(group, self._state.pages), sent, at))

    def _keep(self, moved: Mapping[int, Any]) -> None:
        pages, last = self._state
        self._state = StepState(tuple(moved.get(i, x) for i, x in enumerate(pages)), last)

    def _on_host(self, x: jax.Array, group: int) -> tuple[int, ...]:
        return (x.shape[0], self._host_pages[group] * self.pools, *x.shape[2:])


def _held(x: jax.Array) -> jax.ShapeDtypeStruct:
    """What of an array a program is compiled for."""
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def empty_state(
    program: StepProgram, groups: Sequence[CacheGroup], pages: Sequence[int], dtype: Any, slots: int
) -> StepState:
    """What a program's steps begin with: a cache of zeros with `pages` of each of the groups, and
    as many slots."""
    size, draft = program.page_size, program.draft
    layers = paged_layers(program.cfg, dtype, program.layout)
    dtype = held_as(dtype, program.platform)
    cache = empty_pages(program.cfg, groups, pages, size, dtype, layers)
    if draft is not None:
        every = CacheGroup(layers=tuple(range(len(draft.groups))))
        cache += empty_pages(draft, [every], pages[:1], size, dtype)
    return StepState(cache, jnp.zeros(slots, jnp.int32))


def tables_of(cfg: ModelConfig, groups: Sequence[CacheGroup]) -> tuple[int, ...]:
    """Which group's table each layer group of a model goes by."""
    tables = {layer: number for number, group in enumerate(groups) for layer in group.layers}
    return tuple(tables[layer] for layer in range(len(cfg.groups)))


def _padded(pages: Sequence[int]) -> list[int]:
    """Pages with the last of them as often as makes a power of two, so that programs that move
    pages are few."""
    found = list(pages)
    return found + found[-1:] * (power(len(found), 1) - len(found))


def _blocks(chunk: ChunkRow) -> int:
    """Blocks of queries that a chunk is padded to."""
    return -(-len(chunk.tokens) // QUERY_BLOCK)


def _block_tokens(batch: StepBatch) -> int:
    """Tokens of all chunks of a pool, each padded to whole blocks."""
    return sum(map(_blocks, batch.chunks)) * QUERY_BLOCK


def _starts(batch: StepBatch) -> Iterator[int]:
    """Where in the pool's T each chunk begins."""
    at = 0
    for chunk in batch.chunks:
        yield at
        at += _blocks(chunk) * QUERY_BLOCK


class _PageCopies:
    """Programs that write pages of a group, whose arrays lie as they did."""

    def __init__(self, lies: Any) -> None:
        made = partial(jax.jit, donate_argnums=0, out_shardings=lies)
        self.put, self.duplicate = made(_put), made(_duplicated)


def _put(pages: Any, brought: Any, targets: Any) -> Any:
    return jax.tree.map(lambda x, new: x.at[:, targets].set(new), pages, brought)


def _duplicated(pages: Any, sources: Any, targets: Any) -> Any:
    return _put(pages, jax.tree.map(lambda x: x[:, sources], pages), targets)
