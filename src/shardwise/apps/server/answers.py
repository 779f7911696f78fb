"""A prompt's answers as pieces of text, with what is reported of their tokens.

The form that a request wants its answers to have, from OpenAI's and vLLM's fields.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from shardwise.apps.server.documents import CachedTokens, TokenUsage
from shardwise.apps.server.errors import ApiError, bad
from shardwise.apps.server.fields import GenerationFields
from shardwise.apps.server.prompts import check_tokens, refused, tokens_of
from shardwise.apps.server.state import ServerState
from shardwise.boundary.records import Record, plain
from shardwise.commands.run.serving import (
    AnswerText,
    Asked,
    Constraint,
    Delta,
    Finish,
    Form,
    ModelText,
    Sampling,
    TokenLogprobs,
)
from shardwise.errors import BadRequest, ShardwiseError, WrongField


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFunction(Record):
    """A tool by its name; `parameters` is a JSON Schema."""

    name: str
    parameters: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCalls(Record):
    """The tools that an answer must call one of, or several; as a document what `tool_grammar`
    takes. `format` names how the model writes calls."""

    format: str
    functions: Sequence[AskedFunction]
    parallel: bool


async def form_of(
    fields: GenerationFields, text: ModelText, calls: AskedCalls | None = None
) -> Constraint | None:
    """What may come next of an answer; None where it is free. Raises ApiError, also for a form that
    takes too much."""
    if calls is not None:
        with refused("tools"):
            return await text.forms.constraint("tools", plain(calls))
    param = "structured_outputs" if fields.structured_outputs else "response_format"
    asked = [*_format(fields), *_structured(fields)]
    if len(asked) > 1:
        raise bad(param, f"{param}: {len(asked)} forms are given; give one")
    if not asked:
        return None
    with refused(param):
        return await text.forms.constraint(*asked[0])


def _format(fields: GenerationFields) -> list[tuple[Form, Any]]:
    asked = fields.response_format
    if asked is None or asked.type == "text":
        return []
    if asked.type == "json_object":
        return [("json_object", None)]
    if asked.json_schema is None:
        raise bad("response_format", "response_format: json_schema is missing; give its schema")
    return [("json_schema", asked.json_schema.json_schema)]


def _structured(fields: GenerationFields) -> list[tuple[Form, Any]]:
    asked = fields.structured_outputs
    if asked is None:
        return []
    found: list[tuple[Form, Any]] = [("json_object", None)] if asked.json_object else []
    if asked.json_schema is not None:
        found.append(("json_schema", asked.json_schema))
    if asked.regex is not None:
        found.append(("regex", asked.regex))
    if asked.choice is not None:
        found.append(("choice", asked.choice))
    if not found:
        raise bad("structured_outputs", "structured_outputs: give json, regex or choice")
    return found


@dataclass(slots=True, kw_only=True)
class AnswerPart:
    """Text of an answer, the tokens that it came with, where their texts begin in that of the whole
    answer, and what is known of them. `output` of the tokens are the model's."""

    text: str
    tokens: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    output: int = 0
    finish: Finish | None = None
    stop_reason: str | int | None = None

    def join(self, other: "AnswerPart") -> None:
        """Put the next piece behind this one."""
        self.text += other.text
        self.tokens += other.tokens
        self.offsets += other.offsets
        self.logprobs += other.logprobs
        self.output += other.output
        self.finish, self.stop_reason = other.finish, other.stop_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one request asks of the engine: prompts, each with `answers`; `echo` gives the prompt
    back in front of each answer, `shown` its text where that was given as text; `silent` wants
    the prompt alone."""

    prompts: Sequence[Sequence[int]]
    shown: Sequence[str | None]
    answers: int
    sampling: Sampling
    stops: Sequence[str] = ()
    keep_stop: bool = False
    skip_special: bool = True
    echo: bool = False
    silent: bool = False
    priority: int = 0
    variant: int = 0
    """Of the weights: 0 or that of an adapter."""

    @property
    def reported(self) -> int:
        """Tokens of prompts that are given back, each as often as it has a number beside it."""
        if not self.echo:
            return 0
        each = 1 if self.sampling.prompt_logprobs is None else 1 + self.sampling.prompt_logprobs
        return sum(map(len, self.prompts)) * self.answers * each


async def sampling_of(
    state: ServerState,
    fields: GenerationFields,
    most: int,
    logprobs: int | None,
    echo: bool = False,
    calls: AskedCalls | None = None,
) -> Sampling:
    """How tokens are chosen: as asked, else as the model's makers recommend. Raises ApiError."""
    default = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    text = state.replica.text
    default |= text.defaults
    asked = {name: getattr(fields, name) for name in default}
    chosen = {k: default[k] if v is None else v for k, v in asked.items()}
    if fields.min_tokens is not None and fields.min_tokens > most:
        raise bad("min_tokens", f"min_tokens is {fields.min_tokens}, over max_tokens of {most}")
    if fields.stop_token_ids:
        check_tokens(state, fields.stop_token_ids, "stop_token_ids")
    form = await form_of(fields, text, calls)
    banned = await _banned(state, fields)
    try:
        return Sampling(
            **{**chosen, "top_k": max(int(chosen["top_k"]), 0)},
            seed=None if fields.seed is None else fields.seed % 2**32,
            frequency_penalty=fields.frequency_penalty or 0.0,
            presence_penalty=fields.presence_penalty or 0.0,
            logit_bias=_bias(state, fields),
            banned=banned,
            logprobs=logprobs,
            prompt_logprobs=logprobs if echo else None,
            max_tokens=most,
            min_tokens=fields.min_tokens or 0,
            stop_ids=tuple(fields.stop_token_ids or ()),
            ignore_end=bool(fields.ignore_eos),
            form=form,
        )
    except WrongField as error:
        raise bad(error.field, str(error)) from None


