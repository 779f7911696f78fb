"""--plot of a simulator: its bars as a chart over time, else its curves. PNG or SVG."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.apps.cli.pipeline_chart import COLOURS
from shardwise.book.simulators import Animation

_MORE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#555555")
_DARK = frozenset(("#0072B2", "#009E73", "#D55E00", "#555555"))
"""Colours that need white letters."""
_NUMBERED = 200
"""Bars that have their texts in them at most."""


def draw_simulation(found: Animation, path: Path) -> None:
    """Write the picture. Raises MissingPart without matplotlib and BadRequest where the file cannot
    be written."""
    bars, curves = 1.6 + 0.42 * len(found.rows), 4.0
    parts = [(_bars, bars)] * bool(found.bars) + [(_curves, curves)] * bool(found.curves)
    figure = new_figure(10, sum(height for _, height in parts))
    all_axes = figure.subplots(
        len(parts), squeeze=False, height_ratios=[height for _, height in parts]
    )[:, 0]
    for (draw, _), axes in zip(parts, all_axes, strict=True):
        draw(axes, found)
        axes.legend(fontsize=8, loc="best")
    all_axes[0].set_title(f"{found.title}\n{found.source}", fontsize=10)
    save_figure(figure, path)


def _bars(axes: Any, found: Animation) -> None:
    kinds = dict.fromkeys(bar.kind for bar in found.bars)
    for kind in kinds:
        colour = _colour(kind, list(kinds))
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
            dark = _colour(bar.kind, list(kinds)) in _DARK
            colour = "white" if dark else "black"
            axes.annotate(bar.text, at, ha="center", va="center", fontsize=7, color=colour)
    axes.set_ylim(len(found.rows), 0)
    axes.set_yticks([n + 0.5 for n in range(len(found.rows))], found.rows)
    axes.set_xlabel(f"{found.x_label} [{found.x_unit}]")


def _colour(kind: str, kinds: list[str]) -> str:
    return COLOURS.get(kind, _MORE[kinds.index(kind) % len(_MORE)])


def _curves(axes: Any, found: Animation) -> None:
    for curve in found.curves:
        axes.plot(curve.x, curve.y, label=curve.label, marker="." * (len(curve.x) < 20))
    axes.set_xlabel(found.curve_axes[0])
    axes.set_ylabel(found.curve_axes[1])
    if all(later == 2 * x for curve in found.curves for x, later in pairwise(curve.x)):
        axes.set_xscale("log", base=2)
