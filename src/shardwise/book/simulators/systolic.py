"""A weight-stationary systolic array, cycle by cycle, as the MXU of a TPU (ch. 2, appendix B).

An array of N x N cells computes X W tile by tile: a tile of W (N x N) waits in the cells while the
rows of X run over it. Weights come in from above, the last row first and each column a cycle after
its left neighbour; they move down and wait. Activations come in from the left, row i of the array a
cycle after row i - 1. A cell multiplies its weight with the activation that passes, adds what comes
from the cell above, and hands the sum down; the sums leave below, skewed again. The weights of the
next tile follow while this one computes, so that a tile takes max(rows of X, N) cycles:

    cycles = N + (tiles - 1) max(B, N) + B + 2 (N - 1)

N cycles to load the first weights, 2 (N - 1) for the last row to cross the array. A row of X enters
per cycle: 8 rows in 8 cycles, the book's cadence.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwise.book.simulators.simulation import (
    Animation,
    Cell,
    Curve,
    Frame,
    check_whole,
    first_frames,
)
from shardwise.errors import BadRequest

MOST_SIDE, MOST_DIM = 256, 4096
MOST_STEPS, MOST_DRAWN = 80_000_000, 8_000
"""Cells times cycles of what is run, and of what is kept as frames."""
BLOCK = 8
"""Rows of X that the book counts at once: bf16[8, 128] @ bf16[128, 128] in 8 cycles (ch. 2.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayState:
    """The array at the end of a cycle; tags say whose row of X is in a cell, -1 where none is."""

    cycle: int
    waiting: np.ndarray
    active: np.ndarray
    activations: np.ndarray
    sums: np.ndarray
    tags: np.ndarray
    left: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayRun:
    """A product and how it was made: cells at work in each cycle, the cycle in which the first and
    the last sum left, when each row of the first tile left its first column, and when the rows of
    each tile began to enter."""

    product: np.ndarray
    busy: np.ndarray
    first_out: int
    row_out: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def cycles(self) -> int:
        """From the first weight to the last sum."""
        return len(self.busy)


def run_array(
    x: np.ndarray, w: np.ndarray, side: int, watch: Callable[[ArrayState], None] | None = None
) -> ArrayRun:
    """X [B, K] times W [K, M] on an array of `side` x `side` cells; `watch` sees every cycle."""
    machine = _SystolicArray(x, w, side)
    while not machine.over:
        machine.step()
        if watch is not None:
            watch(machine.state())
    return machine.result()


def array_cycles(rows: int, tiles: int, side: int) -> int:
    """Cycles of `tiles` weight tiles under `rows` rows of activations each (the closed form)."""
    return side + (tiles - 1) * max(rows, side) + rows + 2 * (side - 1)


class _SystolicArray:
    def __init__(self, x: np.ndarray, w: np.ndarray, side: int) -> None:
        self.x, self.w, self.side = x, w, side
        (self.rows, inner), columns = x.shape, w.shape[1]
        self.tiles = [(k, m) for m in range(0, columns, side) for k in range(0, inner, side)]
        gap = max(self.rows, side)
        self.starts = [side + t * gap for t in range(len(self.tiles))]
        self.loads = [0, *self.starts[:-1]]
        self.end = array_cycles(self.rows, len(self.tiles), side)
        shape = (side, side)
        self.waiting, self.active, self.sums, self.activations = (np.zeros(shape) for _ in range(4))
        self.tags = np.full(shape, -1)
        self.product = np.zeros((self.rows, columns))
        self.cycle, self.busy, self.row_out = 0, [], []
        self.left: list[tuple[int, float]] = []
        self.first_out = -1
        self.fed = [self._padded(x, (0, k)) for k, _ in self.tiles]
        self.weights = [self._padded(w, tile) for tile in self.tiles]
        self.real = [self._padded(np.ones(w.shape), tile) > 0 for tile in self.tiles]

    def _padded(self, array: np.ndarray, at: tuple[int, int]) -> np.ndarray:
        """The part of an operand in a tile, with zeros where it ends; all rows of X."""
        height = self.rows if array is self.x else self.side
        part = array[at[0] : at[0] + height, at[1] : at[1] + self.side]
        found = np.zeros((height, self.side))
        found[: part.shape[0], : part.shape[1]] = part
        return found

    @property
    def over(self) -> bool:
        return self.cycle >= self.end

    def step(self) -> None:
        """One cycle: activations to the right, weights taken over, sums down, weights down."""
        self.activations[:, 1:], self.tags[:, 1:] = self.activations[:, :-1], self.tags[:, :-1]
        for row in range(self.side):
            self.tags[row, 0], self.activations[row, 0] = self._enters(row)
        begins = (self.tags >= 0) & (self.tags % self.rows == 0)
        self.active = np.where(begins, self.waiting, self.active)
        above = np.vstack([np.zeros((1, self.side)), self.sums[:-1]])
        at_work = self.tags >= 0
        self.sums = np.where(at_work, above + self.activations * self.active, 0.0)
        self.busy.append(self._useful())
        self._leave()
        for column in range(self.side):
            self._load(column)
        self.cycle += 1

    def _enters(self, row: int) -> tuple[int, float]:
        """The tag and the activation that reach a row of the array from the left now."""
        since = self.cycle - row - self.starts[0]
        if since < 0:
            return -1, 0.0
        tile, at = divmod(since, max(self.rows, self.side))
        if tile >= len(self.tiles) or at >= self.rows:
            return -1, 0.0
        return tile * self.rows + at, self.fed[tile][at, row]

    def _useful(self) -> int:
        """Cells that multiply now, those that only hold padding left out."""
        count = 0
        for tile in np.unique(self.tags[self.tags >= 0] // self.rows):
            count += int(np.sum((self.tags // self.rows == tile) & self.real[tile]))
        return count

    def _leave(self) -> None:
        """The sums of the lowest row go out, each to its place of the product."""
        self.left = []
        for column, tag in enumerate(self.tags[-1]):
            if tag < 0:
                continue
            tile, row = divmod(int(tag), self.rows)
            self.first_out = self.cycle if self.first_out < 0 else self.first_out
            place = self.tiles[tile][1] + column
            if place < self.product.shape[1]:
                self.product[row, place] += self.sums[-1, column]
                self.left.append((column, float(self.sums[-1, column])))
            if column == 0 and tile == 0:
                self.row_out.append(self.cycle)

    def _load(self, column: int) -> None:
        """A weight comes in above, if it is this column's turn, and those before it go down."""
        for tile, begun in enumerate(self.loads):
            deep = self.cycle - begun - column
            if 0 <= deep < self.side:
                self.waiting[1 : deep + 1, column] = self.waiting[:deep, column]
                self.waiting[0, column] = self.weights[tile][self.side - 1 - deep, column]

    def state(self) -> ArrayState:
        return ArrayState(
            cycle=self.cycle - 1,
            waiting=self.waiting.copy(),
            active=self.active.copy(),
            activations=self.activations.copy(),
            sums=self.sums.copy(),
            tags=self.tags.copy(),
            left=tuple(self.left),
        )

    def result(self) -> ArrayRun:
        return ArrayRun(
            product=self.product,
            busy=np.array(self.busy),
            first_out=self.first_out,
            row_out=tuple(self.row_out),
            starts=tuple(self.starts),
        )


def systolic(
    side: int = 4, rows: int = 8, inner: int = 4, columns: int = 4, seed: int = 0
) -> Animation:
    """X [rows, inner] times W [inner, columns], of small whole numbers drawn by `seed`, on an array
    of `side` x `side` cells. A side of 128 is the MXU of most TPUs, of 256 that of v6e."""
    check_whole("side", side, 1, MOST_SIDE)
    for name, size in (("rows", rows), ("inner", inner), ("columns", columns)):
        check_whole(name, size, 1, MOST_DIM)
    draw = np.random.default_rng(check_whole("seed", seed, 0, 2**32 - 1))
    x, w = (
        draw.integers(-4, 5, shape).astype(float) for shape in ((rows, inner), (inner, columns))
    )
    title = f"[{rows}, {inner}] x [{inner}, {columns}] on an array of {side} x {side} cells"
    tiles = -(-inner // side) * -(-columns // side)
    steps = side * side * array_cycles(rows, tiles, side)
    if steps > MOST_STEPS:
        raise BadRequest(
            f"{title} takes {steps:,} steps of single cells; at most {MOST_STEPS:,} are run, so "
            "give fewer rows, a smaller inner, or fewer columns"
        )
    drawn = steps <= MOST_DRAWN
    frames: list[Frame] = []
    run = run_array(x, w, side, (lambda state: frames.append(_frame(state))) if drawn else None)
    kept, left_out = first_frames(frames)
    work = rows * inner * columns
    return Animation(
        id="systolic",
        chapter="2",
        title=title,
        source="ch. 2, appendix B",
        settings={"side": side, "rows": rows, "inner": inner, "columns": columns, "seed": seed},
        readings={
            "cycles": run.cycles,
            "load_cycles": run.starts[0],
            "bubble_cycles": run.first_out,
            "cycles_per_8_rows": _cadence(run.row_out),
            "cycles_per_tile": max(rows, side),
            "tiles": tiles,
            "utilisation": work / (side * side * run.cycles),
            "steady_utilisation": work / (side * side * tiles * max(rows, side)),
            "flops_per_cycle": 2 * work / run.cycles,
            "largest_error": float(np.max(np.abs(run.product - x @ w))),
        },
        units={
            **dict.fromkeys(("side", "rows", "inner", "columns"), "elements"),
            **dict.fromkeys(("cycles", "load_cycles", "bubble_cycles"), "cycles"),
            **dict.fromkeys(("cycles_per_8_rows", "cycles_per_tile"), "cycles"),
            "flops_per_cycle": "FLOP/cycle",
        },
        x_label="cycle",
        x_unit="cycles",
        frames=kept,
        frames_left_out=left_out if drawn else run.cycles,
        curves=(
            Curve(
                label="cells at work",
                x=tuple(map(float, range(run.cycles))),
                y=tuple(map(float, run.busy)),
            ),
        ),
        curve_axes=("cycle", "cells at work"),
        notes=_notes(rows, inner, columns, side),
    )


def _cadence(row_out: tuple[int, ...]) -> float:
    """Cycles in which 8 rows of a product leave, as they were seen to."""
    if len(row_out) < 2:
        return float(BLOCK)
    return BLOCK * (row_out[-1] - row_out[0]) / (len(row_out) - 1)


def _notes(rows: int, inner: int, columns: int, side: int) -> tuple[str, ...]:
    said = []
    for name, size in (("inner", inner), ("columns", columns)):
        if size % side:
            share = size / (-(-size // side) * side)
            said.append(
                f"{name} is padded from {size} to whole tiles of {side}: {share:.0%} is work"
            )
    if rows < side:
        said.append(
            f"a tile's weights take {side} cycles to load and its {rows} rows {rows} to run"
        )
    return tuple(said)


def _frame(state: ArrayState) -> Frame:
    side = len(state.tags)
    cells = [_cell(state, i, j) for i in range(side) for j in range(side)]
    cells += [
        Cell(x=column, y=side, text=f"{value:g}", kind="result", values={"sum": value})
        for column, value in state.left
    ]
    return Frame(at=state.cycle, label=f"cycle {state.cycle}", cells=tuple(cells))


def _cell(state: ArrayState, i: int, j: int) -> Cell:
    weight, waiting = float(state.active[i, j]), float(state.waiting[i, j])
    if state.tags[i, j] < 0:
        kind = "loaded" if waiting else "idle"
        return Cell(x=j, y=i, text=f"{waiting:g}", kind=kind, values={"waiting": waiting})
    activation = float(state.activations[i, j])
    return Cell(
        x=j,
        y=i,
        text=f"{activation:g}·{weight:g}",
        kind="working",
        values={
            "weight": weight,
            "activation": activation,
            "sum": float(state.sums[i, j]),
            "waiting": waiting,
        },
    )
