"""The boundary: one door for each kind of input, one writer, one way to start a child.

All input from a person, a file or a download passes a door before any computation. A door returns
plain values that are complete, finite and within limits, or raises one BadRequest that names the
thing, the rule and the remedy. It executes nothing, and its time and memory have limits. Nothing
here knows a plan, a chip or a model: their own readers check keys and ranges.

`arguments.py` looks at the words of a command; `files.py` reads bytes and text (sizes, encodings,
pipes), `archives.py` what gzip packed; `documents.py` JSON, YAML and TOML, `items.py` a list in
JSON; `tables.py` CSV; `numbers.py` single numbers, `typed.py` reads records by their types and says
what pydantic finds wrong; `outputs.py` is the one writer, `child.py` the one way to start a
process, `forks.py` jobs in forks of one that is kept ready, with limits, and `at_once.py` waits for
several; `remote.py` asks a server. `commands.py` spells the commands that answers print;
`options.py` says what a field of a request is on the command line. What goes out as a document is a
record (`records.py`), whose fields make its JSON Schema (`record_schema.py`).
Read `files.py` first.

Every name loads its file on first use, so that `--help`, which reads nothing, waits for none.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwise.boundary.archives import read_packed, unpacked
    from shardwise.boundary.commands import Command, command_of, spelt
    from shardwise.boundary.documents import (
        finite,
        parse_json,
        parse_toml,
        parse_yaml,
        read_json,
        read_toml,
        read_yaml,
        to_json,
    )
    from shardwise.boundary.files import is_file, is_folder, read_bytes, read_lines, read_text
    from shardwise.boundary.numbers import number, whole
    from shardwise.boundary.options import flag_of
    from shardwise.boundary.outputs import (
        check_folder,
        check_output,
        write_bytes,
        write_table,
        write_text,
    )
    from shardwise.boundary.tables import Table, check_columns, parse_table, read_table

_HOMES = {
    name: file
    for file, names in {
        "archives": ("read_packed", "unpacked"),
        "commands": ("Command", "command_of", "spelt"),
        "documents": (
            "finite",
            "parse_json",
            "parse_toml",
            "parse_yaml",
            "read_json",
            "read_toml",
            "read_yaml",
            "to_json",
        ),
        "files": ("is_file", "is_folder", "read_bytes", "read_lines", "read_text"),
        "numbers": ("number", "whole"),
        "options": ("flag_of",),
        "outputs": ("check_folder", "check_output", "write_bytes", "write_table", "write_text"),
        "tables": ("Table", "check_columns", "parse_table", "read_table"),
    }.items()
    for name in names
}
"""Name -> the file that has it."""

__all__ = [
    "Command",
    "Table",
    "check_columns",
    "check_folder",
    "check_output",
    "command_of",
    "finite",
    "flag_of",
    "is_file",
    "is_folder",
    "number",
    "parse_json",
    "parse_table",
    "parse_toml",
    "parse_yaml",
    "read_bytes",
    "read_json",
    "read_lines",
    "read_packed",
    "read_table",
    "read_text",
    "read_toml",
    "read_yaml",
    "spelt",
    "to_json",
    "unpacked",
    "whole",
    "write_bytes",
    "write_table",
    "write_text",
]


def __getattr__(name: str) -> Any:
    """Load a name on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
