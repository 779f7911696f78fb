"""The options of a command, of the data that scripts/options.py writes: the fields of its request,
and those of the command line alone (`Outputs`): which files it writes, and how much it shows.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, get_args

import click

from shardwise.apps.cli.completion import OFFERED
from shardwise.boundary.numbers import MOST_WHOLE, number, whole
from shardwise.boundary.options import Group, Kind, Option, flagged, option, options_of, switch
from shardwise.errors import BadRequest, check_known

PICTURE = (".png", ".svg")
TRACE = (".json", ".json.gz")


class OutputFile(click.Path):
    """A file that the command writes; `endings` are those that say a format."""

    def __init__(self, endings: tuple[str, ...] = (), *, dash: bool = False) -> None:
        super().__init__(dir_okay=False, path_type=Path, allow_dash=dash)
        self.endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: Any) -> Any:
        """The path; raises BadRequest for - where it is not a file."""
        if str(value) == "-" and not self.allow_dash:
            flag = param.opts[0] if param else "the file"
            raise BadRequest(
                f"{flag} is '-'; it takes the name of a file, as standard output has the answer"
            )
        return super().convert(value, param, ctx)


class OutputFolder(click.Path):
    """A folder of reports that the command writes."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Options beside a request's; what a command has no option for is None."""

    plan_path: Path | None = option(
        "Plan file.",
        kind="output",
        flag="-o",
        group="Files",
        meaning="the file to write: a plan, an export, or a hardware file",
    )
    file: Path | None = option(kind="output", flag="-o")
    out: Path | None = option(
        "Report folder.", kind="folder", group="Files", meaning="the folder to write"
    )
    plot_path: Path | None = option(
        kind="output", endings=PICTURE, group="Files", meaning="also draw a picture, PNG or SVG"
    )
    animate_path: Path | None = option(
        kind="output", dash=True, group="Files", meaning="draw a collective hop by hop"
    )
    graph: Path | None = option(
        kind="output",
        endings=(".svg", ".dot"),
        group="Files",
        meaning="draw the dearest ops of a step, and what waits for what",
    )
    save: Path | None = option(
        "Save the program, for a later --against.",
        kind="output",
        group="Files",
        meaning="write the program for a later --against",
    )
    html_path: Path | None = option(
        kind="output",
        endings=(".html",),
        group="Files",
        meaning="a page with the frames of what is shown",
    )
    trace_path: Path | None = option(
        "Pipeline trace for ui.perfetto.dev (.json.gz).",
        kind="output",
        endings=TRACE,
        flag="--perfetto",
        group="Files",
        meaning="write what happens when as a trace for ui.perfetto.dev",
    )
    steps_path: Path | None = option(kind="output", endings=TRACE, flag="--perfetto")
    perfetto_until: str | None = option("End time of the trace file, such as 60s.", group="Files")
    csv_path: Path | None = option(
        "Also write the table to a CSV file.", kind="output", group="Files"
    )
    as_json: bool = switch("One JSON document on stdout.", flag="--json", group="Files")
    draw: bool | None = option(
        "Draw which device holds which block, as a map in the terminal.",
        kind="flag",
        group="Level of detail",
        meaning="a map in the terminal",
    )
    show_detail: bool | None = option(
        "All details of the answer: tables, layouts, the search.",
        kind="flag",
        flag="--detail",
        group="Level of detail",
        meaning="everything else that is known of the answer",
    )
    show_why: bool | None = option(
        "Reasons for this answer.", kind="flag", flag="--why", group="Level of detail"
    )
    show_book: bool | None = option(
        'Compare with the rules of "How To Scale Your Model".',
        kind="flag",
        flag="--book",
        group="Level of detail",
    )
    show_stages: bool | None = option(
        "The op that `compile --stages` followed, from JAX to the schedule.",
        kind="flag",
        flag="--stages",
    )

    def sections(self) -> dict[str, bool | None]:
        """Whether each section of an answer is printed below its page."""
        names = ("detail", "why", "book", "stages")
        return {name: getattr(self, f"show_{name}") for name in names}


_MARKED = f"{__name__}.marked"
DATA = Path(__file__).with_name("options.json")
GROUPS: tuple[Group, ...] = get_args(Group)[1:]
"""Groups of options, in the order of `--help`."""


class FieldOption(click.Option):
    """An option that is made of a field."""

    def __init__(self, name: str, row: Option, *short: str, about: str = "", **more: Any) -> None:
        if row.kind == "flag":
            more |= {"is_flag": True}
        if row.alone:
            more |= {"is_flag": False, "flag_value": row.alone}
        if row.default is not None:
            more |= {"default": row.default, "show_default": row.show_default}
        super().__init__(
            [*short, flagged(name, row), name],
            type=_type(row),
            help=about or row.about,
            metavar=row.metavar,
            required=row.required,
            multiple=row.kind in ("several", "files"),
            **more,
        )
        self.row = row


