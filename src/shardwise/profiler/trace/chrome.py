"""Captures in Chrome's JSON (`trace.json`, `trace.json.gz`), as Perfetto opens them. No JAX."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from shardwise.boundary.archives import read_packed
from shardwise.boundary.documents import parse_json
from shardwise.boundary.files import TABLE_BYTES, decode
from shardwise.boundary.numbers import number
from shardwise.errors import BadRequest, shown
from shardwise.profiler.trace.events import REMEDY, STATS, TraceEvent, TraceLine
from shardwise.units import format_bytes

MOST_OBJECTS = 2_000_000
MOST_TEXTS = 8_000_000
"""Of a capture's JSON: brackets that open, and quoted texts. An event has two or three of the
former and some ten of the latter; each takes up to a hundred bytes once it is read."""
MICROSECOND = 1e6
"""Of them to a second; Chrome's times are in microseconds."""


def read_chrome(path: Path) -> tuple[TraceLine, ...]:
    """The lines of a Chrome trace: complete events ("ph": "X"), times from microseconds.

    Raises BadRequest for what is truncated, no JSON, or JSON of something else.
    """
    what = f"trace '{path}'"
    data = read_packed(path, "trace", most=TABLE_BYTES, remedy=REMEDY)
    if data.count(b"{") + data.count(b"[") > MOST_OBJECTS or data.count(b'"') > 2 * MOST_TEXTS:
        raise BadRequest(
            f"{what} holds more than {MOST_OBJECTS:,} objects or {MOST_TEXTS:,} texts in its "
            f"{format_bytes(len(data))}; capture fewer steps"
        )
    found = parse_json(decode(data, path, "trace"), what, remedy=REMEDY)
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list) or not all(isinstance(e, dict) for e in events):
        raise BadRequest(f"{what} has no list 'traceEvents'; give a trace in Chrome's JSON format")
    return _lines(events, what)


def _lines(events: list[dict[str, Any]], what: str) -> tuple[TraceLine, ...]:
    planes: dict[Hashable, str] = {}
    threads: dict[tuple[Hashable, Hashable], str] = {}
    lines: dict[tuple[Hashable, Hashable], list[TraceEvent]] = {}
    for at, e in enumerate(events, 1):
        kind = e.get("ph")
        try:
            if kind == "M" and e.get("name") == "process_name":
                planes[_id(e, "pid")] = _label(e)
            elif kind == "M" and e.get("name") == "thread_name":
                threads[_id(e, "pid"), _id(e, "tid")] = _label(e)
            elif kind == "X":
                lines.setdefault((_id(e, "pid"), _id(e, "tid")), []).append(_event(e))
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


def _event(e: Mapping[str, Any]) -> TraceEvent:
    name, args = e.get("name"), _args(e)
    if not isinstance(name, str):
        raise BadRequest(f"'name' is {shown(name)}; it must be text")
    return TraceEvent(
        name=name,
        start=number(e.get("ts"), "'ts'", least=0) / MICROSECOND,
        seconds=number(e.get("dur", 0.0), "'dur'", least=0) / MICROSECOND,
        stats={key: args[key] for key in STATS if key in args},
    )
