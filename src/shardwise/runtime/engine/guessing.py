"""Guesses of the next tokens, which a step checks: where they come from on the host's side."""

from collections.abc import Callable, Sequence

import numpy as np

from shardwise.runtime.engine.generation import Generation
from shardwise.runtime.engine.step_batch import NO_GUESS
from shardwise.scheduling.speculation import PastTokens

Guesser = Callable[[Sequence[Generation]], np.ndarray]
"""Guesses [D, K] of D sequences; NO_GUESS where there is none from some place on."""


def by_past(count: int, end_ids: frozenset[int]) -> Guesser:
    """What followed the last tokens of a sequence when they stood in it before."""

    def guess(rows: Sequence[Generation]) -> np.ndarray:
        guesses_DK = np.full((len(rows), count), NO_GUESS, np.int32)
        for i, generation in enumerate(rows):
            if not generation.is_held(end_ids):
                found = _past(generation).guess(count)
                guesses_DK[i, : len(found)] = found
        return guesses_DK

    return guess


def by_draft(count: int, end_ids: frozenset[int]) -> Guesser:
    """A draft model makes the guesses on the device: here it is only said for whom. Whose next
    token depends on what the host knows of the one before has none."""

    def guess(rows: Sequence[Generation]) -> np.ndarray:
        free = [0 if not generation.is_held(end_ids) else NO_GUESS for generation in rows]
        return np.repeat(np.array(free, np.int32)[:, None], count, axis=1)

    return guess


def _past(generation: Generation) -> PastTokens:
    """All that is known of a sequence."""
    if generation.past is None:
        generation.past = PastTokens(generation.prompt)
    known = len(generation.past.tokens) - len(generation.prompt)
    generation.past.extend(generation.tokens[known:])
    return generation.past
