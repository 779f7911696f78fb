"""A short load on a live OpenAI-compatible server, as records of its requests.

Requests go to /v1/completions with prompts of random token ids, so that lengths are exact and no
prefix is shared, and answers stream, so that the first and the last token have a time. A few
requests go alone, one after the other; the rest arrive at random at a rate, so that batches of many
sizes are seen.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.boundary import parse_json, whole
from shardwise.boundary.remote import Endpoint, streamed, text_of
from shardwise.commands.run.calibration.replay import ServedRequest
from shardwise.errors import BadRequest, ShardwiseError

_ALONE = 3
"""Requests that go one after the other first: a batch of one."""

_LONGEST = 1e7
"""Seconds of a load (ours: four months)."""
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
        raise BadRequest(f"--requests is {requests}; at least {_ALONE + 1} are needed")
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(1 / rate, requests))
    if not arrivals[-1] <= _LONGEST:
        raise BadRequest(
            f"--rate is {rate:g}: the last of {requests:,} requests comes after "
            f"{arrivals[-1]:g} s; a load of at most {_LONGEST:g} s is put on a server"
        )
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
    endpoint: Endpoint,
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

    def prompt_of(ask: LoadRequest) -> list[int]:
        return rng.integers(least, vocabulary, ask.prompt).tolist()

    found: dict[int, ServedRequest] = {}
    failed: list[ShardwiseError] = []

    def send(ask: LoadRequest, prompt: list[int]) -> None:
        try:
            found[ask.id] = _one(endpoint, model, ask, prompt, timeout)
        except ShardwiseError as error:
            failed.append(error)
        if progress is not None:
            progress(len(found), len(asks))

    for ask in (a for a in asks if a.alone):
        send(ask, prompt_of(ask))
        if failed:
            raise failed[0]
    threads = []
    start = time.monotonic()
    for ask in (a for a in asks if not a.alone):
        time.sleep(max(start + ask.at - time.monotonic(), 0.0))
        if failed:
            break
        threads.append(threading.Thread(target=send, args=(ask, prompt_of(ask)), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join(timeout)
    if failed:
        raise failed[0]
    return [found[i] for i in sorted(found)]


def _one(
    endpoint: Endpoint, model: str, ask: LoadRequest, prompt: list[int], timeout: float
) -> ServedRequest:
    """One request and its streamed answer."""
    return sent(endpoint, model, ask, prompt, timeout)[0]


def sent(
    endpoint: Endpoint, model: str, ask: LoadRequest, prompt: list[int], timeout: float
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
    usage: Mapping[str, Any] = {}
    for event in streamed(endpoint, "/v1/completions", body, timeout, ask.output):
        if event.texts:
            times.append(time.monotonic())
        usage = event.usage or usage
    if not times:
        raise BadRequest(f"{endpoint} answered request {ask.id} without a token")
    served = ServedRequest(
        id=ask.id,
        arrival=arrival,
        prompt=_counted(endpoint, usage, "prompt_tokens", ask.prompt, ask.prompt + _ADDED),
        output=_counted(
            endpoint, usage, "completion_tokens", min(len(times), ask.output), ask.output
        ),
        first_token=times[0],
        last_token=times[-1],
    )
    return served, times


_ADDED = 64
"""Tokens that a server may put around a prompt."""


def _counted(
    endpoint: Endpoint, usage: Mapping[str, object], name: str, otherwise: int, most: int
) -> int:
    """Tokens as the server counts them. Raises BadRequest where there cannot be so many."""
    return whole(usage.get(name, otherwise), f"{name} of {endpoint}", least=1, most=most)


def model_of(endpoint: Endpoint, timeout: float = 30.0) -> str:
    """The first model that a server lists. Raises BadRequest."""
    found = parse_json(text_of(endpoint, "/v1/models", timeout), f"the models of {endpoint}")
    match found:
        case {"data": [{"id": str(name)}, *_]} if name.isprintable() and (
            0 < len(name) <= _LONGEST_NAME
        ):
            return name
    raise BadRequest(f"{endpoint} lists no model; name it with --served-model")


_LONGEST_NAME = 1000
"""Characters of a model's name that an endpoint may report."""


def programs_of(endpoint: Endpoint, timeout: float = 30.0) -> int | None:
    """Programs that a server of ours has compiled so far; None of another's."""
    try:
        text = text_of(endpoint, "/metrics", timeout)
        lines = [line for line in text.splitlines() if line.startswith(COMPILED)]
        return whole(lines[0].rpartition(" ")[2], COMPILED) if lines else None
    except BadRequest:
        return None


COMPILED = "shardwise:compiled_programs{"
