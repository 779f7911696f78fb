"""The roofline of a chip with one product on it, or a product at several batches."""

from pathlib import Path

import numpy as np

from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.commands.tables.roofline import MatmulAnswer
from shardwise.roofline.chip_roofline import CHANNELS, attainable_flops


def draw_roofline(answer: MatmulAnswer, path: Path) -> None:
    """min(C, I W) against I, and a point for every M. Raises MissingPart without matplotlib and
    BadRequest where the file cannot be written."""
    rows, critical = answer.rows or (), answer.critical_intensity
    points = [(one.intensity, one.attainable_flops) for one in rows or (answer,)]
    at = [intensity for intensity, _ in points]
    x = np.geomspace(min(*at, critical) / 4, max(*at, critical) * 4, 200)
    attained = attainable_flops(x, answer.peak_flops, answer.bandwidth)
    figure = new_figure(8, 5)
    axes = figure.add_subplot()
    axes.plot(x, attained, label=CHANNELS[answer.level])
    axes.plot(*zip(*points, strict=True), "o", label="this product")
    for row in rows:
        axes.annotate(f"M={row.m:,}", (row.intensity, row.attainable_flops),
                      textcoords="offset points", xytext=(4, -10), fontsize=7)  # fmt: skip
    axes.axvline(critical, linestyle=":", color="grey", label=f"critical intensity {critical:.0f}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("intensity [FLOP/byte]")
    axes.set_ylabel("attainable [FLOP/s]")
    axes.set_title(answer.title.replace(", computed", ",\ncomputed"), fontsize=10)
    axes.legend(fontsize=8)
    save_figure(figure, path)
