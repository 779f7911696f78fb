"""How a page is laid out: labelled lines, two ends of a line, wrapped text, `WIDTH` columns.

An answer for people is one page: at most `HEIGHT` lines, the answer first, then what bounds it,
what else was close and what to type next. What a reader may want beyond it stands in the answer's
sections (`Answer.sections`). A tone says how good a figure is; a terminal shows it as a colour, a
file shows nothing of it.
"""

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from shardwise.units import gib

WIDTH, HEIGHT = 100, 30
"""Columns and lines of a page."""
TIGHT = 0.9
"""The share of a limit beyond which a figure that keeps it is called tight."""

Tone = Literal["", "good", "tight", "bad", "faint"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One labelled line of a page, such as `memory  52.8 of 95.7 GiB`, and how good it is."""

    label: str
    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Labelled lines below one another, their texts aligned and wrapped."""

    rows: Sequence[Fact]
    indent: int = 2
    width: int = WIDTH

    def lines(self) -> list[tuple[str, str, Tone]]:
        """Each printed line as its label, padded, and its text with the tone of its fact."""
        labels = max((len(row.label) for row in self.rows), default=0)
        margin, found = self.indent + labels + 2, []
        for row in self.rows:
            label = " " * self.indent + row.label.ljust(labels) + "  "
            for text in wrapped(row.text, width=self.width - margin).split("\n"):
                found.append((label, text, row.tone))
                label = " " * margin
        return found

    def __str__(self) -> str:
        """Plain text, the same everywhere."""
        return "\n".join((label + text).rstrip() for label, text, _ in self.lines())


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table for people: its first `left` columns are left-aligned, the others right-aligned. A
    narrow terminal may go without the columns `spare`, first ones first. A short one may go without
    the rule below its header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    left: int = 1
    spare: Sequence[str] = ()
    ruled: bool = True

    def __str__(self) -> str:
        """Plain aligned text, the same everywhere."""
        cells = [[str(c) for c in row] for row in [self.header, *self.rows]]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.header))]
        lines = [self._line(row, widths) for row in cells]
        rule = ["  " + "  ".join("-" * w for w in widths)] if self.ruled else []
        return "\n".join([*([self.title] if self.title else []), lines[0], *rule, *lines[1:]])

    def crowded_out(self, room: int) -> Sequence[str]:
        """The columns of `spare`, first ones first, that a width has no room for."""
        cells = [self.header, *self.rows]
        widths = {
            name: max(len(str(row[i])) for row in cells) + 2 for i, name in enumerate(self.header)
        }
        left_out = 0
        while sum(widths.values()) > room and left_out < len(self.spare):
            del widths[self.spare[left_out]]
            left_out += 1
        return self.spare[:left_out]

    def within(self, room: int) -> "TextTable":
        """The table in a width: without the columns of `spare` that it has no room for, and then
        with the ends of the widest columns' cells left out."""
        out = self.crowded_out(room)
        kept = [i for i, name in enumerate(self.header) if name not in out]
        cells = [[str(row[i]) for i in kept] for row in [self.header, *self.rows]]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        while (over := sum(widths) + 2 * len(widths) - room) > 0 and max(widths) > _LEAST_CELL:
            *_, second, first = sorted([_LEAST_CELL, *widths])
            widest = widths.index(first)
            widths[widest] = max(first - over, min(second, first - 1), _LEAST_CELL)
            for row in cells:
                row[widest] = cut(row[widest], widths[widest])
        return replace(self, header=cells[0], rows=cells[1:], spare=())

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        parts = [
            cell.ljust(width) if i < self.left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  " + "  ".join(parts).rstrip()

    def first(self, lines: int) -> "TextTable":
        """The table in so many lines, its last rows left out."""
        return replace(self, rows=self.rows[: max(lines - self._above, 0)])

    @property
    def _above(self) -> int:
        """Lines above the rows."""
        return (self.title.count("\n") + 1 if self.title else 0) + 1 + self.ruled


_LEAST_CELL = 12
"""Columns that a cell keeps at least."""


def cut(text: str, room: int) -> str:
    """The text, its end left out where there is no room."""
    return text if len(text) <= room else f"{text[: room - 3]}..."


class Verbatim(str):
    """Text that is a file of its own, such as a program: printed as it is, however long."""


Part = str | TextTable | Facts
"""A part of a page: a paragraph, a table or labelled lines."""


def fitted(page: Iterable[Part], height: float = inf, tables: bool = True) -> Iterator[Part]:
    """The parts of a page in `WIDTH` columns: long lines wrapped and, with `tables`, wide tables
    without their spare columns; and in so many lines, of which the last says how many are left out.
    """
    parts = [_narrow(part, tables) for part in page]
    sizes = [str(part).count("\n") + 1 for part in parts]
    left = sum(sizes) if sum(sizes) <= height else height - 1
    for part, size in zip(parts, sizes, strict=True):
        if size > left:
            yield from _begun(part, int(left))
            yield f"  ... {sum(sizes) - int(height) + 1:,} more lines with --detail"
            return
        yield part
        left -= size


def _begun(part: Part, lines: int) -> Iterator[Part]:
    """The first lines of a part; of a table no less than a row."""
    if isinstance(part, TextTable):
        begun = part.first(lines)
        if begun.rows:
            yield begun
    elif lines:
        yield "\n".join(str(part).splitlines()[:lines])


def _narrow(part: Part, tables: bool) -> Part:
    if isinstance(part, TextTable):
        return replace(part.within(WIDTH) if tables else part, title=_folded(part.title))
    return part if isinstance(part, Facts | Verbatim) else _folded(part)


def _folded(text: str) -> str:
    """Lines longer than the page wrapped, deeper than they began."""
    if all(len(line) <= WIDTH for line in text.split("\n")):
        return text
    return "\n".join(
        wrapped(line.strip(), at, at + 2) if len(line) > WIDTH else line
        for line in text.split("\n")
        for at in [len(line) - len(line.lstrip())]
    )


def both_ends(left: str, right: str, width: int = WIDTH) -> str:
    """A line with a text at each end; two lines where they do not fit on one.

    >>> both_ends("fsdp=8", "runs in MaxText", 30)
    'fsdp=8         runs in MaxText'
    """
    room = width - len(left) - len(right)
    if room >= 2:
        return left + " " * room + right
    indent = " " * (len(left) - len(left.lstrip()))
    return f"{left}\n{indent}{right}"


def wrapped(text: str, indent: int = 0, hanging: int | None = None, width: int = WIDTH) -> str:
    """A paragraph of at most so many columns, its later lines indented by `hanging`."""
    later = indent if hanging is None else hanging
    return textwrap.fill(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def next_step(said: str, *commands: str) -> str:
    """What to type next, ready to be copied: the first command after `said` where it fits
    there, others below; one that is longer than the page goes on after a backslash.

    >>> print(next_step("next:", "shardwise train plan.yaml", "shardwise compile plan.yaml"))
      next: shardwise train plan.yaml
        or: shardwise compile plan.yaml
    """
    first, *others = commands
    line = f"  {said} {first}"
    lines = [line] if len(line) <= WIDTH else [f"  {said}", *_command(first, 4)]
    for other in others:
        line = f"    or: {other}"
        lines += [line] if len(line) <= WIDTH else ["    or:", *_command(other, 4)]
    return "\n".join(lines)


def _command(text: str, indent: int) -> list[str]:
    """The lines of a command, broken before its options."""
    lines = [" " * indent]
    for part in _parts(shlex.split(text)):
        if lines[-1].strip() and len(lines[-1]) + 1 + len(part) > WIDTH - 2:
            lines[-1] += " \\"
            lines.append(" " * (indent + 1))
        lines[-1] += f" {part}" if lines[-1].strip() or len(lines) > 1 else part
    return lines


def _parts(words: Iterable[str]) -> Iterator[str]:
    """An option with its value, or a word by itself, as a shell takes them."""
    held: list[str] = []
    for word in words:
        if held and (word.startswith("-") or not held[0].startswith("-") or len(held) > 1):
            yield shlex.join(held)
            held = []
        held.append(word)
    yield shlex.join(held)


def tone_of(used: float, limit: float) -> Tone:
    """How well a figure keeps a limit: over it, close to it (beyond `TIGHT` of it), or well below.

    >>> tone_of(60, 80), tone_of(79, 80), tone_of(81, 80)
    ('good', 'tight', 'bad')
    """
    if used > limit:
        return "bad"
    return "tight" if used > TIGHT * limit else "good"


def memory_of(need: float, usable: float) -> str:
    """A part of a chip's memory, in the unit of the whole unless it is small.

    >>> memory_of(60 * 2**30, 80 * 2**30), memory_of(5e6, 80 * 2**30)
    ('60 of 80 GiB', '4.77 MiB of 80 GiB')
    """
    return f"{gib(need).removesuffix(' GiB')} of {gib(usable)}"


def memory_fact(need: float, usable: float) -> Fact:
    """What a chip's memory holds of what it can, and whether that is tight.

    >>> memory_fact(60 * 2**30, 80 * 2**30).text, memory_fact(79 * 2**30, 80 * 2**30).text
    ('60 of 80 GiB a chip', '79 of 80 GiB a chip (tight: 1 GiB is left for fragmentation)')
    """
    tone, held = tone_of(need, usable), memory_of(need, usable)
    left = f" (tight: {gib(usable - need)} is left for fragmentation)"
    return Fact("memory", f"{held} a chip{left if tone == 'tight' else ''}", tone)


def shares_text(parts: Mapping[str, float], least: float = 0.005) -> str:
    """Parts of a whole as a list of percentages, those below `least` of it added up at the end.

    >>> shares_text({"math at peak": 3.0, "waiting on fsdp": 0.98, "host": 0.02}, least=0.01)
    'math at peak 75 %, waiting on fsdp 24 %, other 0.5 %'
    """
    whole = sum(parts.values())
    shown = {name: value for name, value in parts.items() if value >= least * whole and value}
    rest = whole - sum(shown.values())
    said = [f"{name} {percent(value / whole)}" for name, value in shown.items()]
    return ", ".join([*said, f"other {percent(rest / whole)}"] if rest > 1e-4 * whole else said)


def percent(share: float) -> str:
    """A share as people say it: whole percents, tenths below two.

    >>> percent(0.714), percent(0.0042)
    ('71 %', '0.4 %')
    """
    return (
        f"{share:.0%}".replace("%", " %")
        if abs(share) >= 0.02
        else f"{share:.1%}".replace("%", " %")
    )


def more_line(options: Iterable[str]) -> str:
    """The last line of a page: which options say more.

    >>> more_line(["--detail", "--top N"])
    '  more: --detail  --top N'
    """
    return "  more: " + "  ".join(options)
