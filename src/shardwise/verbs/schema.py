"""`schema`: what a command's JSON document holds, as a JSON Schema."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardwise.boundary import read_json, to_json
from shardwise.errors import check_known
from shardwise.verbs.answer import Answer, Page, Row
from shardwise.verbs.layout import Verbatim, next_step
from shardwise.verbs.request import Progress, verb

DATA = Path(__file__).parent / "data" / "schemas"


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
        return SchemaAnswer(result=read_json(known[name], "the schema"))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SchemaAnswer(Answer):
    """A JSON Schema, or the commands that have one."""

    def table(self) -> list[Row]:
        """The names, or the keys of a result with what they may be."""
        if "commands" in self.result:
            return [{"command": name} for name in self.result["commands"]]
        found = self.result["properties"]["result"]["properties"]
        return [{"key": key, "type": of.get("type", "")} for key, of in found.items()]

    def page(self) -> Page:
        """The schema as JSON, so that it can be piped; or the names."""
        if "commands" not in self.result:
            yield Verbatim(to_json(self.result))
            return
        yield "\n".join(self.result["commands"])
        yield next_step("one of them:", "shardwise schema book figure")


schema = verb("schema", SchemaRequest)
