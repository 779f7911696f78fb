"""How a product, a chain or a reshard reads: steps, arrays, strategies, and its run."""

from collections.abc import Sequence

from shardwise.boundary.records import values
from shardwise.commands.base.answer import Page, TextTable
from shardwise.commands.shard.expression import Sharding
from shardwise.commands.shard.result import (
    ShardedProduct,
    TimedMovement,
    TimedStrategy,
    named_arrays,
)
from shardwise.commands.shard.run import Counted, ShardRun
from shardwise.sharding import bytes_per_device
from shardwise.units import format_bytes, format_flops, format_seconds

HEADER_BYTES = ("", "strategy", "bytes sent", "FLOPs", "peak bytes")
HEADER_TIME = ("", "strategy", "lower", "expected", "upper", "bound by", "bytes sent")


def product_page(answer: Sharding, result: ShardedProduct, beside: Page) -> Page:
    """The answer for a person: steps, arrays, what was asked beside them, and the strategies."""
    where = f"{answer.mesh}" + (f" on {answer.piece}" if answer.piece else "")
    free = ", result free" if answer.einsum.free else ""
    yield f"{answer.einsum}{free}; mesh {where}, {answer.dtype}"
    for line in result.placement or ():
        yield f"  {line}"
    for obstacle in result.obstacles:
        yield f"  not local as written: {obstacle}"
    yield ""
    yield from _steps(answer, result)
    yield ""
    yield TextTable(
        ("array", "layout", "whole", "per device", "bytes"), _arrays(answer, result), left=2
    )
    yield from beside
    yield ""
    number = answer.resolution.enumerated
    found = f"{number:,} legal {'strategy' if number == 1 else 'strategies'}"
    products = answer.ranking is not None and not answer.einsum.is_reshard
    variants = " and collective matmuls" if products else ""
    title = f"Best of {found}{variants}, by {result.ranked_by}"
    header = HEADER_TIME if answer.ranking else HEADER_BYTES
    yield TextTable(header, strategy_rows(result), title=title, left=2)
    for reason in answer.reasons:
        yield f"  {reason}"


def strategy_rows(result: ShardedProduct) -> list[list[str]]:
    """One row per strategy, as `HEADER_TIME` or `HEADER_BYTES` has it."""
    rows = []
    for number, row in enumerate(result.strategies, 1):
        sent = format_bytes(row.wire_bytes_per_device)
        if isinstance(row, TimedStrategy):
            times = map(format_seconds, values(row.seconds).values())
            cells = [*times, row.bound_by or "nothing", sent]
        else:
            flops = format_flops(row.flops_per_device)
            cells = [sent, flops, format_bytes(row.peak_bytes_per_device)]
        rows.append([str(number), row.summary, *cells])
    return rows


def _steps(answer: Sharding, result: ShardedProduct) -> Page:
    overlapped = answer.ranking.best.overlapped if answer.ranking else 0
    for number, step in enumerate(result.steps, 1):
        under = "   (chunk by chunk, overlapped with the matmul)" if number == overlapped else ""
        yield f"  {number}. {step}{under}"
    for row in result.collectives:
        if not isinstance(row, TimedMovement) or row.bound_by != "latency":
            continue
        if row.turning_bytes:
            hops, moved = map(format_seconds, (row.latency_seconds, row.bandwidth_seconds))
            turn = format_bytes(row.turning_bytes)
            yield (
                f"     step {row.step} waits for hops: {hops} for {moved} of bytes; from V = "
                f"{turn} on for bytes"
            )
    if not result.steps:
        yield "  nothing to do: the array already has this layout"


def _arrays(answer: Sharding, result: ShardedProduct) -> list[list[str]]:
    rows = []
    for name, layout in named_arrays(answer).items():
        size = bytes_per_device(layout, answer.sizes, answer.mesh, answer.dtype)
        shapes = (result.global_shapes[name], result.local_shapes[name])
        cells = [f"{answer.dtype}{list(shape)}" for shape in shapes]
        rows.append([name, str(layout), *cells, format_bytes(size)])
    return rows


def beside_page(backward: Sequence[str] | None, run: ShardRun | None) -> Page:
    """The backward pass and the run, where they were asked for, each after an empty line."""
    if backward is not None:
        yield "\nForward and backward derived from the layouts as written, which fix where"
        yield "parameters are stored; the strategy above may choose another way."
        yield "\n".join(backward)
    if run is not None:
        yield ""
        yield from _run_page(run)


def _run_page(run: ShardRun) -> Page:
    rows = []
    for row in run.collectives:
        cells = (row.predicted, row.shard_map, row.jit, row.explicit)
        rows.append([row.kind, ",".join(row.axes), *map(_counted, cells)])
    title = "Compiled and run on virtual CPU devices: collectives and their bytes V"
    yield TextTable(
        ("kind", "axes", "predicted", "shard_map", "jit", "explicit"), rows, title=title, left=2
    )
    for style, ran in run.programs.items():
        word, gradient = "equals" if ran.equal else "DIFFERS FROM", ran.gradient_error
        also = "" if gradient is None else f", gradients by {gradient:.1e}"
        yield f"  {style} {word} the dense product: off by {ran.error:.1e}{also}"
    for note in run.notes:
        yield f"  {note}"


def _counted(cell: Counted) -> str:
    return f"{cell.count} x, {format_bytes(cell.bytes)}" if cell.count else "-"
