"""Measured requests of a benchmark, as a load and as times to hold a simulation against.

Two files are read: the JSON of `vllm bench serve --save-result --save-detailed`, and a line of the
JSONL of `sglang.bench_serving --output-file FILE --output-details`. Both have, request by request,
`input_lens`, `output_lens`, `ttfts` and `itls` (seconds); vLLM's has `start_times` too. Without
those a request starts where a place of `max_concurrency` is given back, by the measured ends; of an
open loop at a finite `request_rate` they are drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.boundary import number, parse_json, read_text, whole
from shardwise.boundary.files import TABLE_BYTES
from shardwise.errors import BadRequest, shown
from shardwise.planner.simulate.demand import prefix_keys
from shardwise.planner.simulate.traces import check_count, poisson
from shardwise.scheduling import Request

COLUMNS = ("input_lens", "output_lens", "ttfts", "itls")
_MOST_TOKENS, _MOST_SECONDS = 2**31, 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The answered requests of a benchmark in the order of the file: tokens, start and measured
    times of each in seconds (`tpot` is NaN of one token). `failed` were not answered, and `drawn`
    says that the file does not tell when they started."""

    prompts: Sequence[int]
    outputs: Sequence[int]
    starts: np.ndarray
    ttft: np.ndarray
    tpot: np.ndarray
    e2el: np.ndarray
    failed: int
    drawn: bool

    def requests(self, page_size: int, prefix: int = 0) -> list[Request]:
        """The load; all prompts begin with the same `prefix` tokens."""
        keys = prefix_keys(prefix, page_size)
        rows = zip(self.starts.tolist(), self.prompts, self.outputs, strict=True)
        return [
            Request(id=i, arrival=at, prompt=prompt, output=output, keys=keys)
            for i, (at, prompt, output) in enumerate(rows)
        ]


def read_replay(path: Path, seed: int = 0) -> Replay:
    """The requests of a benchmark's file. Raises BadRequest for a file that has none."""
    found = _detailed(read_text(path, "the benchmark", most=TABLE_BYTES), path)
    columns = {name: found[name] for name in COLUMNS}
    starts = found.get("start_times")
    if isinstance(starts, list) and starts:
        columns["start_times"] = starts
    lengths = {name: len(c) if isinstance(c, list) else -1 for name, c in columns.items()}
    if len(set(lengths.values())) > 1 or -1 in lengths.values():
        told = ", ".join(f"{name} {n}" if n >= 0 else f"{name} none" for name, n in lengths.items())
        raise BadRequest(f"'{path}': its columns must have a value for each request each: {told}")
    check_count(lengths[COLUMNS[0]])
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    errors = found.get("errors") or [""] * len(rows)
    answered = [
        row for row, error in zip(rows, errors, strict=False) if not error and row["output_lens"]
    ]
    if not answered:
        raise BadRequest(f"'{path}' has no request that was answered; give a benchmark that has")
    return _measured(answered, len(rows) - len(answered), found, path, seed)


def _detailed(text: str, path: Path) -> Mapping[str, Any]:
    spread = text.lstrip()[:2] in ("{\n", "{\r")  # one run over several lines
    lines = [text] if spread else text.splitlines()
    runs = [parse_json(line, f"'{path}'") for line in lines if line.strip()]
    found = [run for run in runs if isinstance(run, dict) and all(name in run for name in COLUMNS)]
    if len(found) != 1:
        what = f"{len(found)} runs with" if found else "no run with"
        raise BadRequest(
            f"'{path}' has {what} {', '.join(COLUMNS)}; give the file of one run of `vllm bench "
            "serve --save-result --save-detailed` or of `sglang.bench_serving --output-details`"
        )
    return found[0]


def _measured(
    rows: Sequence[Mapping[str, Any]], failed: int, run: Mapping[str, Any], path: Path, seed: int
) -> Replay:
    prompts, outputs, first, later, starts = [], [], [], [], []
    for place, row in enumerate(rows):
        what = f"'{path}', request {place + 1}"
        prompts.append(whole(row["input_lens"], f"{what}: input_lens", least=1, most=_MOST_TOKENS))
        outputs.append(
            whole(row["output_lens"], f"{what}: output_lens", least=1, most=_MOST_TOKENS)
        )
        first.append(_seconds(row["ttfts"], f"{what}: ttfts"))
        if not isinstance(row["itls"], list):
            raise BadRequest(f"{what}: itls is {shown(row['itls'])}; it is a list of seconds")
        later.append(sum(_seconds(gap, f"{what}: itls") for gap in row["itls"]))
        if "start_times" in row:
            starts.append(_seconds(row["start_times"], f"{what}: start_times"))
    ttft, after, tokens = np.array(first), np.array(later), np.array(outputs, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(tokens > 1, after / (tokens - 1), np.nan)
    told, drawn = np.array(starts), False
    if not starts:
        told, drawn = _started(ttft + after, run, path, seed)
    return Replay(
        prompts=prompts,
        outputs=outputs,
        starts=told - told.min(),
        ttft=ttft,
        tpot=tpot,
        e2el=ttft + after,
        failed=failed,
        drawn=drawn,
    )


def _started(
    took: np.ndarray, run: Mapping[str, Any], path: Path, seed: int
) -> tuple[np.ndarray, bool]:
    """When each request started, and whether that is drawn."""
    rate = run.get("request_rate")
    finite = rate is not None and rate not in ("inf", inf)
    if finite:
        every = number(rate, f"'{path}': request_rate", least=1e-6, most=1e6)
        made = poisson(every, len(took), 1, 1, seed=seed)
        return np.array([request.arrival for request in made]), True
    most = run.get("max_concurrency") or len(took)
    places = whole(most, f"'{path}': max_concurrency", least=1, most=1e9)
    free = [0.0] * min(places, len(took))
    heapify(free)
    starts = []
    for seconds in took.tolist():
        starts.append(free[0])
        heapreplace(free, free[0] + seconds)
    return np.array(starts), False


def _seconds(value: Any, what: str) -> float:
    return number(value, what, least=0, most=_MOST_SECONDS)