def _bias(state: ServerState, fields: GenerationFields) -> tuple[tuple[int, float], ...]:
    found = tuple((int(token), bias) for token, bias in (fields.logit_bias or {}).items())
    if found:
        check_tokens(state, [token for token, _ in found], "logit_bias")
    return found


async def _banned(state: ServerState, fields: GenerationFields) -> tuple[tuple[int, ...], ...]:
    """Each word, and the word after a space: tokens differ."""
    words = [w for word in fields.bad_words or () for w in (word, f" {word}")]
    found = await tokens_of(state, words, "bad_words", special=False) if words else []
    return tuple(dict.fromkeys(map(tuple, found)))


class Answering:
    """The answers of one request while they come. Close it, whatever happens."""

    def __init__(self, state: ServerState, wish: Wish) -> None:
        self._state, self._wish = state, wish
        self._count = len(wish.prompts) * wish.answers
        self._asked: list[Asked] = []
        self._taken = self._closed = False
        self._finish: list[Finish | None] = [None] * self._count
        self._texts = [
            AnswerText(
                lambda ids: state.replica.text.decode(ids, skip_special=wish.skip_special),
                prompt,
                wish.stops,
                keep_stop=wish.keep_stop,
                least=wish.sampling.min_tokens,
            )
            for prompt in wish.prompts
            for _ in range(wish.answers)
        ]

    async def begin(self) -> None:
        """Give all prompts to the engine, and wait until it has them. Raises ApiError."""
        state, wish = self._state, self._wish
        state.take(self._count, wish.reported)
        self._taken = True
        for prompt in wish.prompts:
            self._asked.append(
                state.thread.ask(
                    prompt,
                    wish.sampling,
                    answers=wish.answers,
                    priority=wish.priority,
                    variant=wish.variant,
                )
            )
        for asked in self._asked:
            try:
                await asked.accepted()
            except BadRequest as error:
                raise bad("prompt", str(error)) from None
            except ShardwiseError as error:
                raise ApiError(503, str(error)) from None

    def close(self) -> None:
        """Drop what has not ended, and count what has. May be called twice."""
        if self._closed or not self._taken:
            return
        self._closed = True
        for asked in self._asked:
            asked.close()
        self._state.gave(self._count, self._wish.reported)
        streams = [stream for asked in self._asked for stream in asked.answers]
        for stream, finish, text in zip(streams, self._finish, self._texts, strict=True):
            if stream.generation is not None:
                self._state.metrics.ended(stream.generation, text.count, finish or "abort")

    async def pieces(self, index: int) -> AsyncGenerator[AnswerPart, None]:
        """One answer, piece by piece; the last one says how it finished."""
        wish, text = self._wish, self._texts[index]
        asked = self._asked[index // wish.answers]
        stream = asked.answers[index % wish.answers]
        first, came, start = True, 0.0, 0
        async for delta in stream:
            if first and wish.echo:
                yield (given := await self._prompt(asked, index // wish.answers))
                start = len(given.text)
            if wish.silent:
                self._finish[index] = "length"
                return
            assert stream.generation is not None
            now = stream.generation.last or 0.0
            if not first and delta.tokens:
                observe = self._state.metrics.histograms["inter_token_latency_seconds"].observe
                observe((now - came) / len(delta.tokens))
            first, came = False, now
            piece = self._piece(text, delta, stream.generation.ender)
            piece.offsets = [start + offset for offset in piece.offsets]
            if piece.finish and delta.finish is None:
                asked.stop(index % wish.answers)
            self._finish[index] = piece.finish
            yield piece
            if piece.finish:
                return

    def _piece(self, text: AnswerText, delta: Delta, ender: int | None) -> AnswerPart:
        """A delta's text. A token that ended the answer has none, unless it is asked for."""
        before, tokens = text.count, delta.tokens
        hidden = bool(delta.finish) and ender is not None and not self._wish.keep_stop
        shown = text.add(tokens[: len(tokens) - hidden])
        if text.stopped is None and hidden:
            text.drop()
        if delta.finish and text.stopped is None:
            shown += text.end()
        count = text.count - before
        piece = AnswerPart(
            text=shown,
            tokens=tokens[:count],
            offsets=text.offsets[before:],
            logprobs=list(delta.logprobs[:count]),
            output=count,
        )
        if text.stopped is not None:
            piece.finish, piece.stop_reason = "stop", text.stopped
        elif delta.finish:
            piece.finish = delta.finish
            if ender in self._wish.sampling.stop_ids:
                piece.stop_reason = ender
        return piece

    async def _prompt(self, asked: Asked, index: int) -> AnswerPart:
        """The prompt as the beginning of its answer; nothing is known of its first token."""
        prompt, shown = self._wish.prompts[index], self._wish.shown[index]
        parent = asked.answers[0].generation
        assert parent is not None
        logprobs: list[TokenLogprobs | None] = []
        if self._wish.sampling.prompt_logprobs is not None:
            logprobs = [None, *parent.prompt_logprobs]
        if shown is None:
            shown = await asyncio.to_thread(self._state.replica.text.decode, prompt)
        offsets = await asyncio.to_thread(self._offsets, prompt) if logprobs else []
        return AnswerPart(
            text=shown,
            tokens=list(prompt),
            offsets=offsets,
            logprobs=logprobs,
            finish="length" if self._wish.silent else None,
        )

    def _offsets(self, prompt: Sequence[int]) -> list[int]:
        """Where the text of each token of a prompt begins in the prompt's."""
        text = AnswerText(self._state.replica.text.decode)
        text.add(prompt)
        return text.offsets

    async def all(self) -> AsyncGenerator[tuple[int, AnswerPart], None]:
        """The pieces of all answers, as they come."""
        if self._count == 1:
            async for piece in self.pieces(0):
                yield 0, piece
            return
        queue: asyncio.Queue[tuple[int, AnswerPart | Exception | None]] = asyncio.Queue(1)

        async def pump(index: int) -> None:
            try:
                async for piece in self.pieces(index):
                    await queue.put((index, piece))
                await queue.put((index, None))
            except Exception as error:
                await queue.put((index, error))

        tasks = [asyncio.create_task(pump(index)) for index in range(self._count)]
        try:
            left = self._count
            while left:
                index, piece = await queue.get()
                if isinstance(piece, Exception):
                    raise piece
                if piece is None:
                    left -= 1
                else:
                    yield index, piece
        finally:
            for task in tasks:
                task.cancel()

    async def whole(self) -> list[AnswerPart]:
        """All answers, once they are there."""
        answers = [AnswerPart(text="") for _ in range(self._count)]
        async with aclosing(self.all()) as pieces:
            async for index, piece in pieces:
                answers[index].join(piece)
        return answers

    def usage(self, given: int | None = None) -> TokenUsage:
        """Tokens so far, as OpenAI counts them: a prompt once. Those that the client was `given`,
        else all that came."""
        prompt = sum(map(len, self._wish.prompts))
        output = sum(text.count for text in self._texts) if given is None else given
        output = 0 if self._wish.silent else output
        parents = [asked.answers[0].generation for asked in self._asked]
        cached = sum(generation.cached_tokens for generation in parents if generation is not None)
        return TokenUsage(
            prompt_tokens=prompt,
            completion_tokens=output,
            total_tokens=prompt + output,
            prompt_tokens_details=CachedTokens(cached_tokens=cached),
        )


async def timed(pieces: AsyncIterator[Any], seconds: float) -> AsyncGenerator[Any, None]:
    """The same, cut after so many seconds. Raises TimeoutError."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        async with asyncio.timeout_at(end):
            try:
                found = await anext(pieces)
            except StopAsyncIteration:
                return
        yield found
