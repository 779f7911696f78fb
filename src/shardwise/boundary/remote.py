"""The door for answers of a server that speaks OpenAI's API: whom a key is shown, and how much of
what comes is read.

A key goes to one address and never further. `--api-key` is for the address that was asked; a
variable is for its own (`KEYS`: OPENAI_API_KEY is shown where OPENAI_BASE_URL says, or to OpenAI).
It travels encrypted, or within this machine, unless the caller says that it may go in clear.
Redirects are not followed, so that nothing goes to where they point.

A request ends by its time limit however slowly an answer drips, and an answer that does not end,
or is none of OpenAI's form, is refused in words.
"""

import http.client
import io
import ipaddress
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

from shardwise.boundary.documents import parse_json
from shardwise.errors import BadRequest, shown

KEYS: Mapping[str, tuple[str, str]] = {
    "SHARDWISE_API_KEY": ("SHARDWISE_BASE_URL", "http://127.0.0.1:8000"),
    "OPENAI_API_KEY": ("OPENAI_BASE_URL", "https://api.openai.com"),
}
"""Variables with a key: the variable that says for which address, and the address without it."""
DOCUMENT_BYTES = 2**20
"""Bytes of an answer in one piece, with its headers."""
MOST_EVENTS = 2**18
"""Events of a streamed answer of unknown length."""
_SPARE_BYTES = 2**16
_EVENT_BYTES = 4096
"""Bytes of an event, on average, at most; a token with its log probabilities has 1,500."""
_WORK_SECONDS = 15.0
"""Processor time of reading one answer: pieces of a byte each cost more than their bytes say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server: its address as it was written, its parts, and the key that it is shown."""

    address: str
    secure: bool
    host: str
    port: int
    path: str
    key: str = field(default="", repr=False)

    def __str__(self) -> str:
        return shown(self.address)

    @property
    def origin(self) -> tuple[bool, str, int]:
        """What a key is for: scheme, host and port."""
        return self.secure, "127.0.0.1" if self.host == "localhost" else self.host, self.port

    @property
    def private(self) -> bool:
        """Whether nobody between sees what is sent: it is encrypted, or stays on this machine."""
        if self.secure or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def server_at(address: str, *, api_key: str | None = None, in_clear: bool = False) -> Endpoint:
    """The server at an address, with the key given for it, or that of its own variable.

    `in_clear` lets the key go unencrypted to another machine. Raises BadRequest.

    >>> server_at("localhost:8000").origin
    (False, '127.0.0.1', 8000)
    """
    found = _parsed(address, "--endpoint")
    name, key = ("--api-key", api_key) if api_key is not None else _own_key(found)
    if not key:
        if name == "--api-key":
            raise BadRequest("--api-key is empty; give a key, or leave it out")
        return found
    if len(key) > 4096 or not all("!" <= c <= "~" for c in key):
        raise BadRequest(
            f"{name} is not a key: a key has up to 4,096 printable ASCII characters and no spaces"
        )
    if not (found.private or in_clear):
        raise BadRequest(
            f"{name} would go unencrypted to {found}; give an https:// address, use a tunnel "
            "that begins on this machine, or add --key-in-clear"
        )
    return replace(found, key=key)


def _own_key(server: Endpoint) -> tuple[str, str]:
    """The variable whose address this is, and its key; empty where there is none."""
    for name, (where, default) in KEYS.items():
        key = os.environ.get(name, "")
        if key and _parsed(os.environ.get(where) or default, where).origin == server.origin:
            return name, key
    return "", ""


def _parsed(address: str, name: str) -> Endpoint:
    if not (address.isascii() and address.isprintable()) or " " in address:
        raise _no_address(name, address, "it is not written in visible ASCII")
    try:
        url = urlsplit(address if "//" in address else f"http://{address}")
        port = url.port
    except ValueError as error:
        raise _no_address(name, address, str(error)) from None
    if reason := _fault(url):
        raise _no_address(name, address, reason)
    secure = url.scheme == "https"
    return Endpoint(
        address=address,
        secure=secure,
        host=(url.hostname or "").rstrip("."),
        port=port if port is not None else 443 if secure else 80,
        path=url.path.rstrip("/").removesuffix("/v1"),
    )


