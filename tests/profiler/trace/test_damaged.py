"""Captures that are damaged: one message that names the file and the event, or an answer."""

import gzip
import json
import random
import time

import pytest
from tests.apps.commands import run
from tests.profiler.trace.test_read import CHROME

from shardwise.boundary.records import plain
from shardwise.commands.program.profiling import trace_result
from shardwise.errors import BadRequest
from shardwise.profiler.trace import chrome, read_trace, trace_of
from shardwise.profiler.trace import read as reader
from shardwise.profiler.trace.events import lines_of, opcode_of
from shardwise.profiler.trace.job import read_planes

OP, MODULE = 4, 3
"""Places of an op and of a run in the events of `CHROME`."""


def written(path, content):
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text)
    return path


def shown(path):
    """What `profile --capture` says of a capture, which is JSON."""
    return json.dumps(plain(trace_result(read_trace(path))), allow_nan=False)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"ts": 20.0', '"ts": NaN', "a number is NaN; numbers must be finite"),
        ('"ts": 20.0', '"ts": 1e400', "a number is '1e400'; numbers must be finite"),
        ('"ts": 20.0', '"ts": "nan"', "event 5 ('fusion.9'): 'ts' is 'nan'; it must be a number"),
        ('"ts": 20.0', '"ts": -3', "event 5 ('fusion.9'): 'ts' is -3; it must be a number of at"),
        ('"ts": 20.0', '"ts": [1]', "event 5 ('fusion.9'): 'ts' is [1]"),
        ('"ts": 20.0', '"ts": 1e30', "starts at 1e+24 s"),
        ('"ts": 20.0, ', "", "event 5 ('fusion.9'): 'ts' is None"),
        ('"dur": 50.0', '"dur": Infinity', "numbers must be finite"),
        ('"dur": 50.0', '"dur": -1e-3', "'dur' is -0.001; it must be a number of at least 0"),
        ('"dur": 50.0', '"dur": 1e300', "an event at most 1e+08 s long"),
        ('"dur": 50.0', f'"dur": {"9" * 5000}', "a number has 5000 digits"),
        ('"dur": 50.0', '"dur": 1, "dur": 50.0', "the key 'dur' appears twice"),
        ('"name": "fusion.9"', '"name": ["a"]', "'name' is ['a']; it must be text"),
        ('{"hlo_category": "loop fusion"', '[{"a": 1}], "b": {"c": "d"', "it must be an object"),
        ('"hlo_category": "loop fusion"', '"device_ordinal": -1', "the device of event 'fusion.9'"),
        ('"hlo_category": "loop fusion"', '"device_ordinal": null', "the device of event"),
        ('"hlo_category": "loop fusion"', '"device_ordinal": 1.5', "the device of event"),
        ("/device:TPU:0", "/device:TPU:" + "9" * 5000, "the device of event"),
        ('"pid": 3, "tid": 2, "ts"', '"pid": {"a": 1}, "tid": 2, "ts"', "'pid' is {'a': 1}"),
        ('"args": {"name": "XLA Ops"}', '"args": {}', "its name in 'args' is None"),
        ('"args": {"name": "XLA Ops"}', '"args": "XLA Ops"', "'args' is 'XLA Ops'"),
        ('{"traceEvents": ', "[" * 10_000, "nests deeper"),
    ],
)
def test_numbers_and_names_that_are_none_are_refused(tmp_path, old, new, message):
    text = json.dumps(CHROME)
    assert old in text
    path = written(tmp_path / "a.trace.json", text.replace(old, new, 1))
    with pytest.raises(BadRequest) as error:
        shown(path)
    assert message in str(error.value)
    assert f"trace '{path}'" in str(error.value)


@pytest.mark.parametrize("times", [(float("nan"), 1), (0, float("inf")), (-1, 1), (0, -1e-9)])
def test_times_of_any_capture_are_checked(times):
    row = {"plane": "/device:TPU:0", "line": "XLA Ops", "events": [["dot.1", *times, {}]]}
    with pytest.raises(BadRequest, match=r"event 'dot.1' of line 'XLA Ops' starts at"):
        trace_of("x.xplane.pb", lines_of([row]))


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path):
    path = tmp_path / "bomb.trace.json.gz"
    packed = gzip.compress(b" " * 2**26, 9)
    path.write_bytes(packed * 30)  # 2 MB that hold 2 GB
    begun = time.process_time()
    with pytest.raises(BadRequest, match="unpacks to more than"):
        read_trace(path)
    assert time.process_time() - begun < 5


def test_more_items_than_a_capture_has_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(chrome, "MOST_ITEMS", 1000)
    path = written(tmp_path / "a.json", "[" + "{}," * 1001 + "{}]")
    with pytest.raises(BadRequest, match="holds more than 150,000 complete events, or 1,000 of"):
        read_trace(path)


