"""`book list`: the book's numbers and figures, the machines to look at, the plans it audits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from shardwise.book.figure_index import FIGURES
from shardwise.book.questions import BookEntry, entries
from shardwise.boundary import Command
from shardwise.boundary.options import option
from shardwise.boundary.records import Record, values
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.layout import next_step
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.tables.book_words import CHAPTER
from shardwise.errors import BadRequest
from shardwise.plans.named import PREFIX, audit_about, audit_chapter, audit_names


@dataclass(frozen=True, slots=True, kw_only=True)
class BookListRequest(Command):
    """Ids for `book_show`, `book_figure` and `load_plan("audit:NAME")`, of a `chapter` or all."""

    COMMAND: ClassVar[str] = "book list"

    chapter: str | int | None = option(CHAPTER)

    def answer(self, progress: Progress | None = None) -> "BookList":
        """Look."""
        every, chapter = _entries(), None if self.chapter is None else str(self.chapter)
        entries = [e for e in every if chapter in (None, e.chapter)]
        if not entries:
            chapters = ", ".join(dict.fromkeys(e.chapter for e in every))
            raise BadRequest(f"chapter '{chapter}' has nothing here; there are {chapters}")
        return BookList(entries=entries)


@dataclass(frozen=True, kw_only=True)
class ListedEntry(Record):
    """Something that the book has."""

    id: str
    """Its name."""
    chapter: str
    """The chapter that it is in."""
    kind: Literal["number", "figure", "simulation", "plan"]
    """What it is: `book show` takes a number, `book figure` a figure or a simulation, `plan show` a
    plan."""
    about: str
    """What it is about, in a line."""
    source: str
    """Where the book has it."""


@dataclass(frozen=True, kw_only=True, repr=False)
class BookList(Answer):
    """Numbers, figures and audited plans."""

    entries: Sequence[ListedEntry]
    """All of them, or those of a chapter."""

    def table(self) -> list[Row]:
        """One row each."""
        return [values(e) for e in self.entries]

    def page(self) -> Page:
        """One line each."""
        yield TextTable(
            ["id", "chapter", "kind", "what it is"],
            [[e.id, e.chapter, e.kind, e.about] for e in self.entries],
            left=4,
            spare=("kind",),
        )
        yield next_step(
            "show one:",
            "shardwise book show ID",
            "shardwise book figure ID",
            "shardwise plan show audit:NAME",
        )


book_list = verb("book_list", BookListRequest)


def _entries() -> list[ListedEntry]:
    figures = [
        ListedEntry(
            id=name,
            chapter=one.chapter,
            kind="simulation" if one.steps else "figure",
            about=one.about,
            source=f"ch. {one.chapter}",
        )
        for name, one in FIGURES.items()
    ]
    audits = [
        ListedEntry(
            id=f"{PREFIX}{name}",
            chapter=audit_chapter(name),
            kind="plan",
            about=audit_about(name).partition(":")[0],
            source=audit_about(name),
        )
        for name in audit_names()
    ]
    return [*map(_number, entries().values()), *figures, *audits]


def _number(one: BookEntry) -> ListedEntry:
    return ListedEntry(
        id=one.id, chapter=one.chapter, kind="number", about=one.asks, source=one.source
    )
