"""Show an answer: a JSON document on stdout with --json, else its page.

Warnings and notes go to stderr in JSON mode and under the tables otherwise.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.apps.cli.files import file_option
from shardwise.apps.cli.options import given
from shardwise.apps.cli.streams import say
from shardwise.verbs.answer import TextTable
from shardwise.verbs.layout import Facts, Tone, more_line, wrapped

if TYPE_CHECKING:
    from shardwise.verbs.answer import Answer

SCHEMA_VERSION = 1
Part = str | TextTable | Facts

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
csv_option = file_option("--csv", "csv_path", help="Also write the table to a CSV file.")

SECTIONS = {
    "detail": "Everything else that is known of the answer: tables, layouts, how it was searched.",
    "why": "Why this answer and not another.",
    "book": 'What the rules of "How To Scale Your Model" say beside it.',
}
"""Options that print more of an answer below its page, and what each adds."""


def sections_options(*names: str) -> Callable[[Any], Any]:
    """--detail, --why and --book: those that the command's answer has."""

    def decorate(command: Any) -> Any:
        for name in reversed(names):
            command = click.option(f"--{name}", f"show_{name}", is_flag=True, help=SECTIONS[name])(
                command
            )
        return command

    return decorate


def show_answer(
    answer: "Answer",
    options: Mapping[str, Any],
    *,
    inputs: Mapping[str, Any] | None = None,
    doc: Mapping[str, Any] | None = None,
    page: Iterable[Part] | None = None,
    more: Iterable[str] = (),
) -> None:
    """Write --csv, then print the document or the page; `more` are lines below the page, such as
    which files were written, and `page` one in place of the answer's own; the sections that were
    asked for follow. `inputs` are what was asked, in place of all options given; `doc` is a
    document that was made before."""
    if options.get("csv_path"):
        _write_rows(options["csv_path"], answer.table())
    doc = doc or document_of(answer, given(options) if inputs is None else inputs)
    parts = chain(page or answer.page(), more, asked_sections(answer, options), _what_more(options))
    emit(doc, options["as_json"], lambda: print_page(parts))


def asked_sections(answer: "Answer", options: Mapping[str, Any]) -> Iterator[Part]:
    """What --detail, --why and --book add to the page."""
    asked = [name for name in SECTIONS if options.get(f"show_{name}")]
    found = answer.sections() if asked else {}
    for name in asked:
        yield ""
        yield from found[name]


def _what_more(options: Mapping[str, Any]) -> Iterator[str]:
    """The page's last line: which options of the command say more than was asked for."""
    flags = [f"--{name}" for name in SECTIONS if options.get(f"show_{name}") is False]
    if flags:
        yield more_line([*flags, *(["--top N"] if "top" in options else [])])


def document_of(answer: "Answer", inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The document of an answer."""
    return document(
        inputs=inputs,
        resolved=answer.resolved,
        result=answer.result,
        warnings=answer.warnings,
        provenance=answer.provenance,
    )


def print_page(page: Iterable[Part]) -> None:
    """Print an answer for people: on a terminal in colour, and its tables as wide as it is."""
    on_terminal = sys.stdout.isatty()
    for part in page:
        if isinstance(part, TextTable) and on_terminal:
            _rich_table(part)
        elif isinstance(part, Facts) and on_terminal and "NO_COLOR" not in os.environ:
            for label, text, tone in part.lines():
                click.echo(label + click.style(text, **STYLES[tone]))
        else:
            click.echo(str(part))


STYLES: Mapping[Tone, Mapping[str, Any]] = {
    "": {},
    "good": {"fg": "green"},
    "tight": {"fg": "yellow"},
    "bad": {"fg": "red", "bold": True},
    "faint": {"dim": True},
}
"""How a terminal shows each tone."""


def document(
    *,
    inputs: Mapping[str, Any],
    result: Mapping[str, Any],
    resolved: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The envelope that every command's JSON shares. `resolved` maps a name to value and origin."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": version("shardwise"),
        "inputs": dict(inputs),
        "resolved": dict(resolved or {}),
        "result": dict(result),
        "warnings": list(warnings),
        "provenance": dict(provenance or {}),
    }


def emit(doc: Mapping[str, Any], as_json: bool, render: Callable[[], None]) -> None:
    """Print the document as JSON, or render it for a person and list its warnings."""
    if as_json:
        from shardwise.boundary.documents import finite, to_json  # slow to load, for --help

        found, gone = finite(plain(doc))
        found["warnings"] += [f"{place}, which JSON has no number for: null" for place in gone[:20]]
        click.echo(_spelt(to_json(found)))
        return
    render()
    for warning in doc["warnings"]:
        say(wrapped(f"warning: {warning}", hanging=2))


def _spelt(text: str) -> str:
    """JSON with escapes, if stdout cannot print all of it."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(json.loads(text), indent=2)
    return text


def plain(value: Any) -> Any:
    """NumPy scalars, tuples and mappings as plain JSON values; whole floats stay floats."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the table of --csv. Raises BadRequest where the file cannot be written."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    write_csv(path, header, [[row.get(name, "") for name in header] for row in rows])


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write one table as CSV."""
    from shardwise.boundary import write_table  # slow to load, for --help

    write_table(path, header, rows, option="--csv")


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", left: int = 1
) -> None:
    """Print one table."""
    made = TextTable(header, rows, title, left)
    _rich_table(made) if sys.stdout.isatty() else click.echo(str(made))


def _rich_table(found: TextTable) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    hidden = found.crowded_out(shutil.get_terminal_size().columns, _PADDING)
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


_PADDING = 2  # a space on both sides of a column of a terminal's table
