"""The pictures of `plan serve`: the front of speed and cost, and where a decode step goes (8.2)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.planner.serve.answer import mesh_text

PARTS = ("matmuls", "kv", "flops", "network", "other", "engine")


def plot_servers(result: Mapping[str, Any], model: str, path: Path) -> None:
    """Over the time per output token: answer tokens per second and chip, and, with a price, dollars
    per million of them; one colour a slice."""
    points = result["front"]
    priced = [p for p in points if p["usd_per_million_tokens"]["output"] is not None]
    figure = new_figure(11 if priced else 6, 4.2)
    axes = figure.subplots(1, 2 if priced else 1, squeeze=False)[0]
    _by_slice(axes[0], points, lambda p: p["tokens_per_second_per_chip"])
    _label(axes[0], "tokens per second and chip", f"{model}: predicted (expected) front")
    if priced:
        _by_slice(axes[1], priced, lambda p: p["usd_per_million_tokens"]["output"])
        _label(axes[1], "USD per million answer tokens", "cost, prompts apart")
    save_figure(figure, path)


def _by_slice(axis, points: Sequence[Mapping[str, Any]], height) -> None:
    for name in dict.fromkeys(p["slice"] for p in points):
        mine = [p for p in points if p["slice"] == name]
        axis.scatter(
            [1e3 * p["tpot_seconds"]["expected"] for p in mine],
            [height(p) for p in mine],
            label=name,
            s=16,
        )
    axis.set_xscale("log", base=10)
    axis.set_yscale("log", base=10)
    axis.legend(fontsize=8)


def plot_fleets(result: Mapping[str, Any], model: str, path: Path) -> None:
    """Left: cost over the time per output token. Right: a decode step over the sequences in flight,
    each part alone at peak rates, stacked, and the expected step."""
    figure = new_figure(11, 4.2)
    left, right = figure.subplots(1, 2)
    usd = result["usd_per_million_tokens"]["all"] is not None
    unit = "usd_per_million_tokens" if usd else "chip_hours_per_million_tokens"
    times = [1e3 * p["tpot_seconds"] for p in result["front"]]
    costs = [p[unit]["all"] for p in result["front"]]
    left.plot(times, costs, marker="o", markersize=4)
    for p, time, cost in zip(result["front"], times, costs, strict=True):
        text = f"{p['slice']} {mesh_text(p['mesh'])}"
        left.annotate(text, (time, cost), fontsize=6, xytext=(3, 4), textcoords="offset points")
    left.set_xscale("log", base=10)
    left.set_yscale("log", base=10)
    left.margins(x=0.2)
    words = "USD" if usd else "chip-hours"
    _label(left, f"{words} per million tokens", f"{model}: predicted front of time and cost")
    _parts(right, result["breakdown_curve"], f"decode step on {result['slice']}")
    save_figure(figure, path)


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
