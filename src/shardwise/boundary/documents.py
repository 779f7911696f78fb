"""JSON, YAML and TOML as plain values: mappings with text as keys, lists, text, numbers, truth.

A document is refused, with its line or key, if a key stands twice, if it nests deeper than
`DEEPEST`, or if a number is not finite or has more digits than a number has. YAML aliases are read
as long as the document, written out, stays small; a document that grows by its aliases does not.
"""

import datetime
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.boundary.files import DOCUMENT_BYTES, read_text
from shardwise.boundary.tables import twice
from shardwise.errors import LONGEST, BadRequest, shown

DEEPEST = 50
"""Levels of nesting; plans, configs and hardware files have at most ten."""
MOST_NODES = 50_000
"""Values of a YAML document once its aliases are written out; long text counts as several."""
YAML_BYTES = 128 * 1024
"""YAML and TOML are for people; their readers are slow (YAML's takes 4 s for so much)."""

_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*+(?:{_PART}\.[ \t]*+){{{DEEPEST}}}", re.MULTILINE)
"""A dotted key of TOML; its reader takes memory by the square of a key's parts."""


def read_json(path: Path, what: str, *, most: int = DOCUMENT_BYTES, remedy: str = "") -> Any:
    """The value in a JSON file. Raises BadRequest."""
    text = read_text(path, what, most=most, remedy=remedy)
    return parse_json(text, f"{what} '{path}'", remedy=remedy)


def read_yaml(path: Path, what: str, *, remedy: str = "") -> Any:
    """The value in a YAML file (JSON is YAML). Raises BadRequest."""
    text = read_text(path, what, most=YAML_BYTES, remedy=remedy)
    return parse_yaml(text, f"{what} '{path}'")


def read_toml(path: Path, what: str, *, remedy: str = "") -> dict[str, Any]:
    """The table in a TOML file. Raises BadRequest."""
    text = read_text(path, what, most=YAML_BYTES, remedy=remedy)
    return parse_toml(text, f"{what} '{path}'")


def parse_json(text: str, what: str, *, remedy: str = "") -> Any:
    """JSON as Python values; `what` names its source in messages.

    NaN and Infinity are not JSON, though Python reads and writes them.
    """
    end = f"; {remedy}" if remedy else ""
    try:
        found = json.loads(text, **STRICT)
    except json.JSONDecodeError as error:
        # The column alone of a text on one line: `what` names the line of a file of many.
        line = f"line {error.lineno} " if "\n" in text else ""
        where = f"{line}column {error.colno}"
        raise BadRequest(f"{what} is not JSON at {where}: {error.msg}{end}") from None
    except RefusedError as error:
        raise BadRequest(f"{what}: {error}{end}") from None
    except RecursionError:
        raise BadRequest(f"{what} nests deeper than {DEEPEST} levels{end}") from None
    try:
        check_value(found, what, "\\ud" in text.lower())
    except BadRequest as error:
        raise BadRequest(f"{error}{end}") from None
    return found


def to_json(value: Any) -> str:
    """Valid JSON of plain values; a number that is not finite is our own mistake.

    Half of a surrogate pair (a file's name may hold one) is written as its escape.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode()


def finite(value: Any, place: str = "") -> tuple[Any, list[str]]:
    """Plain values with null for every number that is not finite, and where those stood: JSON has
    no infinity, and what is infinite in an answer is a time or a cost that nothing bounds."""
    if isinstance(value, float) and not math.isfinite(value):
        return None, [f"{place} is {value}"]
    gone: list[str] = []
    if isinstance(value, Mapping):
        held = {}
        for key, inner in value.items():
            held[key], found = finite(inner, f"{place}.{key}" if place else str(key))
            gone += found
        return held, gone
    if isinstance(value, list | tuple):
        items = []
        for index, inner in enumerate(value):
            item, found = finite(inner, f"{place}[{index}]")
            items.append(item)
            gone += found
        return items, gone
    return value, gone


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """TOML as Python values; `what` names its source in messages."""
    import tomllib  # here, like yaml: `--help` reads no document

    if _LONG_KEY.search(text):
        raise BadRequest(f"{what} has a key of more than {DEEPEST} parts")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise BadRequest(f"{what} nests deeper than {DEEPEST} levels") from None
    except ValueError as error:  # tomllib's own error is one, and so is a number of 5,000 digits
        raise BadRequest(f"{what} is not TOML: {_line(str(error))}") from None
    check_value(found, what)
    return found


def parse_yaml(text: str, what: str) -> Any:
    """YAML as Python values; `what` names its source in messages."""
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_nodes(node, what)
            found = loader.construct_document(node)
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        # ValueError is what it raises for a date such as 2024-13-01 or an integer too long.
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error)
        raise BadRequest(f"{what} is not YAML{where}: {_line(reason)}") from None
    except RecursionError:
        raise BadRequest(f"{what} nests deeper than {DEEPEST} levels") from None
    check_value(found, what, True)
    return found


class RefusedError(Exception):
    """What a value of a document breaks, raised inside a parser."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RefusedError(f"the key {shown(twice(k for k, _ in pairs))} appears twice; keep one")
    return found


