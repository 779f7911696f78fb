"""Predicted against measured by class, left out, with the ranges drawn: docs/img/accuracy_*.svg and
the table of classes in docs/accuracy.md.

A training run is predicted without its publisher and software, a serving run without its model
(`left_out_runs.csv`, `left_out.json`). A picture's description has a digest of the numbers that it
draws, by which a test knows that it is of today's records.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from made import put, table
from matplotlib import rc_context
from matplotlib.figure import Figure
from range_scores import LeftOut, left_out

from shardwise.evidence.serving.runs import PUBLISHED_SERVING, ServingRun, read_serving
from shardwise.evidence.serving.validate import read_left_out

DOCS = Path(__file__).parents[1] / "docs"
PAGE, IMAGES = DOCS / "accuracy.md", DOCS / "img"
GENERATION, VENDOR = 100, 50
"""Runs that a generation of chips needs for a class of its own, and the rest of its vendor."""
INSIDE, OUTSIDE, RANGE = "#1f6fb4", "#d9480f", "#c9d3dd"
TICKS = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
BOUNDS = {"step": (0.4, 4.2), "tpot": (0.3, 5.5), "ttft": (0.1, 12.0)}
"""Of measured over predicted; what lies beyond is drawn at the edge."""
TIMES = {"tpot": "time per output token", "ttft": "time to the first token"}
Rows = list[tuple[float, float, float]]
"""Low end, high end, measured: each over what was predicted."""


@cache
def training() -> dict[str, Rows]:
    """Of every class its runs, from the one that is most overestimated on."""
    found = defaultdict(list)
    for one in left_out():
        said = one.unseen
        ends = said.low / said.predicted, said.high / said.predicted
        found[_class(one)].append((*ends, one.run.measured_seconds / said.predicted))
    return {name: sorted(found[name], key=lambda row: row[2]) for name in sorted(found)}


def _class(one: LeftOut) -> str:
    """Dense or routed, and the generation of chips, its vendor or all others: the first that has
    runs enough."""
    chips, chip = _chips(), one.run.piece.chip
    kind = "mixtures" if one.run.moe else "dense"
    for name, least in ((chip.generation, GENERATION), (chip.vendor, VENDOR)):
        if chips[name] >= least:
            return f"{kind}, {name}"
    return f"{kind}, others"


@cache
def _chips() -> Counter[str]:
    """Runs by generation, and by vendor those of its generations that have too few."""
    chips = [one.run.piece.chip for one in left_out()]
    found = Counter(chip.generation for chip in chips)
    return found + Counter(c.vendor for c in chips if found[c.generation] < GENERATION)


@cache
def serving() -> dict[str, tuple[ServingRun, list[dict[str, float]]]]:
    """Of every model one run, and of all its runs both measured times and the ends of the range of
    the first, over those predicted without the model. Dense models come first."""
    said, runs = read_left_out(), read_serving(PUBLISHED_SERVING).runs
    place = {name: i for i, name in enumerate(said.ids)}
    told = [run.id for run in runs if run.ttft is not None]
    place_told = {name: i for i, name in enumerate(told)}
    found: dict[str, tuple[ServingRun, list[dict[str, float]]]] = {}
    for run in sorted(runs, key=lambda run: (run.mixture, run.model)):
        at = place[run.id]
        row = dict(zip(("low", "high"), said.intervals["model"][at].tolist(), strict=True))
        row["tpot"] = run.tpot / said.tpot["model"][at]
        if run.ttft is not None:
            row["ttft"] = run.ttft / said.ttft["model"][at]
            ends = said.first_intervals["model"][place_told[run.id]].tolist()
            row |= dict(zip(("soonest", "latest"), ends, strict=True))
        found.setdefault(run.model, (run, []))[1].append(row)
    return found


def digest(drawn: Any) -> str:
    """Twelve digits for the numbers of a picture."""
    return hashlib.sha256(json.dumps(drawn).encode()).hexdigest()[:12]


def numbers() -> dict[str, Any]:
    """What each picture draws."""
    shown = {name: [sorted(row.items()) for row in rows] for name, (_, rows) in serving().items()}
    return {"training": training(), "serving": shown}


def told() -> str:
    """The table of the page."""
    header = ["training, its publisher and software left out", "runs", "median error", "bias"]
    lines = [_line(name, [row[2] for row in rows], rows) for name, rows in training().items()]
    text = table([*header, "90th percentile", "inside the range"], lines)
    lines = []
    for mixture, kind in enumerate(("dense", "mixtures")):
        rows = [r for run, all_ in serving().values() if run.mixture == bool(mixture) for r in all_]
        ranges = [(row["low"], row["high"], row["tpot"]) for row in rows]
        lines.append(_line(f"{kind}: {TIMES['tpot']}", [row["tpot"] for row in rows], ranges))
        first = [(r["soonest"], r["latest"], r["ttft"]) for r in rows if "ttft" in r]
        lines.append(_line(f"{kind}: {TIMES['ttft']}", [row[2] for row in first], first))
    header = ["serving, its model left out", *header[1:], "90th percentile", "inside the range"]
    return f"{text}\n\n{table(header, lines)}"


def _line(name: str, ratios: Sequence[float], ranges: Rows) -> list[str]:
    errors = 1 / np.array(ratios) - 1
    sizes = np.abs(errors)
    inside = np.mean([low <= x <= high for low, high, x in ranges])
    figures = (
        f"{np.median(sizes):.1%}",
        f"{np.median(errors):+.1%}",
        f"{np.quantile(sizes, 0.9):.0%}",
    )
    return [name, f"{len(errors):,}", *figures, f"{inside:.0%}"]


def draw_training() -> Figure:
    """A panel of each class: of every run its range, and a dot where it was measured."""
    figure = Figure(figsize=(9.6, 10.4), layout="constrained")
    panels = figure.subplots(-(-len(training()) // 2), 2, sharey=True).flat
    for panel, (name, rows) in zip(panels, training().items(), strict=False):
        low, high, measured = np.array(rows).T
        at, within = np.arange(len(rows)), (low <= measured) & (measured <= high)
        _strokes(panel, at, low, high, "butt", color=RANGE, linewidth=max(0.6, 170 / len(rows)))
        for some, colour in ((within, INSIDE), (~within, OUTSIDE)):
            dots = measured[some].clip(*BOUNDS["step"])
            _strokes(panel, at[some], dots, dots * 1.001, "round", color=colour, linewidth=2.6)
        panel.set_title(f"{name}: {len(rows)} runs, {within.mean():.0%} inside", fontsize=10)
        panel.set_xticks([])
        panel.margins(x=0.02)
        _ratio_axis(panel, "y", BOUNDS["step"])
    figure.supylabel("measured / predicted seconds per step (1: as predicted)")
    figure.suptitle("Published training runs, each predicted without its publisher and software")
    return figure


def _strokes(panel, at, low, high, cap: str, **style: Any) -> None:
    """Vertical strokes in one path, which takes a fifth of what as many lines take in a file."""
    heights = np.array([low, high, np.full(len(at), np.nan)])
    panel.plot(np.repeat(at, 3), heights.T.ravel(), solid_capstyle=cap, **style)


def draw_serving() -> Figure:
    """A row of each model: range, middle 80 % of its runs, median; TPOT beside TTFT."""
    figure = Figure(figsize=(9.6, 6.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    models = [*serving()]
    for panel, (key, title) in zip(panels, TIMES.items(), strict=True):
        for at, (_, rows) in enumerate(serving().values()):
            _model(panel, at, rows, key)
        _ratio_axis(panel, "x", BOUNDS[key])
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("measured / predicted (1: as predicted)", fontsize=9)
    labels = [f"{name} ({len(serving()[name][1])})" for name in models]
    panels[0].set_yticks(range(len(models)), labels, fontsize=9)
    panels[0].set_ylim(len(models) - 0.4, -0.6)
    figure.suptitle("Published serving runs, each predicted without its model (runs)")
    return figure


def _model(panel, at: int, rows: Sequence[dict[str, float]], key: str) -> None:
    found = [row[key] for row in rows if key in row]
    if not found:
        return
    least, low, middle, high, most = np.quantile(found, [0, 0.1, 0.5, 0.9, 1]).clip(*BOUNDS[key])
    if key == "tpot":
        ends = rows[0]["high"] - rows[0]["low"]
        panel.barh(at, ends, left=rows[0]["low"], height=0.8, color=RANGE)
    panel.hlines(at, least, most, color=INSIDE, linewidth=0.8)
    panel.hlines(at, low, high, color=INSIDE, linewidth=4)
    panel.plot([middle], [at], "o", color="white", markeredgecolor=INSIDE, markersize=6)


def _ratio_axis(panel, axis: str, bounds: tuple[float, float]) -> None:
    """A logarithmic axis of ratios, with a line where predictions are right."""
    lines = {"y": panel.axhline, "x": panel.axvline}
    panel.set(**{f"{axis}scale": "log", f"{axis}lim": bounds})
    lines[axis](1, color="#444", linewidth=0.8, zorder=0.5)
    shown = [tick for tick in TICKS if bounds[0] <= tick <= bounds[1]]
    panel.set(**{f"{axis}ticks": shown, f"{axis}ticklabels": [f"{t:g}" for t in shown]})
    panel.minorticks_off()
    panel.tick_params(labelsize=8)


if __name__ == "__main__":
    put(PAGE, __file__, told())
    print(told())
    for name, drawn in numbers().items():
        path = IMAGES / f"accuracy_{name}.svg"
        said = {"Date": None, "Description": f"numbers {digest(drawn)}"}
        with rc_context({"svg.hashsalt": "shardwise", "svg.fonttype": "none"}):
            {"training": draw_training, "serving": draw_serving}[name]().savefig(
                path, metadata=said
            )
        print(f"wrote {path.relative_to(DOCS.parent)}: {path.stat().st_size:,} bytes")
