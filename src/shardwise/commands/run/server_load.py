"""A load on a live server, and its figures under the names of `vllm bench serve`.

A synthetic load is made of a rate and lengths; a trace's requests come when it says, and share the
beginnings that its keys say. Prompts are token ids, so that lengths are exact.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardwise.boundary.records import Record
from shardwise.boundary.remote import Endpoint
from shardwise.commands.run.calibration.endpoint import LoadRequest, sent
from shardwise.commands.run.calibration.replay import ServedRequest
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.planner.simulate.traces import read_trace

PAGE = 16
"""Tokens that share a key of a trace."""
PERCENTILES = (50, 90, 99)
"""Percentiles of each time that a load reports."""
MOST_THREADS = 1024
"""Requests under way at once."""
LONGEST = 1e7
"""Seconds from the first request of a load to its last (ours: four months)."""


class PromptRequest(NamedTuple):
    """A request to send, with its prompt."""

    ask: LoadRequest
    prompt: np.ndarray


class RequestOutcome(NamedTuple):
    """What came of one: `times` of each event with tokens, or the error."""

    asked: PromptRequest
    served: ServedRequest | None
    times: Sequence[float] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLoad:
    """Requests drawn: `rate` per second (infinite: all at once), `cv` of the times between them
    (1: Poisson), and lengths that vary by `spread` of themselves to both sides."""

    requests: int
    prompt: int
    output: int
    rate: float = float("inf")
    cv: float = 1.0
    spread: float = 0.0

    def made(self, vocabulary: int, seed: int) -> list[PromptRequest]:
        """The requests in order of their times."""
        _check_tokens(self.requests * self.prompt * (1 + self.spread))
        rng = np.random.default_rng(seed)
        shape = 1 / self.cv**2
        gaps = rng.gamma(shape, 1 / shape / self.rate, self.requests)
        times = np.cumsum(gaps) - gaps[0]
        low, high = 1 - self.spread, 1 + self.spread
        lengths = rng.uniform(low, high, (self.requests, 2)) * (self.prompt, self.output)
        return [
            PromptRequest(
                LoadRequest(id=i, at=float(times[i]), prompt=p, output=o),
                rng.integers(_least(vocabulary), vocabulary, p).astype(np.int32),
            )
            for i, (p, o) in enumerate(np.maximum(np.rint(lengths), 1).astype(int).tolist())
        ]


def traced(
    path: Path, vocabulary: int, *, most: int = 0, speed: float = 1.0, seed: int = 0
) -> list[PromptRequest]:
    """The first `most` requests of a trace (0: all), `speed` times as fast. Raises BadRequest."""
    found = sorted(read_trace(path, PAGE, most), key=lambda request: request.arrival)
    _check_tokens(sum(request.prompt for request in found))
    least, made = _least(vocabulary), []
    for i, request in enumerate(found):
        rng = np.random.default_rng((seed, i))
        tokens = rng.integers(least, vocabulary, request.prompt)
        for page, key in enumerate(request.keys):
            shared = np.random.default_rng(_number(key))
            tokens[page * PAGE : (page + 1) * PAGE] = shared.integers(least, vocabulary, PAGE)
        at = float(request.arrival) / speed
        ask = LoadRequest(id=i, at=at, prompt=request.prompt, output=request.output)
        made.append(PromptRequest(ask, tokens.astype(np.int32)))
    return made


MOST_TOKENS = 10**8
"""Of all prompts together: 400 MB (ours)."""


def _check_tokens(tokens: float) -> None:
    if tokens > MOST_TOKENS:
        raise BadRequest(
            f"the prompts have {tokens:,.0f} tokens in all; at most {MOST_TOKENS:,} are made: give "
            "fewer --requests, or shorter prompts (--input)"
        )


def _least(vocabulary: int) -> int:
    """Ids below are bytes and marks in many vocabularies."""
    return min(256, vocabulary // 2)


def _number(key: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "little")


def put_load(
    endpoint: Endpoint,
    model: str,
    requests: Sequence[PromptRequest],
    *,
    concurrency: int = 0,
    timeout: float = 600.0,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[RequestOutcome], float]:
    """Send them at their times, at most `concurrency` at once (0: no bound), and wait for all;
    what came of each, and the seconds in all."""
    outcomes: list[RequestOutcome] = []
    lock, left = threading.Lock(), iter(requests)
    start = time.monotonic()

    def work() -> None:
        while True:
            with lock:
                asked = next(left, None)
            if asked is None:
                return
            time.sleep(max(start + asked.ask.at - time.monotonic(), 0.0))
            outcome = _outcome(endpoint, model, asked, timeout)
            with lock:
                outcomes.append(outcome)
                if progress is not None:
                    progress(len(outcomes), len(requests))

    count = min(concurrency or MOST_THREADS, len(requests), MOST_THREADS)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(outcomes, key=lambda o: o.asked.ask.id), time.monotonic() - start


def _outcome(
    endpoint: Endpoint, model: str, asked: PromptRequest, timeout: float
) -> RequestOutcome:
    try:
        served, times = sent(endpoint, model, asked.ask, asked.prompt.tolist(), timeout)
    except ShardwiseError as error:
        return RequestOutcome(asked, None, error=str(error))
    return RequestOutcome(asked, served, times)


@dataclass(frozen=True, kw_only=True)
class LoadFigures(Record):
    """The figures of a load, by the names of `vllm bench serve`."""

    duration: float
    """Seconds from the first request to the last answer."""
    completed: int
    """Requests that were answered."""
    failed: int
    """Requests that were not."""
    total_input_tokens: int
    """Tokens of the prompts."""
    total_output_tokens: int
    """Tokens of the answers."""
    request_throughput: float
    """Requests per second."""
    output_throughput: float
    """Tokens of answers per second."""
    total_token_throughput: float
    """Tokens of prompts and answers per second."""
    mean_ttft_ms: float | None
    """Mean time to the first token in ms; null where no request has one."""
    median_ttft_ms: float | None
    """Median time to the first token in ms; null where no request has one."""
    std_ttft_ms: float | None
    """Standard deviation of the time to the first token in ms; null where no request has one."""
    p50_ttft_ms: float | None
    """50th percentile of the time to the first token in ms; null where no request has one."""
    p90_ttft_ms: float | None
    """90th percentile of the time to the first token in ms; null where no request has one."""
    p99_ttft_ms: float | None
    """99th percentile of the time to the first token in ms; null where no request has one."""
    mean_tpot_ms: float | None
    """Mean time per output token in ms; null where no request has one."""
    median_tpot_ms: float | None
    """Median time per output token in ms; null where no request has one."""
    std_tpot_ms: float | None
    """Standard deviation of the time per output token in ms; null where no request has one."""
    p50_tpot_ms: float | None
    """50th percentile of the time per output token in ms; null where no request has one."""
    p90_tpot_ms: float | None
    """90th percentile of the time per output token in ms; null where no request has one."""
    p99_tpot_ms: float | None
    """99th percentile of the time per output token in ms; null where no request has one."""
    mean_itl_ms: float | None
    """Mean time between tokens in ms; null where no request has one."""
    median_itl_ms: float | None
    """Median time between tokens in ms; null where no request has one."""
    std_itl_ms: float | None
    """Standard deviation of the time between tokens in ms; null where no request has one."""
    p50_itl_ms: float | None
    """50th percentile of the time between tokens in ms; null where no request has one."""
    p90_itl_ms: float | None
    """90th percentile of the time between tokens in ms; null where no request has one."""
    p99_itl_ms: float | None
    """99th percentile of the time between tokens in ms; null where no request has one."""
    mean_e2el_ms: float | None
    """Mean time of a whole request in ms; null where no request has one."""
    median_e2el_ms: float | None
    """Median time of a whole request in ms; null where no request has one."""
    std_e2el_ms: float | None
    """Standard deviation of the time of a whole request in ms; null where no request has one."""
    p50_e2el_ms: float | None
    """50th percentile of the time of a whole request in ms; null where no request has one."""
    p90_e2el_ms: float | None
    """90th percentile of the time of a whole request in ms; null where no request has one."""
    p99_e2el_ms: float | None
    """99th percentile of the time of a whole request in ms; null where no request has one."""
    errors: Sequence[str]
    """Why requests failed, each reason once."""


def load_figures(outcomes: Sequence[RequestOutcome], duration: float) -> LoadFigures:
    """The figures of a load. Raises BadRequest where no request was answered."""
    good = [o for o in outcomes if o.served is not None]
    served = [o.served for o in good if o.served is not None]
    failed = [o.error for o in outcomes if o.served is None]
    if not served:
        raise BadRequest(f"no request was answered: {failed[0]}")
    prompt, output = sum(s.prompt for s in served), sum(s.output for s in served)
    itls = [b - a for o in good for a, b in zip(o.times, o.times[1:])]  # noqa: B905
    seconds = {
        "ttft": [s.ttft for s in served],
        "tpot": [s.tpot for s in served if s.output > 1],
        "itl": itls,
        "e2el": [s.e2e for s in served],
    }
    times: dict[str, Any] = {
        k: v for name, values in seconds.items() for k, v in _summary(name, values)
    }
    return LoadFigures(
        duration=duration,
        completed=len(served),
        failed=len(failed),
        total_input_tokens=prompt,
        total_output_tokens=output,
        request_throughput=len(served) / duration,
        output_throughput=output / duration,
        total_token_throughput=(prompt + output) / duration,
        **times,
        errors=list(dict.fromkeys(failed))[:10],
    )


def _summary(name: str, seconds: Sequence[float]) -> Iterator[tuple[str, float | None]]:
    """Mean, median, deviation and percentiles in ms; None where there is no value."""
    if not seconds:
        keys = (f"{kind}_{name}_ms" for kind in ("mean", "median", "std"))
        yield from dict.fromkeys((*keys, *(f"p{p}_{name}_ms" for p in PERCENTILES))).items()
        return
    values = np.array(seconds) * 1e3
    yield f"mean_{name}_ms", float(values.mean())
    yield f"median_{name}_ms", float(np.median(values))
    yield f"std_{name}_ms", float(values.std())
    for p in PERCENTILES:
        yield f"p{p}_{name}_ms", float(np.percentile(values, p))
