"""--draw, --plot and --animate of `shardwise shard`: who holds what, as text or as a figure, and a
collective hop by hop, as text or as a page that plays it."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.pictures import new_figure, save_figure
from shardwise.apps.cli.player import write_player
from shardwise.book.simulators.collective import animate
from shardwise.commands.shard.expression import Sharding, first_movement
from shardwise.errors import BadRequest
from shardwise.sharding import Layout, Mesh, Sizes, blocks, copies, global_shape, local_shape
from shardwise.sharding.simulate import CollectiveTrace, trace_frames
from shardwise.units import format_bytes

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
MOST_DRAWN = 1024
Place = tuple[int, ...]
PALETTE = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#9c755f", "#76b7b2", "#edc948"),
    *("#2f5d8a", "#c06a12", "#3b7d36", "#b83a40", "#86507a", "#6d4c36", "#4d8f8a", "#b8982a"),
)
"""Colours of blocks."""


def picture_arrays(out: Outputs, arrays: Sequence[Layout], sizes: Sizes, mesh: Mesh) -> None:
    """Draw every array; plot the only one."""
    if out.draw:
        for layout in dict.fromkeys(arrays):
            click.echo(f"\n{draw(layout, sizes, mesh)}")
    if out.plot_path is not None:
        plot(arrays[0], sizes, mesh, out.plot_path)


def picture_movement(out: Outputs, answer: Sharding) -> None:
    """Replay the first collective of the best strategy on the slice's links, with small blocks."""
    path = out.animate_path
    if path is None:
        return
    trace = first_movement(answer)
    if str(path) != "-":
        write_player(animate(trace), path, option="--animate")
        return
    for frame in animate_terminal(trace):
        click.echo(f"\n{frame}")


def animate_terminal(trace: CollectiveTrace) -> Iterator[str]:
    """One frame of text per round: what every device sends, and the busiest link so far."""
    data = trace_frames(trace)
    yield f"{data.title}\n{data.algorithm}"
    for number, moves in enumerate(data.rounds, 1):
        lines = [f"round {number} of {len(data.rounds)}"]
        lines += [f"  {m.from_} -> {m.to}  {m.text}" for m in moves]
        yield "\n".join(
            [*lines, f"  most over one link so far: {format_bytes(data.busiest[number])}"]
        )


def draw(layout: Layout, sizes: Sizes, mesh: Mesh) -> str:
    """Who holds what, as text: the array cut in blocks, then the mesh with each device's block.

    A letter is a block; devices with the same letter hold copies. On a terminal letters have
    colours. The array's blocks lie as its first two dims do, one grid for each place along the
    others; the mesh is drawn with its last axis across. Raises BadRequest above 1,024 devices.
    """
    names = _names(layout, sizes, mesh)
    counts = _counts(layout, sizes, mesh)
    cell = local_shape(layout, sizes, mesh)
    lines = [f"{layout} on mesh {mesh}: blocks of {list(cell)}"]
    lines += _grids(counts, layout.letters, lambda at: names[at])
    held = _held(layout, sizes, mesh)
    lines += ["", f"devices, {' by '.join(mesh)}"]
    shape = tuple(mesh.values())
    lines += _grids(shape, tuple(mesh), lambda at: names[held[at]], across_last=True)
    times = copies(layout, mesh)
    if times > 1:
        lines.append(f"every block is on {times} devices")
    if layout.unreduced:
        lines.append(f"partial sums over {', '.join(layout.unreduced)}: their sum is the array")
    return "\n".join(_coloured(line, names.values()) for line in lines)


def plot(layout: Layout, sizes: Sizes, mesh: Mesh, path: Path) -> None:
    """The same as a figure, PNG or SVG by the ending of `path`: the array, and the devices.

    Raises MissingPart without matplotlib and BadRequest where the file cannot be written.
    """
    names, counts = _names(layout, sizes, mesh), _counts(layout, sizes, mesh)
    held, shape = _held(layout, sizes, mesh), tuple(mesh.values())
    figure = new_figure(9, 4.5)
    left, right = figure.subplots(1, 2)
    _cells(left, _flat(counts), {_flat_at(at, counts): (names[at], at) for at in names})
    left.set_title(f"{layout} {list(global_shape(layout, sizes))}")
    right.set_title(f"devices of {mesh}")
    devices = {_flat_at(d, shape): (names[block], block) for d, block in held.items()}
    _cells(right, _flat(shape), devices)
    save_figure(figure, path)


