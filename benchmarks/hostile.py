"""A thousand hostile clients beside eight honest ones: what `faults.py --hostile` puts on a server.

    python benchmarks/hostile.py PORT     (each line of stdin: how many are at it from now on)

A fifth each send nothing, half a request, a header without end, a body that is wrong at great
length, and a grammar or a chat template that explodes. Each comes again some seconds after it was
refused or left. Honest clients ask for streams and measure the time to the first token.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from random import Random
from statistics import median
from typing import Any

PAUSE = 3.0
"""Seconds, on average, until a hostile client comes again."""
THINK = 0.2
"""Seconds, on average, between two requests of an honest client."""
TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    "{% for a in range(deep or 0) %}{% for b in range(deep) %}{% for c in range(deep) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
"""A chat template that a request can make run for ever."""
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def post(path: str, body: bytes, *lines: str) -> bytes:
    """A request."""
    head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *lines]
    head += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    return "\r\n".join(head).encode() + body


def _many(head: str, one: str, count: int, tail: str) -> bytes:
    return (head + ",".join([one] * count) + tail).encode()


WRONG = (
    b'{"prompt": "a", "max_tokens": "many"}',
    b'{"prompt": "a"',
    _many('{"prompt": [', '["a"]', 58_000, "]}"),
    _many('{"prompt": [', '["a"]', 500_000, "]}"),
    _many('{"prompt": [', "1", 3_900_000, "]}"),
    ("{" + ",".join(f'"k{i}": 1' for i in range(5000)) + "}").encode(),
    b'{"prompt": ' + b"[" * 100_000,
)


def _deep(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        found = {"anyOf": [{"type": "array", "items": found}, {"enum": [found["type"]]}]}
        found["type"] = "array"
    return found


SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "integer", "multipleOf": 3999971},
    {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
    {"type": "string", "minLength": 10**6, "maxLength": 10**7},
    {"type": "array", "items": {"type": "integer", "multipleOf": 1999993}, "maxItems": 10**6},
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3000)}},
    _deep(200),
)


def _explodes(draw: Random) -> bytes:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    if draw.random() < 0.5:
        return post(CHAT, json.dumps({**chat, "chat_template_kwargs": {"deep": 9000}}).encode())
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": draw.choice(SCHEMAS)}}
    return post(CHAT, json.dumps({**chat, "response_format": form}).encode())


def _half(draw: Random) -> bytes:
    whole = post(COMPLETIONS, b'{"prompt": "a"}' + b" " * 100_000)
    return whole[: draw.choice((3, 60, 200, 80_000))]


def _wide(draw: Random) -> bytes:
    kind = draw.choice((b"X: " + b"a" * 10**6, b"X: a\r\n" * 10**5, b"a" * 10**6))
    return b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + kind


KINDS: tuple[Callable[[Random], bytes], ...] = (
    lambda draw: b"",
    _half,
    _wide,
    lambda draw: post(COMPLETIONS, draw.choice(WRONG)),
    _explodes,
)


async def hostile(port: int, number: int) -> None:
    """One of them, until it is cancelled."""
    draw, kind = Random(number), KINDS[number % len(KINDS)]
    await asyncio.sleep(draw.uniform(0, PAUSE))
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(kind(draw))
                while await reader.read(2**16):
                    pass
            finally:
                writer.transport.abort()
        await asyncio.sleep(draw.expovariate(1 / PAUSE))


async def directed(port: int) -> None:
    """As many hostile clients as stdin says, line by line."""
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks = [asyncio.create_task(hostile(port, number)) for number in range(int(line))]


class Honest:
    """Honest clients, the times to their first tokens and what failed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.first: list[float] = []
        self.health: list[float] = []
        self.failed: list[str] = []

    async def client(self, draw: Random, end: float) -> None:
        """One client: a stream after the other."""
        while time.monotonic() < end:
            prompt = [draw.randrange(4, 300) for _ in range(draw.choice((8, 40, 120)))]
            try:
                self.first.append(await self._stream({"prompt": prompt, "max_tokens": 16}))
            except Exception as error:  # all of them are counted
                self.failed.append(repr(error)[:300])
            await asyncio.sleep(draw.expovariate(1 / THINK))

    async def _stream(self, body: dict[str, Any]) -> float:
        begun, first, last = time.monotonic(), 0.0, b""
        data = json.dumps({**body, "stream": True, "temperature": 0}).encode()
        async with asyncio.timeout(60):
            async for part in self._answer(post(COMPLETIONS, data)):
                if not first and b"data: {" in part:
                    first = time.monotonic() - begun
                last = last[-100:] + part
        if not last.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") or b'"error"' in last:
            raise ValueError(f"no whole answer: {last[-200:]!r}")
        return first

    async def _answer(self, request: bytes) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(request)
            while part := await reader.read(2**16):
                yield part
        finally:
            writer.close()

    async def watch(self, end: float) -> None:
        """Ask /health ten times a second."""
        asked = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        while time.monotonic() < end:
            begun = time.monotonic()
            try:
                async with asyncio.timeout(60):
                    parts = [part async for part in self._answer(asked)]
                if not parts[0].startswith(b"HTTP/1.1 200"):
                    raise ValueError(f"/health: {parts[0][:100]!r}")
                self.health.append(time.monotonic() - begun)
            except Exception as error:
                self.failed.append(repr(error)[:300])
            await asyncio.sleep(0.1)


def window(port: int, honest: int, seconds: float, seed: int) -> Honest:
    """Some seconds of honest clients."""
    found, end = Honest(port), time.monotonic() + seconds

    async def all_of_them() -> None:
        clients = [found.client(Random(f"{seed}/{n}"), end) for n in range(honest)]
        await asyncio.gather(found.watch(end), *clients)

    asyncio.run(all_of_them())
    return found


def figures(found: Honest) -> dict[str, float]:
    """Of one window: milliseconds and how many."""
    health = sorted(found.health) or [float("inf")]
    return {
        "answers": len(found.first),
        "ttft_ms": round(median(found.first or [float("inf")]) * 1e3, 1),
        "health_p99_ms": round(health[(len(health) - 1) * 99 // 100] * 1e3, 1),
    }


if __name__ == "__main__":
    os.nice(10)  # what is measured is the server, not who waits for its clients' core
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(directed(int(sys.argv[1])))
