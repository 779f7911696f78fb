"""A short load on a live OpenAI-compatible server, as records of its requests.

Requests go to /v1/completions with prompts of random token ids, so that lengths are exact and no
prefix is shared, and answers stream, so that the first and the last token have a time. A few
requests go alone, one after the other; the rest arrive at random at a rate, so that batches of many
sizes are seen.
"""

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from shardwise.boundary import parse_json, whole
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.evidence.calibration.replay import ServedRequest

_ALONE = 3
"""Requests that go one after the other first: a batch of one."""

_FEWEST_IDS = 256
"""Ids below this are bytes and marks in many vocabularies; prompts use those above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """One request to send: `at` seconds after the load starts, or after the last one ended where
    `alone`."""

    id: int
    at: float
    prompt: int
    output: int
    alone: bool = False


def load(requests: int, rate: float, prompt: int, output: int) -> list[LoadRequest]:
    """So many requests at `rate` per second (Poisson), the first few alone. Lengths are half to
    one and a half times those given, evenly."""
    if requests <= _ALONE:
        raise BadRequest(f"--requests is {requests}; at least {_ALONE + 1} tell something")
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(1 / rate, requests))
    spread = rng.uniform(0.5, 1.5, (requests, 2))
    return [
        LoadRequest(
            id=i,
            at=float(arrivals[i]),
            prompt=max(int(prompt * spread[i, 0]), 1),
            output=max(int(output * spread[i, 1]), 2),
            alone=i < _ALONE,
        )
        for i in range(requests)
    ]


def measure(
    endpoint: str,
    model: str,
    vocabulary: int,
    asks: Sequence[LoadRequest],
    *,
    timeout: float = 600.0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[ServedRequest]:
    """Send the load and wait for all answers. `vocabulary` bounds the token ids.

    Raises BadRequest where the server cannot be reached or refuses a request.
    """
    rng = np.random.default_rng(seed)
    least = min(_FEWEST_IDS, vocabulary // 2)
    prompts = {a.id: rng.integers(least, vocabulary, a.prompt).tolist() for a in asks}
    found: dict[int, ServedRequest] = {}
    failed: list[ShardwiseError] = []

    def send(ask: LoadRequest) -> None:
        try:
            found[ask.id] = _one(endpoint, model, ask, prompts[ask.id], timeout)
        except ShardwiseError as error:
            failed.append(error)
        if progress is not None:
            progress(len(found), len(asks))

    for ask in (a for a in asks if a.alone):
        send(ask)
        if failed:
            raise failed[0]
    threads = []
    start = time.monotonic()
    for ask in (a for a in asks if not a.alone):
        time.sleep(max(start + ask.at - time.monotonic(), 0.0))
        if failed:
            break
        threads.append(threading.Thread(target=send, args=(ask,), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(timeout)
    if failed:
        raise failed[0]
    return [found[i] for i in sorted(found)]


def _one(
    endpoint: str, model: str, ask: LoadRequest, prompt: list[int], timeout: float
) -> ServedRequest:
    """One request and its streamed answer."""
    return sent(endpoint, model, ask, prompt, timeout)[0]


def sent(
    endpoint: str, model: str, ask: LoadRequest, prompt: list[int], timeout: float
) -> tuple[ServedRequest, list[float]]:
    """One request and its streamed answer, and when each event with tokens came."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": ask.output,
        "ignore_eos": True,
        "temperature": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    arrival = time.monotonic()
    times: list[float] = []
    usage: dict[str, Any] = {}
    for event in events(endpoint, "/v1/completions", body, timeout):
        if event.get("choices"):
            times.append(time.monotonic())
        said = event.get("usage")
        usage = said if isinstance(said, dict) else usage
    if not times:
        raise BadRequest(f"'{endpoint}' answered request {ask.id} without a token")
    served = ServedRequest(
        id=ask.id,
        arrival=arrival,
        prompt=whole(usage.get("prompt_tokens", ask.prompt), "prompt_tokens", least=1, most=2**31),
        output=whole(
            usage.get("completion_tokens", len(times)), "completion_tokens", least=1, most=2**31
        ),
        first_token=times[0],
        last_token=times[-1],
    )
    return served, times


def model_of(endpoint: str, timeout: float = 30.0) -> str:
    """The first model that a server lists. Raises BadRequest."""
    with answered(endpoint, "/v1/models", None, timeout) as answer:
        found = parse_json(answer.read(LONGEST_LINE).decode("utf-8", "replace"), "its models")
    try:
        return str(found["data"][0]["id"])
    except (LookupError, TypeError):
        raise BadRequest(f"'{endpoint}' lists no model; name it with --served-model") from None


def programs_of(endpoint: str, timeout: float = 30.0) -> int | None:
    """Programs that a server of ours has compiled so far; None of another's."""
    try:
        with answered(endpoint, "/metrics", None, timeout) as answer:
            text = answer.read(LONGEST_LINE).decode("utf-8", "replace")
        lines = [line for line in text.splitlines() if line.startswith(COMPILED)]
        return int(float(lines[0].rpartition(" ")[2])) if lines else None
    except (BadRequest, ValueError):
        return None


COMPILED = "shardwise:compiled_programs{"
KEYS = ("SHARDWISE_API_KEY", "OPENAI_API_KEY")
LONGEST_LINE = 2**20
"""Bytes of one event of a streamed answer."""


def events(
    endpoint: str, path: str, body: Mapping[str, Any], timeout: float
) -> Iterator[dict[str, Any]]:
    """The JSON documents of a streamed answer. Raises BadRequest."""
    with answered(endpoint, path, body, timeout) as answer:
        while line := answer.readline(LONGEST_LINE):
            text = line.decode("utf-8", "replace").strip()
            if text.startswith("data:") and text != "data: [DONE]":
                event = parse_json(text.removeprefix("data:"), f"an answer of '{endpoint}'")
                if not isinstance(event, dict):
                    raise BadRequest(f"an answer of '{endpoint}' is no JSON object")
                yield event


@contextmanager
def answered(
    endpoint: str, path: str, body: Mapping[str, Any] | None, timeout: float
) -> Iterator[http.client.HTTPResponse]:
    """The answer to a POST, or without a body to a GET. A server's key is taken from
    SHARDWISE_API_KEY or OPENAI_API_KEY. Raises BadRequest."""
    url = urlsplit(endpoint if "//" in endpoint else f"http://{endpoint}")
    secure = url.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = None
    try:
        connection = kind(url.hostname or "", url.port, timeout=timeout)
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEYS[0]) or os.environ.get(KEYS[1]):
            headers["Authorization"] = f"Bearer {key}"
        place = url.path.rstrip("/").removesuffix("/v1") + path
        data = None if body is None else json.dumps(body)
        connection.request("GET" if data is None else "POST", place, data, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            said = answer.read(500).decode("utf-8", "replace")
            raise BadRequest(f"'{endpoint}' refused a request with {answer.status}: {said}")
        yield answer
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise BadRequest(
            f"'{endpoint}' cannot be asked: {error}; give the address of a server that has "
            f"{path}, such as http://localhost:8000"
        ) from None
    finally:
        if connection is not None:
            connection.close()
