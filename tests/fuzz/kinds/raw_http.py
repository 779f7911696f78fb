"""Bytes on a connection to the server: requests with damaged lines, lengths, pieces and bodies.

A case starts a server over an engine of no model, sends it a few damaged requests side by side, and
asks /health all the while. It breaks a rule by a traceback, an answer that is no HTTP or no refusal
as the API writes it, a mistake of the server's own, or a /health that takes over `SLOW` seconds.
"""

import contextlib
import json
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.cases import Case
from fuzz.mutate import WHOLE, Harm

SLOW = 1.0
AT_ONCE = 6
"""Damaged requests of a case."""
STATUSES = (200, 400, 401, 403, 404, 405, 408, 413, 415, 421, 429, 431, 503)

BODIES = (
    ("/v1/completions", {"prompt": "the quick", "max_tokens": 4, "temperature": 0}),
    ("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 3, "stream": True, "n": 2}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 0, "echo": True, "logprobs": 3}),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"5": 2.5}, "stop": ["x"], "seed": 7}),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "logprobs": True},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "be brief"}]},
                {"role": "user", "content": "hi"},
            ],
            "max_completion_tokens": 2,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    ("/tokenize", {"prompt": "the quick brown fox"}),
    ("/detokenize", {"tokens": [5, 6, 7, 8]}),
)
GETS = ("/health", "/v1/models", "/v1/models/mock", "/metrics", "/debug/state", "/openapi.json")
LINES = (
    *(b"Host: evil.example", b"Host: [::1", b"Host:", b"Origin: http://evil.example", b"X: y"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Content-Length: 0"),
    *(b"Content-Length: 99999999999999999999", b"Content-Length: -1", b"Content-Length: 7"),
    *(b"Content-Encoding: gzip", b"Expect: 100-continue", b"Connection: Upgrade", b"Upgrade: h2c"),
    *(b"Content-Type: text/plain", b"Authorization: Basic eDp5", b"X-Request-Id: \xff\xfe", b": z"),
    *(b" folded", b"Sec-Fetch-Site: cross-site", b"Connection: keep-alive", b"Trailer: X"),
    b"X: " + b"a" * 70_000,
    b"\r\n".join(b"X-%d: 1" % i for i in range(300)),
)
STARTS = (
    *(b"GET /health HTTP/1.0", b"GET /health", b"get /health HTTP/1.1", b"PRI * HTTP/2.0"),
    *(b"POST /v1/completions HTTP/9.9", b"CONNECT a:1 HTTP/1.1", b"OPTIONS * HTTP/1.1", b""),
    *(
        b"GET http://evil.example/health HTTP/1.1",
        b"GET //health HTTP/1.1",
        b"\x16\x03\x01\x02\x00",
    ),
    *(b"GET /v1/models/%2e%2e%2f%00 HTTP/1.1", b"HEAD /v1/models HTTP/1.1", b"DELETE / HTTP/1.1"),
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What one client sends, in parts with pauses between, and how it ends: it reads, closes its
    side first, or leaves."""

    parts: Sequence[bytes]
    pause: float
    end: str


@cache
def _parts() -> Callable[[], Any]:
    """A server, imported and its tokenizer made before the case's process begins."""
    from apps.server.made import folder_of, replica_of
    from shardwise.apps.server.run import running
    from shardwise.apps.server.state import ServerLimits
    from shardwise.apps.web.connection import ConnectionLimits

    folder = folder_of(Path(tempfile.mkdtemp(prefix="fuzz-http-")))
    soon = ConnectionLimits(first=0.4, head=0.4, idle=1.0, stall=1.0)
    return lambda: running(replica_of(folder), ServerLimits(upload=0.6, connection=soon))


def _request(random: Random, harm: Harm) -> bytes:
    """One request, whole but for what `harm` does."""
    if random.random() < 0.25:
        lines, body = [b"GET %s HTTP/1.1" % random.choice(GETS).encode()], b""
    else:
        path, document = random.choice(BODIES)
        body = json.dumps(document).encode()
        lines = [b"POST %s HTTP/1.1" % path.encode(), b"Content-Type: application/json"]
        if random.random() < 0.5:
            body = harm.document(body)
    lines.append(b"Host: 127.0.0.1")
    if body and random.random() < 0.3:
        lines.append(b"Transfer-Encoding: chunked")
        body = _chunked(random, body)
    elif body:
        lines.append(b"Content-Length: %d" % len(body))
    if harm is not WHOLE:
        _bend(random, lines)
    return b"\r\n".join([*lines, b"", b""]) + body


def _chunked(random: Random, body: bytes) -> bytes:
    found = b""
    while body:
        size = random.choice((1, 2, 16, 4096))
        found += b"%x\r\n%s\r\n" % (len(body[:size]), body[:size])
        body = body[size:]
    return found + b"0\r\n\r\n"


def _bend(random: Random, lines: list[bytes]) -> None:
    """Lines of a header more, fewer, doubled, or another beginning."""
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        match random.randrange(5):
            case 0 | 1:
                lines.insert(random.randrange(1, len(lines) + 1), random.choice(LINES))
            case 2:
                lines.append(random.choice(lines))
            case 3:
                lines.pop(random.randrange(len(lines)))
            case _:
                lines[:1] = [random.choice(STARTS)]
        lines[:] = lines or [b""]


def _sent(random: Random, harm: Harm) -> Sent:
    data = _request(random, harm)
    if harm is WHOLE:
        return Sent(parts=(data,), pause=0.0, end="read")
    if random.random() < 0.3:
        data = harm.text(data)
    if random.random() < 0.15:
        data += b"".join(_request(random, harm) for _ in range(random.choice((1, 3, 40))))
    if random.random() < 0.2:
        data = data[: random.randrange(len(data) + 1)]
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 4))))
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    end = random.choice(("read", "read", "read", "half", "leave"))
    return Sent(parts=parts, pause=random.choice((0.0, 0.01, 0.1)), end=end)


