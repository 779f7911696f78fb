"""The picture of a simulation: how latencies are spread, and queues over time."""

from pathlib import Path

import numpy as np

from shardwise.apps.cli.charts import legend, log_axis, titled
from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.commands.plan_serve.loaded import Simulated
from shardwise.planner.simulate.metrics import latencies, over_time
from shardwise.units import format_seconds

_MOST_POINTS = 2000


def plot_simulation(found: Simulated, path: Path) -> None:
    """Left: the share of requests (of tokens, for ITL) within a time; right: waiting and running
    requests over time, all replicas together."""
    figure = new_figure(11, 4.2)
    spread, load = figure.subplots(1, 2)
    times = latencies(found.outcome)
    for name in ("ttft", "tpot", "itl", "e2el"):
        values = getattr(times, name)
        values = np.sort(values[~np.isnan(values)])
        if values.size:
            shares = np.linspace(0, 1, min(values.size, _MOST_POINTS))
            spread.plot(np.quantile(values, shares), shares, label=name.upper())
    shown = [v for line in spread.get_lines() for v in line.get_xdata() if v > 0]
    log_axis(spread, "x", shown or [1.0], format_seconds)
    spread.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    spread.axhline(0.9, linewidth=0.8, color="grey", linestyle=":")
    titled(spread, "time", "share within", f"{found.plan.model}: simulated latencies")
    legend(spread)
    _loads(found, load)
    save_figure(figure, path)


def _loads(found: Simulated, axis) -> None:
    levels = over_time(found.outcome, _MOST_POINTS)
    for name in ("waiting", "running"):
        axis.plot(levels.seconds, getattr(levels, name), label=name, linewidth=1)
    title = f"{len(found.outcome.jobs):,} requests on {len(found.outcome.replicas)} replicas"
    titled(axis, "seconds", "requests, all replicas", title)
    legend(axis)
