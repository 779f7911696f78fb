"""Options: the fields of a request. The command line, its help and the docs are made of them.

An option is written once, as a field with its type, its default and what `option` says of it.
`scripts/options.py` writes all of them to one file of data, `apps/cli/options.json`, so that
`--help` shows them and imports no request.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Literal

_OPTION = "option"
Kind = Literal[
    "text", "number", "whole", "flag", "several", "file", "files", "path", "output", "folder"
]
"""`path` is a file or a folder, `output` a file that is written and `folder` a written folder."""
Group = Literal[
    "",
    "What is planned",
    "The load",
    "A server",
    "Targets",
    "Choices of the plan",
    "A whole run",
    "Training",
    "The machine",
    "Beside the answer",
    "Level of detail",
    "Files",
]
"""Where an option stands in `--help`, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What a field is on the command line.

    `about` is its sentence in `--help`, and `meaning` what it means in every command: either stands
    in for the other where that is empty. `group` is where it stands in `--help`; the first field of
    a flag says it. `values` are the words that it takes, as names of rows; `metavar` shows others.
    `flag` is given where it is not the field's name, and `place` says that the field stands without
    one. `default` is what the field has without it. `before` is the field in front of which
    `--help` lists it, and `last` lists it behind those of other classes. `least`, `above` and
    `most` bound a number; `alone` is the value of a flag without one. A written file ends with one
    of `endings`, or is - with `dash`. A shell completes with names of what it `offers`.
    """

    about: str = ""
    group: Group = ""
    meaning: str = ""
    kind: Kind = "text"
    values: tuple[str, ...] = ()
    metavar: str | None = None
    flag: str = ""
    place: bool = False
    default: Any = None
    required: bool = False
    show_default: bool = False
    before: str = ""
    last: bool = False
    least: float | None = None
    above: float | None = None
    most: float | None = None
    alone: str = ""
    endings: tuple[str, ...] = ()
    dash: bool = False
    offers: Literal["", "models", "chips"] = ""

    @property
    def sentence(self) -> str:
        """What it means, as a sentence, without its default."""
        said = re.sub(r"\.? *(\[.*\])?$", "", self.meaning or self.about)
        return f"{said[0].upper()}{said[1:]}." if said else ""


def option(about: str | Option = "", **more: Any) -> Any:
    """A field that is an option, None without a default; `about` may be an option of several
    requests; `more` adds the words of this one."""
    metadata = described(about, **more)
    return field(default=metadata[_OPTION].default, metadata=metadata)


def switch(about: str | Option = "", **more: Any) -> Any:
    """A field that is a flag without a value, False where it is not given."""
    return option(about, default=False, kind="flag", **more)


def several(about: str | Option = "", **more: Any) -> Any:
    """A field that may be given several times, () where it is not given."""
    return option(about, default=(), kind="several", **more)


def described(
    about: str | Option = "", *, values: Iterable[str] = (), **more: Any
) -> Mapping[str, Option]:
    """The metadata of a field that is an option. Unlike `option`, `field(metadata=...)` shows type
    checkers which default it has, and whether it is given by its place."""
    if isinstance(about, Option):
        return {_OPTION: replace(about, **more)}
    return {_OPTION: Option(about=about, values=tuple(values), **more)}


def required(about: str, **more: Any) -> Mapping[str, Option]:
    """The metadata of a field that must be given."""
    return described(about, required=True, **more)


def place(
    metavar: str | None = None, *, required: bool = True, **more: Any
) -> Mapping[str, Option]:
    """The metadata of a field that stands in the command without an option."""
    return {_OPTION: Option(metavar=metavar, place=True, required=required, **more)}


def option_of(one: "Field[Any]") -> Option | None:
    """What the field is on the command line; None for one that does not say it."""
    return one.metadata.get(_OPTION)


def flagged(name: str, row: Option) -> str:
    """The flag of a field.

    >>> flagged("csv_path", Option()), flagged("pins", Option(flag="--pin"))
    ('--csv', '--pin')
    """
    return row.flag or "--" + name.removesuffix("_path").rstrip("_").replace("_", "-")


def flag_of(request: Any, name: str) -> str:
    """The flag of a field of a request, or of its class."""
    return flagged(name, options_of(request)[name])


def options_of(request: Any) -> dict[str, Option]:
    """The options of a class by field, in the order of `--help`."""
    rows = {one.name: row for one in fields(request) if (row := option_of(one))}
    names = sorted(
        (name for name, row in rows.items() if not row.before), key=lambda n: rows[n].last
    )
    for name, row in rows.items():
        if row.before:
            names.insert(names.index(row.before), name)
    return {name: rows[name] for name in names}
