"""Traces of requests: read from files, or made from a rate. Arrivals are seconds from the first.

Formats, told apart by what is in the file:

- Azure LLM inference traces (CSV: TIMESTAMP, ContextTokens, GeneratedTokens), and Vidur's form of
  them (arrived_at, num_prefill_tokens, num_decode_tokens);
- Mooncake (JSONL: timestamp in ms, input_length, output_length, hash_ids of 512-token blocks);
- Alibaba's Qwen traces (the same keys, but timestamp in s and blocks of 16 tokens, by which the two
  are told apart);
- LLMServingSim (JSONL: timestamp in ms, input_length, output_length, hash_ids_16);
- ServeGen's arrival rates (CSV: window_start_s, requests_per_s), with lengths from its quantiles;
- one's own (JSONL: arrival in s, prompt, output, and optionally priority, deadline in s after the
  arrival, session, hash_ids with block_size).

Block ids name content from the front of the prompt; pages smaller than a block split it.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.boundary import (
    Table,
    number,
    parse_json,
    parse_table,
    read_table,
    read_text,
    whole,
)
from shardwise.boundary.files import TABLE_BYTES, split_lines
from shardwise.errors import BadRequest, shown, unknown
from shardwise.scheduling import Request

MOST_REQUESTS = 150_000
"""Of one load (ours: 0.1 ms each, and 300 MB in all)."""
FORMS = {512: ("Mooncake", 1e-3), 16: ("Alibaba's Qwen traces", 1.0)}
"""By the tokens of a block: whose traces they are, and the seconds of a unit of their timestamp
(the README of each: github.com/kvcache-ai/Mooncake, alibaba-edu/qwen-bailian-usagetraces-anon)."""


def read_trace(path: Path, page_size: int, most: int = 0) -> list[Request]:
    """The first `most` requests of a file (0: all), with prefix keys for pages of `page_size`.

    Raises BadRequest for a file that is none of the formats, naming the line.
    """
    text = read_text(path, "the trace", most=TABLE_BYTES)
    if not text.strip():
        raise BadRequest(f"'{path}' is empty; a trace has a request on each line")
    if text.lstrip().startswith("{"):
        requests = _json_rows(split_lines(text, f"'{path}'"), str(path), page_size, most)
    else:
        requests = _csv_rows(parse_table(text, f"'{path}'"), str(path), most)
    if not requests:
        raise BadRequest(f"'{path}' holds no request; a trace has a request on each line")
    return _from_zero(requests)


def _from_zero(requests: list[Request]) -> list[Request]:
    """Arrivals counted from the first; deadlines with them."""
    start = min(r.arrival for r in requests)
    if not start:
        return requests
    return [replace(r, arrival=r.arrival - start, deadline=r.deadline - start) for r in requests]


def _csv_rows(table: Table, path: str, most: int) -> list[Request]:
    found = set(table.columns)
    columns = next((c for c in _CSV_COLUMNS if set(c) <= found), None)
    if columns is None:
        known = ", or ".join(" and ".join(c) for c in _CSV_COLUMNS)
        raise BadRequest(
            f"'{path}' is no trace that is known: its columns are "
            f"{', '.join(shown(c) for c in table.columns[:20])}; "
            f"they must have {known}"
        )
    moment = _timestamp if columns[0] == "TIMESTAMP" else _number
    requests: list[Request] = []
    for place, row in enumerate(table.rows[: most or None]):
        try:
            requests.append(
                Request(
                    id=place,
                    arrival=moment(row[columns[0]], columns[0]),
                    prompt=_tokens(row[columns[1]], columns[1]),
                    output=_tokens(row[columns[2]], columns[2]),
                )
            )
        except BadRequest as error:
            raise BadRequest(
                f"{table.at(place)}: {shown(','.join(row.values()))} is no request: "
                f"{error}; it needs {', '.join(columns)}"
            ) from None
    return requests


_CSV_COLUMNS = (
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
)


def _timestamp(text: Any, name: str) -> float:
    """Azure's moments have seven decimals, one more than Python reads."""
    moment, _, part = str(text).partition(".")
    try:
        if part and not _DIGITS.fullmatch(part):
            raise ValueError
        return datetime.fromisoformat(f"{moment}+00:00").timestamp() + float(f"0.{part or 0}")
    except (ValueError, OverflowError):
        raise BadRequest(f"{name} is {shown(text)}, not such as 2023-11-16 18:15:46.68") from None


