#!/usr/bin/env python3
"""JSON Schemas of what commands print with --json, in src/shardwise/commands/tables/data/schemas.

    scripts/schemas.py            runs tests/apps, which calls every command in many ways, keeps
                                  the documents and writes a schema of each command
    scripts/schemas.py --from F   writes them of documents that were kept in a folder before

The envelope is that of `apps/cli/output.py`, and `inputs` are described by the options' own help.
What `result` holds the fields of the answer say (`commands/tables/schema.py`).
"""

import argparse
import json
import os
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
            "result": {},
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
            text = json.dumps(schema, indent=2, ensure_ascii=False)
            (FOLDER / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


_RAW = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    main()
