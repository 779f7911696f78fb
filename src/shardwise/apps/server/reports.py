"""Logprobs in the two forms that OpenAI's API has for them."""

from collections.abc import Callable, Sequence

from shardwise.apps.server.answers import AnswerPart
from shardwise.apps.server.documents import ChatLogprobs, CompletionLogprobs, SpeltToken
from shardwise.apps.server.fields import GenerationFields
from shardwise.commands.run.serving import ModelText, TokenLogprobs

LEAST = -9999.0
"""In place of minus infinity, which JSON has no number for (as vLLM writes it)."""


def _number(logprob: float) -> float:
    return max(logprob, LEAST)


Spelling = Callable[[int], str]
"""The name of a token in a report."""
by_number: Spelling = "token_id:{}".format


def spelling_of(fields: GenerationFields, text: ModelText) -> Spelling:
    """Its text; its number where that was asked for, as texts of different tokens may be equal."""
    return by_number if fields.return_tokens_as_token_ids else text.token_text


def completion_logprobs(name: Spelling, piece: AnswerPart, count: int) -> CompletionLogprobs:
    """Lists side by side. The chosen token is among the likeliest, whether it is one or not."""
    known = piece.logprobs
    return CompletionLogprobs(
        tokens=[name(token) for token in piece.tokens],
        token_logprobs=[None if one is None else _number(one.logprob) for one in known],
        top_logprobs=[None if one is None else _likeliest(name, one, count) for one in known],
        text_offset=piece.offsets,
    )


def _likeliest(name: Spelling, entry: TokenLogprobs, count: int) -> dict[str, float]:
    """By the names of tokens; one whose text another has already goes by its number."""
    found: dict[str, float] = {}
    others = [(token, logprob) for token, logprob in entry.top[:count] if token != entry.token]
    for token, logprob in ((entry.token, entry.logprob), *others):
        spelt = name(token)
        found[by_number(token) if spelt in found else spelt] = _number(logprob)
    return found


def chat_logprobs(name: Spelling, text: ModelText, piece: AnswerPart, count: int) -> ChatLogprobs:
    """A list of tokens, each with its bytes and the likeliest others."""

    def spelt(token: int, logprob: float, others: Sequence[SpeltToken] | None = None) -> SpeltToken:
        return SpeltToken(
            token=name(token),
            logprob=_number(logprob),
            bytes=list(text.token_bytes(token)),
            top_logprobs=others,
        )

    known = [entry for entry in piece.logprobs if entry is not None]
    likeliest = [[spelt(*other) for other in entry.top[:count]] for entry in known]
    pairs = zip(known, likeliest, strict=True)
    return ChatLogprobs(content=[spelt(one.token, one.logprob, others) for one, others in pairs])
