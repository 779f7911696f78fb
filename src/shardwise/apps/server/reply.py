"""How an answer goes out: as one document, or as events while it comes; and what a client that
leaves, or waits too long, does to it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shardwise.apps.server.answers import Answering, AnswerPart, Wish, timed
from shardwise.apps.server.documents import (
    Choice,
    Completion,
    CountedCompletion,
    Refusal,
    ResponseDocument,
    ResponseEvent,
    ThoughtTokens,
    TokenUsage,
    written,
)
from shardwise.apps.server.errors import ApiError, bad
from shardwise.apps.server.fields import GenerationFields, SamplingFields
from shardwise.apps.server.state import ServerState
from shardwise.apps.web.attended import ClientGoneError, attended
from shardwise.boundary.records import Record, keys
from shardwise.commands.run.serving import FormError, StoppedError
from shardwise.errors import ShardwiseError

AT_ONCE = 512
"""Tokens of which a report is written without a pause: some milliseconds with 20 logprobs each."""

Counted = Callable[[], TokenUsage]
"""Tokens so far, as chats count them."""
Piece = Completion | ResponseEvent | Refusal
"""What a stream has an event for."""


class Form(Protocol):
    """One API's way of writing answers. Their ids begin with `prefix`."""

    prefix: str
    kind: str
    """Of a whole answer, as `object`."""
    kind_of_part: str

    @property
    def thought(self) -> int | None:
        """Tokens of reasoning so far; None where none is read."""
        ...

    def choice(self, index: int, piece: AnswerPart) -> Choice:
        """A whole answer."""
        ...

    def part(self, index: int, piece: AnswerPart) -> Choice:
        """A piece of a streamed answer."""
        ...


class AnswerWriter(Protocol):
    """How the answers to one request are written, as one document or as events while they come."""

    end: bytes
    """What a stream ends with."""

    def document(
        self, answers: Sequence[AnswerPart], usage: Counted
    ) -> Completion | ResponseDocument:
        """All of it."""
        ...

    def part(self, index: int, piece: AnswerPart, usage: Counted) -> Sequence[Piece]:
        """The events of a piece; `usage` is what was given so far."""
        ...

    def last(self, error: ApiError | None, usage: Counted) -> Sequence[Piece]:
        """The events at the end, which an error brought about or none."""
        ...


class ChoiceWriter:
    """Chats and completions: `form` writes each choice, with what all documents have."""

    end = b"data: [DONE]\n\n"

    def __init__(
        self, state: ServerState, request: Request, fields: GenerationFields, form: Form
    ) -> None:
        options = fields.stream_options
        self._last = bool(options and options.include_usage)
        self._always = bool(options and options.continuous_usage_stats)
        self._form = form
        self._envelope: Mapping[str, Any] = {
            "id": f"{form.prefix}-{request.state.request_id}",
            "created": int(time.time()),
            "model": fields.model or state.replica.name,
            "object": form.kind_of_part if fields.stream else form.kind,
        }

    def document(self, answers: Sequence[AnswerPart], usage: Counted) -> Completion:
        choices = [self._form.choice(index, piece) for index, piece in enumerate(answers)]
        return CountedCompletion(**self._envelope, choices=choices, usage=self._counted(usage))

    def part(self, index: int, piece: AnswerPart, usage: Counted) -> Sequence[Completion]:
        choices = [self._form.part(index, piece)]
        if not (self._last or self._always):
            return [Completion(**self._envelope, choices=choices)]
        counted = self._counted(usage) if self._always else None
        return [CountedCompletion(**self._envelope, choices=choices, usage=counted)]

    def last(self, error: ApiError | None, usage: Counted) -> Sequence[Completion | Refusal]:
        found = [] if error is None else [error.document()]
        if not self._last:
            return found
        return [*found, CountedCompletion(**self._envelope, usage=self._counted(usage))]

    def _counted(self, usage: Counted) -> TokenUsage:
        found, thought = usage(), self._form.thought
        if thought is None:
            return found
        return replace(found, completion_tokens_details=ThoughtTokens(reasoning_tokens=thought))


async def reply(
    state: ServerState, request: Request, fields: SamplingFields, wish: Wish, writer: AnswerWriter
) -> Response:
    """The response to a request for answers. Raises ApiError where there will be none."""
    if fields.stream_options is not None and not fields.stream:
        raise bad("stream_options", "stream_options needs stream: true")
    answering = Answering(state, wish)
    begun = False
    try:
        await answering.begin()
        if not fields.stream:
            return await _document(state, request, answering, writer)
        begun = True
    finally:
        if not begun:
            answering.close()
    return EventStream(state, answering, writer)


