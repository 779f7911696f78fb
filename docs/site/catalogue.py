"""The page of every rule of `shardwise.book`: formula, arguments, units, an example, chapter."""

import re
from collections.abc import Iterator
from pathlib import Path

import mathematics
import working

import shardwise as sw
from shardwise.book import RULES, ClosedForm, book_answer, entries
from shardwise.book.questions import Worked

LINES = Path(__file__).with_name("rule_examples.csv").read_text(encoding="utf-8").splitlines()
OWN = dict(line.split(",", 1) for line in LINES[1:])
"""What rules are given here that no number of the book takes."""
HEAD = """\
# Every rule of the book

Each rule is a function of `shardwise.book` and a command, `shardwise book rule NAME`. Arguments are
given by `--set NAME=VALUE`; `--on CHIP` takes a chip's numbers, `--sweep NAME=FIRST:LAST:POINTS` a
range. A chip is named (`v5p`), a mesh is written `X=4,Y=2`, and a size may be a list. An example is
a step of a number of the book: `shardwise book show ID` has all of its steps.
"""


def page() -> str:
    """All rules, by the chapter that has them first."""
    examples = _examples()
    parts = [HEAD]
    last = ""
    for known in sorted(RULES.values(), key=lambda known: _place(known.source)):
        title = _title(known.source)
        if title != last:
            parts.append(f"## {title}\n")
            last = title
        parts.append(_rule(known, examples.get(known.name)))
    return "\n".join(parts)


def _rule(known: ClosedForm, example: tuple[str, Worked] | None) -> str:
    made = mathematics.tex(known.formula)
    lines = [f"### `{known.name}`\n", f"{known.about}\n", f"```{{math}}\n{made}\n```\n"]
    rows = [
        f"| `{name}` | {unit} | {given} |" for name, unit, given in working.arguments(known.name)
    ]
    lines += ["| argument | unit | default |\n|---|---|---|", *rows, ""]
    unit = f" Its answer is in {known.unit}." if known.unit else ""
    lines.append(f"Source: {known.source}.{unit}\n")
    if example is not None:
        found, step = example
        call, gives = working.call(known.name, step.given), working.values(step.value, known.unit)
        lines.append(f"Example, of `shardwise book show {found}`: `{call}` is `{gives}`.\n")
    elif known.name in OWN:
        sets = OWN[known.name].split()
        gives = working.values(sw.book_rule(known.name, sets=sets).result["value"], known.unit)
        asked = " ".join(f"--set {one}" for one in sets)
        lines.append(f"Example: `shardwise book rule {known.name} {asked}` is `{gives}`.\n")
    return "\n".join(lines)


def _examples() -> dict[str, tuple[str, Worked]]:
    """Of each rule the first number of the book that takes it, and that step."""
    found: dict[str, tuple[str, Worked]] = {}
    for known in entries().values():
        for step in book_answer(known.id).steps if known.steps else ():
            found.setdefault(step.step.rule, (known.id, step))
    return found


def _numbers(source: str) -> Iterator[int]:
    yield from (int(text) for text in re.findall(r"ch\. (\d+)", source)[:1])


def _place(source: str) -> int:
    """Chapters in their order, then the deck, then arithmetic."""
    return next(_numbers(source), 20 if source.startswith("deck") else 30)


def _title(source: str) -> str:
    place = _place(source)
    if place < 20:
        return "GPUs (chapter 12)" if place == 12 else f"Chapter {place}"
    return "The deck" if place == 20 else "Arithmetic"