def _tell(port: int, sent: Sent) -> bytes:
    """Send it; what comes back, b"" for a client that does not look."""
    found = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 8) as to:
        with contextlib.suppress(OSError):
            for part in sent.parts:
                to.sendall(part)
                time.sleep(sent.pause)
            if sent.end == "half":
                to.shutdown(socket.SHUT_WR)
        if sent.end == "leave":
            return b""
        while part := to.recv(2**16):
            found += part
    return found


def _judge(answer: bytes) -> None:
    """Raises AssertionError for an answer that no server of this API gives."""
    if not answer:
        return
    head, _, body = answer.partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
    assert match, f"not HTTP: {answer[:100]!r}"
    status = int(match[1])
    assert status in STATUSES, f"status {status}: {answer[:300]!r}"
    length = re.search(rb"content-length: (\d+)", head)
    if status >= 400 and length and body:
        error = json.loads(body[: int(length[1])])["error"]
        assert error["code"] == status
        assert error["message"]


def _healthy(port: int, over: threading.Event, took: list[float]) -> None:
    """Ask /health until it is over; the seconds of each answer."""
    asked = Sent(
        parts=(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",),
        pause=0.0,
        end="read",
    )
    while not over.is_set():
        begun = time.monotonic()
        if not _tell(port, asked).startswith(b"HTTP/1.1 200"):
            took.append(float("inf"))
        took.append(time.monotonic() - begun)
        time.sleep(0.01)


def _http(random: Random, harm: Harm) -> Case:
    sent = [_sent(random, harm) for _ in range(AT_ONCE)]
    serve = _parts()

    def run(folder: Path) -> None:
        answers: list[bytes] = []
        took: list[float] = []
        with serve() as (state, url):
            port, over = int(url.rpartition(":")[2]), threading.Event()
            watch = threading.Thread(target=_healthy, args=(port, over, took))
            clients = [
                threading.Thread(target=lambda one=one: answers.append(_tell(port, one)))
                for one in sent
            ]
            for thread in (watch, *clients):
                thread.start()
            for thread in clients:
                thread.join()
            over.set()
            watch.join()
        state.replica.text.jobs.stop()  # a fork runs nothing at its end
        for answer in answers:
            _judge(answer)
            assert harm is not WHOLE or b" 200 OK" in answer[:20], answer[:300]
        slowest = sorted(took)[: max(1, len(took) * 99 // 100)][-1]
        assert slowest < SLOW, f"/health took {slowest:.1f} s of {len(took)} times"

    return Case(files={}, run=run)


KINDS: Mapping[str, Callable[[Random, Harm], Case]] = {"http": _http}
