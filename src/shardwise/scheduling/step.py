"""What one step does: the shape that sets its time, and the plan that an engine executes."""

from collections.abc import Sequence as Run
from typing import NamedTuple

from shardwise.scheduling.pages import PageCopy
from shardwise.scheduling.requests import Sequence, Time


class StepShape(NamedTuple):
    """What one step computes; tokens of the whole replica, and any field may be an array.

    `decodes` sequences put `decode_tokens` through the model (as many, without speculation) and
    read `decode_context` cached tokens in all. `prefills` chunks of prompts hold `prefill_tokens`,
    padding included; `prefill_context` tokens of their prompts are cached before them in all, and
    `prefill_pairs` is the number of (query, key) pairs of their causal attention: a chunk of t
    tokens after c cached ones has t*c + t*(t+1)/2. `samples` sequences get a token from the step.

    A tuple, as a simulation makes hundreds of thousands of them.
    """

    decodes: int = 0
    decode_tokens: int = 0
    decode_context: int = 0
    prefills: int = 0
    prefill_tokens: int = 0
    prefill_context: int = 0
    prefill_pairs: int = 0
    samples: int = 0


class PromptChunk(NamedTuple):
    """A part of a prompt: `tokens` of it, after the `start` tokens that are cached already."""

    sequence: Sequence
    start: int
    tokens: int

    @property
    def last(self) -> bool:
        """Whether the prompt is whole after it, so that it yields a token."""
        return self.start + self.tokens == self.sequence.target


class Changes(NamedTuple):
    """What differs from the step before, in the order in which an engine takes it in: who `left`
    which slot, who `joined` (its slot and all its pages; it decodes at once where all of its
    `target` is cached), the pages that a running sequence's table has from some place on (`grown`:
    sequence, group, place, pages), and the `copies` to make before anything is written."""

    joined: Run[Sequence] = ()
    left: Run[tuple[Sequence, int]] = ()
    grown: Run[tuple[Sequence, int, int, Run[int]]] = ()
    copies: Run[PageCopy] = ()


class StepPlan(NamedTuple):
    """One step: run the chunks and, where `shape.decodes` is not 0, one token of every sequence
    that is decoding: those that joined without a chunk, and those whose last chunk has run.

    A plan that only decodes may be run `repeat` times over: until a sequence ends, pages run short
    or a deadline of a waiting request passes (`until`), the scheduler would say the same again.
    `preempted` lost their pages before the step, `refused` their deadline. `host_tokens` cached
    tokens are copied between HBM and the host's memory for it. `changes` is None where nothing
    changed.
    """

    shape: StepShape
    chunks: tuple[PromptChunk, ...] = ()
    preempted: tuple[Sequence, ...] = ()
    repeat: int = 1
    until: Time = float("inf")
    host_tokens: int = 0
    refused: tuple[Sequence, ...] = ()
    changes: Changes | None = None


class StepResult(NamedTuple):
    """What a step brought: sequences that finished, those whose cache must be moved to another
    replica, those that got their first token, and how many decoded.

    Between two tokens of a sequence lies one decoding step, with two exceptions, given by the time
    of the token before: `joined` are decoding sequences that had not been there at the last
    decoding step, `resumed` those whose token came from prefilling again after a preemption.
    """

    finished: tuple[Sequence, ...] = ()
    handoffs: tuple[Sequence, ...] = ()
    first: tuple[Sequence, ...] = ()
    decoded: int = 0
    joined: tuple[Time, ...] = ()
    resumed: tuple[Time, ...] = ()


class StaticBatch(NamedTuple):
    """A static batch: its sequences, ended ones included, and what the longest has cached, less
    the beats then."""

    size: int
    base: int


def step_shape(
    decodes: int, context: int, tokens: int, chunks: tuple[PromptChunk, ...]
) -> StepShape:
    """`decodes` sequences with `tokens` each and `context` cached ones in all, and the chunks."""
    if not chunks:
        return StepShape(decodes, decodes * tokens, context, samples=decodes)
    return StepShape(
        decodes=decodes,
        decode_tokens=decodes * tokens,
        decode_context=context,
        prefills=len(chunks),
        prefill_tokens=sum(c.tokens for c in chunks),
        prefill_context=sum(c.start for c in chunks),
        prefill_pairs=sum(_pairs(c.start, c.tokens) for c in chunks),
        samples=decodes + sum(c.last for c in chunks),
    )


def padded_shape(chunks: tuple[PromptChunk, ...], beats: int) -> tuple[StaticBatch, StepShape]:
    """A static batch and its prefill: every prompt is as long as the longest."""
    longest, size = max(c.tokens for c in chunks), len(chunks)
    shape = StepShape(
        prefills=size,
        prefill_tokens=longest * size,
        prefill_pairs=_pairs(0, longest) * size,
        samples=size,
    )
    return StaticBatch(size, longest - beats), shape


def _pairs(start: int, tokens: int) -> int:
    """(query, key) pairs of a chunk after `start` cached tokens."""
    return tokens * start + tokens * (tokens + 1) // 2
