"""The picture of a sweep: speed and utilisation over chips, and the front of time and cost."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.workflows.sweep import SweepPoint


def plot_sweep(points: Sequence[SweepPoint], model: str, path: Path) -> None:
    """Left: tokens/s over chips with perfect scaling dashed; right: MFU, labelled by what binds.

    With a run's length also its cost over its days, the front joined by a line.
    """
    planned = [p for p in points if p.answer is not None]
    run = any(p.usd is not None for p in planned)
    figure = new_figure(15 if run else 10, 4.2)
    axes = figure.subplots(1, 3 if run else 2)
    for (chip, batch, length), group in groupby(planned, _series):
        same = list(group)
        label = f"{chip}, batch {batch}, {length} tokens"
        chips = [p.piece.chips for p in same]
        rates = [p.answer.tokens_per_second for p in same if p.answer]
        (line,) = axes[0].plot(chips, rates, marker="o", label=label)
        perfect = [rates[0] * n / chips[0] for n in chips]
        axes[0].plot(chips, perfect, linestyle="--", linewidth=1, color=line.get_color())
        axes[1].plot(chips, [p.answer.mfu for p in same if p.answer], marker="o")
        for p in same:
            if p.answer:
                text = p.answer.estimate.bound_by()
                where = (p.piece.chips, p.answer.mfu)
                axes[1].annotate(text, where, fontsize=7, xytext=(3, 4), textcoords="offset points")
    _label(axes[0], "chips", "tokens per second", f"{model}: predicted (expected) speed")
    axes[0].set_yscale("log", base=10)
    axes[0].legend(fontsize=8, title="dashed: perfect scaling")
    _label(axes[1], "chips", "MFU", "utilisation, and what binds")
    axes[1].set_ylim(0, 1.15 * max(p.answer.mfu for p in planned if p.answer))
    for axis in axes[:2]:
        axis.set_xscale("log", base=2)
    if run:
        _cost(axes[2], planned)
    save_figure(figure, path)


def _cost(axis, planned: Sequence[SweepPoint]) -> None:
    priced = [p for p in planned if p.usd is not None]
    axis.scatter([p.days for p in priced], [(p.usd or 0.0) / 1e6 for p in priced])
    front = sorted((p for p in priced if p.on_front), key=lambda p: p.days or 0.0)
    axis.plot([p.days for p in front], [(p.usd or 0.0) / 1e6 for p in front], label="front")
    for p in priced:
        where = (p.days or 0.0, (p.usd or 0.0) / 1e6)
        axis.annotate(str(p.piece), where, fontsize=7, xytext=(3, 4), textcoords="offset points")
    axis.margins(x=0.15)
    axis.legend(fontsize=8)
    _label(axis, "days", "million USD", "whole run")


def _label(axis, x: str, y: str, title: str) -> None:
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_title(title, fontsize=10)
    axis.grid(visible=True, alpha=0.3)


def _series(point: SweepPoint) -> tuple[str, str, int]:
    return point.piece.chip.id, point.batch, point.sequence_length
