"""What the rows of a step ask of sampling, as arrays: from each request's `Sampling` to `Choices`
and `RowSettings`."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import numpy as np

from shardwise.runtime.engine.generation import Generation
from shardwise.runtime.engine.sampling import (
    ALL_ALLOWED,
    BENT_BLOCK,
    EVERY,
    TOKEN_ALONE,
    WITH_PROMPTS,
    Choices,
    RowSettings,
)

MOST_BENT = 4096
"""Tokens of a row whose logits change, in every program that changes any: as many as a sequence has
by default (`opening.LONGEST`). A row that changes more takes programs of its own."""
DRAWING = attrgetter("temperature", "top_k", "top_p", "min_p")
PADDING = (0, 0.0, 0, 1.0, 0.0)
"""A seed and these, of a row that takes the likeliest token."""


def choices_of(
    rows: Sequence[Generation], prompts: Sequence[Generation], end_ids: frozenset[int]
) -> Choices:
    """The least that gives rows that decode and prompts what they ask for."""
    if any(generation.sampling.prompt_logprobs is not None for generation in prompts):
        return WITH_PROMPTS
    asked = any(g.sampling.logprobs is not None or g.is_held(end_ids) for g in chain(rows, prompts))
    return EVERY if asked else TOKEN_ALONE


def settings_of(
    rows: Sequence[Generation | None],
    choices: Choices,
    end_ids: frozenset[int],
    vocabulary: int,
) -> RowSettings:
    """The arrays of R rows, None for padding."""
    found = [PADDING if g is None else (g.seed, *DRAWING(g.sampling)) for g in rows]
    seeds, temperature, top_k, top_p, min_p = zip(*found, strict=True)
    return RowSettings(
        seeds_R=np.array(seeds, np.uint32),
        temperature_R=np.array(temperature, np.float32),
        top_k_R=np.array(top_k, np.int32),
        top_p_R=np.array(top_p, np.float32),
        min_p_R=np.array(min_p, np.float32),
        reported_R=np.array([g is not None and g.sampling.logprobs is not None for g in rows]),
        **_bends(rows, choices, end_ids, vocabulary),
        allowed_RW=_allowed(rows, choices, vocabulary),
    )


def _allowed(rows: Sequence[Generation | None], choices: Choices, vocabulary: int) -> np.ndarray:
    """The bits of tokens that each row's form allows; all where it has none."""
    words = -(-vocabulary // 32) if choices.every else 1
    bits_RW = np.full((len(rows), words), ALL_ALLOWED, np.uint32)
    for i, generation in enumerate(rows):
        if generation is not None and generation.form is not None:
            found = generation.form.allowed()
            bits_RW[i] = 0
            bits_RW[i, : len(found)] = found
    return bits_RW


def _bends(
    rows: Sequence[Generation | None],
    choices: Choices,
    end_ids: frozenset[int],
    vocabulary: int,
) -> dict[str, np.ndarray]:
    """By how much which tokens of each row are changed, as wide for all rows."""
    found = [_bend(g, end_ids) if choices.every and g is not None else {} for g in rows]
    B = _width(max(map(len, found), default=0), vocabulary) if choices.every else 1
    tokens_RB = np.full((len(rows), B), vocabulary, np.int32)
    divisor_RB = np.ones((len(rows), B), np.float32)
    added_RB = np.zeros((len(rows), B), np.float32)
    for i, bend in enumerate(found):
        for j, (token, (divisor, added)) in enumerate(bend.items()):
            tokens_RB[i, j], divisor_RB[i, j], added_RB[i, j] = token, divisor, added
    changes_R = np.array([*map(len, found)], np.int32)
    bent = {"bent_RB": tokens_RB, "divisor_RB": divisor_RB, "added_RB": added_RB}
    return {"changes_R": changes_R, **bent}


def _width(most: int, vocabulary: int) -> int:
    """Room in whole blocks for so many changes of a row: the same but for very many."""
    usual = MOST_BENT if most <= MOST_BENT else vocabulary
    return -(-max(min(usual, vocabulary), most) // BENT_BLOCK) * BENT_BLOCK


def _bend(generation: Generation, end_ids: frozenset[int]) -> dict[int, tuple[float, float]]:
    """Per token the divisor of its logit and what is added after it."""
    sampling, answer = generation.sampling, Counter(generation.tokens)
    added: dict[int, float] = {}
    for token, count in answer.items():
        added[token] = -sampling.presence_penalty - sampling.frequency_penalty * count
    for token, bias in sampling.logit_bias:
        added[token] = added.get(token, 0.0) + bias
    for token in _barred(generation, end_ids):
        added[token] = float("-inf")
    seen: set[int] = set()
    if sampling.repetition_penalty != 1:
        seen = {*generation.prompt, *answer}
    return {
        token: (sampling.repetition_penalty if token in seen else 1.0, added.get(token, 0.0))
        for token in {*added, *seen}
    }


def _barred(generation: Generation, end_ids: frozenset[int]) -> set[int]:
    """Tokens that may not come next: the last of a banned sequence whose others stand at the end,
    and what would end an answer too early."""
    sampling, tokens = generation.sampling, generation.tokens
    barred: set[int] = set()
    for banned in sampling.banned:
        *before, last = banned
        if not before or tokens[-len(before) :] == before:
            barred.add(last)
    if len(tokens) < sampling.min_tokens:
        barred |= generation.ends(end_ids)
    return barred