def _fault(url: SplitResult) -> str:
    """Why this is not an address of a server."""
    if url.scheme not in ("http", "https"):
        return "it must begin with http:// or https://"
    if "@" in url.netloc:
        return "it contains a name or password; give a key with --api-key"
    if url.query or url.fragment:
        return "it has a '?' or '#'"
    return "" if url.hostname else "it has no host"


def _no_address(name: str, address: str, reason: str) -> BadRequest:
    # What stands before an @ is a secret.
    text = shown("..." + address[address.rindex("@") :] if "@" in address else address)
    return BadRequest(
        f"{name} {text} is not a server address: {reason}; give one such as http://localhost:8000"
    )


class _TooMuchError(Exception):
    """An answer beyond its limits."""


class _AnswerLimits:
    """What is left of a request's time, of the bytes of its answer, and of the work it may make."""

    def __init__(self, seconds: float, most: int) -> None:
        self.until, self.most = time.monotonic() + seconds, most
        self._bytes, self._begun = 0, time.thread_time()

    def left(self) -> float:
        """Seconds."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def add(self, size: int) -> None:
        """Count bytes that came."""
        self._bytes += size
        if self._bytes > self.most:
            raise _TooMuchError(f"has more than {self.most:,} bytes")
        if time.thread_time() - self._begun > _WORK_SECONDS:
            raise _TooMuchError(f"takes over {_WORK_SECONDS:g} s of CPU to read")


class _Limited(io.RawIOBase):
    """What comes on a socket, within limits however slowly it drips."""

    def __init__(self, sock: Any, limits: _AnswerLimits) -> None:
        self._sock, self._limits = sock, limits
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        self._sock.settimeout(self._limits.left())
        size = self._raw.readinto(buffer)
        self._limits.add(size or 0)
        return size

    def close(self) -> None:
        self._raw.close()
        super().close()


@contextmanager
def answered(
    server: Endpoint,
    path: str,
    body: Mapping[str, Any] | None,
    timeout: float,
    most: int = DOCUMENT_BYTES,
) -> Iterator[http.client.HTTPResponse]:
    """The answer to a POST, or without a body to a GET: whole within `timeout` seconds and `most`
    bytes. Raises BadRequest."""
    limits = _AnswerLimits(timeout, most)
    kind = http.client.HTTPSConnection if server.secure else http.client.HTTPConnection
    connection = kind(server.host, server.port, timeout=timeout)
    try:
        connection.connect()
        yield _asked(connection, server, path, body, limits)
    except TimeoutError:
        raise BadRequest(
            f"{server} took over {timeout:g} s to answer {path}; allow more time, or find the delay"
        ) from None
    except OSError as error:
        raise BadRequest(
            f"{server} cannot be asked: {_reason(error)}; give the address of a server that has "
            f"{path}, such as http://localhost:8000"
        ) from None
    except (http.client.HTTPException, ValueError, OverflowError) as error:
        raise BadRequest(
            f"{server} does not answer {path} with HTTP ({_reason(error)}); give the address of "
            "an HTTP server"
        ) from None
    except _TooMuchError as error:
        raise BadRequest(f"the answer of {server} to {path} {error}; ask another server") from None
    finally:
        connection.close()


def _reason(error: Exception) -> str:
    return shown(str(error).strip() or type(error).__name__, 120).strip("'")


def _asked(
    connection: http.client.HTTPConnection,
    server: Endpoint,
    path: str,
    body: Mapping[str, Any] | None,
    limits: _AnswerLimits,
) -> http.client.HTTPResponse:
    """Send the request; its answer, once its headers are there."""

    def response(sock: Any, *args: Any, **options: Any) -> http.client.HTTPResponse:
        made = http.client.HTTPResponse(sock, *args, **options)
        made.fp.close()
        made.fp = io.BufferedReader(_Limited(sock, limits))
        return made

    connection.response_class = response  # type: ignore[assignment]
    assert connection.sock is not None
    connection.sock.settimeout(limits.left())
    headers = {"Content-Type": "application/json"}
    if server.key:
        headers["Authorization"] = f"Bearer {server.key}"
    data = None if body is None else json.dumps(body).encode()
    connection.request("GET" if data is None else "POST", server.path + path, data, headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise BadRequest(f"{server} {_refusal(server, answer)}")
    return answer


def _refusal(server: Endpoint, answer: http.client.HTTPResponse) -> str:
    """What an answer that is no success says."""
    place = answer.getheader("Location", "")
    if 300 <= answer.status < 400 and place:
        return (
            f"points elsewhere ({answer.status}), to {_told(server, place)}, and redirects are "
            "not followed; give that address if you trust it"
        )
    said = _told(server, answer.read(500).decode("utf-8", "replace"), 500)
    hint = ""
    if answer.status in (401, 403):
        hint = "; give its key with --api-key" if not server.key else "; the key is not its own"
    return f"refused a request with {answer.status}: {said.strip(chr(39))}{hint}"


def _told(server: Endpoint, text: str, longest: int = 200) -> str:
    """What a server says, as a message may print it: without the key."""
    return shown(text.replace(server.key, "[key]") if server.key else text, longest)


def text_of(server: Endpoint, path: str, timeout: float) -> str:
    """The text of an answer in one piece. Raises BadRequest."""
    with answered(server, path, None, timeout) as answer:
        return answer.read().decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """One event of a streamed answer: the text of each choice, None where it has none, and the
    tokens counted so far where it says them."""

    texts: tuple[str | None, ...]
    usage: Mapping[str, Any]


def streamed(
    server: Endpoint, path: str, body: Mapping[str, Any], timeout: float, tokens: int = MOST_EVENTS
) -> Iterator[StreamEvent]:
    """The events of a streamed answer; at most so many of them have tokens.

    Raises BadRequest where it is none, does not end, or says an error.
    """
    most = _SPARE_BYTES + tokens * _EVENT_BYTES
    with answered(server, path, body, timeout, most) as answer:
        while line := answer.readline(most):
            text = line.decode("utf-8", "replace").strip()
            if text == "data: [DONE]":
                return
            if text.startswith("data:"):
                yield _event(server, text.removeprefix("data:"))
    raise BadRequest(f"the answer of {server} ended before [DONE]; see why the server stopped")


def _event(server: Endpoint, text: str) -> StreamEvent:
    found = parse_json(text, f"an event of {server}")
    if not isinstance(found, dict):
        raise _no_event(server, "it is no object")
    if (error := found.get("error")) is not None:
        said = error.get("message") if isinstance(error, dict) else error
        raise BadRequest(f"{server} says: {_told(server, str(said), 500).strip(chr(39))}")
    choices, usage = found.get("choices") or [], found.get("usage")
    if not isinstance(choices, list):
        raise _no_event(server, f"its choices are {shown(choices)}")
    return StreamEvent(
        texts=tuple(_text(server, choice) for choice in choices),
        usage=usage if isinstance(usage, dict) else {},
    )


def _text(server: Endpoint, choice: Any) -> str | None:
    """The text of a choice: a completion's own, a chat's in its delta."""
    holder, name = choice, "text"
    if isinstance(choice, dict) and "delta" in choice:
        holder, name = choice["delta"], "content"
    if not isinstance(holder, dict):
        raise _no_event(server, f"a choice is {shown(choice)}")
    text = holder.get(name)
    if text is not None and not isinstance(text, str):
        raise _no_event(server, f"the text of a choice is {shown(text)}")
    return text


def _no_event(server: Endpoint, reason: str) -> BadRequest:
    return BadRequest(
        f"an event of {server} is not in OpenAI's format: {reason}; name a server that has "
        "/v1/completions"
    )
