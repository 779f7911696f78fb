"""A client of few lines, to run many at once: it can be slow, leave, or send what it likes."""

import asyncio
import json


async def ask(port, path, body, *, leave_after=None, slow=0.0, kind="application/json"):
    """Status and body of one answer; status 0 where the client left or nobody listens."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return -1, b""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nConnection: close\r\n"
    )
    try:
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        if leave_after is not None:
            await asyncio.sleep(leave_after)
            return 0, b""
        found = b""
        while part := await reader.read(256 if slow else 2**16):
            found += part
            await asyncio.sleep(slow)
        status, _, rest = found.partition(b"\r\n\r\n")
        return int(status.split()[1]) if status else -2, rest
    except OSError:
        return -2, b""
    finally:
        writer.close()


BAD = [
    b'{"prompt": "a',
    b"",
    b"[" * 5000,
    {"prompt": [1] * 2000},
    {"prompt": "a", "max_tokens": "many"},
    {"prompt": "a", "max_token": 1},
    {"prompt": [2**30]},
    {"prompt": {"a": 1}},
    {"prompt": "a", "n": 10**9},
]


def drawn(draw):
    """One request of a mixed load, and what its client does."""
    kind = draw.random()
    if kind < 0.2:
        return draw.choice(BAD), {}
    body = {
        "prompt": [draw.randrange(4, 303) for _ in range(draw.choice([1, 9, 40, 200]))],
        "max_tokens": draw.choice([1, 5, 20, 80]),
        "stream": draw.random() < 0.6,
    }
    if draw.random() < 0.2:
        body["n"] = 3
    if draw.random() < 0.2:
        body["stop"] = ["a", "the"]
    if draw.random() < 0.1:
        body["echo"], body["logprobs"] = True, 2
    if kind < 0.4:
        return body, {"leave_after": draw.choice([0, 0.001, 0.01, 0.05])}
    return body, {"slow": 0.002} if kind < 0.5 else {}


async def load(port, draw, requests, in_flight=64, begun=lambda count: None):
    """The requests of a load with their answers."""
    found, left = [], iter(range(requests))

    async def worker():
        for number in left:
            begun(number)
            body, how = drawn(draw)
            found.append((body, how, *await ask(port, "/v1/completions", body, **how)))

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return found


def check(body, status, answer):
    """Whether an answer is the one that its request must have: as many tokens, and the end of a
    stream."""
    if body in BAD:
        assert 400 <= status < 500, (body, status)
        error = json.loads(answer)["error"]
        assert error["message"]
        if isinstance(body, dict):
            assert error["param"] in body
        return
    assert status == 200, (status, answer)
    if body["stream"]:
        answer = unchunked(answer)
        assert answer.endswith(b"data: [DONE]\n\n")
        events = [json.loads(line[6:]) for line in answer.split(b"\n\n")[:-2]]
        ends = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
        assert len(ends) == body.get("n", 1)
    else:
        document = json.loads(answer)
        assert len(document["choices"]) == body.get("n", 1)
        most = body["max_tokens"] * body.get("n", 1)
        count = document["usage"]["completion_tokens"]
        ends = {choice["finish_reason"] for choice in document["choices"]}
        assert count == most if ends == {"length"} else count <= most
        assert ends <= {"length", "stop"}


def unchunked(data):
    """The body of a chunked answer."""
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        found, data = found + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return found
