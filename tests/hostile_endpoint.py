"""A server that answers as no honest one does: what it sends, and how fast, is the caller's.

It listens on 127.0.0.1 and keeps what it was sent, so that a test can say who got a key.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

Answer = Iterable[bytes | float]
"""What is sent, piece by piece; a number is a pause in seconds."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
PLAIN = HEAD + b"\r\n"
MODELS = PLAIN + b'{"data": [{"id": "tiny"}]}'


def event(value: object) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


TOKEN = event({"choices": [{"index": 0, "text": "a", "delta": {"content": "a"}}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 4}})
DONE = b"data: [DONE]\n\n"
GOOD = PLAIN + 4 * TOKEN + USAGE + DONE


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked answer."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def endless(data: bytes, pause: float = 0.0) -> Iterator[bytes | float]:
    """The same for ever."""
    while True:
        yield data
        if pause:
            yield pause


HOSTILE: dict[str, Callable[[], Answer]] = {
    "choices are text": lambda: [PLAIN, event({"choices": "x"}), DONE],
    "choices are numbers": lambda: [PLAIN, event({"choices": [1, None]}), DONE],
    "text is a number": lambda: [PLAIN, event({"choices": [{"text": 7, "delta": 7}]}), DONE],
    "delta is text": lambda: [PLAIN, event({"choices": [{"delta": "x"}]}), DONE],
    "an event is a list": lambda: [PLAIN, event([1]), DONE],
    "an event is not JSON": lambda: [PLAIN, b"data: {nope\n\n", DONE],
    "an event nests deep": lambda: [PLAIN, b"data: " + b"[" * 100_000 + b"\n\n", DONE],
    "a number of 5,000 digits": lambda: [PLAIN, b'data: {"choices": [' + b"9" * 5000 + b"]}\n\n"],
    "half a character": lambda: [PLAIN, b'data: {"choices": [{"text": "\\ud800"}]}\n\n', DONE],
    "an error inside": lambda: [PLAIN, TOKEN, event({"error": {"message": "out of memory"}})],
    "an error of text": lambda: [PLAIN, TOKEN, event({"error": "out of memory"})],
    "too many tokens": lambda: [PLAIN, TOKEN, event({"usage": {"completion_tokens": 2**31}}), DONE],
    "no tokens": lambda: [PLAIN, DONE],
    "nothing": list,
    "no HTTP": lambda: [b"SSH-2.0-OpenSSH_9.2\r\n"],
    "cut off": lambda: [PLAIN, TOKEN],
    "cut off in a chunk": lambda: [CHUNKED, b"400\r\n" + TOKEN],
    "an oversized chunk": lambda: [CHUNKED, b"f" * 30 + b"\r\n" + TOKEN],
    "a negative chunk": lambda: [CHUNKED, b"-5\r\n" + TOKEN],
    "a chunk of no number": lambda: [CHUNKED, b"zz\r\n" + TOKEN],
    "a negative length": lambda: [HEAD + b"Content-Length: -1\r\n\r\n" + TOKEN],
    "a length of no number": lambda: [HEAD + b"Content-Length: 9e9\r\n\r\n" + TOKEN],
    "a huge length": lambda: [HEAD + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n" + TOKEN],
    "a long header": lambda: [HEAD + b"X: " + b"a" * 100_000 + b"\r\n\r\n"],
    "many headers": lambda: [HEAD + b"X: a\r\n" * 1000 + b"\r\n"],
    "a status of words": lambda: [b"HTTP/1.1 two OK\r\n\r\n"],
    "a status of 5,000 digits": lambda: [b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n"],
    "a refusal that steers": lambda: [b"HTTP/1.1 500 No\r\n\r\n\x1b[2J\x00 gone\n" * 100],
    "a long line": lambda: [PLAIN, b"data: " + b"a" * 3_000_000],
    "endless 100": lambda: endless(b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "endless trailers": lambda: chain([CHUNKED, b"0\r\n"], endless(b"X: a\r\n" * 1000)),
    "endless tokens": lambda: chain([PLAIN], endless(TOKEN * 100)),
    "endless blank lines": lambda: chain([PLAIN], endless(b"\n" * 10_000)),
    "endless bytes": lambda: chain([PLAIN], endless(b"a" * 10_000)),
    "chunks of a byte": lambda: chain([CHUNKED], endless(chunk(b"a") * 1000)),
    "a dripping status": lambda: endless(b"H", 0.1),
    "dripping headers": lambda: chain([HEAD], endless(b"X", 0.1)),
    "dripping tokens": lambda: chain([PLAIN], endless(b": ping\n", 0.1)),
    "a dripping event": lambda: chain([PLAIN, b"data: "], endless(b"[", 0.1)),
    "silence": lambda: [60.0],
    "silence after the headers": lambda: [PLAIN, 60.0],
}


class HostileEndpoint:
    """Answers each POST with what `answer` yields, and each GET with the models it has."""

    def __init__(self, answer: Callable[[], Answer], models: Callable[[], Answer] | None = None):
        self.answer, self.models = answer, models or (lambda: [MODELS])
        self.heard: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> "HostileEndpoint":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.settimeout(10)
            asked = _request(connection)
            self.heard.append(asked)
            for piece in self.answer() if asked.startswith(b"POST") else self.models():
                if isinstance(piece, bytes):
                    connection.sendall(piece)
                elif self._ended.wait(piece):
                    return
                if self._ended.is_set():
                    return


def _request(connection: socket.socket) -> bytes:
    """The whole request: headers, and as much body as they say."""
    heard = b""
    while b"\r\n\r\n" not in heard:
        more = connection.recv(65536)
        if not more:
            return heard
        heard += more
    head, _, body = heard.partition(b"\r\n\r\n")
    lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    wanted = int(lengths[0].partition(b":")[2]) if lengths else 0
    until = time.monotonic() + 10
    while len(body) < wanted and time.monotonic() < until:
        more = connection.recv(65536)
        if not more:
            break
        body += more
    return head + b"\r\n\r\n" + body
