"""Print one document: a JSON object on stdout with --json, else what the command renders.

Warnings and notes go to stderr in JSON mode and under the tables otherwise.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.files import file_option
from shardwise.apps.cli.streams import say
from shardwise.boundary.documents import finite, to_json

SCHEMA_VERSION = 1

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
csv_option = file_option("--csv", "csv_path", help="Also write the table to a CSV file.")


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
        found, gone = finite(plain(doc))
        found["warnings"] += [f"{place}, which JSON has no number for: null" for place in gone[:20]]
        click.echo(_spelt(to_json(found)))
        return
    render()
    for warning in doc["warnings"]:
        say(f"warning: {warning}")


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


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write the table of --csv. Raises BadRequest where the file cannot be written."""
    from shardwise.boundary import write_table  # slow to load, for --help

    write_table(path, header, rows, option="--csv")


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", left: int = 1
) -> None:
    """Print one table; the first `left` columns are left-aligned, the others right-aligned.

    Plain aligned text without a terminal, so that pipes, tests and the README see stable output.
    """
    if sys.stdout.isatty():
        _rich_table(header, rows, title, left)
        return
    cells = [[str(c) for c in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    if title:
        click.echo(title)
    for number, row in enumerate(cells):
        parts = [
            c.ljust(w) if i < left else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  " + "  ".join(parts).rstrip())
        if number == 0:
            click.echo("  " + "  ".join("-" * w for w in widths))


def crowded_out(
    header: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str]
) -> tuple[str, ...]:
    """Columns of `spare`, first ones first, that a terminal has no room for; none in a pipe."""
    if not sys.stdout.isatty():
        return ()
    room = shutil.get_terminal_size().columns
    widths = {
        name: max(len(str(row[i])) for row in [header, *rows]) + _PADDING
        for i, name in enumerate(header)
    }
    left_out: tuple[str, ...] = ()
    while sum(widths.values()) > room and len(left_out) < len(spare):
        left_out += (spare[len(left_out)],)
        del widths[left_out[-1]]
    return left_out


_PADDING = 2  # a space on both sides of a column of a terminal's table


def _rich_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], title: str, left: int
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = Table(title=title or None, title_justify="left", box=None, pad_edge=True)
    for i, name in enumerate(header):
        out.add_column(name, justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        out.add_row(*[Text(str(c)) for c in row])
    Console().print(out)
