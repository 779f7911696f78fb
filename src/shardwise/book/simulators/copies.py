"""HBM to VMEM and back in chunks, with two buffers (ch. 2.1, the animation of a product).

One DMA engine moves a chunk at a time, the vector or matmul units work on another. A load needs a
free buffer: that of the chunk `buffers` before it, whose work is over. The engine takes copies in
the order in which they can begin. With two buffers and many chunks the time tends to

    max(T_load + T_store, T_compute)

with one buffer it is their sum; the first load and the last work stay uncovered, a chunk of each.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.book.seed import book_chip
from shardwise.book.simulators.simulation import (
    Animation,
    Cell,
    Curve,
    Frame,
    check_size,
    check_whole,
    first_frames,
)
from shardwise.roofline.chip_roofline import level_bandwidth

MOST_CHUNKS, MOST_BUFFERS = 4096, 16
ROWS = ("load", "compute", "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What happens to one chunk on one row, in seconds from `start` to `end`."""

    row: str
    chunk: int
    start: float
    end: float


def run_copies(
    load: float, compute: float, store: float, chunks: int, buffers: int
) -> tuple[Copy, ...]:
    """The schedule of `chunks` equal chunks; `load`, `compute` and `store` are seconds of all."""
    load, compute, store = load / chunks, compute / chunks, store / chunks
    found: list[Copy] = []
    loaded, computed = [], []  # ends, by chunk
    stored = 0
    engine = worker = 0.0
    while stored < chunks:
        loading, computing = len(loaded), len(computed)
        if computing < loading:
            start = max(worker, loaded[computing])
            worker = start + compute
            computed.append(worker)
            found.append(Copy(row="compute", chunk=computing, start=start, end=worker))
            continue
        # The engine: a load waits for its buffer, a store for its result. What was ready first goes
        # first, of two at once the load, which the next work waits for.
        inf = float("inf")
        free = inf
        if loading < chunks and loading - buffers < computing:
            free = 0.0 if loading < buffers else computed[loading - buffers]
        ready = computed[stored] if stored < computing else inf
        start = max(engine, min(free, ready))
        if free <= ready:
            engine = start + load
            loaded.append(engine)
            found.append(Copy(row="load", chunk=loading, start=start, end=engine))
        else:
            engine = start + store
            found.append(Copy(row="store", chunk=stored, start=start, end=engine))
            stored += 1
    return tuple(found)


def copied_seconds(load: float, compute: float, store: float, chunks: int, buffers: int) -> float:
    """Seconds until the last chunk is done."""
    return max(copy.end for copy in run_copies(load, compute, store, chunks, buffers))


def hbm(
    chip: str = "v5e",
    level: str = "hbm",
    read: float = 24e6,
    written: float = 0.0,
    flops: float = 4.8e9,
    dtype: str = "bf16",
    chunks: int = 8,
    buffers: int = 2,
) -> Animation:
    """`read` bytes in, `written` bytes out and `flops` between them, in chunks, on a chip with the
    book's constants; from the `level` "hbm", or "host" over PCIe. Seconds per chunk are its share
    of bytes / W and FLOPs / C."""
    check_whole("chunks", chunks, 1, MOST_CHUNKS)
    check_whole("buffers", buffers, 1, MOST_BUFFERS)
    sizes = {"read": read, "written": written, "flops": flops}
    for name, size in sizes.items():
        check_size(name, size)
    found = book_chip(chip)
    bandwidth, peak = level_bandwidth(found, level), found.peak(dtype)
    load, store, compute = read / bandwidth, written / bandwidth, flops / peak
    copies = run_copies(load, compute, store, chunks, buffers)
    total = max(copy.end for copy in copies)
    lower = max(load + store, compute)
    moments = sorted({copy.start for copy in copies} | {total})
    frames, left_out = first_frames([_frame(at, copies) for at in moments])
    counts = [1 << k for k in range(11)]
    curve = [copied_seconds(load, compute, store, n, buffers) for n in counts]
    alone = [copied_seconds(load, compute, store, n, 1) for n in counts]
    x = tuple(map(float, counts))
    return Animation(
        id="hbm",
        chapter="2",
        title=f"{chunks} chunks through {buffers} buffers of {found.id}, from {level}",
        source="ch. 2.1, animation of a product streamed from HBM",
        settings={
            "chip": found.id, "level": level, **sizes, "dtype": dtype, "chunks": chunks,
            "buffers": buffers,
        },
        readings={
            "seconds": total,
            "load_seconds": load,
            "store_seconds": store,
            "compute_seconds": compute,
            "larger_seconds": lower,
            "sum_seconds": load + store + compute,
            "over_larger": total / lower if lower else 1.0,
            "compute_busy": compute / total if total else 1.0,
            "bytes_busy": (load + store) / total if total else 1.0,
        },
        units={
            "read": "bytes", "written": "bytes", "flops": "FLOP",
            **{f"{n}_seconds": "s" for n in ("load", "store", "compute", "larger", "sum")},
            "seconds": "s",
        },
        x_label="time",
        x_unit="s",
        rows=ROWS if written else ROWS[:2],
        bars=tuple(_bar(copy) for copy in copies if copy.row != "store" or written),
        frames=frames,
        frames_left_out=left_out,
        curves=(
            Curve(label=f"{buffers} buffers" if buffers > 1 else "1 buffer", x=x, y=tuple(curve)),
            Curve(label="one after the other", x=x, y=tuple(alone)),
            Curve(label="max(load + store, compute)", x=x, y=(lower,) * len(x)),
        ),
        curve_axes=("chunks", "time [s]"),
    )  # fmt: skip


def _bar(copy: Copy) -> Cell:
    return Cell(
        x=copy.start,
        y=ROWS.index(copy.row),
        width=copy.end - copy.start,
        text=str(copy.chunk),
        kind=copy.row,
        values={"chunk": copy.chunk, "buffer_start": copy.start, "end": copy.end},
    )


def _frame(at: float, copies: tuple[Copy, ...]) -> Frame:
    here = [c for c in copies if c.start <= at < c.end]
    said = ", ".join(f"{c.row} chunk {c.chunk}" for c in here) or "done"
    return Frame(at=float(np.round(at, 15)), label=said)
