#!/usr/bin/env python3
"""Make src/shardwise/models/data from a folder of config.json files and an index of their origin.

    scripts/make_zoo.py CONFIGS INDEX.csv

CONFIGS holds NAME.json files, INDEX.csv has columns slug, hf_id, source_repo, source_path,
source_commit, source_kind and source_note. Each config is reduced to the keys that our reader
looks up: reading is recorded, and whatever was not asked for is dropped. The reduced config must
give the same ModelConfig as the whole one.
"""

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.models.hf import from_hf
from shardwise.models.zoo import DATA, unpack

PROVENANCE = {
    "hf_id": "hf_id",
    "repository": "source_repo",
    "path": "source_path",
    "commit": "source_commit",
    "kind": "source_kind",
    "note": "source_note",
}
SHORT = 4
"""Lists that are longer than this are written as repeated blocks."""
LONGEST = 16
"""Longest block looked for."""


class Recorder(Mapping[str, Any]):
    """A mapping that remembers which keys were looked up and found."""

    def __init__(self, inner: Mapping[str, Any]) -> None:
        self.inner = {k: _recorded(v) for k, v in inner.items()}
        self.used: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.used.add(key)
        return self.inner[key]

    def __contains__(self, key: object) -> bool:
        return key in self.inner

    def __iter__(self):
        self.used.update(self.inner)
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)

    def kept(self) -> dict[str, Any]:
        """The keys that were used, sections reduced likewise."""
        return {k: _kept(v) for k, v in self.inner.items() if k in self.used}


def _recorded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Recorder(value)
    return [_recorded(v) for v in value] if isinstance(value, list) else value


def _kept(value: Any) -> Any:
    if isinstance(value, Recorder):
        return value.kept()
    return [_kept(v) for v in value] if isinstance(value, list) else value


def reduced(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The part of a config that the reader reads."""
    recorder = Recorder(raw)
    whole = from_hf(recorder, name=name)
    kept = recorder.kept()
    assert from_hf(kept, name=name) == whole, name
    return kept


def packed(config: dict[str, Any], prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """The config without its long lists, and those lists as repeated blocks by dotted name."""
    rest: dict[str, Any] = {}
    runs: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            rest[key], inner = packed(value, f"{prefix}{key}.")
            runs |= inner
        elif isinstance(value, list) and len(value) > SHORT:
            runs[prefix + key] = blocks(value)
        else:
            rest[key] = value
    return rest, runs


def blocks(values: list[Any]) -> list[tuple[list[Any], int]]:
    """A list as (block, times) pairs: at each place the block that repeats over the most."""
    found: list[tuple[list[Any], int]] = []
    start = 0
    while start < len(values):
        best = (values[start : start + 1], 1)
        for length in range(1, LONGEST + 1):
            block, times = values[start : start + length], 1
            while values[start + length * times : start + length * (times + 1)] == block:
                times += 1
            if times > 1 and length * times > len(best[0]) * best[1]:
                best = (block, times)
        if best[1] == 1 and found and found[-1][1] == 1:
            found[-1] = (found[-1][0] + best[0], 1)
        else:
            found.append(best)
        start += len(best[0]) * best[1]
    return found


def written(document: Mapping[str, Mapping[str, Any]]) -> str:
    """JSON with one line per key, so that a change shows as one line."""
    parts = []
    for name, section in document.items():
        lines = [f"  {json.dumps(k)}: {_compact(v)}" for k, v in section.items()]
        parts.append(f"  {json.dumps(name)}: {{\n  " + ",\n  ".join(lines) + "\n  }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def main(configs: Path, index: Path) -> None:
    DATA.mkdir(exist_ok=True)
    with index.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        name = row["slug"]
        raw = json.loads((configs / f"{name}.json").read_text(encoding="utf-8"))
        config = reduced(raw, name)
        rest, runs = packed(config)
        assert unpack(rest, runs) == config, name
        provenance = {ours: row[theirs] for ours, theirs in PROVENANCE.items() if row[theirs]}
        document = {"provenance": provenance, "config": rest} | ({"runs": runs} if runs else {})
        (DATA / f"{name}.json").write_text(written(document), encoding="utf-8")
    print(f"{len(rows)} models written to {DATA}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