def test_what_is_no_file_is_refused(capsys, tmp_path):
    (tmp_path / "gone.xplane.pb").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path, tmp_path / "gone.xplane.pb", tmp_path / ("x" * 300 + ".json")):
        code, out, err = run(capsys, "profile", "--capture", path)
        assert (code, out) == (2, "")
        assert str(path) in err
    with pytest.raises(BadRequest):
        read_trace(tmp_path / "a\0.json")
    with (tmp_path / "large.xplane.pb").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(BadRequest, match="is longer than"):
        read_trace(tmp_path / "large.xplane.pb")


def test_many_runs_and_planes_are_read_in_a_time_that_grows_with_their_number(tmp_path):
    """An event's run was looked for among all, and a plane's lines among all: by the square."""
    runs = [["jit_f(5)", 2.0 * i, 1.0, {}] for i in range(20_000)]
    ops = [["dot.1", 2.0 * i + 0.5, 0.25, {}] for i in range(20_000)]
    rows = [
        {"plane": "/device:TPU:0", "line": "XLA Modules", "events": runs},
        {"plane": "/device:TPU:0", "line": "XLA Ops", "events": ops},
        *({"plane": f"p{i}", "line": "x", "events": []} for i in range(20_000)),
    ]
    begun = time.process_time()
    trace = trace_of("x", lines_of(rows))
    assert len(trace.spans) == len(runs)
    assert opcode_of("dot" + ".1" * 50_000 + "x").endswith("x")
    assert time.process_time() - begun < 5


def test_an_event_belongs_to_the_first_run_that_holds_it():
    runs = [["jit_a(1)", 0.0, 5.0, {}], ["jit_b(2)", 1.0, 1.0, {}], ["jit_c(3)", 5.0, 2.0, {}]]
    ops = [["dot.1", 1.5, 0.1, {}], ["dot.2", 5.0, 0.1, {}], ["dot.3", 8.0, 0.1, {}]]
    rows = [
        {"plane": "/device:TPU:0", "line": "XLA Modules", "events": runs},
        {"plane": "/device:TPU:0", "line": "XLA Ops", "events": ops},
    ]
    assert [op.module for op in trace_of("x", lines_of(rows)).ops] == ["jit_a", "jit_a", ""]


ODD = (None, True, -1, 1e308, -5.5, "", "x", [], {}, [1], {"a": 1}, 10**30, "nan", "\ud800")


def places(value, path=()):
    """The places of all values in a document."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def damaged(rng):
    """The text of a capture in which values are lost or others, and bytes sometimes too."""
    found = json.loads(json.dumps(CHROME))
    for _ in range(rng.choice((1, 1, 2, 4))):
        every = list(places(found))
        if not every:
            break
        *outer, last = rng.choice(every)
        inside = found
        for key in outer:
            inside = inside[key]
        if rng.random() < 0.2:
            del inside[last]
        else:
            inside[last] = json.loads(json.dumps(rng.choice(ODD)))
    data = bytearray(json.dumps(found).encode())
    if rng.random() < 0.3:
        data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.2:
        del data[rng.randrange(len(data)) :]
    return bytes(data)


def test_damaged_chrome_traces_are_answered_or_refused(tmp_path):
    rng, answered = random.Random(14), 0
    for i in range(600):
        path, data = tmp_path / "a.trace.json", damaged(rng)
        if i % 4 == 0:
            path, packed = tmp_path / "a.trace.json.gz", bytearray(gzip.compress(data))
            packed[rng.randrange(len(packed))] ^= 1 << rng.randrange(8)
            data = bytes(packed)
        path.write_bytes(data)
        try:
            shown(path)
            answered += 1
        except BadRequest:
            pass
    assert 0 < answered < 600


def varint(n):
    found = bytearray()
    while n > 127:
        found.append(n & 127 | 128)
        n >>= 7
    return bytes([*found, n])


def field(number, value):
    """A field of a protocol buffer: a whole number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def xplane():
    """An XSpace with one plane, line "XLA Ops" and three events (tensorflow's xplane.proto)."""
    names = [b"%dot.1 = f32[8] dot(...)", b"%copy.2 = f32[8] copy(...)"]
    known = b"".join(
        field(4, field(1, i) + field(2, field(1, i) + field(2, name)))
        for i, name in enumerate(names, 1)
    )
    events = b"".join(
        field(4, field(1, i) + field(2, 10**6 * at) + field(3, 5 * 10**5))
        for at, i in enumerate((1, 2, 1))
    )
    line = field(1, 7) + field(2, b"XLA Ops") + field(3, 1000) + events
    return field(1, field(1, 1) + field(2, b"/device:TPU:0") + field(3, line) + known)


def test_damaged_planes_are_answered_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "run_function", lambda _, given, **__: read_planes(**given))
    path, whole = tmp_path / "a.xplane.pb", xplane()
    path.write_bytes(whole)
    assert [op.name for op in read_trace(path).ops] == ["dot.1", "copy.2", "dot.1"]
    rng, answered = random.Random(14), 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 3))):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        path.write_bytes(data)
        try:
            shown(path)
            answered += 1
        except BadRequest:
            pass
    assert 0 < answered < 150
