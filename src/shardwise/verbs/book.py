"""`book list` and `book figure`: what there is, the book's figures as data, the plans it audits."""

from dataclasses import dataclass, field
from typing import Any

from shardwise.book.figures import Figure, figure, figure_ids
from shardwise.book.questions import BookEntry, entries
from shardwise.errors import BadRequest
from shardwise.plans.named import PREFIX, audit_about, audit_names
from shardwise.units import sig
from shardwise.verbs.answer import Answer, Page, Row, TextTable
from shardwise.verbs.layout import next_step
from shardwise.verbs.request import Progress, verb

_SHOWN = 16


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BookList(Answer):
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
        {"id": f.id, "chapter": f.chapter, "kind": "figure", "about": f.title, "source": f.source}
        for f in map(figure, figure_ids())
    ]
    audits = [
        {
            "id": f"{PREFIX}{name}",
            "chapter": "12",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRequest:
    """The data series of one figure of the book, with what its text reads off it."""

    figure_id: str = field(kw_only=False)

    def answer(self, progress: Progress | None = None) -> "FigureAnswer":
        """Compute it."""
        found = figure(self.figure_id)
        return FigureAnswer(figure=found, result=_result(found))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FigureAnswer(Answer):
    """One figure."""

    figure: Figure

    def table(self) -> list[Row]:
        """One row per point."""
        x_name, y_name = axis_text(self.figure, "x"), axis_text(self.figure, "y")
        return [
            {"series": s.label, x_name: x, y_name: y}
            for s in self.figure.series
            for x, y in zip(s.x, s.y, strict=True)
        ]

    def page(self) -> Page:
        """Title, readings, and so many points of every curve as a terminal takes."""
        return _figure_page(self.figure)


book_figure = verb("book_figure", FigureRequest)


def axis_text(found: Figure, which: str) -> str:
    """An axis with its unit."""
    label, unit = getattr(found, f"{which}_label"), getattr(found, f"{which}_unit")
    return f"{label} [{unit}]" if unit else label


def _result(found: Figure) -> dict[str, Any]:
    return {
        "id": found.id,
        "chapter": found.chapter,
        "title": found.title,
        "source": found.source,
        "x": {"label": found.x_label, "unit": found.x_unit, "log": "x" in found.log},
        "y": {"label": found.y_label, "unit": found.y_unit, "log": "y" in found.log},
        "series": [{"label": s.label, "x": list(s.x), "y": list(s.y)} for s in found.series],
        "readings": dict(found.readings),
    }


def _figure_page(found: Figure) -> Page:
    """Title, readings, and so many points of every curve as a terminal takes."""
    yield f"{found.title} ({found.source})"
    if found.readings:
        yield ""
        yield TextTable(["reading", "value"], [[k, sig(v, 4)] for k, v in found.readings.items()])
    for series in found.series:
        step = -(-len(series.x) // _SHOWN)
        points = list(zip(series.x, series.y, strict=True))[::step]
        yield ""
        yield TextTable(
            [axis_text(found, "x"), axis_text(found, "y")],
            [[sig(x), sig(y, 4)] for x, y in points],
            title=series.label + (f" (every {step}th point)" if step > 1 else ""),
            left=0,
        )
