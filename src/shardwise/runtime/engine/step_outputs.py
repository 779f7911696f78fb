"""What a step's program brought, as tokens: which rows of its outputs are whose."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from shardwise.runtime.engine.model_step import StepOutputs
from shardwise.runtime.engine.step_batch import ChunkRow, RowTokens, StepBatch, StepTokens


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
