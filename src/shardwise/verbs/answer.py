"""What a verb answers: how it prints, its rows, and what its document says."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardwise.verbs.layout import Facts

Row = Mapping[str, Any]
"""One line of an answer's table, by column."""


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

    def crowded_out(self, room: int, padding: int = 2) -> Sequence[str]:
        """The columns of `spare`, first ones first, that a width has no room for."""
        cells = [self.header, *self.rows]
        widths = {
            name: max(len(str(row[i])) for row in cells) + padding
            for i, name in enumerate(self.header)
        }
        left_out = 0
        while sum(widths.values()) > room and left_out < len(self.spare):
            del widths[self.spare[left_out]]
            left_out += 1
        return self.spare[:left_out]

    def within(self, room: int) -> "TextTable":
        """The table without the columns of `spare` that a width has no room for."""
        out = self.crowded_out(room)
        kept = [i for i, name in enumerate(self.header) if name not in out]
        return replace(
            self,
            header=[self.header[i] for i in kept],
            rows=[[row[i] for i in kept] for row in self.rows],
            spare=(),
        )

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        parts = [
            cell.ljust(width) if i < self.left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  " + "  ".join(parts).rstrip()


Page = Iterator[str | TextTable | Facts]
"""An answer for people, part by part: paragraphs, labelled lines and tables."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer(ABC):
    """What a verb answers. `str(answer)` is what its command prints, `answer.table()` its rows.

    `result` is what the command's document says under the names that stay the same, `resolved` each
    choice with its value and where it came from, `warnings` what a reader should know before
    trusting it, `provenance` the sources of its numbers.
    """

    result: Mapping[str, Any]
    resolved: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @abstractmethod
    def page(self) -> Page:
        """The answer for people: one page, the answer first."""

    def sections(self) -> Mapping[str, Page]:
        """What the options --detail, --why and --book add below the page, by their names."""
        return {}

    @abstractmethod
    def table(self) -> list[Row]:
        """The rows of the answer, which --csv writes where the command has it."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.page()))

    __repr__ = __str__
