"""A request as the command that makes it: every command that an answer prints is spelt here.

What decided an answer is in its request, so that a command which is made of the request loses
nothing: each field that is not at its default stands in it, quoted for a shell.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, replace
from typing import Any, ClassVar

from shardwise.boundary.options import flagged, options_of


class Command:
    """A request that can be typed: `COMMAND` is its command, and each field is an option of it."""

    __slots__ = ()
    COMMAND: ClassVar[str]


def command_of(request: Command, *more: str, **changes: Any) -> str:
    """The command of a request with some fields changed; `more` are words at its end, such as the
    file to write."""
    asked: Any = replace(request, **changes) if changes else request  # type: ignore[type-var]
    rows, places, flags = options_of(asked), [], {}
    for one in sorted(fields(asked), key=_has_default):
        value, row = getattr(asked, one.name), rows[one.name]
        if row.place:
            places.append(value)
        elif not _same(value, _default(one)):
            flags[flagged(one.name, row)] = value
    return spelt(request.COMMAND, places, flags, more)


def flags_of(request: Command | type[Command]) -> dict[str, str]:
    """The flag of each field of a request that has one."""
    rows = options_of(request)
    return {name: flagged(name, row) for name, row in rows.items() if not row.place}


def in_keywords(message: str, flags: Mapping[str, str]) -> str:
    """A message in the words of Python: each flag as its keyword, with what is given to it. A
    command that is quoted stays as it is.

    >>> in_keywords("write --batch 64seq, or lower --lr", {"batch": "--batch", "lr": "--lr"})
    'write batch=64seq, or lower lr'
    """
    names = {flag: name for name, flag in flags.items()}

    def keyword(found: re.Match[str]) -> str:
        flag, value = found["flag"], found["value"]
        if flag not in names:
            return found[0]
        return f"{names[flag]}={value}" if value else names[flag]

    parts = message.split("`")
    parts[::2] = [_FLAG.sub(keyword, part) for part in parts[::2]]
    return "`".join(parts)


_FLAG = re.compile(
    r"(?<![\w-])(?P<flag>--[a-z][a-z0-9-]*)(?: (?P<value>[A-Z0-9][\w.:*]*|[\w.]+=[\w.]+))?"
)


def spelt(
    command: str, places: Iterable[Any], options: Mapping[str, Any], more: Iterable[str] = ()
) -> str:
    """A command of its arguments, and of values by option, as a shell takes it.

    >>> spelt("plan show", ["my plan.yaml"], {"--for": "any", "--pin": ["data=2"], "--spot": True})
    "shardwise plan show 'my plan.yaml' --for any --pin data=2 --spot"
    >>> spelt("plan train", [], {"--days": 60.0, "--margin": 0.05})
    'shardwise plan train --days 60 --margin 0.05'
    """
    words = ["shardwise", *command.split()]
    for place in places:
        words += [_argument(str(one)) for one in _several(place)]
    for flag, value in options.items():
        words += _option(flag, value)
    return shlex.join([*words, *more])


def _several(value: Any) -> Iterable[Any]:
    """What may be given several times, or not at all."""
    if isinstance(value, list | tuple):
        return value
    return [] if value is None else [value]


def _argument(text: str) -> str:
    """An argument; what looks like an option is a file here."""
    return f"./{text}" if text.startswith("-") else text


def _option(flag: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield from [flag] if value else []
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from (flag, f"{name}={listed(one)}")
    else:
        for one in _several(value):
            yield from (flag, _typed(one))


def _typed(value: Any) -> str:
    """A value as a person types it: 60, not 60.0."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return str(int(value)) if whole else str(value)


def listed(value: Any) -> str:
    """A value of NAME=VALUE; several as a list."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _has_default(one: Field[Any]) -> bool:
    """Options that a command cannot go without stand first."""
    return one.default is not MISSING or one.default_factory is not MISSING


def _default(one: Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else one.default


def _same(value: Any, default: Any) -> bool:
    """Whether an option says what is so without it; nothing given several times is nothing."""
    if value is None or (isinstance(value, Mapping | list | tuple) and not value):
        return True
    if isinstance(value, bool):
        return value is default
    return str(value) == str(default)
