"""Run the command of every system of the book and print docs/systems.md with what answers.

The rows are docs/systems.toml: where a system lies, a command that shows it, and words of the line
of its output that answers. A row that no command shows says so, and why. The docs site makes the
page (`docs/site/generated.py`).
"""

import contextlib
import importlib.util
import io
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "docs" / "systems.toml"
CHAPTERS = {"A": 12, "B": 13, "C": 9, "D": 15, "E": 21, "F": 6, "G": 11, "H": 8, "I": 6}
"""How many systems each part has: 101 in all."""
TITLES = {
    "A": "Hardware and rooflines",
    "B": "Sharding and collectives",
    "C": "Counting a transformer",
    "D": "Training",
    "E": "Inference",
    "F": "Planning a service",
    "G": "Programs and profiles",
    "H": "GPUs",
    "I": "Teaching",
}
HEAD = """# Every system of the book, and the command that shows it

The build of these docs runs each command below in the repository's root and copies the line that
answers. The rows are in [systems.toml](systems.toml). `book show` and `book rule` work out one
number or formula of a system and do not run the system itself.
"""


NUMBERS = ("shardwise book show", "shardwise book rule")
"""Commands that work out one number or formula of a system."""


@dataclass(frozen=True)
class System:
    """One row: its id, where it lies, and the command whose output has `line`, or why none does."""

    id: str
    name: str
    where: str
    answers: str
    command: str = ""
    line: str = ""
    missing: str = ""


def systems() -> list[System]:
    """Every row, in the book's order."""
    return [System(**row) for row in tomllib.loads(ROWS.read_text(encoding="utf-8"))["system"]]


def expected_ids() -> list[str]:
    """A1 to I6."""
    return [f"{part}{i}" for part, count in CHAPTERS.items() for i in range(1, count + 1)]


def answering_line(row: System) -> str:
    """The line of the command's real output that answers: one that begins with the row's words,
    else one that has them; an error where neither is there."""
    lines = [" ".join(line.split()) for line in printed(row.command).splitlines()]
    words = " ".join(row.line.lower().split())
    at_start = [line for line in lines if line.lower().startswith(words)]
    inside = [line for line in lines if words in line.lower()]
    if not inside:
        raise LookupError(f"{row.id}: `{row.command}` prints no line with {row.line!r}")
    return (at_start or inside)[0]


def printed(command: str) -> str:
    """What a command of the page prints; `python -c` runs in this process, too."""
    program, *arguments = shlex.split(command)
    if program == "shardwise":
        return readme().run(command)
    assert arguments[0] == "-c", command
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.chdir(ROOT):
        exec(arguments[1], {"__name__": "__main__"})
    return out.getvalue()


@cache
def readme():
    """scripts/readme.py, which runs a command in this process."""
    known = importlib.util.spec_from_file_location("readme", ROOT / "scripts" / "readme.py")
    assert known
    assert known.loader
    module = importlib.util.module_from_spec(known)
    known.loader.exec_module(module)
    return module


def section(row: System) -> str:
    """The row as the page has it."""
    head = f"### {row.id} {row.name}\n\n{row.answers} In: {row.where}.\n\n"
    if row.missing:
        return f"{head}Not shown by a command: {row.missing}\n"
    return f"{head}```console\n$ {row.command}\n{answering_line(row)}\n```\n"


def page(each: Callable[..., Iterable[str]] = map) -> str:
    """docs/systems.md; `each` maps `section` over the rows, in several processes where a pool's is
    given."""
    rows = systems()
    made = dict(zip((row.id for row in rows), each(section, rows), strict=True))
    shown = sum(not row.missing for row in rows)
    numbers = sum(row.command.startswith(NUMBERS) for row in rows)
    parts = [
        HEAD,
        f"{shown} of {len(rows)} have a command; {numbers} work out a number or formula.\n",
    ]
    for part, title in TITLES.items():
        parts += [f"## {part}. {title}\n", *(made[r.id] for r in rows if r.id[0] == part)]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
