"""What every simulator of the book answers: plain cells, moves and moments, which any screen draws.

A simulation over time has `bars`, drawn once: x is when one starts, width how long it takes, y its
row. One of a machine has frames with cells of their own, on a grid of unit squares (x to the right,
y down). One of a network has `places` and frames with moves between them. Every frame is a moment;
with bars it says only when.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.boundary.records import Record
from shardwise.errors import BadRequest

MOST_FRAMES = 512
"""Frames beyond this are left out; `Animation.frames_left_out` says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Record):
    """A rectangle."""

    x: float
    """Its left side: a column, or when it starts."""
    y: float
    """Its upper side: a row."""
    text: str
    """What it says."""
    kind: str
    """Of which kind it is."""
    width: float = 1.0
    """Columns, or how long it takes."""
    height: float = 1.0
    """Rows."""
    values: Mapping[str, float | bool] = field(default_factory=dict)
    """The numbers behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow(Record):
    """Something on its way from one place to another."""

    source: int
    """The number of the place that it comes from."""
    target: int
    """The number of the place that it goes to."""
    text: str
    """What it says."""
    kind: str
    """Of which kind it is."""
    bytes: float
    """Its bytes."""
    blocks: tuple[int, ...] = ()
    """The numbers of the places that its blocks come from, or that its partial sums are for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame(Record):
    """A moment."""

    at: float
    """When: a cycle, a round, or seconds."""
    label: str
    """What it is called."""
    cells: tuple[Cell, ...] = ()
    """Its cells."""
    moves: tuple[Arrow, ...] = ()
    """Its moves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve(Record):
    """A line over the whole simulation, or over one of its settings."""

    label: str
    """Its name."""
    x: tuple[float, ...]
    """Where its points are."""
    y: tuple[float, ...]
    """Their values."""


@dataclass(frozen=True, kw_only=True)
class Animation(Record):
    """A simulated machine: its settings with their units, what came out, and how it went."""

    id: str
    """Its name."""
    chapter: str
    """The chapter that it is of."""
    title: str
    """What is simulated."""
    source: str
    """Where the book has it."""
    settings: Mapping[str, Any]
    """What it was simulated with."""
    readings: Mapping[str, float]
    """What came out."""
    units: Mapping[str, str]
    """The units of settings and readings that have one."""
    x_label: str
    """What the frames' moments are."""
    x_unit: str
    """Their unit."""
    rows: tuple[str, ...] = ()
    """Names of the rows of the bars."""
    bars: tuple[Cell, ...] = ()
    """What takes how long, over time."""
    places: tuple[Cell, ...] = ()
    """The devices of a network."""
    reduces: bool = False
    """Whether its blocks are partial sums: each place has one of every block, and sends it away."""
    frames: tuple[Frame, ...] = ()
    """The moments."""
    frames_left_out: int = 0
    """Moments that are not kept."""
    curves: tuple[Curve, ...] = ()
    """Lines, on axes of their own."""
    curve_axes: tuple[str, str] = ("", "")
    """What these axes show, with their units."""
    notes: tuple[str, ...] = ()
    """What to know of it."""


def kinds_of(found: Animation) -> tuple[str, ...]:
    """The kinds of its cells and moves, in the order in which they come."""
    every = [*found.bars, *(mark for f in found.frames for mark in (*f.cells, *f.moves))]
    return tuple(dict.fromkeys(mark.kind for mark in every))


def check_whole(what: str, value: Any, least: int, most: int) -> int:
    """A setting that is a whole number within limits; BadRequest names them for another."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadRequest(f"{what} is {value}; it is a whole number from {least:,} to {most:,}")
    return value


def check_size(what: str, value: Any, least: float = 0.0) -> float:
    """A setting that is a finite number above `least`, or from it on where it is 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value < float("inf"):
        raise BadRequest(f"{what} is {value}; it is a finite number of at least {least:g}")
    return float(value)


def first_frames(frames: Sequence[Frame]) -> tuple[tuple[Frame, ...], int]:
    """As many frames as are kept, and how many are left out."""
    return tuple(frames[:MOST_FRAMES]), max(len(frames) - MOST_FRAMES, 0)
