"""What became of the tests marked `long`, as scripts/long_tests wrote it down: record.json."""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("record.json")

Record = dict[str, dict[str, Any]]
"""By file: its digest, the date and commit of its run, and outcome and seconds of each test."""


def read() -> Record:
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def digest(file: str) -> str:
    """Of a test file, whose tests are run again where it changes."""
    return hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]


def lacking(file: str, tests: Collection[str], record: Mapping[str, Any]) -> list[str]:
    """What the record lacks of a file with these long tests, in a sentence for each."""
    if file not in record:
        return [f"{file}: {len(tests)} tests were not run"]
    entry = record[file]
    said = [] if entry["digest"] == digest(file) else [f"{file} has changed since they were run"]
    said += [f"{file}::{name} was not run" for name in sorted(set(tests) - set(entry["tests"]))]
    said += [f"{file}::{name} is gone" for name in sorted(set(entry["tests"]) - set(tests))]
    bad = {name: how for name, (how, _) in entry["tests"].items() if how != "passed"}
    return said + [f"{file}::{name} {how}" for name, how in bad.items()]
