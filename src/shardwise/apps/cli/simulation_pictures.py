"""--plot of a simulator: its bars as a chart over time, else its curves. PNG or SVG."""

from pathlib import Path
from typing import Any

from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.apps.cli.pipeline_chart import COLOURS
from shardwise.book.simulators import Animation

_MORE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#555555")
_NUMBERED = 200
"""Bars that have their texts in them at most."""


def draw_simulation(found: Animation, path: Path) -> None:
    """Write the picture. Raises MissingPart without matplotlib and BadRequest where the file cannot
    be written."""
    figure = new_figure(10, 1.6 + 0.42 * len(found.rows) if found.bars else 5)
    axes = figure.add_subplot()
    (_bars if found.bars else _curves)(axes, found)
    axes.set_title(f"{found.title}\n{found.source}", fontsize=10)
    axes.legend(fontsize=8)
    save_figure(figure, path)


def _bars(axes: Any, found: Animation) -> None:
    kinds = dict.fromkeys(bar.kind for bar in found.bars)
    for number, kind in enumerate(kinds):
        colour = COLOURS.get(kind, _MORE[number % len(_MORE)])
        bars = [bar for bar in found.bars if bar.kind == kind]
        axes.barh(
            [bar.y + bar.height / 2 for bar in bars],
            [bar.width for bar in bars],
            [0.9 * bar.height for bar in bars],
            [bar.x for bar in bars],
            color=colour,
            edgecolor="white",
            linewidth=0.4,
            label=kind,
        )
    if len(found.bars) <= _NUMBERED:
        for bar in found.bars:
            at = (bar.x + bar.width / 2, bar.y + bar.height / 2)
            axes.annotate(bar.text, at, ha="center", va="center", fontsize=7)
    axes.set_ylim(len(found.rows), 0)
    axes.set_yticks([n + 0.5 for n in range(len(found.rows))], found.rows)
    axes.set_xlabel(f"{found.x_label} [{found.x_unit}]")


def _curves(axes: Any, found: Animation) -> None:
    for curve in found.curves:
        axes.plot(curve.x, curve.y, label=curve.label, marker="." * (len(curve.x) < 20))
    axes.set_xlabel(found.curve_axes[0])
    axes.set_ylabel(found.curve_axes[1])
