"""Memory over the schedule of compiled programs as a picture, with what fills it at the peak."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.commands.program.compiling import PlanProgram, buffer_text
from shardwise.units import format_gib

GIB = 2**30
NAMED = 8
"""Buffers below a picture."""


def plot_memory(programs: Sequence[PlanProgram], path: Path) -> None:
    """One panel per program; MissingPart without matplotlib."""
    figure = new_figure(9, 4.2 * len(programs))
    panels = figure.subplots(len(programs), 1, squeeze=False)
    for axes, program in zip(panels[:, 0], programs, strict=True):
        _panel(axes, program)
    save_figure(figure, path)


def _panel(axes: Any, program: PlanProgram) -> None:
    compiled = program.compiled
    times, sizes = memory_line(program)
    axes.step(times, sizes, where="post", color="#1f78b4", label="in use")
    axes.fill_between(times, sizes, step="post", color="#a6cee3")
    usable = compiled.capacity_bytes / GIB
    axes.axhline(usable, color="#e31a1c", linestyle="--", label=f"usable, {usable:.3g} GiB")
    held = max(sizes, default=0.0)
    at = times[sizes.index(held)] if sizes else 0.0
    axes.plot([at], [held], "v", color="black", label=f"peak, {format_gib(held * GIB)}")
    axes.set_ylim(0, 1.1 * max(usable, held))
    axes.set_xlabel(f"{_unit(program)}\n\n" + "\n".join(largest_at_peak(program)), loc="left")
    axes.xaxis.label.set_fontsize(8)
    axes.set_ylabel("GiB per device")
    axes.set_title(f"{program.phase} on {compiled.slice}", loc="left")
    axes.margins(x=0)
    axes.legend(loc="center right")


def _unit(program: PlanProgram) -> str:
    return "ms of a step" if program.timeline else "changes, in the order of the schedule"


def memory_line(program: PlanProgram) -> tuple[list[float], list[float]]:
    """Times in ms (of a loop its first round; without a timeline just in order), and GiB from each
    on."""
    line, steps = program.timeline, program.compiled.occupancy
    starts = {span.name: 1e3 * span.start for span in line.spans} if line else {}
    times, last = [], 0.0
    for i, (name, _) in enumerate(steps):
        last = max(last, starts.get(name, last)) if line else float(i)
        times.append(last)
    end = 1e3 * line.expected if line else float(len(steps))
    sizes = [size / GIB for _, size in steps]
    return [*times, max(end, last)], [*sizes, *sizes[-1:]] if sizes else [0.0]


def largest_at_peak(program: PlanProgram) -> list[str]:
    """The largest of what is held all the time, and of the temporaries alive at the peak."""
    compiled = program.compiled
    held = [b for b in compiled.buffers if b.kind not in ("temporary", "host")]
    found = sorted([*held, *compiled.alive], key=lambda b: -b.bytes)[:NAMED]
    return ["at the peak:", *map(buffer_text, found)]
