"""Logprobs in the two forms that OpenAI's API has for them."""

from typing import Any

from shardwise.apps.server.answers import AnswerPart
from shardwise.workflows.serving import ModelText, TokenLogprobs

LEAST = -9999.0
"""In place of minus infinity, which JSON has no number for (as vLLM writes it)."""


def _number(logprob: float) -> float:
    return max(logprob, LEAST)


def completion_logprobs(
    text: ModelText, piece: AnswerPart, count: int, start: int
) -> dict[str, Any]:
    """Lists side by side; `start` is where the piece's text begins. The chosen token is among the
    likeliest, whether it is one or not."""
    tokens, values, tops, offsets = [], [], [], []
    for token, entry in zip(piece.tokens, piece.logprobs, strict=True):
        spelt = text.token_text(token)
        tokens.append(spelt)
        offsets.append(start)
        start += len(spelt)
        values.append(None if entry is None else _number(entry.logprob))
        tops.append(None if entry is None else _likeliest(text, entry, count))
    return {
        "tokens": tokens,
        "token_logprobs": values,
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _likeliest(text: ModelText, entry: TokenLogprobs, count: int) -> dict[str, float]:
    found = {text.token_text(entry.token): _number(entry.logprob)}
    for token, logprob in entry.top[:count]:
        found.setdefault(text.token_text(token), _number(logprob))
    return found


def chat_logprobs(text: ModelText, piece: AnswerPart, count: int) -> dict[str, Any]:
    """A list of tokens, each with its bytes and the likeliest others."""
    return {
        "content": [
            {
                **_spelt(text, entry.token, entry.logprob),
                "top_logprobs": [_spelt(text, *other) for other in entry.top[:count]],
            }
            for entry in piece.logprobs
            if entry is not None
        ]
    }


def _spelt(text: ModelText, token: int, logprob: float) -> dict[str, Any]:
    spelt = text.token_text(token)
    return {"token": spelt, "logprob": _number(logprob), "bytes": list(spelt.encode())}
