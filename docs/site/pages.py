"""What the pages of the site run: their cells, the commands in them, the public names called."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SITE = Path(__file__).parent
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?:^:[^\n]*\n)*(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = ("shell", "figure", "Background")
"""Helpers of `cells.py` that run a command, which is their first argument."""
VERB_OF = {"roofline": "matmul_roofline"}
"""Verbs that are not called as their command."""


def cells() -> Iterator[tuple[Path, ast.Module]]:
    """Every cell of every page."""
    for page in sorted(SITE.rglob("*.md")):
        for found in CELL.finditer(page.read_text(encoding="utf-8")):
            yield page, ast.parse(found[1])


def commands() -> Iterator[str]:
    """Every command that a cell runs."""
    for _, cell in cells():
        for call in _calls(cell):
            if isinstance(call.func, ast.Name) and call.func.id in SHOWN:
                yield from _texts(call.args[0])


def public_calls() -> set[str]:
    """The names of `shardwise` that cells call, as `sw.NAME` or as the command of a verb."""
    names = {name for _, cell in cells() for name in attributes(cell)}
    return names | {verb for command in commands() for verb in _verbs(command)}


def _texts(argument: ast.expr) -> Iterator[str]:
    """The command of a call, unless a loop makes it."""
    if isinstance(argument, ast.Constant):
        yield str(argument.value)


def _calls(cell: ast.Module) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(cell) if isinstance(node, ast.Call))


def attributes(cell: ast.Module) -> Iterator[str]:
    for node in ast.walk(cell):
        match node:
            case ast.Attribute(value=ast.Name(id="sw"), attr=name):
                yield name


def _verbs(command: str) -> Iterator[str]:
    program, *words = command.split()
    if program == "shardwise":
        for verb in (words[0], "_".join(words[:2])):
            yield VERB_OF.get(verb, verb)
