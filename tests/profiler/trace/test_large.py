"""Captures that are large in one way: read soon and in little memory, or refused with a rule."""

import gzip
import json
import subprocess
import sys

import pytest
from tests.apps.commands import run
from tests.profiler.trace.test_read import CHROME

from shardwise.boundary import items
from shardwise.errors import BadRequest
from shardwise.profiler.trace import read_trace

SECONDS, MEGABYTES = 20, 500
HEAD = json.dumps(CHROME)[:-2].encode()
OP = b'{"ph": "X", "pid": 3, "tid": 2, "ts": 20.0, "dur": 5.0, "name": "f.1", "args": {"a": "b"}}'
MANY = {
    "empty events": (b", {}", "complete events"),
    "complete events": (b", " + OP, "complete events"),
    "numbers": (b", 1.5", "no list 'traceEvents'"),
    "deep events": (b', {"a": ' + b'{"a": ' * 60 + b"1" + b"}" * 61, "nests deeper"),
}


def capture(size, part, head=HEAD):
    return head + part * ((size - len(head)) // len(part)) + b"]}"


def long_name(size):
    return HEAD + b', {"ph": "X", "name": "' + b"x" * size + b'"}]}'


def threads(count):
    one = OP.replace(b'"tid": 2', b'"tid": %d')
    return HEAD + b"".join(b", " + one % i for i in range(count)) + b"]}"


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (long_name(3_000_000), "holds a value of more than 2.1 MB"),
        (HEAD + b', {"a": [' + b"1," * 1_500_000 + b"1]}]}", "holds a value of more than 2.1 MB"),
        (threads(10_002), "is of more than 10,000 threads"),
        (capture(1_000_000, *MANY["deep events"][:1]), "nests deeper than 50 levels"),
        (capture(1_000_000, *MANY["numbers"][:1]), "no list 'traceEvents' of events: item"),
    ],
)
def test_what_no_capture_has_is_refused_with_the_rule(capsys, tmp_path, data, rule):
    path = tmp_path / "a.trace.json"
    path.write_bytes(data)
    code, out, err = run(capsys, "profile", "--capture", path)
    assert (code, out) == (2, "")
    assert rule in err
    assert "capture" in err.partition(rule)[2]


def test_many_gzip_files_in_one_are_refused(tmp_path):
    (tmp_path / "a.trace.json.gz").write_bytes(gzip.compress(b"") * 100_000)
    with pytest.raises(BadRequest, match=r"is of more than 200 gzip files.*pack it as one"):
        read_trace(tmp_path / "a.trace.json.gz")


@pytest.mark.parametrize("window", [1, 7, 64, 300])
def test_the_length_of_a_window_changes_nothing(monkeypatch, tmp_path, window):
    """Items, numbers, escapes and characters of several bytes lie across the ends of windows."""
    text = json.dumps(CHROME, indent=1).replace("fusion.9", "fusión.9\\ud83d\\ude00")
    (tmp_path / "a.json").write_text(text + " \n", encoding="utf-8-sig")
    whole = read_trace(tmp_path / "a.json")
    monkeypatch.setattr(items, "WINDOW_BYTES", window)
    assert read_trace(tmp_path / "a.json") == whole
    (tmp_path / "a.json").write_text(text[:-9] + ",,", encoding="utf-8")
    line = text[:-9].count("\n") + 1
    with pytest.raises(BadRequest, match=f"is not JSON at line {line} column"):
        read_trace(tmp_path / "a.json")


@pytest.mark.slow
@pytest.mark.parametrize("kind", MANY)
def test_a_capture_of_63_megabytes_takes_little(tmp_path, kind):
    part, rule = MANY[kind]
    (tmp_path / "a.trace.json").write_bytes(capture(63_000_000, part))
    code, seconds, megabytes, said = measured(tmp_path / "a.trace.json")
    assert (code, rule in said) == (2, True), said
    assert seconds < SECONDS
    assert megabytes < MEGABYTES


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 9_000])
def test_the_most_events_that_are_read_take_little(tmp_path, devices):
    head = b'{"traceEvents": [{}'
    name = b', {"ph": "M", "pid": %d, "name": "process_name", "args": {"name": "/device:TPU:%d"}}'
    lines = (
        b', {"ph": "M", "pid": %d, "tid": 2, "name": "thread_name", "args": {"name": "XLA Ops"}}'
    )
    op = b", " + OP.replace(b'"pid": 3', b'"pid": %d')
    events = [name % (i, i) + lines % i for i in range(devices)]
    events += [op % (i % devices) for i in range(149_000)]
    (tmp_path / "a.trace.json").write_bytes(head + b"".join(events) + b"]}")
    code, seconds, megabytes, said = measured(tmp_path / "a.trace.json")
    assert code == 0, said
    assert seconds < SECONDS
    assert megabytes < MEGABYTES


def measured(path):
    """Exit code of reading a capture, its CPU seconds and megabytes, and what it said."""
    code = (
        "import os, subprocess, sys\n"
        "words = [sys.executable, '-m', 'shardwise', 'profile', '--capture', sys.argv[1]]\n"
        "child = subprocess.Popen(words)\n"
        "_, status, used = os.wait4(child.pid, 0)\n"
        "seconds = used.ru_utime + used.ru_stime\n"
        "print()\n"
        "print(os.waitstatus_to_exitcode(status), seconds, used.ru_maxrss / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    code, seconds, megabytes = done.stdout.splitlines()[-1].split()
    return int(code), float(seconds), float(megabytes), done.stderr
