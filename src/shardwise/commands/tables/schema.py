"""`schema`: what a command's JSON document holds, as a JSON Schema."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from shardwise.boundary import Command, read_json, to_json
from shardwise.boundary.options import place
from shardwise.boundary.record_schema import schema_of
from shardwise.boundary.records import hidden
from shardwise.commands.base.answer import Answer, Page, Row
from shardwise.commands.base.layout import Verbatim, next_step
from shardwise.commands.base.request import Progress, verb
from shardwise.errors import check_known

DATA = Path(__file__).parent / "data" / "schemas"


VERBS = {
    "bench serve": "bench_serve",
    "book errata": "book_errata",
    "book figure": "book_figure",
    "book list": "book_list",
    "book quiz": "book_quiz",
    "book rule": "book_rule",
    "book show": "book_show",
    "calibrate": "calibrate",
    "check": "check",
    "compare": "compare",
    "compile": "compile",
    "explain": "explain",
    "export": "export",
    "hw diff": "hw_diff",
    "hw list": "hw_list",
    "hw show": "hw_show",
    "model diff": "model_diff",
    "model list": "model_list",
    "model show": "model_show",
    "plan diff": "plan_diff",
    "plan serve": "plan_serve",
    "plan show": "plan_show",
    "plan sweep": "plan_sweep",
    "plan train": "plan_train",
    "profile": "profile",
    "report": "report",
    "roofline": "matmul_roofline",
    "shard": "shard",
    "simulate": "simulate",
    "train": "train",
    "validate": "validate",
}
"""Commands that print a document, and their verbs, whose answers say what it holds."""


def document_schema(command: str) -> dict[str, Any]:
    """The schema of what a command prints: the envelope with its inputs, and the result."""
    found = read_json(DATA / f"{command.replace(' ', '-')}.json", "the schema")
    made = getattr(importlib.import_module("shardwise"), VERBS[command])
    answer = getattr(made.request, "answer", made.answer)
    result = schema_of(get_type_hints(answer)["return"])
    defs = result.pop("$defs")
    return found | {"properties": found["properties"] | {"result": result}, "$defs": defs}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRequest(Command):
    """The JSON Schema of what a command prints with --json, such as "book figure"; without a
    `command`, the commands that have one."""

    COMMAND: ClassVar[str] = "schema"

    command: str | Sequence[str] = field(
        default=(), kw_only=False, metadata=place("[COMMAND]...", kind="several", required=False)
    )

    def answer(self, progress: Progress | None = None) -> "CommandNames | SchemaAnswer":
        """The schema, or the names."""
        words = self.command.split() if isinstance(self.command, str) else list(self.command)
        if not words:
            return CommandNames(commands=list(VERBS))
        name = " ".join(words)
        check_known("command with a document", name, VERBS, "`shardwise schema` lists all")
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


def _keys(found: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a result; of one of several kinds those of all."""
    result, defs = found["properties"]["result"], found["$defs"]
    refs = [one["$ref"] for one in result.get("anyOf", [result])]
    kinds = [defs[ref.rpartition("/")[2]] for ref in refs]
    return {key: of for kind in kinds for key, of in kind["properties"].items()}


schema = verb("schema", SchemaRequest)
