"""Show an answer: a JSON document on stdout with --json, else its page (`pages.py`).

Warnings and notes go to stderr below the page; in a document they are part of it. A warning says
what may make the answer wrong or unwise, a note what else is good to know.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardwise.apps.cli.outputs import Outputs
from shardwise.apps.cli.pages import print_answer
from shardwise.apps.cli.streams import reader_may_leave
from shardwise.commands.base.layout import Part
from shardwise.errors import Caution, Remark

if TYPE_CHECKING:
    from shardwise.commands.base.answer import Answer, Resolved

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
) -> None:
    """Print the document or the page, then write --csv. `inputs` are what was asked; `more` are
    lines below the page, such as which files were written, and `page` one in place of the answer's
    own; `warnings_first` puts the warnings above a long page."""
    doc = document_of(answer, inputs)
    with reader_may_leave():
        if out.as_json:
            print_document(doc)
        else:
            remarks = [*doc.warnings, *doc.notes]
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
