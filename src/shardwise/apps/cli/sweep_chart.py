"""The picture of a sweep: speed and utilisation over chips, and the front of time and cost."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from shardwise.apps.cli.charts import (
    CHOSEN,
    TARGET,
    label_points,
    legend,
    log_axis,
    ticks_at,
    titled,
)
from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.commands.plan_train.points import SweepPoint, chosen_point
from shardwise.units import format_usd, sig


def plot_sweep(
    points: Sequence[SweepPoint], model: str, path: Path, days: float | None = None
) -> None:
    """Left: tokens/s over chips with perfect scaling dashed; middle: MFU, labelled by what binds.

    With a run's length also its cost over its days, the front joined by a line, the deadline dotted
    and the cheapest point within it a star.
    """
    planned = [p for p in points if p.answer is not None]
    run = any(p.usd is not None for p in planned)
    figure = new_figure(15 if run else 10, 4.2)
    speed, share, *cost = figure.subplots(1, 3 if run else 2)
    chosen = None if days is None else chosen_point(planned, "cost", days)
    _speed(speed, planned, model)
    _utilisation(share, planned)
    for axis, height in ((speed, _rate), (share, _mfu)):
        ticks_at(axis, [p.piece.chips for p in planned])
        if chosen is not None:
            axis.scatter([chosen.piece.chips], [height(chosen)], **CHOSEN)
    if cost:
        _cost(cost[0], planned, days, chosen)
    label_points(share, _binding(planned))
    if cost:
        priced = sorted((p for p in planned if p.usd is not None), key=lambda p: not p.on_front)
        label_points(cost[0], [(p.days or 0.0, p.usd or 0.0, str(p.piece)) for p in priced])
    save_figure(figure, path)


def _speed(axis: Any, planned: Sequence[SweepPoint], model: str) -> None:
    series = [list(group) for _, group in groupby(planned, _series)]
    for same in series:
        chips, rates = [p.piece.chips for p in same], [_rate(p) for p in same]
        first = same[0]
        label = f"{first.piece.chip.id}, batch {first.batch}, {first.sequence_length} tokens"
        (line,) = axis.plot(chips, rates, marker="o", label=label)
        perfect = [rates[0] * n / chips[0] for n in chips]
        axis.plot(chips, perfect, linestyle="--", linewidth=1, color=line.get_color())
    log_axis(axis, "y", [_rate(p) for p in planned])
    titled(axis, "chips", "tokens per second", f"{model}: predicted (expected) speed")
    legend(axis, title="dashed: perfect scaling")


def _utilisation(axis: Any, planned: Sequence[SweepPoint]) -> None:
    for _, group in groupby(planned, _series):
        same = list(group)
        axis.plot([p.piece.chips for p in same], [_mfu(p) for p in same], marker="o")
    axis.set_ylim(0, 1.15 * max(map(_mfu, planned)))
    axis.margins(x=0.12)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    peaks = " or ".join(sorted({p.answer.plan.dtypes.compute for p in planned if p.answer}))
    titled(axis, "chips", f"MFU of the {peaks} peak", "utilisation, and what binds")


def _binding(planned: Sequence[SweepPoint]) -> list[tuple[float, float, str]]:
    """What binds, at the first point of each series and wherever it changes; of series that start
    at the same chips and the same bound once."""
    said: dict[tuple[int, str], float] = {}
    for _, group in groupby(planned, _series):
        before = ""
        for p in group:
            bound = p.answer.estimate.bound_by() if p.answer else ""
            if bound != before:
                said.setdefault((p.piece.chips, bound), _mfu(p))
            before = bound
    return [(chips, height, bound) for (chips, bound), height in said.items()]


def _cost(
    axis: Any, planned: Sequence[SweepPoint], days: float | None, chosen: SweepPoint | None
) -> None:
    priced = [p for p in planned if p.usd is not None]
    front = sorted((p for p in priced if p.on_front), key=lambda p: p.days or 0.0)
    axis.scatter([p.days for p in priced], [p.usd for p in priced], color="C0")
    if len(front) > 1:
        axis.plot([p.days for p in front], [p.usd for p in front], label="front")
    if days is not None:
        axis.axvline(days, label=f"deadline, {sig(days)} days", **TARGET)
    if chosen is not None and chosen.usd is not None:
        axis.scatter([chosen.days], [chosen.usd], label="cheapest within it", **CHOSEN)
    log_axis(axis, "x", [p.days or 1.0 for p in priced])
    axis.yaxis.set_major_formatter(lambda value, _: format_usd(value))
    axis.margins(x=0.2, y=0.15)
    titled(axis, "days", "cost of the run", "whole run")
    legend(axis)


def _rate(point: SweepPoint) -> float:
    return point.answer.tokens_per_second if point.answer else 0.0


def _mfu(point: SweepPoint) -> float:
    return point.answer.mfu if point.answer else 0.0


def _series(point: SweepPoint) -> tuple[str, str, int]:
    return point.piece.chip.id, point.batch, point.sequence_length
