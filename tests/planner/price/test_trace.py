"""The exported trace: its schema, its numbers, and that nothing on one track overlaps."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise

import pytest

from shardwise.errors import BadRequest
from shardwise.planner.price.pipeline import costs_of
from shardwise.planner.price.timeline import timeline
from shardwise.planner.price.trace import trace_events, write_trace
from shardwise.scheduling import pipeline_schedule

# The essence of the Trace Event Format: what each phase must have, and of which type.
COMMON = {"ph": str, "name": str, "pid": int, "tid": int, "ts": (int, float), "args": dict}
PHASES = {
    "X": COMMON | {"dur": (int, float), "cat": str},
    "M": COMMON,
}
METADATA = {
    "process_name": ("name", str),
    "thread_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_sort_index": ("sort_index", int),
}


def check_trace(document):
    """Raise AssertionError where a JSON object is not a trace that the viewers read."""
    assert isinstance(document["traceEvents"], list)
    assert document.get("displayTimeUnit", "ms") in ("ms", "ns")
    for event in document["traceEvents"]:
        wanted = PHASES[event["ph"]]
        assert set(wanted) <= set(event) <= {*wanted, "cname"}
        for key, kind in wanted.items():
            assert isinstance(event[key], kind), (key, event)
            assert not isinstance(event[key], bool)
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "M":
            key, kind = METADATA[event["name"]]
            assert isinstance(event["args"][key], kind)


def line_of(kind="zb_v", stages=4, microbatches=8, chunks=2, third=1 / 3, **more):
    schedule = pipeline_schedule(kind, stages, microbatches, chunks)
    costs = costs_of(
        schedule,
        forward=third * 1e-3,
        backward=0.7e-3,
        weight=0.11e-3,
        transfer=third * 1e-4,
        reduction=1e-3,
        optimizer=1e-4,
        **more,
    )
    return timeline(schedule, costs)


@pytest.mark.parametrize(
    ("kind", "chunks"), [("1f1b", 1), ("interleaved", 3), ("zb_v", 2), ("dualpipe", 2)]
)
def test_the_document_is_a_trace(kind, chunks):
    line = line_of(kind, chunks=chunks, buckets=True)
    document = json.loads(json.dumps(trace_events(line)))
    check_trace(document)
    spans = [e for e in document["traceEvents"] if e["ph"] == "X"]
    assert len(spans) == len(line.events)
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(line.makespan * 1e6)
    busy = sum(e["dur"] for e in spans if e["cat"] == "compute")
    assert busy == pytest.approx(sum(line.makespan - idle for idle in line.idle) * 1e6, abs=0.1)


@pytest.mark.parametrize("kind", ["interleaved", "zb_v", "dualpipe"])
def test_spans_of_one_track_never_overlap(kind):
    tracks = defaultdict(list)
    for event in trace_events(line_of(kind, buckets=True))["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for spans in tracks.values():
        for first, second in pairwise(sorted(spans, key=lambda e: e["ts"])):
            # In the whole nanoseconds that the readers count in.
            assert round((first["ts"] + first["dur"]) * 1e3) <= round(second["ts"] * 1e3)


def test_names_and_arguments():
    events = trace_events(line_of())["traceEvents"]
    first = next(e for e in events if e["ph"] == "X" and e["name"] == "F mb3 chunk1")
    assert first["args"] == {"rank": 0, "chunk": 1, "stage": 7, "microbatch": 3}
    send = next(e for e in events if e["name"] == "send B mb0 chunk1")
    assert send["args"]["to"] == send["args"]["rank"] + 1
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {f"rank {r} (stages {r}, {7 - r})" for r in range(4)}
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {"compute", "network", *(f"send to rank {r}" for r in range(4))}


def test_files(tmp_path):
    line = line_of()
    plain, packed = tmp_path / "step.json", tmp_path / "step.json.gz"
    write_trace(line, plain)
    write_trace(line, packed)
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    check_trace(json.loads(plain.read_bytes()))
    before = packed.read_bytes()
    write_trace(line, packed)
    assert packed.read_bytes() == before
    with pytest.raises(BadRequest, match=r"cannot write .*No such file or directory; give another"):
        write_trace(line, tmp_path / "nowhere" / "step.json")
