#!/usr/bin/env python3
"""What is written of the options: a page of them, and a file of data for `--help`.

apps/cli/options.json has the options of requests, made of their fields (`boundary/options.py`), and
the names of rows that other options take; docs/options.md every option with its one meaning and
the commands that take it.

scripts/options.py           writes both
scripts/options.py --check   exits with 1 where they are not those of these requests and commands
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

import shardwise
from shardwise.apps import cli as screens
from shardwise.apps.cli import cli
from shardwise.boundary.options import Option, options_of
from shardwise.plans.serve import ENGINE_CACHES, ENGINE_WEIGHTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"
DATA = Path(screens.__file__).with_name("options.json")
HEAD = """# Options

An option means the same in every command that takes it. This page is written by
`scripts/options.py` of the commands themselves; `shardwise COMMAND --help` says which values a
command takes. A command that answers also takes `-q` (no warnings, progress and hints), `-v` (where
each choice comes from) and `--brief` (the first lines alone).

An answer is one page, of at most 30 lines of 100 columns. `--detail` has everything else, `--why`
the reasons, `--book` the book's rules. A terminal shows what is good, tight and bad in colour; set
`NO_COLOR=1` for none.

## Completion in a shell

    eval "$(_SHARDWISE_COMPLETE=bash_source shardwise)"      # in ~/.bashrc
    eval "$(_SHARDWISE_COMPLETE=zsh_source shardwise)"       # in ~/.zshrc
    _SHARDWISE_COMPLETE=fish_source shardwise | source       # in ~/.config/fish/config.fish

completes commands and options. What the line prints may as well be kept in a file and sourced,
which starts faster.
"""


def commands(
    group: click.Group | None = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Every command that is no group, with the words that call it."""
    group = group or cli
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


def groups() -> Mapping[str, Mapping[str, str]]:
    """Every option by group, with its meaning."""
    from shardwise.apps.cli.option_table import GROUPS  # reads the data, which may be old

    return GROUPS


def named(option: click.Parameter) -> str:
    """The name under which the table has an option: its longest one that is there."""
    known = {name for options in groups().values() for name in options}
    flags = sorted((*option.opts, *option.secondary_opts), key=len, reverse=True)
    return next((flag for flag in flags if flag in known), flags[0])


def takers() -> dict[str, list[str]]:
    """Of each option the commands that take it."""
    found: dict[str, list[str]] = {}
    for path, command in commands():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                found.setdefault(named(option), []).append(path)
    return found


def page() -> str:
    """The text of docs/options.md."""
    where, lines = takers(), [HEAD]
    for group, options in groups().items():
        lines += [f"## {group}\n", "| option | meaning | commands |", "|---|---|---|"]
        for name, meaning in options.items():
            lines.append(f"| `{name}` | {meaning} | {listed(where.get(name, []))} |")
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


MANY = 12


def listed(paths: list[str]) -> str:
    """The commands; where they are many, how many."""
    return ", ".join(paths) if len(paths) <= MANY else f"{len(paths)} commands"


ROWS = {"weights": ENGINE_WEIGHTS, "kv": ENGINE_CACHES}
"""Options without a field that take the names of rows, and those names, where the rows lie."""


def requests() -> dict[str, Any]:
    """Of each command its request, of those all of whose fields are options."""
    found: list[Any] = [
        getattr(getattr(shardwise, name), "request", None) for name in shardwise.__all__
    ]
    return {
        one.COMMAND: one
        for one in found
        if hasattr(one, "COMMAND") and len(options_of(one)) == len(fields(one))
    }


def data() -> str:
    """The text of apps/cli/options.json."""
    usual = asdict(Option())
    made = {
        command: {
            name: {k: v for k, v in asdict(row).items() if v not in (usual[k], ())}
            for name, row in options_of(request).items()
        }
        for command, request in requests().items()
    }
    return json.dumps({"rows": ROWS, "commands": made}, indent=1, default=list) + "\n"


def main() -> int:
    """Write both files, or compare them."""
    made = {DATA: data, PAGE: page}
    if "--check" in sys.argv[1:]:
        return int(any(path.read_text() != text() for path, text in made.items()))
    for path, text in made.items():  # in this order, as the page is made of the data
        path.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
