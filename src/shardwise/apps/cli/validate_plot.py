"""The picture of `shardwise validate`: predicted against measured seconds, on log axes."""

from pathlib import Path

from shardwise.apps.cli.charts import legend, log_axis, titled
from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.commands.tables.validate import TrainingValidated
from shardwise.units import format_seconds

MARKERS = "osD^vPX*"


def plot(found: TrainingValidated, path: Path) -> None:
    """One point per run, coloured by chip, marked by software; bands of 10 % and 25 %.

    Raises MissingPart without matplotlib and BadRequest where the file cannot be written.
    """
    figure = new_figure(8, 7)
    axes = figure.subplots()
    seconds = [s for row in found.rows for s in (row.measured, row.predicted)]
    ends = [min(seconds) / 1.3, max(seconds) * 1.3]
    for share, alpha in ((0.25, 0.12), (0.10, 0.18)):
        low, high = ([end * (1 + sign * share) for end in ends] for sign in (-1, 1))
        axes.fill_between(ends, low, high, color="grey", alpha=alpha, lw=0, label=f"{share:.0%}")
    axes.plot(ends, ends, color="grey", lw=0.8)
    chips = dict.fromkeys(row.chip for row in found.rows)
    stacks = dict.fromkeys(row.stack for row in found.rows)
    for i, chip in enumerate(chips):
        for j, stack in enumerate(stacks):
            some = [r for r in found.rows if (r.chip, r.stack) == (chip, stack)]
            if some:
                axes.scatter(
                    [r.measured for r in some],
                    [r.predicted for r in some],
                    s=22,
                    color=f"C{i % 10}" if i < 10 else str(0.2 + 0.1 * (i - 10) % 0.7),
                    marker=MARKERS[j % len(MARKERS)],
                    label=f"{chip}, {stack}",
                )
    for which in "xy":
        log_axis(axes, which, ends, format_seconds)
    axes.set(xlim=ends, ylim=ends)
    titled(axes, "measured per step", "predicted per step", f"{len(found.rows)} training runs")
    legend(axes)
    save_figure(figure, path)
