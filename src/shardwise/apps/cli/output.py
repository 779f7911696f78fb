"""Show an answer: a JSON document on stdout with --json, else its page for people.

A page has at most 30 lines of 100 columns with what stands below it; --detail prints it whole, with
everything else. `-q` leaves out warnings and what to type next, `--brief` prints the answer's first
lines alone, `-v` says where each choice comes from. Warnings and notes go to stderr below the page;
in a document they are part of it. A warning says what may make the answer wrong or unwise, a note
what else is good to know.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from shardwise.apps.cli.options import Outputs, is_marked, marked
from shardwise.apps.cli.streams import reader_may_leave, say
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
from shardwise.errors import Caution, Remark
from shardwise.units import many

if TYPE_CHECKING:
    from shardwise.commands.base.answer import Answer, Resolved

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


# Level of detail ---------------------------------------------------------------------------------

_HOW_MUCH = {
    ("-q",): Option(
        about="No warnings, no notes, no hints, and no progress on a terminal.",
        flag="--quiet",
        meaning="no warnings, no notes, no hints, no progress",
    ),
    ("-v",): Option(
        about="Show also where the value of each choice comes from.",
        flag="--verbose",
        meaning="where the value of each choice comes from",
    ),
    (): Option(about="Only the first lines of the answer.", flag="--brief"),
}


def how_much_options() -> list[click.Parameter]:
    """-q, -v and --brief, which every command with an answer has."""
    rows = {
        short: replace(row, kind="flag", group="Level of detail")
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
    """The page up to its first empty line, for a terminal of 80 columns: without the tables below
    its facts."""
    told = False
    for part in page:
        if not str(part) or str(part).startswith("\n"):
            return
        if not (told and isinstance(part, TextTable)):
            yield _narrow(part)
        told = told or isinstance(part, Facts)


def _narrow(part: Part) -> Part:
    """A part in `NARROW` columns: facts and long lines wrapped, two ends of a line beside each
    other."""
    if isinstance(part, Facts):
        return replace(part, width=NARROW)
    return "\n".join(map(_narrow_line, part.split("\n"))) if isinstance(part, str) else part


def _narrow_line(line: str) -> str:
    if len(line) <= NARROW:
        return line
    at = len(line) - len(line.lstrip())
    return wrapped(re.sub("  +", "; ", line.strip()), at, at + 2, NARROW)


NARROW = 80
"""Columns of the first lines of an answer alone, as a terminal has them when it is opened."""


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


_PATIENCE = 2.0
_PAUSE = 0.1
_LOGGED = 15.0
"""Seconds between two lines of a log (ours)."""
_CLEARS = "\x1b[K"


class ProgressLine(Protocol):
    """Draws how many are done, of how many (0: not known), and the seconds left where known."""

    def __call__(self, done: int, total: int, left: float | None = None, /) -> None: ...


def progress_line(what: str, of: str = "parts of the slice") -> ProgressLine | None:
    """A callback that draws the line on a terminal, and writes one every `_LOGGED` seconds where
    stderr is a log: the process's own. None where nobody wants it, or a caller keeps stderr."""
    terminal, started = sys.stderr.isatty(), time.perf_counter()
    if wanted("quiet") or not (terminal or sys.stderr is sys.__stderr__):
        return None
    drawn = 0.0

    def show(done: int, total: int, left: float | None = None, /) -> None:
        nonlocal drawn
        seconds, whole = time.perf_counter() - started, terminal and done == total
        if seconds < _PATIENCE or (
            seconds < drawn + (_PAUSE if terminal else _LOGGED) and not whole
        ):
            return
        drawn = seconds
        many = f"{done} of {total}" if total else f"{done}"
        then = "" if left is None else f", about {left:.0f} s left{_CLEARS * terminal}"
        _write_line(f"{what}: {many} {of}, {seconds:.0f} s{then}", terminal, whole)

    return show


def _write_line(line: str, terminal: bool, whole: bool) -> None:
    """Over the line before on a terminal, which what is `whole` leaves; below it in a log."""
    sys.stderr.write(f"\r{line}" if terminal else f"{line}\n")
    sys.stderr.write("\n" if whole else "")
    sys.stderr.flush()


@contextmanager
def stage_line() -> Iterator[Callable[[str, float], None] | None]:
    """A line on a terminal, gone afterwards: what a child is at, and for how long; None where
    nobody watches."""
    if not sys.stderr.isatty() or wanted("quiet"):
        yield None
        return

    def show(stage: str, seconds: float) -> None:
        click.echo(f"\r\x1b[2K{stage}, {seconds:.0f} s", nl=False, err=True)

    try:
        yield show
    finally:
        click.echo("\r\x1b[2K", nl=False, err=True)


SCHEMA_VERSION = 1


def spoken(line: str) -> str:
    """A line of progress as a terminal and a log show it."""
    return f"warning: {line}" if isinstance(line, Caution) else line


def tell(line: str) -> None:
    """Say on stderr what is going on."""
    click.echo(spoken(line), err=True)


def show_answer(
    answer: "Answer",
    out: Outputs,
    inputs: Mapping[str, object],
    *,
    page: Iterable[Part] | None = None,
    more: Sequence[str] = (),
    warnings_first: bool = False,
    told: Collection[str] = (),
) -> None:
    """Print the document or the page, then write --csv. `inputs` are what was asked; `more` are
    lines below the page, such as which files were written, and `page` one in place of the answer's
    own; `warnings_first` puts the warnings above a long
    page, and those `told` before are not said again."""
    with reader_may_leave():
        if out.as_json:
            print_document(document_of(answer, inputs))
        else:
            left = (line for line in answer.warnings if line not in told)
            remarks = sorted(left, key=lambda line: isinstance(line, Remark))
            print_answer(answer, out, remarks, page, more, warnings_first)
    if out.csv_path:
        _write_rows(out.csv_path, answer.table())


@dataclass(frozen=True, kw_only=True)
class Document:
    """The envelope that every command's JSON shares. `resolved` maps a name to value and origin."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str
    inputs: Mapping[str, object]
    resolved: "Mapping[str, Resolved]"
    result: Mapping[str, object]
    warnings: list[str]
    notes: list[str]
    provenance: Mapping[str, object]


def document_of(answer: "Answer", inputs: Mapping[str, object]) -> Document:
    """The document of an answer."""
    from importlib.metadata import version  # slow to load, for --help

    return Document(
        tool_version=version("shardwise"),
        inputs=inputs,
        resolved=answer.resolved,
        result=answer.result,
        warnings=[line for line in answer.warnings if not isinstance(line, Remark)],
        notes=[line for line in answer.warnings if isinstance(line, Remark)],
        provenance=answer.provenance,
    )


def print_document(doc: Document) -> None:
    """Print the document as JSON; numbers that JSON has not become null, which a warning says."""
    from shardwise.boundary.documents import finite, to_json  # slow to load, for --help
    from shardwise.boundary.records import plain

    found, gone = finite(plain(doc))
    lost = [f"{place}, which JSON has no number for: null" for place in gone[:20]]
    click.echo(_spelt(to_json({**found, "warnings": [*doc.warnings, *lost]})))


def _spelt(text: str) -> str:
    """JSON with escapes, if stdout cannot print all of it."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        import json

        return json.dumps(json.loads(text), indent=2)
    return text


def _write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write the table of --csv. Raises BadRequest where the file cannot be written."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    write_csv(path, header, [[row.get(name, "") for name in header] for row in rows])


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write one table as CSV."""
    from shardwise.boundary import write_table  # slow to load, for --help

    write_table(path, header, rows, option="--csv")
