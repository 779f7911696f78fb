"""Show an answer: a JSON document on stdout with --json, else its page (`pages.py`).

Warnings and notes go to stderr below the page; in a document they are part of it. A warning says
what may make the answer wrong or unwise, a note what else is good to know.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.apps.cli.files import file_option
from shardwise.apps.cli.options import given
from shardwise.apps.cli.pages import print_answer
from shardwise.apps.cli.streams import reader_may_leave
from shardwise.commands.base.layout import Part
from shardwise.errors import Caution, Remark

if TYPE_CHECKING:
    from shardwise.commands.base.answer import Answer, Resolved

SCHEMA_VERSION = 1

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
csv_option = file_option("--csv", "csv_path", help="Also write the table to a CSV file.")


def spoken(line: str) -> str:
    """A line of progress as a terminal and a log show it."""
    return f"warning: {line}" if isinstance(line, Caution) else line


def tell(line: str) -> None:
    """Say on stderr what is going on."""
    click.echo(spoken(line), err=True)


def show_answer(
    answer: "Answer",
    options: Mapping[str, Any],
    *,
    inputs: Mapping[str, Any] | None = None,
    doc: Mapping[str, Any] | None = None,
    page: Iterable[Part] | None = None,
    more: Sequence[str] = (),
    warnings_first: bool = False,
) -> None:
    """Print the document or the page, then write --csv; `more` are lines below the page, such as
    which files were written, and `page` one in place of the answer's own. `inputs` are what was
    asked, in place of all options given; `doc` is a document that was made before;
    `warnings_first` puts the warnings above a long page."""
    doc = doc or document_of(answer, given(options) if inputs is None else inputs)
    with reader_may_leave():
        if options["as_json"]:
            print_document(doc)
        else:
            remarks = [*doc["warnings"], *doc["notes"]]
            print_answer(answer, options, remarks, page, more, warnings_first)
    if options.get("csv_path"):
        _write_rows(options["csv_path"], answer.table())


def document_of(answer: "Answer", inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The document of an answer."""
    return document(
        inputs=inputs,
        resolved=answer.resolved,
        result=answer.result,
        warnings=answer.warnings,
        provenance=answer.provenance,
    )


def document(
    *,
    inputs: Mapping[str, Any],
    result: Mapping[str, Any],
    resolved: "Mapping[str, Resolved] | None" = None,
    warnings: Sequence[str] = (),
    provenance: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The envelope that every command's JSON shares. `resolved` maps a name to value and origin."""
    from importlib.metadata import version  # slow to load, for --help

    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": version("shardwise"),
        "inputs": dict(inputs),
        "resolved": dict(resolved or {}),
        "result": dict(result),
        "warnings": [line for line in warnings if not isinstance(line, Remark)],
        "notes": [line for line in warnings if isinstance(line, Remark)],
        "provenance": dict(provenance or {}),
    }


def print_document(doc: Mapping[str, Any]) -> None:
    """Print the document as JSON; numbers that JSON has not become null, which a warning says."""
    from shardwise.boundary.documents import finite, to_json  # slow to load, for --help
    from shardwise.boundary.records import plain

    found, gone = finite(plain(doc))
    found["warnings"] += [f"{place}, which JSON has no number for: null" for place in gone[:20]]
    click.echo(_spelt(to_json(found)))


def _spelt(text: str) -> str:
    """JSON with escapes, if stdout cannot print all of it."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        import json

        return json.dumps(json.loads(text), indent=2)
    return text


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the table of --csv. Raises BadRequest where the file cannot be written."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    write_csv(path, header, [[row.get(name, "") for name in header] for row in rows])


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write one table as CSV."""
    from shardwise.boundary import write_table  # slow to load, for --help

    write_table(path, header, rows, option="--csv")
