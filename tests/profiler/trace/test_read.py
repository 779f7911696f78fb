"""Files of captures: both formats, and what is empty, cut off, corrupt or something else."""

import gzip
import json

import pytest

from shardwise.errors import BadRequest
from shardwise.profiler.trace import read_trace

CHROME = {
    "traceEvents": [
        {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:TPU:0"}},
        {"ph": "M", "pid": 3, "tid": 1, "name": "thread_name", "args": {"name": "XLA Modules"}},
        {"ph": "M", "pid": 3, "tid": 2, "name": "thread_name", "args": {"name": "XLA Ops"}},
        {"ph": "X", "pid": 3, "tid": 1, "ts": 10.0, "dur": 100.0, "name": "jit_f(5)"},
        {
            "ph": "X",
            "pid": 3,
            "tid": 2,
            "ts": 20.0,
            "dur": 50.0,
            "name": "fusion.9",
            "args": {"hlo_category": "loop fusion", "long_name": "%fusion.9 = ..."},
        },
        {"ph": "X", "pid": 3, "tid": 2, "ts": 80.0, "dur": 25.0, "name": "all-reduce.1"},
        {"ph": "C", "pid": 3, "name": "counter", "ts": 1, "args": {"bytes": 3}},
    ]
}


def chrome(path, content=CHROME):
    data = json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["run.trace.json", "run.trace.json.gz"])
def test_a_chrome_trace_is_read(tmp_path, name):
    trace = read_trace(chrome(tmp_path / name))
    assert {op.name: op.own for op in trace.ops} == pytest.approx(
        {"fusion.9": 50e-6, "all-reduce.1": 25e-6}
    )
    assert trace.step_seconds == pytest.approx(85e-6)
    assert trace.modules == pytest.approx({"jit_f": 75e-6})


def test_a_bare_list_of_events_is_chrome_format_too(tmp_path):
    trace = read_trace(chrome(tmp_path / "a.json", CHROME["traceEvents"]))
    assert len(trace.ops) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.trace.json", b"", "is empty"),
        ("a.xplane.pb", b"", "is empty"),
        ("a.trace.json", b'{"traceEvents": [', "is not JSON"),
        ("a.trace.json", b"\xff\xfe\x00", "is not text in UTF-8"),
        ("a.trace.json", b'{"other": 1}', "has no list 'traceEvents'"),
        ("a.trace.json", b'{"traceEvents": [1]}', "has no list 'traceEvents'"),
        (
            "a.trace.json",
            b'{"traceEvents": [{"ph": "X"}]}',
            "event 1 .*: 'name' is None; it must be text, as in Chrome's format",
        ),
        ("a.trace.json", b'{"traceEvents": []}', "none of a compiled op"),
        ("a.trace.json.gz", b"plain text", "is not a whole gzip file"),
        (
            "a.trace.json.gz",
            gzip.compress(b"x" * 9999, mtime=0)[:-12],
            "is not a whole gzip file",
        ),
        ("a.csv", b"a,b", "the ending says the format"),
        ("a.xplane.pb", b"nothing of the kind" * 30, "is no capture of jax.profiler"),
    ],
)
def test_what_is_no_capture_is_refused_with_its_reason(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadRequest, match=message):
        read_trace(tmp_path / name)


def test_a_file_that_is_not_there_and_a_folder_without_captures(tmp_path):
    with pytest.raises(BadRequest, match=r"cannot read trace .*: no such file"):
        read_trace(tmp_path / "no.trace.json")
    with pytest.raises(BadRequest, match=r"holds no '\*\.xplane\.pb'"):
        read_trace(tmp_path)
