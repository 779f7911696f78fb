"""Captures in Chrome's JSON (`trace.json`, `trace.json.gz`), as Perfetto opens them. No JAX."""

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest
from shardwise.profiler.trace.events import STATS, Event, Line

MOST_BYTES = 2 * 2**30
"""Of JSON text that is read: a file that unpacks to more is no capture of a few steps."""


def read_chrome(path: Path) -> tuple[Line, ...]:
    """The lines of a Chrome trace: complete events ("ph": "X"), times from microseconds.

    Raises BadRequest for what is truncated, no JSON, or JSON of something else.
    """
    try:
        found = json.loads(_text(path))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise BadRequest(
            f"trace '{path}' is no JSON: {error}; give a whole trace.json or trace.json.gz"
        ) from None
    events = found.get("traceEvents") if isinstance(found, dict) else found
    if not isinstance(events, list) or not all(isinstance(e, dict) for e in events):
        raise BadRequest(
            f"trace '{path}' has no list 'traceEvents'; give a trace in Chrome's JSON format"
        )
    try:
        return _lines(events)
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(
            f"trace '{path}' has an event that is no event of Chrome's format: {error!r}"
        ) from None


def _text(path: Path) -> str:
    if path.suffix != ".gz":
        return path.read_text(encoding="utf-8")
    try:
        with gzip.open(path) as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadRequest(f"trace '{path}' is corrupt or truncated: {error}; copy it anew") from None
    if len(text) > MOST_BYTES:
        raise BadRequest(
            f"trace '{path}' unpacks to more than {MOST_BYTES} bytes; capture fewer steps"
        )
    return text.decode("utf-8")


def _lines(events: list[dict[str, Any]]) -> tuple[Line, ...]:
    planes: dict[Any, str] = {}
    threads: dict[Any, str] = {}
    for e in events:
        if e.get("ph") == "M" and e.get("name") == "process_name":
            planes[e.get("pid")] = str(e["args"]["name"])
        elif e.get("ph") == "M" and e.get("name") == "thread_name":
            threads[e.get("pid"), e.get("tid")] = str(e["args"]["name"])
    lines: dict[Any, list[Event]] = {}
    for e in events:
        if e.get("ph") == "X":
            lines.setdefault((e.get("pid"), e.get("tid")), []).append(_event(e))
    return tuple(
        Line(plane=planes.get(pid, str(pid)), name=threads.get((pid, tid), ""), events=tuple(found))
        for (pid, tid), found in lines.items()
    )


def _event(e: Mapping[str, Any]) -> Event:
    args = e.get("args") or {}
    return Event(
        name=str(e["name"]),
        start=float(e["ts"]) / 1e6,
        seconds=float(e.get("dur", 0.0)) / 1e6,
        stats={key: args[key] for key in STATS if key in args},
    )
