"""`schema`: what a command's JSON document holds, as a JSON Schema."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from shardwise.boundary import read_json, to_json
from shardwise.boundary.record_schema import schema_of
from shardwise.commands.base.answer import LooseAnswer, Page, Row
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
    "report": "report",
    "roofline": "matmul_roofline",
    "shard": "shard",
    "simulate": "simulate",
    "train": "train",
    "validate": "validate",
}
"""Commands whose answers say by their own fields what a document holds, and their verbs."""


def document_schema(command: str) -> dict[str, Any]:
    """The schema of what a command prints: the envelope with its inputs, and the result."""
    found = read_json(DATA / f"{command.replace(' ', '-')}.json", "the schema")
    if command not in VERBS:
        return found
    made = getattr(importlib.import_module("shardwise"), VERBS[command])
    answer = getattr(made.request, "answer", made.answer)
    result = schema_of(get_type_hints(answer)["return"])
    defs = result.pop("$defs")
    return found | {"properties": found["properties"] | {"result": result}, "$defs": defs}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRequest:
    """The JSON Schema of what a command prints with --json, such as "book figure"; without a
    `command`, the commands that have one."""

    command: str | Sequence[str] = field(default=(), kw_only=False)

    def answer(self, progress: Progress | None = None) -> "SchemaAnswer":
        """The schema, or the names."""
        words = self.command.split() if isinstance(self.command, str) else list(self.command)
        known = {path.stem.replace("-", " "): path for path in sorted(DATA.glob("*.json"))}
        if not words:
            return SchemaAnswer(result={"commands": list(known)})
        name = " ".join(words)
        check_known("command with a document", name, known, "`shardwise schema` lists all")
        return SchemaAnswer(result=document_schema(name))


@dataclass(frozen=True, kw_only=True, repr=False)
class SchemaAnswer(LooseAnswer):
    """A JSON Schema, or the commands that have one."""

    def table(self) -> list[Row]:
        """The names, or the keys of a result with what they may be."""
        if "commands" in self.result:
            return [{"command": name} for name in self.result["commands"]]
        return [{"key": key, "type": of.get("type", "")} for key, of in _keys(self.result).items()]

    def page(self) -> Page:
        """The schema as JSON, so that it can be piped; or the names."""
        if "commands" not in self.result:
            yield Verbatim(to_json(self.result))
            return
        yield "\n".join(self.result["commands"])
        yield next_step("one of them:", "shardwise schema book figure")


def _keys(found: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a result; of one of several kinds those of all."""
    result, defs = found["properties"]["result"], found.get("$defs", {})
    kinds = result.get("anyOf", [result])
    names = [one["$ref"].rpartition("/")[2] for one in kinds if "$ref" in one]
    kinds = [defs[name] for name in names] or [result]
    return {key: of for kind in kinds for key, of in kind["properties"].items()}


schema = verb("schema", SchemaRequest)
