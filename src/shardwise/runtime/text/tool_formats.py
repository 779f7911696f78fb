"""How models write calls of tools: a row for each way, and the grammar that holds an answer to it.

The rows stand in `data/formats.toml`, beside those of `reasoning.py`. `tool_calls.py` reads what
models wrote.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.boundary import read_toml
from shardwise.runtime.text.template import ChatTemplate

OBJECT = '{"name": "'


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Arguments that are not JSON: each a name and a value between tags; texts have no quotes."""

    opens: str
    middle: str
    closes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """Calls stand between `start` and `end`, each of them, or with `between` all together. A call
    is `opens`, the name, `middle`, the arguments (JSON unless there are `tags`) and `closes`.
    A template that has all `marks` asks for it. `bare`: an answer that is one object is a call
    without `start`, too. `ids` is the form of a call's id, of 32 letters that are `drawn`."""

    marks: tuple[str, ...]
    start: str
    end: str
    between: str | None = None
    opens: str = OBJECT
    middle: str = '", "arguments": '
    closes: str = "}"
    tags: Tags | None = None
    bare: bool = False
    ids: str = "call_{drawn:.24}"

    @property
    def header(self) -> re.Pattern[str]:
        """What comes before the arguments of a call, with its `name`."""
        if self.opens == OBJECT:
            return re.compile(
                r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]+)"\s*,'
                r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
            )
        opens, middle = (re.escape(part.strip()) for part in (self.opens, self.middle))
        rest = r"(?=<)" if self.tags is not None else r"(?=\{)"
        return re.compile(rf"\s*{opens}\s*(?P<name>[^\s<>{{\"]+?)\s*{middle}\s*{rest}")


def read_formats(section: str) -> Mapping[str, Mapping[str, Any]]:
    """The rows of a section of the table, by name."""
    data = Path(__file__).parent / "data" / "formats.toml"
    rows = read_toml(data, "the table of formats")[section]
    return {name: {**row, "marks": tuple(row["marks"])} for name, row in rows.items()}


def _tool_format(row: Mapping[str, Any]) -> ToolFormat:
    tags = {"tags": Tags(**row["tags"])} if "tags" in row else {}
    return ToolFormat(**{**row, **tags})


TOOL_FORMATS: Mapping[str, ToolFormat] = {
    name: _tool_format(row) for name, row in read_formats("tools").items()
}
"""By name; of those whose marks a template has the first one is its own."""
NO_TOOLS = "none"


def tool_format(name: str | None, template: ChatTemplate | None) -> str:
    """The name of a format: the one given, else the one that a template asks for."""
    if name is not None:
        return name
    text = "" if template is None or not template.takes_tools else template.text
    text = text.replace('\\"', '"')  # quotes within a text of Jinja
    rows = TOOL_FORMATS.items()
    return next((n for n, row in rows if all(mark in text for mark in row.marks)), NO_TOOLS)


Written = Callable[[str], str]
"""Makes terms of a grammar of a fixed text, whose tokens may be special."""


def tool_grammar(asked: Mapping[str, Any], written: Written = json.dumps) -> str:
    """A grammar of llguidance for an answer that calls: `format` by name, `functions` with `name`
    and `parameters`, `parallel` for several calls."""
    row = TOOL_FORMATS[asked["format"]]
    several = asked["parallel"]
    lines: list[str] = []
    calls: list[str] = []
    for index, function in enumerate(asked["functions"]):
        parameters = function.get("parameters") or {}
        head = written(f"{row.opens}{function['name']}{row.middle}")
        rule = _tagged if row.tags is not None else _as_json
        lines += rule(f"a{index}", row, parameters, written)
        calls.append(f"{head} a{index} {written(row.closes)}")
    start, end = written(row.start), written(row.end)
    between = written("\n" if row.between is None and row.end else row.between or "")
    first = "one" if row.between is None else "call"
    more = f"({between} {first})*" if several else ""
    body = f"{first} {more}" if row.between is None else f"{start} call {more} {end}"
    lines += [f"one: {start} call {end}"] if row.between is None else []
    return "\n".join([f"start: {body}", f"call: {' | '.join(calls)}", *lines])


def _as_json(rule: str, row: ToolFormat, parameters: Any, written: Written) -> list[str]:
    schema = {"type": "object", **parameters, "x-guidance": {"whitespace_flexible": False}}
    return [f"{rule}: %json {json.dumps(schema)}"]


def _tagged(rule: str, row: ToolFormat, parameters: Any, written: Written) -> list[str]:
    """Each parameter in its tags, in the order of the schema; optional ones may be left out."""
    tags = row.tags
    assert tags is not None
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    shared = {name: parameters[name] for name in ("$defs", "definitions") if name in parameters}
    parts, lines = [], []
    for index, (name, schema) in enumerate(properties.items()):
        value = f"{rule}v{index}"
        if not is_text(schema):
            rest = f"%json {json.dumps({**shared, **schema})}"
        elif "enum" in schema:
            rest = " | ".join(written(str(one)) for one in schema["enum"])
        else:
            rest = "/[^<]+/"
        lines.append(f"{value}: {rest}")
        term = f"{written(tags.opens + name + tags.middle)} {value} {written(tags.closes)}"
        parts.append(term if name in parameters.get("required", ()) else f"({term})?")
    return [f"{rule}: {' '.join(parts) or written('')}", *lines]


def is_text(schema: Any) -> bool:
    """Whether a parameter is a text, which tags have without quotes."""
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def in_terms(text: str, tokens: Mapping[str, int]) -> str:
    """A fixed text as terms of a grammar; `tokens` are added ones, which no text of it matches."""
    marks = sorted((mark for mark in tokens if mark and mark in text), key=len, reverse=True)
    if not marks:
        return json.dumps(text, ensure_ascii=False)
    pieces = re.split("(" + "|".join(map(re.escape, marks)) + ")", text)
    return " ".join(
        f"<[{tokens[piece]}]>" if piece in marks else json.dumps(piece, ensure_ascii=False)
        for piece in pieces
        if piece
    )
