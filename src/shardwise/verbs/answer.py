"""What a verb answers: how it prints, its rows, and what its document says."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.verbs.layout import Part, TextTable

__all__ = ["Answer", "Page", "Row", "TextTable"]

Row = Mapping[str, Any]
"""One line of an answer's table, by column."""


Page = Iterator[Part]
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