_DIGITS = re.compile(r"\d{1,12}", re.ASCII)


_MOST = 1e15
"""Of a number in a trace: seconds or milliseconds since 1970 are 1e12 or so."""
_MOST_TOKENS = 2**31
"""Of one request; contexts of models end at 1e7 or so."""


def _number(value: Any, name: str, least: float = 0.0) -> float:
    """A number of a file, in JSON or as text."""
    return number(value, name, least=least, most=_MOST)


def _tokens(value: Any, name: str, least: float = 0.0, most: float = _MOST_TOKENS) -> int:
    return whole(value, name, least=least, most=most)


_MOST_PAGES = 5_000_000
"""Keys of pages that a trace may name (ours: half a GB)."""


def _json_rows(lines: list[str], path: str, page_size: int, most: int) -> list[Request]:
    requests: list[Request] = []
    pages = 0
    block = _block_of(lines)
    for place, line in enumerate(lines):
        if most and len(requests) == most:
            break
        if not line.strip():
            continue
        try:
            requests.append(_json_request(_object(line), place, page_size, block))
            pages += len(requests[-1].keys)
            if pages > _MOST_PAGES:
                raise BadRequest(
                    f"its prompts so far have over {_MOST_PAGES:,} pages of {page_size} tokens; "
                    "cut it with --requests N, or raise scheduling.page_size"
                )
        except (KeyError, BadRequest) as error:
            reason = f"no key {error}" if isinstance(error, KeyError) else str(error)
            raise BadRequest(
                f"'{path}', line {place + 1} is no request: {reason}; it needs arrival (seconds), "
                "prompt and output (tokens), or timestamp (milliseconds), input_length and "
                "output_length (tokens)"
            ) from None
    return requests


