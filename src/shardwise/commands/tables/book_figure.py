"""`book figure`: the book's figures as data, and its machines step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

from shardwise.book.figure_index import Settings, figure, figure_settings
from shardwise.book.figures import Series
from shardwise.book.questions import plain
from shardwise.book.simulators import Animation, kinds_of
from shardwise.boundary import Command
from shardwise.boundary.options import option, place
from shardwise.boundary.records import Record
from shardwise.commands.base.answer import Answer, Page, Resolved, Row, TextTable
from shardwise.commands.base.layout import wrapped
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.tables.book_show import read_sets
from shardwise.commands.tables.book_words import OTHER_VALUES
from shardwise.commands.tables.simulation_page import (
    frames_page,
    settings_line,
    simulation_page,
    simulation_rows,
)
from shardwise.units import sig

_SHOWN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRequest(Command):
    """A figure of the book as data with the values that its text reads, or a simulator in steps.

    `figure_id` is one of `book list`, or a simulator: "systolic", "hbm", "collective", "pipeline",
    "batching". The answer lists the settings that `sets` change.
    """

    COMMAND: ClassVar[str] = "book figure"

    figure_id: str = field(kw_only=False, metadata=place("ID"))
    sets: Sequence[str] | Mapping[str, Any] = option(OTHER_VALUES)

    def answer(self, progress: Progress | None = None) -> "FigureAnswer | SimulationAnswer":
        """Compute it."""
        given = cast("Settings", read_sets(self.sets))
        found = figure(self.figure_id, given)
        settings = plain(figure_settings(self.figure_id, given))
        origin = {n: "--set" if n in given else "the book" for n in settings}
        resolved = {n: Resolved(value=v, origin=origin[n]) for n, v in settings.items()}
        if isinstance(found, Animation):
            return SimulationAnswer.of(
                found,
                settings=plain(found.settings),
                kind="simulation",
                kinds=kinds_of(found),
                resolved=resolved,
            )
        return FigureAnswer.part_of(
            found,
            kind="figure",
            x=Scale(label=found.x_label, unit=found.x_unit, log="x" in found.log),
            y=Scale(label=found.y_label, unit=found.y_unit, log="y" in found.log),
            settings=settings,
            resolved=resolved,
        )


@dataclass(frozen=True, kw_only=True)
class Scale(Record):
    """An axis of a figure."""

    label: str
    """What it shows."""
    unit: str
    """Its unit; "" where it has none."""
    log: bool
    """Whether equal ratios are equally far apart."""

    def __str__(self) -> str:
        return f"{self.label} [{self.unit}]" if self.unit else self.label


@dataclass(frozen=True, kw_only=True, repr=False)
class FigureAnswer(Answer):
    """One figure."""

    kind: Literal["figure"]
    """That it is a figure, not a simulation."""
    id: str
    """Its name."""
    chapter: str
    """The chapter that it is in."""
    title: str
    """What it shows."""
    source: str
    """Where the book has it."""
    x: Scale
    """The axis across."""
    y: Scale
    """The axis up."""
    series: Sequence[Series]
    """Its curves."""
    readings: Mapping[str, float]
    """Values that the text reads from it."""
    notes: Sequence[str]
    """Where curves that should agree do not, by how much, and why."""
    settings: Mapping[str, Any]
    """Settings of the computation."""

    def table(self) -> list[Row]:
        """One row per point."""
        x_name, y_name = str(self.x), str(self.y)
        return [
            {"series": s.label, x_name: x, y_name: y}
            for s in self.series
            for x, y in zip(s.x, s.y, strict=True)
        ]

    def page(self) -> Page:
        """Title, readings, so many points of every curve as a terminal takes, and the settings."""
        yield f"{self.title} ({self.source})"
        for note in self.notes:
            yield wrapped(note, 2, 2)
        if self.readings:
            cells = [[k, sig(v, 4)] for k, v in self.readings.items()]
            yield ""
            yield TextTable(["reading", "value"], cells)
        for series in self.series:
            yield ""
            yield self._points(series)
        if self.settings:
            yield ""
            yield settings_line(self.settings)

    def _points(self, series: Series) -> TextTable:
        step = -(-len(series.x) // _SHOWN)
        points = list(zip(series.x, series.y, strict=True))[::step]
        return TextTable(
            [str(self.x), str(self.y)],
            [[sig(x), sig(y, 4)] for x, y in points],
            title=series.label + (f" (every {step}th point)" if step > 1 else ""),
            left=0,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class SimulationAnswer(Answer, Animation):
    """A machine, step by step."""

    kind: Literal["simulation"]
    """That it is a simulation, not a figure."""
    kinds: Sequence[str]
    """The kinds of its cells and moves, in the order in which they come."""

    def table(self) -> list[Row]:
        """One row per bar, move or cell."""
        return simulation_rows(self)

    def page(self) -> Page:
        """What came out, and a drawing."""
        return simulation_page(self)

    def sections(self) -> Mapping[str, Page]:
        """Every frame."""
        return {"detail": frames_page(self)}


book_figure = verb("book_figure", FigureRequest)
