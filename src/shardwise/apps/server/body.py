"""The body of a request: its bytes while they come, then its fields.

What is wrong with a body must not cost more than what is right: it is measured before it is read
as JSON, lists stop at their first mistake, and a large one is read beside the loop, one at a time.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from shardwise.apps.server.errors import LONGEST, ApiError, bad, invalid, strangers
from shardwise.apps.server.fields import ApiModel
from shardwise.apps.server.state import ServerState
from shardwise.apps.web.attended import ClientGoneError

LARGE = 64 * 2**10
"""Bytes of a body that is read beside the loop."""
VALUES = 2**19
"""Numbers, texts and the like of a body: four prompts of 128 Ki tokens, which are read in a quarter
of a second (2026-11, one core)."""
HOLDERS = 2**16
"""Lists and objects of a body, and as many names: ten thousand messages have about forty
thousand."""
TEXTS = 2**18
"""Texts of a body, names included."""

Fields = TypeVar("Fields", bound=ApiModel)


async def fields_of(state: ServerState, request: Request, model: type[Fields]) -> Fields:
    """The fields of a request's body. Raises ApiError, and ClientGoneError."""
    _check_kind(request)
    body = bytearray()
    try:
        await _read(state, request, body)
        small = len(body) <= LARGE
        fields = _valid(body, model) if small else await _in_turn(state, body, model)
        if fields.ignored:
            request.state.ignored = fields.ignored
        return fields
    except ClientDisconnect:
        raise ClientGoneError from None
    finally:
        state.held -= len(body)


def _check_kind(request: Request) -> None:
    """Raises ApiError for a body of a kind or coding that is not read."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "send a body of Content-Type: application/json")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise ApiError(
            415,
            "Content-Encoding: send the body uncompressed, without this header",
            headers={"Accept-Encoding": "identity"},
        )


async def _read(state: ServerState, request: Request, body: bytearray) -> None:
    """Add all bytes of a request, of which there are not too many, nor too slow."""
    limits = state.limits
    told = request.headers.get("content-length", "")
    if told.isdigit() and (len(told) > 18 or int(told) > limits.body):
        raise _too_large(limits.body)
    try:
        async with asyncio.timeout(limits.upload):
            async for part in request.stream():
                body += part
                state.held += len(part)
                if len(body) > limits.body:
                    raise _too_large(limits.body)
                if len(body) > LARGE and state.held > limits.bodies:
                    raise ApiError(
                        429,
                        f"the bodies on their way have over {limits.bodies:,} bytes; try again",
                        headers={"Retry-After": "1"},
                    )
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {limits.upload:g} s") from None


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body has over {limit:,} bytes")


async def _in_turn(state: ServerState, body: bytearray, model: type[Fields]) -> Fields:
    """Read a large body on another thread once it is its turn, and there is time for mistakes."""
    try:
        async with asyncio.timeout(state.limits.upload), state.reading:
            while due := state.pace.due:
                await asyncio.sleep(due)
            return await asyncio.to_thread(_valid, body, model)
    except TimeoutError:
        raise ApiError(
            429, "the server is reading other bodies; try again", headers={"Retry-After": "10"}
        ) from None


def _valid(body: bytearray, model: type[Fields]) -> Fields:
    """The fields that a body has. Raises ApiError, which says how long that took."""
    begun = time.perf_counter()
    try:
        _measure(body)
        return model.model_validate_json(body)
    except ValidationError as error:
        if places := strangers(error, model):
            found = _valid(_without(body, places), model)
            found._unknown = [str(place[-1])[:LONGEST] for place in places]
            return found
        refusal = invalid(error, model)
    except ApiError as error:
        refusal = error
    refusal.seconds = time.perf_counter() - begun
    raise refusal from None


def _without(body: bytearray, places: Sequence[Sequence[str | int]]) -> bytearray:
    """The body without the fields at some places."""
    document = json.loads(body)
    for *within, name in places:
        holder = document
        for part in within:
            holder = holder[part]
        del holder[name]
    return bytearray(json.dumps(document).encode())


def _measure(body: bytearray) -> None:
    """Raises ApiError for a body of more parts than a request has, before any of them is made."""
    if len(body) <= LARGE:
        return
    plain = bytes(body).replace(b"\\\\", b"").replace(b'\\"', b"")
    _check("texts", plain.count(b'"') // 2, TEXTS)
    outside = b"".join(plain.split(b'"')[::2])
    _check("values", outside.count(b",") + 1, VALUES)
    _check("lists and objects", outside.count(b"[") + outside.count(b"{"), HOLDERS)
    _check("names", outside.count(b":"), HOLDERS)


def _check(what: str, count: int, most: int) -> None:
    if count > most:
        raise bad(None, f"the body has {count:,} {what}; a request has at most {most:,}")
