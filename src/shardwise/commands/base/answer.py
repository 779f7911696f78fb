"""What a verb answers: its fields, how it prints, and its rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.boundary.records import Record, hidden, part, plain
from shardwise.commands.base.layout import Part, TextTable

__all__ = ["Answer", "Page", "Resolved", "Row", "TextTable"]

Row = Mapping[str, Any]
"""One line of an answer's table, by column."""


Page = Iterator[Part]
"""An answer for people, part by part: paragraphs, labelled lines and tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(Record):
    """A choice as it was taken."""

    value: Any
    """The value."""
    origin: str
    """Where that comes from: a flag, a file, or computed."""
    source: str | None = part()
    """Where a book prints it, or that it was given."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Answer(Record, ABC):
    """What a verb answers. `str(answer)` is what its command prints, `answer.table()` its rows.

    Its fields are what the command's document says under `result`, by the names that stay the same.
    `resolved` is each choice with its value and where it came from, `warnings` what a reader should
    know before trusting it, `provenance` the sources of its numbers.
    """

    resolved: Mapping[str, Resolved] = hidden(factory=dict)
    warnings: Sequence[str] = hidden(())
    provenance: Mapping[str, Any] = hidden(factory=dict)

    @property
    def result(self) -> Mapping[str, Any]:
        """The fields as plain values: a document's `result`."""
        return plain(self)

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
