"""The page of every word in an answer: the fields of all commands' documents, and their meaning."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import shardwise as sw
from shardwise.errors import BadRequest

COMMANDS = Path(sw.__file__).parent / "apps" / "cli" / "options.json"
ASKED = ("inputs", "resolved")
"""Parts of a document that repeat what was asked, which docs/options.md explains."""
HEAD = """\
# Glossary: every word of an answer

A row is a field of a command's answer, under the name that it has with `--json`, in Python and in
`--csv`. [Concepts](site/concepts.md) explains the words that belong to no single field.
[Options](options.md) explains what you may ask for. `shardwise schema COMMAND` has the same as a
JSON Schema.
"""


def page() -> str:
    """Fields in the order of the alphabet, a table for each letter."""
    words: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for command in json.loads(COMMANDS.read_text(encoding="utf-8")):
        for name, meaning in sorted({*_of_command(command)}):
            words[name][meaning].append(command)
    parts = [HEAD]
    for letter in sorted({name[0].upper() for name in words}):
        parts.append(f"## {letter}\n\n| word | meaning | answer of |\n|---|---|---|")
        for name in sorted(name for name in words if name[0].upper() == letter):
            parts += [_row(name, *item) for item in words[name].items()]
        parts.append("")
    return "\n".join(parts)


def _row(name: str, meaning: str, commands: list[str]) -> str:
    said = ", ".join(f"`{command}`" for command in commands[:4])
    more = f" and {len(commands) - 4} more" if len(commands) > 4 else ""
    return f"| `{name}` | {meaning.replace('|', chr(92) + '|')} | {said}{more} |"


def _of_command(command: str) -> Iterator[tuple[str, str]]:
    """Name and meaning of each field of a command's answer that says what it means."""
    try:
        found = deepcopy(sw.schema(command).result)
    except BadRequest:  # a command without a document
        return
    for part in ASKED:
        found["properties"].pop(part, None)
    yield from _fields(found["properties"], found.get("$defs", {}), set())


def _fields(part: Any, parts: Mapping[str, Any], known: set[str]) -> Iterator[tuple[str, str]]:
    """Those of a part of a schema and of the parts that it refers to, each of them once."""
    if isinstance(part, list):
        for one in part:
            yield from _fields(one, parts, known)
    elif isinstance(part, Mapping):
        for name, one in part.get("properties", {}).items():
            if isinstance(one, Mapping) and one.get("description"):
                yield name, " ".join(one["description"].split())
        for key, one in part.items():
            if key != "$ref":
                yield from _fields(one, parts, known)
            elif (name := one.rpartition("/")[2]) not in known:
                known.add(name)
                yield from _fields(parts[name], parts, known)
