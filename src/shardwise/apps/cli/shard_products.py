"""How `shardwise shard` shows a product, a chain or a reshard: steps, arrays and strategies."""

from typing import Any

import click

from shardwise.apps.cli.output import table
from shardwise.sharding import bytes_per_device
from shardwise.units import format_bytes, format_flops, format_seconds
from shardwise.workflows.shard import Sharding, named_arrays

HEADER_BYTES = ("", "strategy", "bytes sent", "FLOPs", "peak bytes")
HEADER_TIME = ("", "strategy", "lower", "expected", "upper", "bound by", "bytes sent")


def render(answer: Sharding, result: dict[str, Any]) -> None:
    """The answer for a person."""
    where = f"{answer.mesh}" + (f" on {answer.piece}" if answer.piece else "")
    free = ", result free" if answer.einsum.free else ""
    click.echo(f"{answer.einsum}{free}; mesh {where}, {answer.dtype}")
    for line in result["placement"] or ():
        click.echo(f"  {line}")
    for obstacle in result["obstacles"]:
        click.echo(f"  not local as written: {obstacle}")
    click.echo()
    _steps(answer, result)
    click.echo()
    table(("array", "layout", "whole", "per device", "bytes"), _arrays(answer, result), left=2)
    click.echo()
    number = answer.resolution.enumerated
    found = f"{number:,} legal {'strategy' if number == 1 else 'strategies'}"
    products = answer.ranking is not None and not answer.einsum.is_reshard
    variants = " and collective matmuls" if products else ""
    title = f"Best of {found}{variants}, by {result['ranked_by']}"
    header = HEADER_TIME if answer.ranking else HEADER_BYTES
    table(header, strategy_rows(result), title=title, left=2)
    for reason in answer.reasons:
        click.echo(f"  {reason}")


def strategy_rows(result: dict[str, Any]) -> list[list[str]]:
    """One row per strategy, as `HEADER_TIME` or `HEADER_BYTES` has it."""
    rows = []
    for number, row in enumerate(result["strategies"], 1):
        sent = format_bytes(row["wire_bytes_per_device"])
        if "seconds" in row:
            times = [format_seconds(row["seconds"][b]) for b in ("lower", "expected", "upper")]
            cells = [*times, row["bound_by"] or "nothing", sent]
        else:
            flops = format_flops(row["flops_per_device"])
            cells = [sent, flops, format_bytes(row["peak_bytes_per_device"])]
        rows.append([str(number), row["summary"], *cells])
    return rows


def _steps(answer: Sharding, result: dict[str, Any]) -> None:
    overlapped = answer.ranking.best.overlapped if answer.ranking else 0
    for number, step in enumerate(result["steps"], 1):
        under = "   (passes chunk by chunk under the product)" if number == overlapped else ""
        click.echo(f"  {number}. {step}{under}")
    if not result["steps"]:
        click.echo("  nothing to do: the array is already laid out so")


def _arrays(answer: Sharding, result: dict[str, Any]) -> list[list[str]]:
    rows = []
    for name, layout in named_arrays(answer).items():
        size = bytes_per_device(layout, answer.sizes, answer.mesh, answer.dtype)
        shapes = (result["global_shapes"][name], result["local_shapes"][name])
        cells = [f"{answer.dtype}{list(shape)}" for shape in shapes]
        rows.append([name, str(layout), *cells, format_bytes(size)])
    return rows
