"""Options: the fields of a request, of which the command line, its help and the docs are made.

An option is written once, as a field with its type, its default and what `option` says of it.
`scripts/options.py` writes all of them to one file of data, `apps/cli/options.json`, so that
`--help` shows them and imports no request.
"""

from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal

_OPTION = "option"
Kind = Literal["text", "number", "whole", "flag", "several", "file", "files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What a field is on the command line.

    `about` is its sentence in `--help`; where it is empty, `meaning` is. `meaning` is what it means
    in every command, and `group` where it stands in `--help`: the first field of a flag says
    both. `values` are the words that it takes, as names of rows; `metavar` shows others. `flag` is
    given where it is not the field's name. `default` is what the field has without it; `before` is
    the field in front of which `--help` lists it.
    """

    about: str = ""
    group: str = ""
    meaning: str = ""
    kind: Kind = "text"
    values: tuple[str, ...] = ()
    metavar: str | None = None
    flag: str = ""
    default: Any = None
    required: bool = False
    show_default: bool = False
    before: str = ""


def option(about: str = "", *, default: Any = None, values: Iterable[str] = (), **more: Any) -> Any:
    """A field that is an option, None without a default."""
    row = Option(about=about, values=tuple(values), default=default, **more)
    return field(default=default, metadata={_OPTION: row})


def required(about: str, **more: Any) -> Mapping[str, Option]:
    """The metadata of a field that must be given: `field(metadata=required("Its sentence."))`, by
    which type checkers still see that it has no default."""
    return {_OPTION: Option(about=about, required=True, **more)}


def option_of(one: "Field[Any]") -> Option | None:
    """What the field is on the command line; None for one that does not say it."""
    return one.metadata.get(_OPTION)


def flagged(name: str, row: Option) -> str:
    """The flag of a field.

    >>> flagged("max_hbm", Option()), flagged("xla", Option(flag="--option"))
    ('--max-hbm', '--option')
    """
    return row.flag or "--" + name.rstrip("_").replace("_", "-")


def options_of(request: Any) -> dict[str, Option]:
    """The options of a class by field, in the order of `--help`."""
    rows = {one.name: row for one in fields(request) if (row := option_of(one))}
    names = [name for name, row in rows.items() if not row.before]
    for name, row in rows.items():
        if row.before:
            names.insert(names.index(row.before), name)
    return {name: rows[name] for name in names}
