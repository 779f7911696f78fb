"""A connection that costs little before its request is accepted.

uvicorn's protocol reads headers of any size, waits for a request as long as its client likes, and
answers what is not HTTP with text. Here a header has a limit in bytes and number, each stage one in
seconds, a connection one in requests that come before the last is answered, and the process one in
connections. A refusal is written as the API writes it; who is refused may still send for `LINGER`
seconds, so that it reads why.
"""

import asyncio
import json
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from http import HTTPStatus
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shardwise.apps.web.pace import RefusalPace
from shardwise.boundary.records import Record, plain

SLICE = 8 * 2**10
"""Bytes of a header that the parser gets at once: by so much a header may pass its limit."""
LINGER = 1.0
"""Seconds in which a client that was refused may still send, and is not heard."""
UNHEARD = 2**20
"""Bytes that are taken of it meanwhile."""
HALF = 0.1
"""Seconds that an answer still has once its client sends no more."""
PIPELINE = 16
"""Requests that wait on a connection for the answer of the one before."""
CHUNKS = 2**16
"""Pieces of one body."""
REFUSAL_SECONDS = 0.002
"""What taking, refusing and closing a connection costs, rounded up (2026-11, one core)."""
GONE = (
    "the client closed its side of the connection before the answer; keep it open until the "
    "answer arrives"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What a connection may take: bytes and number of header lines, seconds for the first byte, for
    the header once it has begun, between requests, and without reading anything of an answer that
    waits; and how many connections there are at most."""

    header: int = 64 * 2**10
    lines: int = 128
    first: float = 20.0
    head: float = 10.0
    idle: float = 75.0
    stall: float = 60.0
    connections: int = 4096


Document = Callable[[int, str], Record]
"""The body of a refusal, of its status and message."""
Heard = Callable[[int, str], None]
"""Hears each refusal: status and message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRefusal(Record):
    """A refusal in one word."""

    error: str


def plain_document(status: int, message: str) -> PlainRefusal:
    """The same, whatever the status."""
    return PlainRefusal(error=message)


def bounded(
    limits: ConnectionLimits,
    pace: RefusalPace,
    *,
    document: Document = plain_document,
    heard: Heard = lambda status, message: None,
) -> Any:
    """The protocol class for uvicorn's configuration."""
    return partial(BoundedHttp, limits=limits, pace=pace, document=document, heard=heard)


class BoundedHttp(HttpToolsProtocol):
    """uvicorn's protocol within limits."""

    def __init__(
        self,
        *given: Any,
        limits: ConnectionLimits,
        pace: RefusalPace,
        document: Document,
        heard: Heard,
        **named: Any,
    ) -> None:
        super().__init__(*given, **named)
        self._limits, self._pace, self._document, self._heard = limits, pace, document, heard
        self._timer: asyncio.TimerHandle | None = None  # of what comes
        self._stall: asyncio.TimerHandle | None = None  # of what goes
        self._over = self._ended = False
        self._heading, self._begun, self._since_progress = True, False, 0
        self._size = self._lines = self._chunks = 0
        self._unheard = 0
        self._fault: tuple[int, str] | None = None
        self._running: Any = None
        self.answered, self.since = 0, time.monotonic()

    # ---- what a connection waits for

    @property
    def waits(self) -> bool:
        """Whether it is the client's turn: it has not sent a whole request yet."""
        cycle = self._running
        return cycle is None or cycle.response_complete or cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait(self._limits.first, self._silent)
        if len(self.connections) > self._limits.connections:
            self._crowded()

    def _crowded(self) -> None:
        """Leave the client that has waited longest, first of those that never asked anything; else
        this one."""
        waiting = [c for c in cast("set[BoundedHttp]", self.connections) if c.waits]
        waiting.remove(self)
        strangers = [c for c in waiting if not c.answered]
        # Many strangers at once, so that not every new connection looks through all of them.
        few = max(1, len(strangers) // 16) if strangers else 1
        left = nsmallest(few, strangers or waiting, key=lambda c: c.since)
        for connection in left:
            connection.transport.abort()
        if not left:
            self._refuse(503, "this server has no free connection; try again later")

    def _wait(self, seconds: float, then: Callable[..., None], *given: Any) -> None:
        self._unwait()
        self._timer = self.loop.call_later(seconds, then, *given)

    def _unwait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _silent(self) -> None:
        if self._begun:
            self._refuse(408, f"the header did not arrive within {self._limits.head:g} s")
        else:
            self._hang_up()

    # ---- what comes

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while data and not self._over:
            piece, data = (data[:SLICE], data[SLICE:]) if self._heading else (data, b"")
            self._feed(piece)
        self._unheard += len(data)
        if self._unheard > UNHEARD:
            self.flow.pause_reading()

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._wait(self._limits.head, self._silent)

    def _feed(self, piece: bytes) -> None:
        if self._heading:
            self._begin()
        self._since_progress += len(piece)
        assert self.parser is not None
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:  # no other protocol is spoken here
            self._last_one()
        except httptools.HttpParserError as error:
            self._refuse(*(self._fault or (400, f"this is not HTTP: {_of(error)}")))
        if self._since_progress > self._limits.header:
            self._refuse(*self._too_large())

    def _too_large(self) -> tuple[int, str]:
        return 431, f"the header has over {self._limits.header:,} bytes"

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin()
        self._size = self._lines = self._chunks = self._since_progress = 0

    def on_url(self, url: bytes) -> None:
        self._add(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines += 1
        self._add(len(name) + len(value))
        if self._lines > self._limits.lines:
            self._raise(431, f"the header has over {self._limits.lines} lines")
        super().on_header(name, value)

    def _add(self, size: int) -> None:
        self._size += size
        if self._size > self._limits.header:
            self._raise(*self._too_large())

    def _raise(self, status: int, message: str) -> None:
        """End parsing; the parser takes no other way."""
        self._fault = status, message
        raise httptools.HttpParserError(message)

    def on_headers_complete(self) -> None:
        self._heading, self._since_progress = False, 0
        self._unwait()
        if len(self.pipeline) >= PIPELINE:
            self._raise(400, f"over {PIPELINE} requests wait on one connection; wait for answers")
        if self.parser is not None and self.parser.should_upgrade() and self._has_body():
            self._raise(400, "Upgrade: this server speaks HTTP/1.1 only; leave out this header")
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is before:
            return
        cast(Any, self.cycle).transport = Answered(self, self.transport)
        if before is None or before.response_complete:
            self._running = self.cycle

    def _has_body(self) -> bool:
        names = dict(self.headers)
        return b"transfer-encoding" in names or names.get(b"content-length", b"0") != b"0"

    def on_chunk_header(self) -> None:
        """A piece of a body begins."""
        self._chunks += 1
        if self._chunks > CHUNKS:
            self._raise(413, f"the body has over {CHUNKS:,} pieces")

    def on_body(self, body: bytes) -> None:
        self._since_progress = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._heading, self._begun, self._since_progress = True, False, 0
        super().on_message_complete()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends no more. Whether it reads, nobody knows: it is told that its request has
        ended, unless its answer is there at once."""
        if self._over:
            return None
        self._ended = True
        if self._busy:
            self._wait(HALF, self._left)
            return True
        if self._begun:
            self._refuse(400, "the request ended before its header was complete")
            return True
        return None

    @property
    def _busy(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _left(self) -> None:
        """End the request that runs, and say so."""
        cycle = self._running
        if not self._busy:
            self._hang_up()
            return
        cycle.disconnected = True
        cycle.message_event.set()
        if not cycle.response_started:
            self._write(400, GONE)
        elif cycle.transport.streams:
            error = json.dumps(plain(self._document(400, GONE))).encode()
            for event in (error, b"[DONE]"):
                self.transport.write(b"%x\r\ndata: %s\n\n\r\n" % (len(event) + 8, event))
            self.transport.write(b"0\r\n\r\n")
        self._hang_up()

    # ---- how it ends

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        """Answer with an error, after the others, and hear no more of this client."""
        if self._over:
            return
        self._over = True
        self._unwait()
        self.pipeline.clear()
        if self._busy and not self._running.more_body:
            self._running.keep_alive = False
            return
        late = self._pace.spent(REFUSAL_SECONDS)
        if late:
            self.flow.pause_reading()
            self._wait(late, self._told, status, message)
        else:
            self._told(status, message)

    def _told(self, status: int, message: str) -> None:
        if self._busy:  # its body never ends now
            self._running.disconnected = True
            self._running.message_event.set()
        else:
            self._heard(status, message)
        if not self._busy or not self._running.response_started:
            self._write(status, message)
        self._hang_up()

    def _write(self, status: int, message: str) -> None:
        body = json.dumps(plain(self._document(status, message))).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)

    def _last_one(self) -> None:
        """Take no other request of this client."""
        self._over = True
        if self._busy:
            self._running.keep_alive = False
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        """Close once what is written has gone; a client that still sends is let, for it would not
        read its answer otherwise."""
        self._over = True
        self._unwait()
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._ended or not self.transport.can_write_eof():
            self._close()
        else:
            self.transport.write_eof()
            self._wait(LINGER, self._close)

    def _close(self) -> None:
        self.transport.close()
        self._stalls()

    def _stalls(self) -> None:
        self._unstall()
        size = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(self._limits.stall, self._stalled, size)

    def _unstall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _stalled(self, before: int) -> None:
        """Leave a client that has read nothing since."""
        if self.transport.get_write_buffer_size() >= before:
            self.transport.abort()
        else:
            self._stalls()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalls()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unstall()

    def on_response_complete(self) -> None:
        unread, self._running = self._running.more_body, None
        if self.pipeline:
            self._running = self.pipeline[-1][0]
        self.answered, self.since = self.answered + 1, time.monotonic()
        super().on_response_complete()
        if self._over or self._ended or unread:
            self._hang_up()

    def timeout_keep_alive_handler(self) -> None:
        self._hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._unwait()
        self._unstall()
        if self._busy:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)


class Answered:
    """What uvicorn's cycle sees of a transport: it is closed so that its client reads the end."""

    def __init__(self, protocol: BoundedHttp, transport: asyncio.Transport) -> None:
        self._protocol, self._transport = protocol, transport
        self.streams = False

    def write(self, data: bytes) -> None:
        """Pass it on; the first bytes say what comes."""
        self.streams = self.streams or b"text/event-stream" in data[:1024]
        self._transport.write(data)

    def is_closing(self) -> bool:
        """As the transport says."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Let the client read what was written."""
        self._protocol._hang_up()


def _of(error: Exception) -> str:
    """What the parser found, without what it came of."""
    return str(error).partition("\n")[0][:100] or type(error).__name__


def most_connections(asked: int, *, raised: bool = False) -> int:
    """How many connections there may be at once: what was asked, and files are left for. With
    `raised` the process takes as many files as it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if raised and soft < hard:
        soft = hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    left = soft - len(os.listdir("/dev/fd"))
    return max(8, min(asked, left - max(left // 4, 32)))
