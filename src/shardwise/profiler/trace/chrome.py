"""Captures in Chrome's JSON (`trace.json`, `trace.json.gz`), as Perfetto opens them. No JAX."""

from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

from shardwise.boundary.archives import read_packed
from shardwise.boundary.files import TABLE_BYTES
from shardwise.boundary.items import json_items
from shardwise.boundary.numbers import number
from shardwise.errors import BadRequest, shown
from shardwise.profiler.trace.events import REMEDY, STATS, TraceEvent, TraceLine

MOST_COMPLETE = 150_000
"""Complete events of a capture in JSON, those of the host included: some 15 s of reading."""
MOST_ITEMS = 1_000_000
"""Of a capture's list, those that are no complete events included."""
MOST_THREADS = 10_000
"""Threads and streams that have events, and those that have names."""
NO_STATS: Mapping[str, Any] = {}
MICROSECOND = 1e6
"""Of them to a second; Chrome's times are in microseconds."""


def read_chrome(path: Path) -> tuple[TraceLine, ...]:
    """The lines of a Chrome trace: complete events ("ph": "X"), times from microseconds.

    Raises BadRequest for what is truncated, no JSON, or JSON of something else.
    """
    data = read_packed(path, "trace", most=TABLE_BYTES, remedy=REMEDY)
    return _lines(json_items(data, "traceEvents", path, "trace", remedy=REMEDY), f"trace '{path}'")


def _lines(items: Iterable[Any], what: str) -> tuple[TraceLine, ...]:
    planes: dict[Hashable, str] = {}
    threads: dict[tuple[Hashable, Hashable], str] = {}
    lines: dict[tuple[Hashable, Hashable], list[TraceEvent]] = {}
    texts: dict[str, str] = {}
    complete = 0
    for at, e in enumerate(items, 1):
        if not isinstance(e, dict):
            raise BadRequest(
                f"{what} has no list 'traceEvents' of events: item {at} is {shown(e)}; {REMEDY}"
            )
        kind = e.get("ph")
        complete += kind == "X"
        if at > MOST_ITEMS or complete > MOST_COMPLETE:
            raise BadRequest(
                f"{what} holds more than {MOST_COMPLETE:,} complete events, or {MOST_ITEMS:,} of "
                "any kind; capture fewer steps, without the host's threads"
            )
        if max(len(lines), len(threads), len(planes)) > MOST_THREADS:
            raise BadRequest(
                f"{what} is of more than {MOST_THREADS:,} threads; capture the devices alone, "
                "without the host's threads"
            )
        try:
            if kind == "M" and e.get("name") == "process_name":
                planes[_id(e, "pid")] = _label(e)
            elif kind == "M" and e.get("name") == "thread_name":
                threads[_id(e, "pid"), _id(e, "tid")] = _label(e)
            elif kind == "X":
                lines.setdefault((_id(e, "pid"), _id(e, "tid")), []).append(_event(e, texts))
        except BadRequest as error:
            raise BadRequest(
                f"{what}, event {at} ({shown(e.get('name'))}): {error}, as in Chrome's format"
            ) from None
    return tuple(
        TraceLine(
            plane=planes.get(pid, str(pid)), name=threads.get((pid, tid), ""), events=tuple(found)
        )
        for (pid, tid), found in lines.items()
    )


def _id(e: Mapping[str, Any], key: str) -> Hashable:
    """The process or thread of an event: a number, a name, or none."""
    found = e.get(key)
    if found is not None and not isinstance(found, int | float | str):
        raise BadRequest(f"'{key}' is {shown(found)}; it must be a number or a name")
    return found


def _args(e: Mapping[str, Any]) -> Mapping[str, Any]:
    args = e.get("args") or {}
    if not isinstance(args, dict):
        raise BadRequest(f"'args' is {shown(args)}; it must be an object")
    return args


def _label(e: Mapping[str, Any]) -> str:
    found = _args(e).get("name")
    if not isinstance(found, str | int | float):
        raise BadRequest(f"its name in 'args' is {shown(found)}; it must be text")
    return str(found)


def _event(e: Mapping[str, Any], texts: dict[str, str]) -> TraceEvent:
    """A complete event; `texts` keeps one of each text, of which a capture has few."""
    name, args = e.get("name"), _args(e)
    if not isinstance(name, str):
        raise BadRequest(f"'name' is {shown(name)}; it must be text")
    stats = {key: args[key] for key in STATS if key in args}
    for key, value in stats.items():
        if isinstance(value, str):
            stats[key] = texts.setdefault(value, value)
    return TraceEvent(
        name=texts.setdefault(name, name),
        start=number(e.get("ts"), "'ts'", least=0) / MICROSECOND,
        seconds=number(e.get("dur", 0.0), "'dur'", least=0) / MICROSECOND,
        stats=stats or NO_STATS,
    )