def _names(layout: Layout, sizes: Sizes, mesh: Mesh) -> dict[Place, str]:
    """A short name per block, by its place in the grid of blocks: letters, then letter pairs."""
    if mesh.size > MOST_DRAWN:
        raise BadRequest(
            f"mesh {mesh} has {mesh.size:,} devices; at most {MOST_DRAWN:,} are drawn, so draw a "
            f"smaller mesh or list the blocks with --csv"
        )
    places = list(product(*map(range, _counts(layout, sizes, mesh))))
    width = 1 if len(places) <= len(LETTERS) else 2
    words = ("".join(w) for w in product(LETTERS, repeat=width))
    return dict(zip(places, words, strict=False))


def _counts(layout: Layout, sizes: Sizes, mesh: Mesh) -> Place:
    """How many blocks lie along each dim."""
    whole, cell = global_shape(layout, sizes), local_shape(layout, sizes, mesh)
    return tuple(w // c for w, c in zip(whole, cell, strict=True))


def _held(layout: Layout, sizes: Sizes, mesh: Mesh) -> dict[Place, Place]:
    cell = local_shape(layout, sizes, mesh)
    return {
        device: tuple(s.start // c for s, c in zip(held, cell, strict=True))
        for device, held in blocks(layout, sizes, mesh).items()
    }


def _grids(
    shape: Place,
    axes: tuple[str, ...],
    name: Callable[[Place], str],
    across_last: bool = False,
) -> list[str]:
    """Grids of names: two dims each, one grid per place along the other ones."""
    if not shape:
        return [f"    {name(())}"]
    if len(shape) == 1:
        return [f"  {axes[0]} ->", "    " + " ".join(name((i,)) for i in range(shape[0]))]
    others = range(len(shape) - 2) if across_last else range(2, len(shape))
    down, across = (len(shape) - 2, len(shape) - 1) if across_last else (0, 1)
    lines = []
    for rest in product(*(range(shape[i]) for i in others)):
        fixed = dict(zip(others, rest, strict=True))
        where = ", ".join(f"{axes[i]}={at}" for i, at in fixed.items())
        lines.append(f"  {axes[down]} down, {axes[across]} ->" + (f"  ({where})" if where else ""))
        for y in range(shape[down]):
            row = [fixed | {down: y, across: x} for x in range(shape[across])]
            lines.append("    " + " ".join(name(tuple(at[i] for i in sorted(at))) for at in row))
    return lines


def _coloured(line: str, names: Iterable[str]) -> str:
    """A row of names in colours on a terminal; all else, and every pipe, stays as it is."""
    if not sys.stdout.isatty() or not line.startswith("    "):
        return line
    from io import StringIO

    from rich.console import Console
    from rich.text import Text

    number = {name: i for i, name in enumerate(names)}
    text = Text("    ")
    for word in line.split():
        text.append(f" {word} ", style=f"white on {PALETTE[number[word] % len(PALETTE)]}")
    out = StringIO()
    Console(file=out, force_terminal=True, width=10_000, color_system="truecolor").print(
        text, end=""
    )
    return out.getvalue()


def _flat(shape: Place) -> tuple[int, int]:
    """A grid for any number of dims: the even ones down, the odd ones across, slow ones outside."""
    rows = cols = 1
    for i, n in enumerate(shape):
        rows, cols = (rows * n, cols) if i % 2 == 0 else (rows, cols * n)
    return rows, cols


def _flat_at(at: Place, shape: Place) -> tuple[int, int]:
    row = col = 0
    for i, (place, n) in enumerate(zip(at, shape, strict=True)):
        row, col = (row * n + place, col) if i % 2 == 0 else (row, col * n + place)
    return row, col


def _cells(axes: Any, grid: tuple[int, int], cells: dict[tuple[int, int], tuple[str, Place]]):
    order = {block: i for i, block in enumerate(sorted({block for _, block in cells.values()}))}
    rows, cols = grid
    for (row, col), (name, block) in cells.items():
        colour = PALETTE[order[block] % len(PALETTE)]
        axes.fill([col, col + 1, col + 1, col], [row, row, row + 1, row + 1], facecolor=colour)
        if rows * cols <= 256:
            axes.text(col + 0.5, row + 0.5, name, ha="center", va="center", color="white")
    axes.hlines(range(rows + 1), 0, cols, colors="white")
    axes.vlines(range(cols + 1), 0, rows, colors="white")
    axes.set_xlim(0, cols)
    axes.set_ylim(rows, 0)
    axes.set_xticks([])
    axes.set_yticks([])
