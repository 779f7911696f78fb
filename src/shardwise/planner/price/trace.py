"""A pipeline timeline as a trace file: open it in ui.perfetto.dev or chrome://tracing.

The format is the JSON of the Trace Event Format (Google's "Trace Event Format" document; Perfetto
reads it, perfetto.dev/docs/faq): complete events "X" with start and length in microseconds, and
metadata events "M" that name the tracks. A rank is a process; its compute, its network and its
sends to each other rank are threads, as the events of one thread may not overlap.
"""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.boundary import write_bytes
from shardwise.planner.price.timeline import Event, Timeline

_COLOURS = {"F": "good", "B": "bad", "W": "terrible", "optimizer": "yellow", "reduce": "olive"}
"""Reserved colour names of chrome://tracing; Perfetto picks its own by the event's name."""


def trace_events(line: Timeline) -> dict[str, Any]:
    """The trace as a JSON object: `traceEvents`, and what the schedule is in `otherData`.

    Times are microseconds from the start of the step. `args` of an event hold its rank, stage,
    microbatch, chunk and, of a send, the receiving rank.
    """
    ranks = range(line.schedule.stages)
    events = [event for rank in ranks for event in _names(line, rank)]
    events += [_complete(line, event) for event in line.events]
    schedule = line.schedule
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "schedule": schedule.kind,
            "stages": str(schedule.stages),
            "microbatches": str(schedule.microbatches),
            "chunks": str(schedule.chunks),
            "makespan_seconds": repr(float(line.makespan)),
            "bubble_share": repr(float(line.bubble_share)),
        },
    }


def write_trace(line: Timeline, path: Path) -> None:
    """Write the trace, compressed where the name ends in .gz. Raises BadRequest if it cannot."""
    write_events(trace_events(line), path)


def write_events(document: Mapping[str, Any], path: Path, option: str = "--perfetto") -> None:
    """Write a document of the Trace Event Format, compressed where the name ends in .gz."""
    data = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    if path.suffix == ".gz":
        # No time of writing in the file: the same plan gives the same bytes.
        data = gzip.compress(data, mtime=0)
    write_bytes(path, data, option=option)


def _names(line: Timeline, rank: int) -> list[dict[str, Any]]:
    """Metadata: the rank's name and place in the list, and its streams."""
    schedule = line.schedule
    stages = [schedule.stage_of(rank, chunk) for chunk in range(schedule.chunks)]
    label = f"rank {rank} (stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))})"
    named = [
        _meta("process_name", rank, 1, {"name": label}),
        _meta("process_sort_index", rank, 1, {"sort_index": rank}),
    ]
    threads = {(e.stream, e.to): _thread(e) for e in line.events if e.rank == rank}
    for (stream, to), thread in sorted(threads.items(), key=lambda item: item[1]):
        name = f"send to rank {to}" if stream == "send" else stream
        named.append(_meta("thread_name", rank, thread, {"name": name}))
        named.append(_meta("thread_sort_index", rank, thread, {"sort_index": thread}))
    return named


def _process(rank: int) -> int:
    """Process ids start at 1: 0 is the kernel's idle process to readers of traces."""
    return rank + 1


def _thread(event: Event) -> int:
    """1 computes, 2 reduces gradients, each destination of sends has one of its own."""
    return {"compute": 1, "network": 2, "send": 3 + event.to}[event.stream]


def _meta(name: str, rank: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "ts": 0, "pid": _process(rank), "tid": thread, "name": name, "args": args}


def _complete(line: Timeline, event: Event) -> dict[str, Any]:
    args: dict[str, Any] = {"rank": event.rank}
    if event.chunk >= 0:
        args["chunk"] = event.chunk
        args["stage"] = line.schedule.stage_of(event.rank, event.chunk)
    if event.microbatch >= 0:
        args["microbatch"] = event.microbatch
    if event.to >= 0:
        args["to"] = event.to
    # Whole nanoseconds at both ends: else rounding lets neighbours overlap, and readers drop one.
    start, end = round(event.start * 1e9), round(event.end * 1e9)
    found: dict[str, Any] = {
        "ph": "X",
        "ts": start / 1e3,
        "dur": (end - start) / 1e3,
        "pid": _process(event.rank),
        "tid": _thread(event),
        "name": event_name(event),
        "cat": event.stream,
        "args": args,
    }
    if event.kind in _COLOURS:
        found["cname"] = _COLOURS[event.kind]
    return found


def event_name(event: Event) -> str:
    """What a track shows: "F mb3 chunk0", "send F mb3 chunk0", "reduce chunk1", "optimizer"."""
    name = event.kind
    if event.microbatch >= 0:
        name += f" mb{event.microbatch}"
    return name + (f" chunk{event.chunk}" if event.chunk >= 0 else "")
