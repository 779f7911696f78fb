"""How an answer is printed for people: one page, the sections that were asked for, warnings.

A page has at most 30 lines of 100 columns with what stands below it; --detail prints it whole, with
everything else. `-q` leaves out warnings and what to type next, `--brief` prints the answer's first
lines alone, `-v` says where each choice comes from.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import click

from shardwise.apps.cli.option_fields import is_marked, marked
from shardwise.apps.cli.outputs import Outputs
from shardwise.apps.cli.streams import say
from shardwise.boundary.options import Option
from shardwise.commands.base.layout import (
    HEIGHT,
    Facts,
    Part,
    TextTable,
    Tone,
    Verbatim,
    fitted,
    more_line,
    wrapped,
)
from shardwise.errors import Remark
from shardwise.units import many

if TYPE_CHECKING:
    from shardwise.commands.base.answer import Answer

MOST_WARNED = 8
"""Lines of warnings below a page."""
STYLES: Mapping[Tone, Mapping[str, Any]] = {
    "": {},
    "good": {"fg": "green"},
    "tight": {"fg": "yellow"},
    "bad": {"fg": "red", "bold": True},
    "faint": {"dim": True},
}
"""How a terminal shows each tone."""


# How much is said ---------------------------------------------------------------------------------

_HOW_MUCH = {
    ("-q",): Option(
        about="No warnings, no notes, no hints, and no progress on a terminal.",
        flag="--quiet",
        meaning="no warnings, no notes, no hints, no progress",
    ),
    ("-v",): Option(
        about="Also where the value of each choice comes from.",
        flag="--verbose",
        meaning="where the value of each choice comes from",
    ),
    (): Option(about="The first lines of the answer alone.", flag="--brief"),
}


def how_much_options() -> list[click.Parameter]:
    """-q, -v and --brief, which every command with an answer has."""
    rows = {
        short: replace(row, kind="flag", group="How much is said")
        for short, row in _HOW_MUCH.items()
    }
    return [marked(f"show_{row.flag[2:]}", row, *short) for short, row in rows.items()]


def wanted(much: str) -> bool:
    """Whether the running command was given --quiet, --verbose or --brief."""
    return is_marked(f"show_{much}")


# Printing -----------------------------------------------------------------------------------------


def print_answer(
    answer: "Answer",
    out: Outputs,
    warnings: Sequence[str],
    page: Iterable[Part] | None = None,
    more: Sequence[str] = (),
    warnings_first: bool = False,
) -> None:
    """Print the page (`page` in place of the answer's own), the lines `more`, the sections that
    were asked for, and on stderr the warnings, above a long page with `warnings_first`."""
    shown = list(page or answer.page())
    said = list(_warning_lines(warnings, out))
    below = [] if wanted("quiet") else [*more, *_what_more(out)]
    if any(isinstance(part, Verbatim) for part in shown):
        below = []
    elif wanted("brief"):
        shown, below = list(_headline(shown)), []
    elif out.show_detail is False:
        others = sum(text.count("\n") + 1 for text in (*below, *said))
        shown = fitted(shown, HEIGHT - others, tables=not sys.stdout.isatty())
    for warning in said if warnings_first else ():
        say(warning)
    print_page([*shown, *below, *_asked(answer, out)])
    for warning in () if warnings_first else said:
        say(warning)


def _headline(page: Iterable[Part]) -> Iterator[Part]:
    """The page up to its first empty line."""
    for part in page:
        if not str(part) or str(part).startswith("\n"):
            return
        yield part


def _asked(answer: "Answer", out: Outputs) -> Iterator[Part]:
    """What --detail, --why, --book and -v add to the page."""
    asked = [name for name, wish in out.sections().items() if wish]
    found = answer.sections() if asked else {}
    for name in asked:
        if name in found:
            yield ""
            yield from found[name]
    if wanted("verbose") and answer.resolved:
        yield ""
        values = answer.resolved.items()
        rows = [[name, str(one.value), str(one.origin)] for name, one in values]
        yield TextTable(["choice", "value", "comes from"], rows, left=3)


def _what_more(out: Outputs) -> Iterator[str]:
    """The page's last line: which options of the command say more than was asked for."""
    flags = [f"--{name}" for name, wish in out.sections().items() if wish is False]
    if flags:
        top = ["--top N"] if "top" in click.get_current_context().params else []
        yield more_line([*flags, *top])


def _warning_lines(warnings: Sequence[str], out: Outputs) -> Iterator[str]:
    """The warnings and notes, wrapped; beyond a few lines how many there are, unless --detail wants
    all."""
    if wanted("quiet"):
        return
    room = MOST_WARNED if out.show_detail is False else inf
    for number, warning in enumerate(warnings):
        kind = "note" if isinstance(warning, Remark) else "warning"
        text = wrapped(f"{kind}: {warning}", hanging=2)
        room -= text.count("\n") + 1
        if room < 0:
            yield f"{many(len(warnings) - number, f'more {kind}')} with --detail"
            return
        yield text


def print_page(page: Iterable[Part]) -> None:
    """Print parts of an answer: on a terminal in colour, and tables as wide as it is."""
    on_terminal = sys.stdout.isatty()
    for part in page:
        if isinstance(part, TextTable) and on_terminal:
            _rich_table(part)
        elif isinstance(part, Facts) and on_terminal and "NO_COLOR" not in os.environ:
            for label, text, tone in part.lines():
                click.echo(label + click.style(text, **STYLES[tone]))
        else:
            click.echo(str(part))


def _rich_table(found: TextTable) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    hidden = found.crowded_out(shutil.get_terminal_size().columns)
    kept = [i for i, name in enumerate(found.header) if name not in hidden]
    out = Table(title=found.title or None, title_justify="left", box=None, pad_edge=True)
    for i in kept:
        justify = "left" if i < found.left else "right"
        out.add_column(found.header[i], justify=justify, overflow="fold")
    for row in found.rows:
        out.add_row(*[Text(str(row[i])) for i in kept])
    Console().print(out)
    if hidden:
        click.echo(f"No room for: {', '.join(hidden)}; see --csv, --json or a wider terminal.")