@cache
def read() -> Mapping[str, Mapping[str, Option]]:
    """The options of each command's request by field."""
    found = json.loads(DATA.read_text("utf-8")).items()
    return {one: {name: Option(**row) for name, row in rows.items()} for one, rows in found}


@cache
def table() -> Mapping[str, Option]:
    """The field that gives the group and the one meaning of each flag."""
    every = [one for rows in (*read().values(), options_of(Outputs)) for one in rows.items()]
    return {flagged(name, row): row for name, row in reversed(every) if row.group}


def row_of(option: click.Parameter) -> Option:
    """The field that says group and meaning of an option; an empty one for --help and --version."""
    own: Option = getattr(option, "row", Option())
    named = (table()[flag] for flag in option.opts if flag in table())
    return own if own.group else next(named, own)


def click_options(command: str, outputs: str, about: Mapping[str, str]) -> list[click.Parameter]:
    """The options of a command's request and its outputs, in this order, each with its sentence
    where that is not the usual one. A field of the request that is named among the outputs stands
    there."""
    given = read().get(command, {})
    rows = {**options_of(Outputs), **given}
    names = [*(name for name in given if name not in outputs.split()), *outputs.split()]
    made = [_made(name, rows[name], about.get(name, "")) for name in names]
    last = [i for i, one in enumerate(made) if isinstance(one.type, OutputFile | OutputFolder)]
    if last:
        made.insert(last[-1] + 1, marked("force", FORCE))
    return made


FORCE = Option(
    about="Overwrite files that exist.",
    kind="flag",
    group="Files",
    meaning="overwrite files that shardwise did not write",
)


def marked(name: str, row: Option, *short: str) -> click.Option:
    """A flag of many commands, which none has to pass on: `is_marked` tells it."""
    return FieldOption(name, row, *short, expose_value=False, callback=_mark)


def _mark(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value:
        context.meta.setdefault(_MARKED, set()).add(option.name)


def is_marked(name: str) -> bool:
    """Whether the running command was given such a flag."""
    context = click.get_current_context(silent=True)
    return context is not None and name in context.meta.get(_MARKED, ())


def _made(name: str, row: Option, about: str = "") -> click.Parameter:
    if not row.place:
        return FieldOption(name, row, about=about)
    more: dict[str, Any] = {"nargs": -1} if row.kind == "several" else {}
    more |= {"shell_complete": OFFERED.get(row.offers), "required": row.required}
    return click.Argument([name], metavar=row.metavar, type=_type(row), **more)


def _type(row: Option) -> click.ParamType | None:
    if row.values:
        return Word(row.values)
    bounds: dict[str, Any] = {"least": row.least, "above": row.above, "most": row.most}
    bounds = {name: bound for name, bound in bounds.items() if bound is not None}
    if row.kind == "number":
        return Number(**bounds) if bounds else NUMBER
    if row.kind == "whole":
        return Whole(**bounds) if bounds else WHOLE
    if row.kind == "output":
        return OutputFile(tuple(row.endings), dash=row.dash)
    return _TYPES.get(row.kind)


_TYPES: Mapping[Kind, click.ParamType] = {
    "file": click.Path(dir_okay=False, path_type=Path),
    "files": click.Path(),
    "path": click.Path(),
    "folder": OutputFolder(),
}


class Word(click.Choice):
    """One of a set of words."""

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """The word; raises BadRequest with the nearest ones, or the one that is meant."""
        check_known(f"value of {_flag(param)}", str(value), self.choices)
        return super().convert(value, param, ctx)


class Number(click.ParamType):
    """A number of at least `least` (or above `above`) and at most `most`."""

    name = "float"

    def __init__(self, *, least: float = -inf, most: float = 1e15, above: float = -inf) -> None:
        self.least, self.most, self.above = least, most, above

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """The number; raises BadRequest that names the option."""
        return number(
            value, _flag(param), least=self.least, most=self.most, above=self.above, suffix=True
        )


class Whole(click.ParamType):
    """A whole number in [least, most]."""

    name = "integer"

    def __init__(self, *, least: int = 0, most: int = MOST_WHOLE) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """The number; raises BadRequest that names the option."""
        return whole(value, _flag(param), least=self.least, most=self.most, suffix=True)


def _flag(param: click.Parameter | None) -> str:
    return param.opts[0] if param else "the number"


WHOLE = Whole(least=-MOST_WHOLE)
"""A whole number whose range the request checks."""
NUMBER = Number(most=inf)
"""A number whose range the request checks."""
