"""`book list`: the book's numbers and figures, the machines to look at, the plans it audits."""

from dataclasses import dataclass

from shardwise.book.figure_index import FIGURES
from shardwise.book.questions import BookEntry, entries
from shardwise.errors import BadRequest
from shardwise.plans.named import PREFIX, audit_about, audit_chapter, audit_names
from shardwise.verbs.answer import LooseAnswer, Page, Row, TextTable
from shardwise.verbs.layout import next_step
from shardwise.verbs.request import Progress, verb


@dataclass(frozen=True, slots=True, kw_only=True)
class BookListRequest:
    """What `book_show`, `book_figure` and `load_plan("audit:NAME")` take, of a `chapter` or all."""

    chapter: str | int | None = None

    def answer(self, progress: Progress | None = None) -> "BookList":
        """Look."""
        every, chapter = _entries(), None if self.chapter is None else str(self.chapter)
        entries = [e for e in every if chapter in (None, e["chapter"])]
        if not entries:
            chapters = ", ".join(dict.fromkeys(e["chapter"] for e in every))
            raise BadRequest(f"chapter '{chapter}' has nothing here; there are {chapters}")
        return BookList(result={"entries": entries})


@dataclass(frozen=True, kw_only=True, repr=False)
class BookList(LooseAnswer):
    """Numbers, figures and audited plans."""

    def table(self) -> list[Row]:
        """One row each."""
        return self.result["entries"]

    def page(self) -> Page:
        """One line each."""
        yield TextTable(
            ["id", "chapter", "kind", "what it is"],
            [[e["id"], e["chapter"], e["kind"], e["about"]] for e in self.table()],
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


def _entries() -> list[dict[str, str]]:
    figures = [
        {
            "id": name,
            "chapter": one.chapter,
            "kind": "simulation" if one.steps else "figure",
            "about": one.about,
            "source": f"ch. {one.chapter}",
        }
        for name, one in FIGURES.items()
    ]
    audits = [
        {
            "id": f"{PREFIX}{name}",
            "chapter": audit_chapter(name),
            "kind": "plan",
            "about": audit_about(name).partition(":")[0],
            "source": audit_about(name),
        }
        for name in audit_names()
    ]
    return [*map(_number, entries().values()), *figures, *audits]


def _number(one: BookEntry) -> dict[str, str]:
    return {
        "id": one.id,
        "chapter": one.chapter,
        "kind": "number",
        "about": one.asks,
        "source": one.source,
    }