def _no_constant(text: str) -> Any:
    raise RefusedError(f"a number is {text}; numbers must be finite")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RefusedError(f"a number is {shown(text)}; numbers must be finite")
    return value


def _integer(text: str) -> int:
    if len(text) > LONGEST:
        raise RefusedError(f"a number has {len(text)} digits, over {LONGEST}; shorten it")
    return int(text)


STRICT: Mapping[str, Any] = {
    "object_pairs_hook": _unique,
    "parse_constant": _no_constant,
    "parse_float": _finite,
    "parse_int": _integer,
}
"""What a decoder of JSON is given, so that it raises RefusedError for what is not JSON of ours."""


def check_value(found: Any, what: str, texts: bool = False) -> None:
    """Refuse what no reader of ours wants: depth, keys that are not text, numbers that are not
    finite, values of other types, and with `texts` text that cannot be written (half a pair)."""
    waiting: list[tuple[Any, int, str]] = [(found, 1, "")]
    while waiting:
        value, depth, place = waiting.pop()
        if depth > DEEPEST:
            raise BadRequest(f"{what} nests deeper than {DEEPEST} levels")
        if isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, str):
                    read = " (YAML for on, off, yes or no)" * isinstance(key, bool)
                    raise BadRequest(f"{what}: the key {shown(key)}{read} is not text; quote it")
                if texts:
                    _check_text(key, what, place)
                waiting.append((inner, depth + 1, f"{place}.{key}" if place else key))
        elif isinstance(value, list):
            for inner in value:
                if (
                    type(inner) is not int
                ):  # long lists are of whole numbers, and JSON's are checked
                    waiting.append((inner, depth + 1, place))
        else:
            _check_leaf(value, what, place, texts)


def _check_leaf(value: Any, what: str, place: str, texts: bool) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadRequest(f"{what}: {_at(place)} is {value}; numbers must be finite")
    elif isinstance(value, str):
        if texts:
            _check_text(value, what, place)
    elif isinstance(value, int):
        if abs(value) >= 10**LONGEST:
            raise BadRequest(f"{what}: {_at(place)} has over {LONGEST} digits")
    elif value is not None and not isinstance(value, datetime.date | datetime.time):
        kind = type(value).__name__
        raise BadRequest(f"{what}: {_at(place)} is of type {kind}; write text or a number")


def _at(place: str) -> str:
    return shown(place) if place else "the value"


def _check_text(value: str, what: str, place: str) -> None:
    if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        raise BadRequest(f"{what}: {_at(place)} holds half of a surrogate pair, which is not text")


def _check_nodes(root: Any, what: str) -> None:
    """Refuse duplicate keys, and documents that grow beyond `MOST_NODES` by their aliases.

    Nodes are a graph: an alias is the node of its anchor. A node's size is the sum of its
    children's, each counted as often as it is named, so it is known without writing it out.
    """
    import yaml

    sizes: dict[int, int] = {}
    open_: set[int] = set()
    waiting: list[tuple[Any, int, bool]] = [(root, 1, False)]
    while waiting:
        node, depth, done = waiting.pop()
        inner = _children(node)
        if done:
            open_.discard(id(node))
            sizes[id(node)] = _own_size(node) + sum(sizes[id(c)] for c in inner)
            if sizes[id(node)] > MOST_NODES:
                raise BadRequest(f"{what} holds more than {MOST_NODES:,} values")
            continue
        if id(node) in sizes:
            continue
        line = node.start_mark.line + 1
        if id(node) in open_:
            raise BadRequest(f"{what}, line {line}: an alias of its own container; write it out")
        if depth > DEEPEST:
            raise BadRequest(f"{what} nests deeper than {DEEPEST} levels")
        if isinstance(node, yaml.MappingNode):
            _check_keys(node, what)
        open_.add(id(node))
        waiting.append((node, depth, True))
        waiting += [(c, depth + 1, False) for c in inner]


def _own_size(node: Any) -> int:
    """1, and 1 more for every 64 characters of text."""
    return 1 + len(node.value) // 64 if isinstance(node.value, str) else 1


def _children(node: Any) -> list[Any]:
    if isinstance(node.value, str):
        return []
    return [c for item in node.value for c in (item if isinstance(item, tuple) else (item,))]


def _check_keys(node: Any, what: str) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        name = key.value
        if not isinstance(name, str):
            line = key.start_mark.line + 1
            raise BadRequest(f"{what}, line {line}: a key is not text; quote it")
        if name in seen and name != "<<":
            line = key.start_mark.line + 1
            raise BadRequest(f"{what}, line {line}: the key {shown(name)} appears twice; keep one")
        seen.add(name)


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
