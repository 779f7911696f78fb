"""A pipeline timeline as a Gantt chart: one row per rank, time across, PNG or SVG."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.errors import BadRequest
from shardwise.planner.price.timeline import Event, Timeline

COLOURS = {
    "F": "#0072B2",
    "B": "#E69F00",
    "W": "#009E73",
    "optimizer": "#CC79A7",
    "reduce": "#555555",
}
"""Colours that the colour-blind tell apart (Okabe and Ito, Color Universal Design, 2008)."""

DARK = frozenset({"F", "W"})
"""Kinds whose full colour needs white letters."""

MOST_BARS = 40_000
_WIDTH = 13.0
_ROW = 0.42


def draw_pipeline(line: Timeline, path: Path) -> None:
    """Draw compute passes, updates and gradient reductions of every rank.

    Forward, backward and weight passes have a colour each, chunks after the first a paler one;
    microbatch numbers stand in the bars that are wide enough. The thin bar below a row is its
    network stream. Sends are left out: they show as the gaps before their receivers. Raises
    MissingPart without matplotlib, and BadRequest for a file that cannot be written or a timeline
    with too many passes to be told apart.
    """
    bars = [event for event in line.events if event.stream != "send"]
    if len(bars) > MOST_BARS:
        raise BadRequest(
            f"the timeline has {len(bars):,} passes; at most {MOST_BARS:,} are drawn, so draw "
            "fewer microbatches, or write a trace and open it in ui.perfetto.dev"
        )
    ranks = line.schedule.stages
    figure = new_figure(_WIDTH, 1.6 + _ROW * ranks)
    axes = figure.subplots()
    scale, unit = _unit(line.makespan)
    _bars(axes, bars, scale)
    _numbers(axes, bars, scale, line.makespan)
    axes.set_xlim(0, line.makespan * scale)
    axes.set_ylim(ranks - 0.4, -0.6)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.set_xlabel(f"time [{unit}]")
    axes.set_title(title_of(line))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    _legend(figure, axes, line, bars)
    save_figure(figure, path)


def title_of(line: Timeline) -> str:
    """Schedule, stages, microbatches and bubble share in one line."""
    schedule = line.schedule
    chunks = f", {schedule.chunks} chunks per stage" if schedule.chunks > 1 else ""
    return (
        f"{schedule.kind}: {schedule.stages} stages{chunks}, {schedule.microbatches} microbatches, "
        f"bubble {line.bubble_share:.1%}"
    )


def _bars(axes: Any, bars: list[Event], scale: float) -> None:
    """One collection per rank, kind and chunk: drawing thousands of single bars takes minutes."""
    rows: dict[tuple[int, str, int], list[tuple[float, float]]] = defaultdict(list)
    for event in bars:
        span = (event.start * scale, event.seconds * scale)
        rows[event.rank, event.kind, event.chunk].append(span)
    for (rank, kind, chunk), spans in rows.items():
        low, height = (rank + 0.36, 0.14) if kind == "reduce" else (rank - 0.36, 0.7)
        axes.broken_barh(
            spans,
            (low, height),
            facecolor=_shade(COLOURS[kind], chunk),
            edgecolor="white",
            linewidth=0.4,
        )


def _numbers(axes: Any, bars: list[Event], scale: float, makespan: float) -> None:
    """The microbatch in each pass that has room for it, at 0.07 inch per digit of 7 points."""
    inches = (_WIDTH - 1.5) / makespan
    for event in bars:
        if event.microbatch < 0:
            continue
        text = str(event.microbatch)
        if event.seconds * inches >= 0.07 * len(text):
            dark = event.kind in DARK and event.chunk == 0
            axes.text(
                (event.start + event.end) / 2 * scale,
                event.rank,
                text,
                ha="center",
                va="center",
                fontsize=7,
                color="white" if dark else "black",
            )


def _legend(figure: Any, axes: Any, line: Timeline, bars: list[Event]) -> None:
    split = line.schedule.splits_backward
    names = {
        "F": "forward",
        "B": "backward, input gradient" if split else "backward",
        "W": "backward, weight gradient",
        "optimizer": "optimizer",
        "reduce": "gradient reduction (network)",
    }
    shown = {event.kind for event in bars}
    labels = [(COLOURS[kind], name) for kind, name in names.items() if kind in shown]
    if line.schedule.chunks > 1:
        labels.append((_shade(COLOURS["F"], 1), "paler: later chunk"))
    empty = [axes.barh([0], [0], color=colour, label=name) for colour, name in labels]
    figure.legend(handles=empty, loc="outside lower center", ncols=len(empty), frameon=False)


def _shade(colour: str, chunk: int) -> str:
    """Paler for each further chunk, never white."""
    keep = 1.0 if chunk <= 0 else max(0.25, 0.6 - 0.1 * (chunk - 1))
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * keep):02x}" for part in parts)


def _unit(makespan: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "s"), (1e3, "ms")):
        if makespan * scale >= 1:
            return scale, unit
    return 1e6, "µs"