async def _document(
    state: ServerState, request: Request, answering: Answering, writer: AnswerWriter
) -> Response:
    try:
        async with asyncio.timeout(state.limits.seconds):
            answers = await answering.whole()
    except TimeoutError:
        raise _late(state) from None
    except ShardwiseError as error:
        raise _failed(error) from None
    request.state.usage = answering.usage()
    document = partial(writer.document, answers, answering.usage)
    tokens = sum(len(piece.tokens) for piece in answers)
    data = await _written(document, tokens, _plain)
    return Response(data, media_type="application/json")


async def as_json(document: Any, numbers: int) -> Response:
    """A document of so many numbers, written beside the loop where they are many."""
    data = await _written(lambda: document, numbers, _plain)
    return Response(data, media_type="application/json")


def _late(state: ServerState) -> ApiError:
    return ApiError(504, f"the answer took over {state.limits.seconds:g} s; ask for fewer tokens")


def _failed(error: ShardwiseError) -> ApiError:
    if isinstance(error, FormError):
        return bad("response_format", str(error))
    return ApiError(503 if isinstance(error, StoppedError) else 500, str(error))


class EventStream(Response):
    """Server-sent events: those of each piece, then those of the end."""

    media_type = "text/event-stream"

    def __init__(self, state: ServerState, answering: Answering, writer: AnswerWriter) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._state, self._answering, self._writer = state, answering, writer
        self._error: ApiError | None = None
        """What ended the answer early."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told = scope.setdefault("state", {})
        try:
            await attended(receive, self._send(scope, receive, send))
        except ClientGoneError:  # nobody is there to be told
            told["left"] = True
        finally:
            self._answering.close()
            told["usage"] = self._answering.usage()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The first event decides on the status: what fails before it is no answer."""
        async with aclosing(self._events()) as events:
            first = await anext(events)
            if (error := self._error) is not None:
                return await error.response()(scope, receive, send)
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await send({"type": "http.response.body", "body": first, "more_body": True})
            async for event in events:
                body = {"type": "http.response.body", "body": event, "more_body": True}
                await send(body)
        await send({"type": "http.response.body", "body": b""})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        given, usage, writer = 0, self._answering.usage, self._writer
        try:
            async with (
                aclosing(self._answering.all()) as every,
                aclosing(timed(every, self._state.limits.seconds)) as pieces,
            ):
                async for index, piece in pieces:
                    given += piece.output
                    events = partial(writer.part, index, piece, partial(usage, given))
                    yield await _written(events, len(piece.tokens), _framed)
        except TimeoutError:
            self._error = _late(self._state)
        except ShardwiseError as error:
            self._error = _failed(error)
        self._answering.close()  # before the client hears that it is over, and asks again
        yield _framed(writer.last(self._error, usage), written) + writer.end


Json = Callable[[Any], bytes]


def _plain(document: Any, json: Json) -> bytes:
    return json(document)


def _framed(events: Sequence[Piece], json: Json) -> bytes:
    """Events as a stream has them, with their names where they have a type of their own."""
    found = b""
    for event in events:
        name = f"event: {event.type}\n".encode() if isinstance(event, ResponseEvent) else b""
        found += name + b"data: " + json(event) + b"\n\n"
    return found


async def _written(
    make: Callable[[], Any], tokens: int, form: Callable[[Any, Json], bytes]
) -> bytes:
    """What is made of so many tokens; much is made beside the loop, in parts."""
    if tokens <= AT_ONCE:
        return form(make(), written)
    return await asyncio.to_thread(lambda: form(make(), lambda value: b"".join(_parts(value))))


def _parts(value: Any) -> Iterator[bytes]:
    """A document piece by piece: one whole would keep other threads waiting."""
    if isinstance(value, Record):
        value = keys(value)
    if isinstance(value, dict):
        yield b"{"
        for number, (name, one) in enumerate(value.items()):
            yield b"," * bool(number) + written(str(name)) + b":"
            yield from _parts(one)
        yield b"}"
    elif isinstance(value, list) and len(value) > AT_ONCE:
        yield b"["
        for start in range(0, len(value), AT_ONCE):
            yield b"," * bool(start) + written(value[start : start + AT_ONCE])[1:-1]
        yield b"]"
    elif isinstance(value, list) and any(isinstance(one, dict | Record) for one in value):
        yield b"["
        for number, one in enumerate(value):
            yield b"," * bool(number)
            yield from _parts(one)
        yield b"]"
    else:
        yield written(value)
