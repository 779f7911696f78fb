"""The options of requests as click has them, of the data that scripts/options.py writes."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click

from shardwise.apps.cli.numbers import NUMBER, WHOLE, Word
from shardwise.boundary.options import Option, flagged

DATA = Path(__file__).with_name("options.json")
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "text": {},
    "number": {"type": NUMBER},
    "whole": {"type": WHOLE},
    "flag": {"is_flag": True},
    "several": {"multiple": True},
    "file": {"type": click.Path(dir_okay=False, path_type=Path)},
    "files": {"type": click.Path(), "multiple": True},
}


class OptionFields(NamedTuple):
    """What `options.json` says: names of rows that an option without a field takes, by option, and
    the options of each command by field."""

    rows: Mapping[str, Sequence[str]]
    commands: Mapping[str, Mapping[str, Option]]


@cache
def read() -> OptionFields:
    """The options of all fields."""
    found = json.loads(DATA.read_text("utf-8"))
    commands = found.pop("commands").items()
    fields = {one: {name: Option(**row) for name, row in rows.items()} for one, rows in commands}
    return OptionFields(commands=fields, **found)


def rows(option: str) -> tuple[str, ...]:
    """The names of rows that an option without a field takes."""
    return tuple(read().rows[option])


def fields_of(command: str) -> Mapping[str, Option]:
    """The options of a command by field."""
    return read().commands[command]


@cache
def table() -> Mapping[str, tuple[str, str]]:
    """Of each flag of a field its group and its one meaning."""
    every = [one for fields in read().commands.values() for one in fields.items()]
    return {flagged(name, row): (row.group, row.meaning) for name, row in every if row.group}


def click_option(name: str, row: Option, **changes: Any) -> Callable[[Any], Any]:
    """The option of a field; a command may say something else of it."""
    more: dict[str, Any] = dict(_KINDS[row.kind])
    if row.values:
        more["type"] = Word(row.values)
    if row.default is not None:
        more |= {"default": row.default, "show_default": row.show_default}
    more |= {"help": row.about, "metavar": row.metavar, "required": row.required}
    return click.option(flagged(name, row), name, **more | changes)


def request_options(command: str, *names: str) -> Callable[[Any], Any]:
    """The options of a command's request: all, or those of these fields."""
    given = fields_of(command)

    def decorate(function: Any) -> Any:
        for name in reversed(names or tuple(given)):
            function = click_option(name, given[name])(function)
        return function

    return decorate
