"""The pictures of `plan serve`: the front of speed and cost, and where a decode step goes (8.2)."""

from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.apps.cli.charts import CHOSEN, TARGET, label_points, legend, log_axis, titled
from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.units import format_count, format_seconds, sig

if TYPE_CHECKING:
    from shardwise.commands.plan_serve.serve import ServePlanned
    from shardwise.planner.serve.limits import Breakdown

PARTS = ("matmuls", "kv", "flops", "network", "other", "engine")


def plot_serving(answer: "ServePlanned", path: Path) -> None:
    """Left: cost over the time per output token, the answer and its target marked. Right: a decode
    step over the sequences in flight, each part alone at peak rates, stacked, and the expected."""
    figure = new_figure(11, 4.2)
    left, right = figure.subplots(1, 2)
    _parts(right, answer.breakdown(), f"decode step on {answer.plan.slice}")
    _plot_front(left, answer)
    save_figure(figure, path)


def _plot_front(axis, answer: "ServePlanned") -> None:
    points = answer.front
    usd = all(p.usd_per_million_tokens is not None for p in points)
    costs = [(p.usd_per_million_tokens or 0.0) if usd else p.chips for p in points]
    times = [p.tpot_seconds or 0.0 for p in points]
    axis.plot(times, costs, marker="o", markersize=4, color="tab:blue")
    axis.scatter(times[-1:], costs[-1:], **CHOSEN)
    target = answer.best.held.goal.tpot
    if target < float("inf"):
        axis.axvline(target, **TARGET)
    log_axis(axis, "x", [*times, *([target] if target < float("inf") else [])], format_seconds)
    log_axis(axis, "y", costs, _usd if usd else format_count)
    axis.margins(x=0.15, y=0.15)
    unit = "dollars per million tokens" if usd else "chips"
    titled(axis, "time per output token", unit, f"{answer.model}: speed and cost")
    ends = [(times[-1], costs[-1], "the answer")]
    if target < float("inf"):
        ends.append((target, max(costs), "target"))
    label_points(axis, ends)


def _usd(value: float) -> str:
    return f"${sig(value)}"


def _parts(axis, step: "Breakdown", title: str) -> None:
    parts = step.matmuls, step.kv, step.flops, step.network, step.other, step.engine
    axis.stackplot(step.running, *parts, labels=PARTS, alpha=0.8)
    axis.plot(step.running, step.expected, color="black", label="expected")
    axis.yaxis.set_major_formatter(lambda value, _: format_seconds(value) if value else "0")
    titled(axis, "sequences in flight", "each part alone at peak rates", title)
    legend(axis, loc="upper left")
