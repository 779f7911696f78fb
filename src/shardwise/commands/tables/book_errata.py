"""`book errata`: where the book prints another number than its rules give, worked out anew."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwise.book.questions import LEAST_OFF, BookEntry, Edition, agrees, book_answer, entries
from shardwise.boundary import Command
from shardwise.boundary.options import option
from shardwise.boundary.records import Record, values
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.layout import next_step
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.tables.book_show import number_text
from shardwise.commands.tables.book_words import CHAPTER, EDITION, EDITION_CONSTANTS
from shardwise.errors import BadRequest
from shardwise.units import many


@dataclass(frozen=True, slots=True, kw_only=True)
class BookErrataRequest(Command):
    """Every number of an `edition` that differs from the book's rules, of one `chapter` or all.

    Each is computed on request. Differences within the book's own rounding do not count.
    """

    COMMAND: ClassVar[str] = "book errata"

    chapter: str | int | None = option(CHAPTER)
    edition: Edition = option(EDITION)
    constants: str | None = option(EDITION_CONSTANTS)

    def answer(self, progress: Progress | None = None) -> "BookErrata":
        """Compute all numbers and keep those that differ."""
        wanted = None if self.chapter is None else str(self.chapter)
        every = [e for e in entries().values() if wanted in (None, e.chapter)]
        if not every:
            chapters = ", ".join(dict.fromkeys(e.chapter for e in entries().values()))
            raise BadRequest(f"chapter '{wanted}' has no numbers; there are {chapters}")
        printed = [e for e in every if e.printed(self.edition) is not None]
        rows = [r for e in printed for r in _rows(e, self.edition, self.constants)]
        return BookErrata(edition=self.edition, checked=len(printed), errata=rows)


@dataclass(frozen=True, kw_only=True)
class Erratum(Record):
    """A number that the book prints and its rules do not give."""

    id: str
    """The entry that it is of."""
    chapter: str
    """The chapter that it is in."""
    printed: float
    """Value in the edition."""
    computed: float
    """Value by the rules."""
    unit: str
    """The unit of both."""
    off_by: float | None
    """By which share of the computed one the printed one is off; null where that is 0."""
    note: str
    """Why they differ."""


@dataclass(frozen=True, kw_only=True, repr=False)
class BookErrata(Answer):
    """Numbers that differ."""

    edition: Edition
    """The edition of the book."""
    checked: int
    """Entries of it that print a number."""
    errata: Sequence[Erratum]
    """Numbers of these that differ."""

    def table(self) -> list[Row]:
        """One row per number."""
        return [values(e) for e in self.errata]

    def page(self) -> Page:
        """One line per number, then how many agree."""
        rows = [
            [e.id, e.note, number_text(e.printed), number_text(e.computed), e.unit]
            for e in self.errata
        ]
        header = ["id", "why", "printed", "computed", "unit"]
        yield TextTable(header, rows, left=2, spare=("why",))
        differ = len({e.id for e in self.errata})
        checked = many(self.checked, "entry").replace("entrys", "entries")
        yield f"{differ} of {checked} of the {self.edition} edition differ."
        yield next_step("the steps to one:", "shardwise book show ID")


book_errata = verb("book_errata", BookErrataRequest)


def _rows(asked: BookEntry, edition: Edition, constants: str | None) -> list[Erratum]:
    found = book_answer(asked.id, edition=edition, constants=constants)
    printed = asked.printed(edition)
    prints = printed if isinstance(printed, list) else [printed]
    units = [asked.unit] * len(prints) if isinstance(asked.unit, str) else asked.unit
    rows = [
        Erratum(
            id=asked.id,
            chapter=asked.chapter,
            printed=was,
            computed=now,
            unit=unit,
            off_by=abs(was - now) / abs(now) if now else None,
            note=asked.note,
        )
        # An edition may print the first of several numbers alone.
        for was, now, unit in zip(prints, found.values, units, strict=False)
        if not agrees(now, was, max(asked.rounding(edition), LEAST_OFF), asked.abs_tol)
        and (edition == "first" or asked.status == "book_wrong")
    ]
    # Two ways to one number are one erratum.
    return [row for i, row in enumerate(rows) if row not in rows[:i]]
