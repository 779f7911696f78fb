"""How an answer goes out: as one document, or as events while it comes; and what a client that
leaves, or waits too long, does to it."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from shardwise.apps.server.answers import Answering, AnswerPart, Wish, timed
from shardwise.apps.server.errors import ApiError, bad
from shardwise.apps.server.fields import GenerationFields
from shardwise.apps.server.state import ServerState
from shardwise.apps.web.attended import ClientGoneError, attended
from shardwise.commands.run.serving import FormError, StoppedError
from shardwise.errors import ShardwiseError

AT_ONCE = 512
"""Tokens of which a report is written without a pause: some milliseconds with 20 logprobs each."""


class Form(Protocol):
    """One API's way of writing answers. Their ids begin with `prefix`."""

    prefix: str
    kind: str
    """Of a whole answer, as `object`."""
    kind_of_part: str

    def choice(self, index: int, piece: AnswerPart) -> dict[str, Any]:
        """A whole answer."""
        ...

    def part(self, index: int, piece: AnswerPart) -> dict[str, Any]:
        """A piece of a streamed answer."""
        ...


async def reply(
    state: ServerState, request: Request, fields: GenerationFields, wish: Wish, form: Form
) -> Response:
    """The response to a request for answers. Raises ApiError where there will be none."""
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise bad("stream_options", "stream_options: give it with stream only")
    answering = Answering(state, wish)
    envelope = {
        "id": f"{form.prefix}-{request.state.request_id}",
        "created": int(time.time()),
        "model": state.replica.name,
    }
    begun = False
    try:
        await answering.begin()
        if not fields.stream:
            return await _document(state, request, answering, envelope, form)
        begun = True
    finally:
        if not begun:
            answering.close()
    usage = (
        bool(options and options.include_usage),
        bool(options and options.continuous_usage_stats),
    )
    return EventStream(state, answering, envelope | {"object": form.kind_of_part}, form, usage)


async def _document(
    state: ServerState,
    request: Request,
    answering: Answering,
    envelope: Mapping[str, Any],
    form: Form,
) -> Response:
    try:
        async with asyncio.timeout(state.limits.seconds):
            answers = await answering.whole()
    except TimeoutError:
        raise _late(state) from None
    except ShardwiseError as error:
        raise _failed(error) from None
    usage = request.state.usage = answering.usage()

    def document() -> dict[str, Any]:
        choices = [form.choice(index, piece) for index, piece in enumerate(answers)]
        return {**envelope, "object": form.kind, "choices": choices, "usage": usage}

    tokens = sum(len(piece.tokens) for piece in answers)
    return Response(await _written(document, tokens), media_type="application/json")


def _late(state: ServerState) -> ApiError:
    return ApiError(504, f"the answer took over {state.limits.seconds:g} s; ask for fewer tokens")


def _failed(error: ShardwiseError) -> ApiError:
    if isinstance(error, FormError):
        return bad("response_format", str(error))
    return ApiError(503 if isinstance(error, StoppedError) else 500, str(error))


class EventStream(Response):
    """Server-sent events: a part for each piece, then the usage where asked for, then [DONE]."""

    media_type = "text/event-stream"

    def __init__(
        self,
        state: ServerState,
        answering: Answering,
        envelope: Mapping[str, Any],
        form: Form,
        usage: tuple[bool, bool],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._state, self._answering, self._form = state, answering, form
        self._envelope, self._usage = envelope, usage
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
                failed = JSONResponse(error.document(), error.status, error.headers)
                return await failed(scope, receive, send)
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await send({"type": "http.response.body", "body": _framed(first), "more_body": True})
            async for event in events:
                body = {"type": "http.response.body", "body": _framed(event), "more_body": True}
                await send(body)
        await send({"type": "http.response.body", "body": b""})

    def _event(self, index: int, piece: AnswerPart, more: dict[str, Any]) -> dict[str, Any]:
        return {**self._envelope, "choices": [self._form.part(index, piece)], **more}

    async def _events(self) -> AsyncGenerator[bytes, None]:
        last, always = self._usage
        given = 0
        try:
            async with (
                aclosing(self._answering.all()) as every,
                aclosing(timed(every, self._state.limits.seconds)) as pieces,
            ):
                async for index, piece in pieces:
                    more: dict[str, Any] = {"usage": None} if last else {}
                    given += piece.output
                    if always:
                        more = {"usage": self._answering.usage(given)}
                    event = partial(self._event, index, piece, more)
                    yield await _written(event, len(piece.tokens))
        except TimeoutError:
            self._error = _late(self._state)
        except ShardwiseError as error:
            self._error = _failed(error)
        if self._error is not None:
            yield _json(self._error.document())
        self._answering.close()  # before the client hears that it is over, and asks again
        if last:
            yield _json({**self._envelope, "choices": [], "usage": self._answering.usage()})
        yield b"[DONE]"


def _framed(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


async def _written(make: Callable[[], dict[str, Any]], tokens: int) -> bytes:
    """A document of so many tokens; a large one is made beside the loop, in parts."""
    if tokens <= AT_ONCE:
        return _json(make())
    return await asyncio.to_thread(lambda: b"".join(_parts(make())))


def _parts(value: Any) -> Iterator[bytes]:
    """A document piece by piece: one whole would keep other threads waiting."""
    if isinstance(value, dict):
        yield b"{"
        for number, (name, one) in enumerate(value.items()):
            yield b"," * bool(number) + _json(str(name)) + b":"
            yield from _parts(one)
        yield b"}"
    elif isinstance(value, list) and len(value) > AT_ONCE:
        yield b"["
        for start in range(0, len(value), AT_ONCE):
            yield b"," * bool(start) + _json(value[start : start + AT_ONCE])[1:-1]
        yield b"]"
    elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
        yield b"["
        for number, one in enumerate(value):
            yield b"," * bool(number)
            yield from _parts(one)
        yield b"]"
    else:
        yield _json(value)


def _json(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
