#!/usr/bin/env python3
"""What is written of the command line's own rows: a page of its options, and names for `--help`.

docs/options.md has every option with its one meaning and the commands that take it;
apps/cli/choice_table.py the names of rows that options take, which `--help` shows without the rows.

scripts/options.py           writes both
scripts/options.py --check   exits with 1 where they are not those of these commands and rows
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from shardwise.apps import cli as screens
from shardwise.apps.cli import cli
from shardwise.apps.cli.option_table import GROUPS
from shardwise.commands.base.layout import WIDTH
from shardwise.models.remat import REMAT_POLICIES
from shardwise.planner.search.request import OBJECTIVES
from shardwise.plans.context_methods import CONTEXT_METHODS
from shardwise.plans.optimizers import OPTIMIZERS
from shardwise.plans.serve import ENGINE_CACHES, ENGINE_WEIGHTS
from shardwise.plans.stacks import WANTED
from shardwise.scheduling.pipeline import PIPELINE_KINDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "options.md"
TABLE = Path(screens.__file__).with_name("choice_table.py")
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


def named(option: click.Parameter) -> str:
    """The name under which the table has an option: its longest one that is there."""
    known = {name for options in GROUPS.values() for name in options}
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
    for group, options in GROUPS.items():
        lines += [f"## {group}\n", "| option | meaning | commands |", "|---|---|---|"]
        for name, meaning in options.items():
            lines.append(f"| `{name}` | {meaning} | {listed(where.get(name, []))} |")
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


MANY = 12


def listed(paths: list[str]) -> str:
    """The commands; where they are many, how many."""
    return ", ".join(paths) if len(paths) <= MANY else f"{len(paths)} commands"


ROWS = {
    "remat": REMAT_POLICIES,
    "schedule": PIPELINE_KINDS,
    "context_method": CONTEXT_METHODS,
    "for": WANTED,
    "optimizer": OPTIMIZERS,
    "objective": OBJECTIVES,
    "weights": ENGINE_WEIGHTS,
    "kv": ENGINE_CACHES,
}
"""Options that take the names of rows, and those names, where the rows lie."""


def choice_table() -> str:
    """The text of apps/cli/choice_table.py."""
    lines = [
        '"""Names of rows that options take. scripts/options.py writes this file of the rows, so',
        'that `--help` shows them and imports none."""\n',
        "from collections.abc import Mapping\n",
        "CHOICES: Mapping[str, tuple[str, ...]] = {",
    ]
    for option, names in ROWS.items():
        one = f'    "{option}": ({", ".join(json.dumps(name) for name in names)}),'
        each = [f"        {json.dumps(name)}," for name in names]
        lines += [one] if len(one) <= WIDTH else [f'    "{option}": (', *each, "    ),"]
    return "\n".join([*lines, "}"]) + "\n"


def main() -> int:
    """Write both files, or compare them."""
    made = {PAGE: page(), TABLE: choice_table()}
    if "--check" in sys.argv[1:]:
        return int(any(path.read_text() != text for path, text in made.items()))
    for path, text in made.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
