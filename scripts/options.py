#!/usr/bin/env python3
"""What is written of the options: a file of data for `--help`, and a page of them.

apps/cli/options.json has the options of requests, made of their fields (`boundary/options.py`).
`page()` is docs/options.md, every option with its one meaning and the commands that take it; it is
made when the site is built.

scripts/options.py           writes the data
scripts/options.py --check   exits with 1 where it is not that of these requests
"""

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import shardwise.apps.page
import shardwise.commands
from shardwise.apps import cli as screens
from shardwise.apps.cli import cli
from shardwise.boundary import Command
from shardwise.boundary.options import Option, options_of

DATA = Path(screens.__file__).with_name("options.json")
HEAD = """# Options

An option means the same in every command that takes it. This page is made of the commands
themselves; `shardwise COMMAND --help` says which values a command takes. A command that answers
also takes `-q` (no warnings, progress and hints), `-v` (where each choice comes from) and `--brief`
(the first lines alone).

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


def groups() -> Mapping[str, Mapping[str, tuple[str, list[str]]]]:
    """Of each group its options, by their longest names, each with its meaning and its commands."""
    from shardwise.apps.cli.options import GROUPS, row_of  # reads the data, which may be old

    found: dict[str, dict[str, tuple[str, list[str]]]] = {group: {} for group in GROUPS}
    for path, command in commands():
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                row, name = row_of(option), max(option.opts, key=len)
                found[row.group].setdefault(name, (row.sentence, []))[1].append(path)
    return found


def page() -> str:
    """The text of docs/options.md."""
    lines = [HEAD]
    for group, options in groups().items():
        lines += [f"## {group}\n", "| option | meaning | commands |", "|---|---|---|"]
        for name, (meaning, paths) in options.items():
            lines.append(f"| `{name}` | {meaning} | {listed(paths)} |")
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


MANY = 12


def listed(paths: list[str]) -> str:
    """The commands; where they are many, how many."""
    return ", ".join(paths) if len(paths) <= MANY else f"{len(paths)} commands"


def requests() -> dict[str, Any]:
    """Of each command its request."""
    for package in (shardwise.commands, shardwise.apps.page):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    made = {one.COMMAND: one for one in _below(Command) if "COMMAND" in vars(one)}
    return dict(sorted(made.items()))


def _below(made: type) -> Iterator[type]:
    for one in made.__subclasses__():
        yield one
        yield from _below(one)


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
    return json.dumps(made, indent=1, default=list) + "\n"


def main() -> int:
    """Write the data, or compare it."""
    if "--check" in sys.argv[1:]:
        return int(DATA.read_text() != data())
    DATA.write_text(data())
    return 0


if __name__ == "__main__":
    sys.exit(main())
