"""Edits of files of keys: YAML, TOML, JSON, and the assignments of a Python module.

As those of scripts (`script.py`) each is an attempt: who asks reads the file again.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from shardwise.boundary import parse_json
from shardwise.errors import BadRequest

_REST = r"(?P<value>[^\n#]*?)(?P<end>[ \t]*(?:#[^\n]*)?)$"


def set_in_yaml(text: str, key: str, new: str, beside: Iterable[str]) -> Iterator[str]:
    """YAML in which a key has another value, where it stands or else beside a neighbour."""
    name = key.rpartition(".")[2]
    found = list(re.finditer(rf"(?m)^(?P<head>[ \t]*(?:- )?{re.escape(name)}:[ \t]*){_REST}", text))
    for one in found:
        gap = "" if one["head"][-1] in " \t" else " "
        yield text[: one.end("head")] + gap + new + text[one.start("end") :]
    if found:
        return
    for other in beside:
        near = re.escape(other.rpartition(".")[2])
        for one in re.finditer(rf"(?m)^(?P<margin>[ \t]*){near}:[^\n]*$", text):
            yield f"{text[: one.end()]}\n{one['margin']}{name}: {new}{text[one.end() :]}"


def left_out_of_yaml(text: str, key: str) -> Iterator[str]:
    """YAML without a key and its value."""
    name = re.escape(key.rpartition(".")[2])
    for one in re.finditer(rf"(?m)^[ \t]*{name}:[^\n]*\n?", text):
        yield text[: one.start()] + text[one.end() :]


def set_in_toml(text: str, key: str, new: str) -> Iterator[str]:
    """TOML in which SECTION.NAME has another value, where it stands or at its section's end."""
    section, _, name = key.rpartition(".")
    head = re.search(rf"(?m)^\[{re.escape(section)}\][^\n]*$", text)
    if head is None:
        yield f"{text.rstrip()}\n\n[{section}]\n{name} = {new}\n"
        return
    after = re.search(r"(?m)^\[", text[head.end() :])
    stop = head.end() + after.start() if after else len(text)
    at = re.compile(rf"(?m)^(?P<head>[ \t]*{re.escape(name)}[ \t]*=[ \t]*){_REST}")
    if one := at.search(text, head.end(), stop):
        yield text[: one.end("head")] + new + text[one.start("end") :]
        return
    inner = text[head.end() : stop]
    last = head.end() + len(inner.rstrip())
    yield f"{text[:last]}\n{name} = {new}{text[last:]}"


def left_out_of_toml(text: str, key: str) -> Iterator[str]:
    """TOML without a key; that of another section with the same name is another attempt."""
    name = re.escape(key.rpartition(".")[2])
    for one in re.finditer(rf"(?m)^[ \t]*{name}[ \t]*=[^\n]*\n?", text):
        yield text[: one.start()] + text[one.end() :]


def set_in_python(text: str, key: str, new: str, beside: Iterable[str]) -> Iterator[str]:
    """A module in which `config.KEY` is assigned another value, or one more behind a neighbour."""
    at = rf"(?m)^(?P<head>[ \t]*config\.{re.escape(key)}[ \t]*=[ \t]*){_REST}"
    if one := re.search(at, text):
        yield text[: one.end("head")] + new + text[one.start("end") :]
        return
    for other in beside:
        for one in re.finditer(rf"(?m)^(?P<margin>[ \t]*)config\.{re.escape(other)}[^\n]*$", text):
            yield f"{text[: one.end()]}\n{one['margin']}config.{key} = {new}{text[one.end() :]}"


def left_out_of_python(text: str, key: str) -> Iterator[str]:
    """A module without an assignment of one line."""
    for one in re.finditer(rf"(?m)^[ \t]*config\.{re.escape(key)}[ \t]*=[^\n]*\n?", text):
        yield text[: one.start()] + text[one.end() :]


def set_in_json(text: str, key: str, new: Any, *, out: bool = False) -> Iterator[str]:
    """JSON in which a dotted key has another value, or is left `out`, indented as it was."""
    try:
        table = parse_json(text, "the file")
    except BadRequest:
        return
    *outer, name = key.split(".")
    inner = table
    for part in outer:
        inner = inner.setdefault(part, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        return
    if out:
        inner.pop(name, None)
    else:
        inner[name] = new
    margin = re.search(r"\n([ \t]+)\S", text)
    yield json.dumps(table, indent=margin[1] if margin else None, ensure_ascii=False) + (
        "\n" if text.endswith("\n") else ""
    )


def set_in_members(text: str, name: str, new: str) -> Iterator[str]:
    """A text with JSON in it, of which a member with a plain value has another one."""
    at = rf'(?P<head>"{re.escape(name)}"[ ]*:[ ]*)(?P<value>"[^"]*"|[\w.+-]+)'
    for one in re.finditer(at, text):
        word = json.dumps(new) if one["value"][0] == '"' else new
        yield text[: one.end("head")] + word + text[one.end("value") :]


_LITERAL = r"""(?:"[^"\n]*"|'[^'\n]*'|[\w.+-]+)"""


def set_keyword(text: str, name: str, new: str, beside: Iterable[str]) -> Iterator[str]:
    """A script in which calls give a keyword another value, where it stands or where the name is
    assigned that stands for it; a new keyword behind a neighbour."""
    word = {"true": "True", "false": "False"}.get(new, new)
    word = word if re.fullmatch(r"True|False|[\d.]+", word) else repr(word)
    at = re.compile(rf"(?<![\w.])(?P<head>{re.escape(name)}[ ]*=[ ]*)(?P<value>{_LITERAL})")
    found = list(at.finditer(text))
    for one in found:
        stands = re.escape(one["value"])
        assigned = rf"(?m)^(?P<head>[ \t]*{stands}[ ]*(?::[ ]*\w+[ ]*)?=[ ]*)(?P<value>{_LITERAL})"
        for place in (*re.finditer(assigned, text), one):
            yield text[: place.end("head")] + word + text[place.end("value") :]
    if found:
        return
    for other in beside:
        near = rf"(?m)(?<![\w.])(?P<margin>(?:^[ \t]*)?){re.escape(other)}[ ]*=[ ]*{_LITERAL}"
        for one in re.finditer(near, text):
            gap = f",\n{one['margin']}" if one["margin"] else ", "
            yield f"{text[: one.end()]}{gap}{name}={word}{text[one.end() :]}"


def left_out_of_call(text: str, name: str) -> Iterator[str]:
    """A script without a keyword of a plain value."""
    word = rf"{re.escape(name)}[ ]*=[ ]*{_LITERAL}[ ]*"
    for one in re.finditer(rf"(?m)^[ \t]*{word},?[ ]*\n|(?<![\w.]){word},?[ ]*", text):
        yield text[: one.start()] + text[one.end() :]
