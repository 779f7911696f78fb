"""The lines of one op in the texts of JAX: its equations in the jaxpr, its ops in StableHLO.

The jaxpr is printed with the source and the name stack of each equation, StableHLO with a table of
locations; an op is found in both by its last word, its source line and, where that leaves several,
by its scopes.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from shardwise.profiler.stages.passes import OpKey

MOST_LINES = 12
"""Of one equation or op that are shown; bodies of loops are cut."""

_EQUATION = re.compile(r"= ([\w\-]+)(?:\[|\s|$)")
_COMMENT = re.compile(r"\s*# (\[?)(.*?)\]?\s*$")
_PLACE = re.compile(r"(.+?):(\d+)(?::\d+)?(?: \(.*\))?$")
_LOC = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
_REFERENCE = re.compile(r"#loc\d*")
_TAIL = re.compile(r"\s*loc\((#loc\d*)\)\s*$")


def jaxpr_of(text: str, key: OpKey) -> list[str]:
    """The equations of an op in a jaxpr that was printed with `source_info` and `name_stack`."""
    lines, found = text.split("\n"), []
    for at, line in enumerate(lines):
        code, comment = _split(line)
        equation = _EQUATION.search(code)
        if equation is None or equation[1] != primitive_of(key):
            continue
        source = _PLACE.match(comment)
        if source is None or not _same_line(source[1], int(source[2]), key):
            continue
        found.append((_stack(lines, at), _whole(lines, at)))
    scoped = [text for stack, text in found if stack and stack in key.name]
    return list(dict.fromkeys(scoped or [text for _, text in found]))


def stablehlo_of(text: str, key: OpKey) -> list[str]:
    """The ops in StableHLO that was printed with locations."""
    lines = text.split("\n")
    table = {m[1]: m[2] for line in lines if (m := _LOC.match(line))}
    exact, near = [], []
    for line in lines:
        tail = _TAIL.search(line)
        if tail is None or " = " not in line:
            continue
        name, file, number = _located(tail[1], table)
        if file and not _same_line(file, number, key):
            continue
        shown = _TAIL.sub("", line).strip()
        if name == key.name:
            exact.append(shown)
        elif key.name.endswith(f"/{name}") and file:
            near.append(shown)
    return list(dict.fromkeys(exact or near))


def primitive_of(key: OpKey) -> str:
    """The last word of what an op is called."""
    return key.name.rpartition("/")[2]


def _same_line(file: str, line: int, key: OpKey) -> bool:
    return line == key.line and (file == key.file or file.endswith(key.file.rpartition("/")[2]))


def _split(line: str) -> tuple[str, str]:
    code, mark, comment = line.partition("# ")
    return code, comment.strip() if mark else ""


def _stack(lines: list[str], at: int) -> str:
    """The name stack of an equation, which stands in brackets below its source."""
    if at + 1 < len(lines) and (below := _COMMENT.match(lines[at + 1])) and below[1]:
        return below[2].strip()
    return ""


def _whole(lines: list[str], at: int) -> str:
    """An equation up to the bracket that closes it, without comments."""
    shown: list[str] = []
    depth = 0
    for line in lines[at:]:
        code, _ = _split(line)
        if code.strip():
            shown.append(code.strip())
        depth += sum(code.count(c) for c in "[{(") - sum(code.count(c) for c in "]})")
        if depth <= 0 and code.strip():
            break
        if len(shown) == MOST_LINES:
            shown.append("...")
            break
    return " ".join(shown)


class _Location(NamedTuple):
    name: str
    file: str
    line: int


def _located(reference: str, table: Mapping[str, str]) -> _Location:
    """The name that a location gives first, and the first file on its way."""
    name = file = ""
    line, seen = 0, set[str]()
    waiting = [reference]
    while waiting and not file:
        at = waiting.pop()
        if at in seen or at not in table:
            continue
        seen.add(at)
        text = table[at]
        if source := _FILE.search(text):
            file, line = source[1], int(source[2])
        elif not name and not text.startswith("callsite") and (quoted := _QUOTED.match(text)):
            name = quoted[1]
        waiting += _REFERENCE.findall(text)[::-1]
    return _Location(name, file, line)
