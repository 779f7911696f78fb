"""`book figure`: the book's figures as data, and its machines step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.book.figure_index import figure, figure_settings
from shardwise.book.figures import Figure
from shardwise.book.questions import plain
from shardwise.book.simulators import Animation
from shardwise.units import sig
from shardwise.verbs.answer import LooseAnswer, Page, Row, TextTable
from shardwise.verbs.book_show import read_sets
from shardwise.verbs.layout import wrapped
from shardwise.verbs.request import Progress, verb
from shardwise.verbs.simulation_page import (
    frames_page,
    settings_line,
    simulation_page,
    simulation_result,
    simulation_rows,
)

_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRequest:
    """A figure of the book as data, with what its text reads off it, or a machine step by step.

    `figure_id` is one of `book list`, or a simulator: "systolic", "hbm", "collective", "pipeline",
    "batching". `sets` change its settings ("chips=512", or a mapping); the answer lists them.
    """

    figure_id: str = field(kw_only=False)
    sets: Sequence[str] | Mapping[str, Any] = ()

    def answer(self, progress: Progress | None = None) -> "FigureAnswer | SimulationAnswer":
        """Compute it."""
        given = read_sets(self.sets)
        found = figure(self.figure_id, given)
        settings = plain(figure_settings(self.figure_id, given))
        origin = {n: "--set" if n in given else "the book" for n in settings}
        resolved = {n: {"value": v, "origin": origin[n]} for n, v in settings.items()}
        if isinstance(found, Animation):
            result = simulation_result(found)
            return SimulationAnswer(simulation=found, result=result, resolved=resolved)
        return FigureAnswer(
            figure=found, result={**_result(found), "settings": settings}, resolved=resolved
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class FigureAnswer(LooseAnswer):
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
        """Title, settings, readings, and so many points of every curve as a terminal takes."""
        yield from _figure_page(self.figure)
        if self.result["settings"]:
            yield ""
            yield settings_line(self.result["settings"])


@dataclass(frozen=True, kw_only=True, repr=False)
class SimulationAnswer(LooseAnswer):
    """A machine, step by step."""

    simulation: Animation

    def table(self) -> list[Row]:
        """One row per bar, move or cell."""
        return simulation_rows(self.simulation)

    def page(self) -> Page:
        """What came out, and a drawing."""
        return simulation_page(self.simulation)

    def sections(self) -> Mapping[str, Page]:
        """Every frame."""
        return {"detail": frames_page(self.simulation)}


book_figure = verb("book_figure", FigureRequest)


def axis_text(found: Figure, which: str) -> str:
    """An axis with its unit."""
    label, unit = getattr(found, f"{which}_label"), getattr(found, f"{which}_unit")
    return f"{label} [{unit}]" if unit else label


def _result(found: Figure) -> dict[str, Any]:
    return {
        "kind": "figure",
        "id": found.id,
        "chapter": found.chapter,
        "title": found.title,
        "source": found.source,
        "x": {"label": found.x_label, "unit": found.x_unit, "log": "x" in found.log},
        "y": {"label": found.y_label, "unit": found.y_unit, "log": "y" in found.log},
        "series": [{"label": s.label, "x": list(s.x), "y": list(s.y)} for s in found.series],
        "readings": dict(found.readings),
        "notes": list(found.notes),
    }


def _figure_page(found: Figure) -> Page:
    """Title, readings, and so many points of every curve as a terminal takes."""
    yield f"{found.title} ({found.source})"
    for note in found.notes:
        yield wrapped(note, 2, 2)
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
