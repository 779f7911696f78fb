"""`schema`: what a command's JSON document holds, as a JSON Schema."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from shardwise.boundary import Command, read_json, to_json
from shardwise.boundary.options import place
from shardwise.boundary.record_schema import Schema, schema_of
from shardwise.boundary.records import hidden
from shardwise.commands.base.answer import Answer, Page, Row
from shardwise.commands.base.layout import Verbatim, next_step
from shardwise.commands.base.request import Progress, verb
from shardwise.errors import check_known

DATA = Path(__file__).parent / "data" / "schemas"


COMMANDS = (
    "bench serve",
    *("book errata", "book figure", "book list", "book quiz", "book rule", "book show"),
    *("calibrate", "check", "compare", "compile", "explain", "export"),
    *("hw diff", "hw list", "hw show", "model diff", "model list", "model show"),
    *("plan diff", "plan serve", "plan show", "plan sweep", "plan train"),
    *("profile", "report", "roofline", "shard", "simulate", "train", "validate"),
)
"""Those that print a document."""
_VERBS = {"roofline": "matmul_roofline"}
"""The verbs that are not named like their command: the package has a folder `roofline`."""


def document_schema(command: str) -> Schema:
    """The schema of what a command prints: the envelope with its inputs, and the result. The verb's
    answer says what that holds."""
    verb_name = _VERBS.get(command, command.replace(" ", "_"))
    found = read_json(DATA / f"{command.replace(' ', '-')}.json", "the schema")
    made = getattr(importlib.import_module("shardwise"), verb_name)
    answer = getattr(made.request, "answer", made.answer)
    result = schema_of(get_type_hints(answer)["return"])
    defs = result.pop("$defs")
    return found | {"properties": found["properties"] | {"result": result}, "$defs": defs}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRequest(Command):
    """The JSON Schema of what a command prints with --json, such as "book figure"; without a
    `command`, the list of commands that have one."""

    COMMAND: ClassVar[str] = "schema"

    command: str | Sequence[str] = field(
        default=(), kw_only=False, metadata=place("[COMMAND]...", kind="several", required=False)
    )

    def answer(self, progress: Progress | None = None) -> "CommandNames | SchemaAnswer":
        """The schema, or the names."""
        words = self.command.split() if isinstance(self.command, str) else list(self.command)
        if not words:
            return CommandNames(commands=COMMANDS)
        name = " ".join(words)
        check_known("command with a document", name, COMMANDS, "`shardwise schema` lists all")
        return SchemaAnswer(document=document_schema(name))


@dataclass(frozen=True, kw_only=True, repr=False)
class CommandNames(Answer):
    """The commands that have a document."""

    commands: Sequence[str]
    """Their names."""

    def table(self) -> list[Row]:
        """The names."""
        return [{"command": name} for name in self.commands]

    def page(self) -> Page:
        """The names, and how to see one."""
        yield "\n".join(self.commands)
        yield next_step("one of them:", "shardwise schema book figure")


@dataclass(frozen=True, kw_only=True, repr=False)
class SchemaAnswer(Answer):
    """A JSON Schema: a document of its own, which is the whole result."""

    document: Mapping[str, Any] = hidden()

    @property
    def result(self) -> Mapping[str, Any]:
        """The schema."""
        return self.document

    def table(self) -> list[Row]:
        """The keys of a result with what they may be."""
        return [{"key": key, "type": of.get("type", "")} for key, of in _keys(self.result).items()]

    def page(self) -> Page:
        """The schema as JSON, so that it can be piped."""
        yield Verbatim(to_json(self.result))


def _keys(found: Mapping[str, Any]) -> Mapping[str, Schema]:
    """The keys of a result; of one of several kinds those of all."""
    result, defs = found["properties"]["result"], found["$defs"]
    refs = [one["$ref"] for one in result.get("anyOf", [result])]
    kinds = [defs[ref.rpartition("/")[2]] for ref in refs]
    return {key: of for kind in kinds for key, of in kind["properties"].items()}


schema = verb("schema", SchemaRequest)
