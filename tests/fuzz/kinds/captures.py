"""Captures and traces of requests whose structure is hostile, each part valid by itself."""

import gzip
import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from fuzz.cases import Case
from fuzz.kinds.files import capture, programs
from fuzz.kinds.planned import TRACES, plan
from fuzz.mutate import VALUES, WHOLE, Harm

COUNTS = (1, 1, 3, 100, 3_000, 300_000)
BYTES = 3_000_000


def _many(random: Random, part: bytes) -> bytes:
    """A part many times, in some megabytes."""
    return part * max(1, min(random.choice(COUNTS), BYTES // max(len(part), 1)))


def _value(random: Random) -> bytes:
    text = random.choice(('"x"', '"\\ud83d\\ude00"', '"é"', '"\\u0000"', "1", "1.5", "1e308", "{}"))
    part = text.encode()
    return random.choice(
        (
            lambda: b"[" + _many(random, part + b",") + part + b"]",
            lambda: b'"' + _many(random, random.choice((b"x", b'\\"', b"\\ud83d"))) + b'"',
            lambda: b"[" * (n := random.choice((3, 49, 60, 900, 2000))) + b"]" * n,
            lambda: (
                b"{" + b",".join(b'"k%d":1' % i for i in range(random.choice((3, 9999)))) + b"}"
            ),
            lambda: _many(random, b"1"),
            lambda: json.dumps(random.choice(VALUES)).encode(),
        )
    )()


def _event(random: Random) -> bytes:
    """An event of Chrome's format with a field or two that are strange."""
    event: dict[str, Any] = {"ph": random.choice("XXXXMCBE"), "pid": random.choice((3, "a", -1))}
    event |= {"tid": random.choice((1, 2, 9)), "ts": random.choice((0, 1e-9, 5.5, 1e17, 1e18))}
    event |= {"dur": random.choice((0, 1, 1e3, 1e13)), "name": random.choice(("f.1", "while", ""))}
    args = {
        "hlo_op": "f.1",
        "hlo_module": "m",
        "run_id": 1,
        "device_ordinal": random.choice((0, 7)),
    }
    event["args"] = random.choice((args, args, {}, {"name": "XLA Ops"}))
    text = json.dumps(event).encode()
    if random.random() < 0.4:
        field = random.choice(("name", "args", "ts", "pid", "more"))
        event.pop(field, None)
        text = json.dumps(event).encode()[:-1] + f', "{field}": '.encode() + _value(random) + b"}"
    return text


def _events(random: Random, harm: Harm) -> Case:
    good = capture(random.randrange(len(programs())))
    data = good
    if harm is not WHOLE:
        parts = [b", " + random.choice((_event, _event, _value))(random) for _ in range(3)]
        parts = [_many(random, part) if random.random() < 0.5 else part for part in parts]
        data = good[:-2] + b"".join(parts) + b"]"
        data += b', "more": ' + _value(random) + b"}" if random.random() < 0.3 else b"}"
    if random.random() < 0.3:
        packed = gzip.compress(data, mtime=0)
        packed += _many(random, gzip.compress(b"", mtime=0)) if harm is not WHOLE else b""
        return Case(files={"c.json.gz": packed}, run=["profile", "--capture", "c.json.gz"])
    return Case(files={"c.json": data}, run=["profile", "--capture", "c.json", "--json"])


def _rows(random: Random, harm: Harm) -> Case:
    """A trace of requests with a row, a cell or a key many times."""
    good = random.choice([t for t in TRACES if not t.startswith(b"window")])
    lines = good.splitlines(keepends=True)
    if harm is not WHOLE:
        at = random.randrange(len(lines))
        row = lines[at].rstrip(b"\r\n")
        comma = row.rfind(b",") + 1
        changed = (
            lambda: _many(random, row + b"\n"),
            lambda: row[:comma] + _many(random, row[comma:] + b",") + b"\n",
            lambda: row.rstrip(b"}") + b', "hash_ids": ' + _value(random) + b"}\n",
            lambda: row[:comma] + _value(random) + b"\n",
            lambda: row[:comma] + b'"' + _many(random, b'x""') + b'"\n',
            lambda: _many(random, random.choice((b"\n", b",", b"\r", b" ", b'"'))) + row + b"\n",
        )
        lines[at] = random.choice(changed)()
    files = {"t.jsonl": b"".join(lines), "p.yaml": plan("server")}
    return Case(files=files, run=["simulate", "p.yaml", "--trace", "t.jsonl", "--requests", "40"])


KINDS: Mapping[str, Callable[[Random, Harm], Case]] = {"events": _events, "rows": _rows}
