"""Figures as data: marks on two axes with units, which the page draws and exports as they are."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.book.figures import Series
from shardwise.commands.tables.book_figure import Scale


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureAxis:
    """What an axis shows, in which unit; `log` for equal ratios, `names` for categories in a row,
    `bare` for one that is a place in a drawing and has no ticks."""

    label: str = ""
    unit: str = ""
    log: bool = False
    names: tuple[str, ...] = ()
    bare: bool = False


MEMORY = FigureAxis(label="memory", unit="bytes")
TIME = FigureAxis(label="time", unit="s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What is drawn: a `line` or `dot` through points x, y; a `bar` from 0 to x at the name y, bars
    of one name stand one after the other; a `range` from x to x2 at the name y; a `rect` from x to
    x2 and y to y2 with `text` in it; a `rule` across at x or y; an `arrow` from x, y to x2, y2;
    `text` at points. `label` is its name
    in the legend, and `hues` are the colours of rectangles by number, where each has its own."""

    kind: str
    label: str = ""
    x: Sequence[Any] = ()
    y: Sequence[Any] = ()
    x2: Sequence[float] = ()
    y2: Sequence[float] = ()
    text: Sequence[str] = ()
    hues: Sequence[int] = ()
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureData:
    """One figure."""

    id: str
    title: str
    x: FigureAxis
    y: FigureAxis
    marks: Sequence[Mark]
    square: bool = False
    """Whether a unit of x is as long as one of y."""
    wide: bool = False
    """Whether it has a row of the page for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFigure:
    """A number of the answer to read first, in its unit, and what to know beside it."""

    label: str
    value: float | str | None
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableData:
    """Rows under a header; numbers stay numbers, `units` of a column say what they are. With
    `edits` numbers under "value" can be typed over: the control of that name takes NAME=VALUE."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    units: Mapping[str, str] = field(default_factory=dict)
    edits: str = ""


def lines(found: Iterable[Series], dashed: Sequence[str] = ()) -> list[Mark]:
    """A line of each series of a figure; points that a logarithmic axis cannot have are left out
    by the page."""
    return [
        Mark(kind="line", label=one.label, x=one.x, y=one.y, dashed=one.label in dashed)
        for one in found
    ]


def axis_of(scale: Scale) -> FigureAxis:
    """An axis of a figure of the book."""
    return FigureAxis(label=scale.label, unit=scale.unit, log=scale.log)


def stacked(
    id: str,
    title: str,
    x: FigureAxis,
    row: str,
    parts: Mapping[str, float],
    beside: Sequence[Mark] = (),
) -> FigureData:
    """Parts one after the other in one bar, and marks beside it."""
    bars = [Mark(kind="bar", label=part, x=[size], y=[row]) for part, size in parts.items()]
    axis = FigureAxis(names=(row,))
    return FigureData(id=id, title=title, x=x, y=axis, marks=[*bars, *beside])


def cell(value: Any, unknown: str = "") -> Any:
    """A value in a table: numbers stay numbers."""
    return value if isinstance(value, int | float) else unknown if value is None else str(value)


def facts(
    title: str, found: Mapping[str, object], units: Mapping[str, str] | None = None
) -> TableData:
    """A table of names with their values; `units` by name."""
    units = units or {}
    rows = [[name, value, units.get(name, "")] for name, value in found.items()]
    return TableData(title=title, header=("", "value", "unit"), rows=rows)
