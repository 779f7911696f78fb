"""The pictures of `plan serve`: the front of speed and cost, and where a decode step goes (8.2)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.apps.cli.pictures import new_figure, save_figure

if TYPE_CHECKING:
    from shardwise.verbs.plan_serve import ServePlanned

PARTS = ("matmuls", "kv", "flops", "network", "other", "engine")


def plot_serving(answer: "ServePlanned", path: Path) -> None:
    """Left: cost over the time per output token, the answer and its target marked. Right: a decode
    step over the sequences in flight, each part alone at peak rates, stacked, and the expected."""
    figure = new_figure(11, 4.2)
    left, right = figure.subplots(1, 2)
    _plot_front(left, answer)
    _parts(right, answer.breakdown()["curve"], f"decode step on {answer.plan.slice}")
    save_figure(figure, path)


def _plot_front(axis, answer: "ServePlanned") -> None:
    points = answer.result["front"]
    usd = all(p["usd_per_million_tokens"] is not None for p in points)
    costs = [p["usd_per_million_tokens"] if usd else p["chips"] for p in points]
    times = [1e3 * p["tpot_seconds"] for p in points]
    axis.plot(times, costs, marker="o", markersize=4, color="tab:blue")
    axis.plot(times[-1:], costs[-1:], marker="*", markersize=14, color="tab:red")
    axis.annotate("the answer", (times[-1], costs[-1]), fontsize=8, xytext=(-4, 10),
                  textcoords="offset points", ha="right")  # fmt: skip
    target = answer.best.held.goal.tpot
    if target < float("inf"):
        axis.axvline(1e3 * target, color="gray", linestyle="--", linewidth=1)
        axis.annotate("target", (1e3 * target, max(costs)), fontsize=8, xytext=(-4, 0),
                      textcoords="offset points", ha="right")  # fmt: skip
    axis.margins(x=0.2, y=0.2)
    unit = "USD per million tokens" if usd else "chips"
    _label(axis, unit, f"{answer.result['model']}: predicted front of speed and cost")


def _parts(axis, curve: Sequence[Mapping[str, float]], title: str) -> None:
    running = [p["running"] for p in curve]
    axis.stackplot(running, *([1e3 * p[n] for p in curve] for n in PARTS), labels=PARTS, alpha=0.8)
    axis.plot(running, [1e3 * p["expected"] for p in curve], color="black", label="expected")
    axis.set_xlabel("sequences in flight")
    axis.set_ylabel("ms, each part alone at peak rates")
    axis.set_title(title, fontsize=10)
    axis.legend(fontsize=8, loc="upper left")


def _label(axis, y: str, title: str) -> None:
    axis.set_xlabel("ms per output token")
    axis.set_ylabel(y)
    axis.set_title(title, fontsize=10)
    axis.grid(visible=True, alpha=0.3)
