"""What charts share: engineering ticks, labels that do not overlap, marks of what is chosen."""

from collections.abc import Callable, Sequence
from typing import Any

from shardwise.units import format_count

CHOSEN = {"marker": "*", "s": 170, "color": "#D55E00", "zorder": 5}
"""The mark of the chosen plan, in the vermilion of Okabe and Ito."""

TARGET = {"color": "#D55E00", "linestyle": ":", "linewidth": 1.2}
"""The line of a target that was asked for."""

_PLACES = ((6, 6), (6, -11), (-6, 6), (-6, -11), (6, 18), (-6, 18), (6, -23), (-6, -23))
"""Offsets of a label from its point in points of a font, those tried first in front."""


def log_axis(
    axis: Any, which: str, values: Sequence[float], text: Callable[[float], str] = format_count
) -> None:
    """A logarithmic axis with ticks at 1, 2 and 5 of each decade, at 1 alone over many of them,
    written as the tables write them; linear where all values are within a factor of 1.5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    low, high = min(values), max(values)
    line = axis.xaxis if which == "x" else axis.yaxis
    if high > 1.5 * low:
        getattr(axis, f"set_{which}scale")("log", base=10)
        subs = (1.0, 2.0, 5.0) if high < 50 * low else (1.0,)
        line.set_major_locator(LogLocator(base=10, subs=subs))
        line.set_minor_locator(NullLocator())
        line.set_minor_formatter(NullFormatter())
    line.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def ticks_at(axis: Any, values: Sequence[float]) -> None:
    """A logarithmic x axis with a tick at each of a few values, such as numbers of chips."""
    from matplotlib.ticker import NullLocator

    axis.set_xscale("log", base=2)
    shown = sorted(set(values))
    shown = shown[:: -(-len(shown) // 8)]
    axis.set_xticks(shown, [format_count(value) for value in shown])
    axis.xaxis.set_minor_locator(NullLocator())


def label_points(axis: Any, points: Sequence[tuple[float, float, str]]) -> None:
    """Texts beside points, each where it covers no other text and no point and stays inside; one
    for which there is no such place is left out. The important come first.

    The figure must be complete: from here on nothing in it moves.
    """
    from matplotlib.transforms import Bbox

    figure = axis.figure
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    renderer = figure.canvas.get_renderer()
    inside = axis.get_window_extent(renderer)
    centres = axis.transData.transform([(x, y) for x, y, _ in points])
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in centres]
    if axis.get_legend() is not None:
        taken.append(axis.get_legend().get_window_extent(renderer))
    for x, y, text in points:
        for right, up in _PLACES:
            note = axis.annotate(
                text,
                (x, y),
                fontsize=7,
                xytext=(right, up),
                textcoords="offset points",
                ha="left" if right > 0 else "right",
            )
            box = note.get_window_extent(renderer)
            free = inside.containsx(box.x0) and inside.containsx(box.x1)
            free &= inside.containsy(box.y0) and inside.containsy(box.y1)
            if free and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            note.remove()


def legend(axis: Any, **options: Any) -> None:
    """A legend where there is more than one thing to tell apart."""
    if len(axis.get_legend_handles_labels()[1]) > 1:
        axis.legend(**{"fontsize": 8, "frameon": False, **options})


def titled(axis: Any, x: str, y: str, title: str) -> None:
    """Names of both axes, a title and a faint grid."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_title(title, fontsize=10)
    axis.grid(visible=True, alpha=0.3)
