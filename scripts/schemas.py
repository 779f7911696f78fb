#!/usr/bin/env python3
"""JSON Schemas of what commands print with --json, in src/shardwise/commands/tables/data/schemas.

    scripts/schemas.py            runs tests/apps, which calls every command in many ways, keeps
                                  the documents and writes a schema of each command
    scripts/schemas.py --from F   writes them of documents that were kept in a folder before

The envelope is that of `apps/cli/output.py`, `inputs` are described by the options' own help, and
`result` by all results that were seen: what every one of them has is required, and a key that none
had is no part of it. Deeper objects may have more keys. An object is a table by name (its keys are
data) where keys are no identifiers, or where two of its instances have no key in common.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from options import commands

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "src" / "shardwise" / "commands" / "tables" / "data" / "schemas"
KEPT = "SHARDWISE_DOCUMENTS"
"""The variable that tells tests/apps where to keep documents (`tests/apps/documents.py`)."""
SILENT = ("plan schema", "serve", "ui", "generate", "chat", "schema")
"""Commands that print no document."""
_FIELD = re.compile(r"[a-z][a-z0-9_]*")
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def schema_of(values: Sequence[Any], *, closed: bool = False) -> dict[str, Any]:
    """The schema of all these values."""
    kinds = {TYPES[type(v)] for v in values if type(v) in TYPES}
    if "number" in kinds:
        kinds.discard("integer")
    found: dict[str, Any] = {}
    if objects := [v for v in values if isinstance(v, dict)]:
        kinds.add("object")
        found |= _object(objects, closed)
    if lists := [v for v in values if isinstance(v, list)]:
        kinds.add("array")
        items = [item for one in lists for item in one]
        found |= {"items": schema_of(items)} if items else {}
    if kinds == {"null"}:
        return {}  # what else it may be, no document says
    names = sorted(kinds)
    return {"type": names[0] if len(names) == 1 else names, **found} if names else {}


def _object(objects: Sequence[Mapping[str, Any]], closed: bool) -> dict[str, Any]:
    filled = [o for o in objects if o]
    common = set(filled[0]).intersection(*filled) if filled else set()
    names = sorted({name for o in filled for name in o})
    if not closed and filled and (not common or not all(map(_FIELD.fullmatch, names))):
        return {"additionalProperties": schema_of([v for o in filled for v in o.values()])}
    found: dict[str, Any] = {
        "properties": {n: _unit(n) | schema_of([o[n] for o in filled if n in o]) for n in names}
    }
    if len(filled) == len(objects) and common:
        found["required"] = [n for n in names if n in common]
    return found | ({"additionalProperties": False} if closed else {})


UNITS = {"seconds": "in seconds", "ms": "in milliseconds", "bytes": "in bytes", "usd": "in dollars"}
"""Units by the last word of a key."""


def _unit(name: str) -> dict[str, str]:
    unit = UNITS.get(name.rpartition("_")[2])
    return {"description": unit} if unit else {}


def document_schema(
    name: str, command: click.Command, documents: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The schema of one command's documents."""
    texts = {"type": "array", "items": {"type": "string"}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"shardwise {name} --json",
        "description": command.get_short_help_str(200),
        "type": "object",
        "additionalProperties": False,
        "required": list(_ENVELOPE),
        "properties": {
            "schema_version": {"const": 1},
            "tool_version": {"type": "string"},
            "inputs": {"type": "object", "properties": _inputs(command, documents)},
            "resolved": {
                "type": "object",
                "description": "what each choice became, and where it came from",
            },
            "result": schema_of([d["result"] for d in documents], closed=True),
            "warnings": {**texts, "description": "what may make the answer wrong or unwise"},
            "notes": {**texts, "description": "what else is good to know"},
            "provenance": {"type": "object", "description": "the sources of its numbers"},
        },
    }


_ENVELOPE = (
    *("schema_version", "tool_version", "inputs", "resolved", "result"),
    *("warnings", "notes", "provenance"),
)


def _inputs(
    command: click.Command, documents: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """What was asked, with the help of the options of those names."""
    said = {p.name: p.help for p in command.params if isinstance(p, click.Option) and p.help}
    names = sorted({name for d in documents for name in d["inputs"]})
    return {n: {"description": said[n]} if n in said else {} for n in names}


def collect(folder: Path) -> None:
    """Run the tests of the command line, slow ones too, and keep what its commands print."""
    marks = "not browser and not torch and not alone"
    words = [sys.executable, "-m", "pytest", "-q", "tests/apps", "-m", marks]
    subprocess.run(words, cwd=ROOT, check=False, env={**os.environ, KEPT: str(folder)})


def written(kept: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """The schema of every command by the name of its file."""
    by: dict[str, list[Any]] = defaultdict(list)
    for path in sorted(kept):
        by[path.name.split(".")[0]].append(json.loads(path.read_text(encoding="utf-8")))
    known = {n.replace(" ", "-"): (n, c) for n, c in commands() if n not in SILENT}
    if missing := sorted(set(known) - set(by)):
        print(f"no document of {', '.join(missing)}: their schemas stay", file=sys.stderr)
    return {f: document_schema(*known[f], by[f]) for f in known if f in by}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_RAW)
    parser.add_argument("--from", dest="folder", type=Path, help="documents that were kept")
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as made:
        if folder is None:
            folder = Path(made)
            collect(folder)
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, schema in written(folder.glob("*.json")).items():
            text = json.dumps(schema, indent=1, ensure_ascii=False)
            (FOLDER / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


_RAW = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
