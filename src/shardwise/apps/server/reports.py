"""Logprobs in the two forms that OpenAI's API has for them."""

from collections.abc import Callable
from typing import Any

from shardwise.apps.server.answers import AnswerPart
from shardwise.apps.server.fields import GenerationFields
from shardwise.commands.run.serving import ModelText, TokenLogprobs

LEAST = -9999.0
"""In place of minus infinity, which JSON has no number for (as vLLM writes it)."""


def _number(logprob: float) -> float:
    return max(logprob, LEAST)


Spelling = Callable[[int], str]
"""The name of a token in a report."""


def spelling_of(fields: GenerationFields, text: ModelText) -> Spelling:
    """Its text; its number where that was asked for, as texts of different tokens may be equal."""
    by_number = fields.return_tokens_as_token_ids
    return "token_id:{}".format if by_number else text.token_text


def completion_logprobs(
    name: Spelling, piece: AnswerPart, count: int, start: int
) -> dict[str, Any]:
    """Lists side by side; `start` is where the piece's text begins. The chosen token is among the
    likeliest, whether it is one or not."""
    tokens, values, tops, offsets = [], [], [], []
    for token, entry in zip(piece.tokens, piece.logprobs, strict=True):
        spelt = name(token)
        tokens.append(spelt)
        offsets.append(start)
        start += len(spelt)
        values.append(None if entry is None else _number(entry.logprob))
        tops.append(None if entry is None else _likeliest(name, entry, count))
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _likeliest(name: Spelling, entry: TokenLogprobs, count: int) -> dict[str, float]:
    found = {name(entry.token): _number(entry.logprob)}
    for token, logprob in entry.top[:count]:
        found.setdefault(name(token), _number(logprob))
    return found


def chat_logprobs(name: Spelling, piece: AnswerPart, count: int) -> dict[str, Any]:
    """A list of tokens, each with its bytes and the likeliest others."""
    return {
        "content": [
            {
                **_spelt(name, entry.token, entry.logprob),
                "top_logprobs": [_spelt(name, *other) for other in entry.top[:count]],
            }
            for entry in piece.logprobs
            if entry is not None
        ]
    }


def _spelt(name: Spelling, token: int, logprob: float) -> dict[str, Any]:
    spelt = name(token)
    return {"token": spelt, "logprob": _number(logprob), "bytes": list(spelt.encode())}