def _block_of(lines: Iterable[str]) -> int:
    """Tokens of a block by the first row whose ids are as many as blocks of one size alone have;
    what is wrong with a row is said when it is read."""
    for line in lines:
        with contextlib.suppress(BadRequest, KeyError, TypeError, ValueError):
            row = _object(line)
            count, prompt = len(row["hash_ids"]), int(row["input_length"])
            found = [size for size in FORMS if count in (prompt // size, -(-prompt // size))]
            if len(found) == 1:
                return found[0]
    return next(iter(FORMS))


def _object(line: str) -> Mapping[str, Any]:
    row = parse_json(line, "it")
    if not isinstance(row, dict):
        raise BadRequest("it is no JSON object")
    return row


def _json_request(row: Mapping[str, Any], place: int, page_size: int, block: int) -> Request:
    """A row. `block` is the size of blocks whose row does not say it."""
    own = "arrival" in row
    prompt_key, output_key, arrival_key = (
        ("prompt", "output", "arrival") if own else ("input_length", "output_length", "timestamp")
    )
    prompt = _tokens(row[prompt_key], prompt_key)
    size = _tokens(row.get("block_size", block), "block_size", 1)
    named, size = ("hash_ids_16", 16) if "hash_ids_16" in row else ("hash_ids", size)
    blocks = row.get(named, ())
    if not all(type(b) is int for b in blocks) if isinstance(blocks, list) else blocks != ():
        raise BadRequest(f"{named} must be a list of whole numbers")
    whose, scale = FORMS[block]
    if not own and blocks and "block_size" not in row and named == "hash_ids":
        _check_count(len(blocks), prompt, block, whose)
    scale = 1.0 if own else scale
    arrival = _number(row[arrival_key], arrival_key) * scale
    deadline = row.get("deadline")
    return Request(
        id=place,
        arrival=arrival,
        prompt=prompt,
        output=_tokens(row[output_key], output_key),
        keys=page_keys(blocks, size, prompt, page_size),
        priority=_tokens(row.get("priority", 0), "priority", -_MOST_TOKENS),
        deadline=inf if deadline is None else arrival + _number(deadline, "deadline"),
        session=str(row.get("session", "")),
    )


def _check_count(count: int, prompt: int, block: int, whose: str) -> None:
    """Raise BadRequest where a row has not as many blocks as its prompt."""
    if count not in (prompt // block, -(-prompt // block)):
        sizes = " nor ".join(f"{size} ({name})" for size, (name, _) in FORMS.items())
        raise BadRequest(
            f"{count} hash_ids for {prompt:,} tokens are blocks of neither {sizes}; this file was "
            f"taken for {whose}; name its block_size, and its moments in seconds as arrival"
        )


def page_keys(
    blocks: Sequence[int], block: int, prompt: int, page_size: int
) -> tuple[int | tuple[int, ...], ...]:
    """Keys of a prompt's full pages from ids of its blocks of `block` tokens.

    A page within a block is named by the block and its place there; a page of several blocks by
    all of them.
    """
    pages = prompt // page_size
    if block % page_size == 0:
        each = block // page_size
        named = blocks[: -(-pages // each)]
        return tuple([each * b + i for b in named for i in range(each)][:pages])
    if page_size % block == 0:
        each = page_size // block
        return tuple(tuple(blocks[i * each : (i + 1) * each]) for i in range(pages))
    raise BadRequest(
        f"pages of {page_size} tokens and the trace's blocks of {block} do not divide one another; "
        f"choose a page_size that divides {block} or is a multiple of it"
    )


def poisson(
    rate: float, count: int, prompt: int, output: int, *, cv: float = 1.0, seed: int = 0
) -> list[Request]:
    """`count` requests of one size at `rate` a second, with Gamma gaps between them.

    `cv` is the gaps' standard deviation over their mean: 1 is a Poisson process, 0 an even beat,
    more is burstier. The gaps' shape is 1/cv^2 and their scale cv^2/rate.
    """
    if not (0 < rate < inf and count >= 1 and 0 <= cv < inf):
        raise BadRequest(
            f"{count} requests at a rate of {rate} a second with cv {cv}: the rate and the count "
            "must be positive, cv not negative, all finite"
        )
    check_count(count)
    draw = np.random.default_rng(seed)
    spread = cv * cv
    gaps = draw.gamma(1 / spread, spread / rate, count) if spread else np.full(count, 1 / rate)
    arrivals = np.cumsum(gaps) - gaps[0]
    if not np.all(np.isfinite(arrivals)):
        raise BadRequest(f"no gaps can be drawn at a rate of {rate:g} with cv {cv:g}; change them")
    return [
        Request(id=i, arrival=float(a), prompt=prompt, output=output)
        for i, a in enumerate(arrivals)
    ]


def check_count(count: float) -> None:
    """Raise BadRequest for more requests than a load can have."""
    if count > MOST_REQUESTS:
        raise BadRequest(
            f"the load has {count:.7g} requests; at most {MOST_REQUESTS:,} can be simulated: cut "
            "it with --requests N, or lower --tile"
        )


Lengths = Callable[[np.random.Generator, int], np.ndarray]


def from_rates(
    windows: Sequence[tuple[float, float]],
    prompts: Lengths,
    outputs: Lengths,
    *,
    share: float = 1.0,
    most: int = 0,
    seed: int = 0,
) -> list[Request]:
    """Poisson arrivals whose rate changes: `windows` of (start in s, requests per s), the last one
    as long as the one before. `share` scales the rates; `prompts` and `outputs` draw lengths."""
    draw = np.random.default_rng(seed)
    starts = [start for start, _ in windows]
    lengths = np.diff(starts, append=2 * starts[-1] - starts[-2] if len(starts) > 1 else 600.0)
    expected = sum(
        rate * share * length for (_, rate), length in zip(windows, lengths, strict=True)
    )
    check_count(min(expected, most) if most else expected)
    arrivals: list[float] = []
    for (start, rate), length in zip(windows, lengths, strict=True):
        count = int(draw.poisson(min(rate * share * length, 2.0 * MOST_REQUESTS)))
        arrivals += sorted(start + length * draw.random(count))
        if most and len(arrivals) >= most:
            break
    arrivals = arrivals[: most or None]
    inputs, answers = prompts(draw, len(arrivals)), outputs(draw, len(arrivals))
    return [
        Request(id=i, arrival=at - starts[0], prompt=int(inputs[i]), output=int(answers[i]))
        for i, at in enumerate(arrivals)
    ]


def from_quantiles(quantiles: Mapping[float, float]) -> Lengths:
    """Draws lengths of at least 1 between quantiles (share -> tokens), geometrically between two;
    nothing outside the outermost is drawn."""
    shares = np.array(sorted(quantiles))
    logs = np.log(np.maximum([quantiles[s] for s in shares], 1.0))

    def lengths(draw: np.random.Generator, count: int) -> np.ndarray:
        drawn = np.interp(draw.random(count), shares, logs)
        return np.maximum(np.rint(np.exp(drawn)), 1).astype(int)

    return lengths


def rates_of(path: Path) -> list[tuple[float, float]] | None:
    """ServeGen's windows (start in s, requests per s); None where a file holds requests."""
    text = read_text(path, "the trace", most=TABLE_BYTES)
    names = ("window_start_s", "requests_per_s")
    first = text.partition("\n")[0]
    if not all(name in first for name in names):
        return None
    table = parse_table(text, f"'{path}'", needed=names)
    found: list[tuple[float, float]] = []
    for index, row in enumerate(table.rows):
        try:
            start, rate = (_number(row[name], name) for name in names)
        except BadRequest as error:
            raise BadRequest(f"{table.at(index)}: {error}") from None
        if found and start <= found[-1][0]:
            raise BadRequest(
                f"{table.at(index)}: the window starts at {start:g} s, the one before at "
                f"{found[-1][0]:g} s; order them"
            )
        found.append((start, rate))
    if not found:
        raise BadRequest(f"'{path}' holds no window; each line has {' and '.join(names)}")
    return found


def read_quantiles(path: Path, category: str, field: str) -> dict[float, float]:
    """ServeGen's quantiles of "input_tokens" or "output_tokens" of a category."""
    table = read_table(path, "the lengths", needed=("category", "field"))
    for row in table.rows:
        if (row["category"], row["field"]) == (category, field):
            return _quantiles_of(row, f"{category} in '{path}'")
    known = sorted({row["category"] for row in table.rows})
    raise unknown("category", category, known, f"'{path}' says how long requests are")


def _quantiles_of(row: Mapping[str, str], what: str) -> dict[float, float]:
    """Tokens by share from the columns p0 to p100 of a row."""
    found = {
        number(k[1:], f"column {shown(k)} of {what}", least=0, most=100) / 100: number(
            v, f"{k} of {what}", least=0, most=_MOST_TOKENS
        )
        for k, v in row.items()
        if k.startswith("p")
    }
    if not found:
        raise BadRequest(f"{what}: no column is a quantile; name them p0 to p100")
    tokens = [found[share] for share in sorted(found)]
    if tokens != sorted(tokens):
        raise BadRequest(f"{what}: the quantiles do not rise with their share; order them")
    return found


def with_lengths(
    requests: Sequence[Request], prompts: Lengths, outputs: Lengths, seed: int = 0
) -> list[Request]:
    """The same arrivals with drawn lengths."""
    draw = np.random.default_rng((seed, 1))
    inputs, answers = prompts(draw, len(requests)), outputs(draw, len(requests))
    return [
        replace(r, prompt=int(i), output=int(o))
        for r, i, o in zip(requests, inputs, answers, strict=True)
    ]


def tiled(requests: Sequence[Request], times: int) -> list[Request]:
    """The trace `times` over, one copy after the other, with contents of its own each time."""
    check_count(len(requests) * times)
    span = max(r.arrival for r in requests) - min(r.arrival for r in requests)
    pause = span / max(len(requests) - 1, 1)
    return [
        replace(
            r,
            id=copy * len(requests) + i,
            arrival=r.arrival + copy * (span + pause),
            keys=tuple((copy, key) for key in r.keys) if copy else r.keys,
        )
        for copy in range(times)
        for i, r in enumerate(requests)
    ]


def scaled(requests: Iterable[Request], speed: float) -> list[Request]:
    """The same requests, arriving `speed` times as fast."""
    if not 0 < speed < inf:
        raise BadRequest(
            f"--speed is {speed}; it must be above 0 and finite: 2 replays a trace twice as fast"
        )
    return [replace(r, arrival=r.arrival / speed) for r in requests]
