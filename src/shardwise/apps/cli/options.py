"""From the parameters of the running command to values: its request, what a document says of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from shardwise.errors import BadRequest

Made = TypeVar("Made")


def request_of(request: Callable[..., Made], options: Mapping[str, object] | None = None) -> Made:
    """What the running command's parameters make, or `options`: each field that is one, by name."""
    found = click.get_current_context().params if options is None else options
    given = {one.name: found[one.name] for one in fields(request) if one.name in found}  # type: ignore[arg-type]
    return request(**given)


def by_name(asked: Any, *without: str) -> dict[str, object]:
    """The fields of a request."""
    return {f.name: getattr(asked, f.name) for f in fields(asked) if f.name not in without}


def given(*asked: Any, without: Iterable[str] = ()) -> dict[str, object]:
    """What was asked, for a document's `inputs`: fields of a request and of outputs. Unset ones are
    left out, and keys."""
    found = [one for value in asked for one in by_name(value).items()]
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in found
        if value not in (None, (), False) and name not in ("api_key", *without)
    }


def on_command_line(name: str) -> bool:
    """Whether the running command was given this option or argument, by its parameter's name."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def refuse(names: Iterable[str], why: str) -> None:
    """Raise BadRequest for the first of these options that was given, as it would do nothing."""
    flags = {p.name: p.opts[0] for p in click.get_current_context().command.params}
    for name in names:
        if on_command_line(name):
            raise BadRequest(f"{flags[name]} {why}")
