"""What every simulator of the book answers: plain cells, moves and moments, which any screen draws.

A simulation over time has `bars`, drawn once: x is when one starts, width how long it takes, y its
row. One of a machine has frames with cells of their own, on a grid of unit squares (x to the right,
y down). One of a network has `places` and frames with moves between them. Every frame is a moment;
with bars it says only when.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwise.errors import BadRequest

MOST_FRAMES = 512
"""Frames beyond this are left out; `Animation.frames_left_out` says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A rectangle at (x, y): what it says, of which kind it is, and the numbers behind it."""

    x: float
    y: float
    text: str
    kind: str
    width: float = 1.0
    height: float = 1.0
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """Something on its way from one place to another, by their numbers, and its bytes."""

    source: int
    target: int
    text: str
    kind: str
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A moment `at` (a cycle, a round, seconds): what it is called, its cells and its moves."""

    at: float
    label: str
    cells: tuple[Cell, ...] = ()
    moves: tuple[Arrow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line over the whole simulation, or over one of its settings."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Animation:
    """A simulated machine: its settings with their units, what came out, and how it went.

    `x_unit` is that of the frames' moments, `rows` names the rows of the bars, `places` are the
    devices of a network as cells. `curves` have axes of their own.
    """

    id: str
    chapter: str
    title: str
    source: str
    settings: Mapping[str, Any]
    readings: Mapping[str, float]
    units: Mapping[str, str]
    x_label: str
    x_unit: str
    rows: tuple[str, ...] = ()
    bars: tuple[Cell, ...] = ()
    places: tuple[Cell, ...] = ()
    frames: tuple[Frame, ...] = ()
    frames_left_out: int = 0
    curves: tuple[Curve, ...] = ()
    curve_axes: tuple[str, str] = ("", "")
    notes: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its cells and moves, in the order in which they come."""
        every = [*self.bars, *(mark for f in self.frames for mark in (*f.cells, *f.moves))]
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
