"""Every document that a test's command prints is held against its schema.

Where SHARDWISE_DOCUMENTS names a folder, documents are kept there instead: `scripts/schemas.py`
makes the schemas of them.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click

from shardwise.boundary.records import plain
from shardwise.commands.tables.schema import document_schema

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from options import commands

KEPT = "SHARDWISE_DOCUMENTS"
OF = {
    "string": str,
    "boolean": bool,
    "null": type(None),
    "object": dict,
    "array": list,
    "number": int | float,
}


@cache
def names() -> dict[int, str]:
    """The words of every command by its identity."""
    return {id(command): name for name, command in commands()}


def check_printed(doc: Any) -> None:
    """Hold what the running command prints against its schema."""
    from shardwise.boundary.documents import finite

    check(names()[id(click.get_current_context().command)], finite(plain(doc))[0])


def check(name: str, doc: Any) -> None:
    """Hold a command's document against its schema, or keep it."""
    folder, file = os.environ.get(KEPT), name.replace(" ", "-")
    if folder:
        text = json.dumps(doc)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        (Path(folder) / f"{file}.{digest}.json").write_text(text)
        return
    found = list(problems(schema(file), json.loads(json.dumps(doc)), "document"))
    assert not found, f"{name}: {found[:5]}; run scripts/schemas.py if that is meant"


@cache
def schema(file: str) -> dict[str, Any]:
    return json.loads(json.dumps(document_schema(file.replace("-", " "))))


def problems(
    schema: dict[str, Any], value: Any, at: str, defs: dict[str, Any] | None = None
) -> Iterator[str]:
    """What is not as the schema says; the words of JSON Schema that ours use, and no other."""
    defs = schema.get("$defs", {}) if defs is None else defs
    unknown = set(schema) - {
        *("$schema", "$defs", "$ref", "title", "description", "type", "properties", "required"),
        *("items", "prefixItems", "additionalProperties", "const", "enum", "anyOf"),
    }
    assert not unknown, f"{at}: the check does not know {unknown}"
    if "$ref" in schema:
        yield from problems(defs[schema["$ref"].rpartition("/")[2]], value, at, defs)
    if "anyOf" in schema:
        found = [list(problems(one, value, at, defs)) for one in schema["anyOf"]]
        yield from min(found, key=len)
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is {value}, none of {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{at} is {value}, not {schema['const']}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(kind, value) for kind in kinds):
        yield f"{at} is {str(value)[:40]}, not {' or '.join(kinds)}"
    if isinstance(value, dict):
        yield from _fields(schema, value, at, defs)
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        if first and len(value) != len(first):
            yield f"{at} has {len(value)} items, not {len(first)}"
        for i, item in enumerate(value):
            of = first[i] if i < len(first) else schema.get("items", {})
            yield from problems(of, item, f"{at}[{i}]", defs)


def _fields(
    schema: dict[str, Any], value: dict[str, Any], at: str, defs: dict[str, Any]
) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at} has no {name}"
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in known:
            yield from problems(known[name], item, f"{at}.{name}", defs)
        elif others is False:
            yield f"{at}.{name} is not in the schema"
        elif others is not True:
            yield from problems(others, item, f"{at}.{name}", defs)


def _is(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, int) if kind == "integer" else isinstance(value, OF[kind])
