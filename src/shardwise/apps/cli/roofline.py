"""`shardwise roofline`: one matmul on one chip, its bytes, intensity, times and critical batch."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, plot_option
from shardwise.apps.cli.options import hardware_options, parameters, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.pages import sections_options


@click.command(cls=AnswerCommand)
@click.option("--on", required=True, metavar="CHIP", help="A chip, such as v5e or h100.")
@click.option(
    "--matmul", required=True, metavar="MxKxN", help="[M, K] x [K, N], as 240x8192x32768."
)
@click.option("--dtype", default="bf16", show_default=True, help="Compute, activations and result.")
@click.option(
    "--weights", metavar="DTYPE", help="How the [K, N] operand is stored, if not --dtype."
)
@click.option(
    "--level",
    default="hbm",
    show_default=True,
    metavar="hbm|vmem|l2|pcie|ici|dcn",
    help="Where the operands lie.",
)
@click.option(
    "--batch", metavar="M,..|FIRST:LAST:POINTS", help="Tokens M in place of that of --matmul."
)
@csv_option
@plot_option("The roofline with the product on it, PNG or SVG.")
@hardware_options(price=False)
@sections_options("detail")
@json_option
def roofline(
    on: Any,
    dtype: Any,
    weights: Any,
    sets: Any,
    level: Any,
    batch: Any,
    plot_path: Path | None,
    **_: Any,
) -> None:
    """Whether a matmul is bound by math or by memory, on one chip."""
    options = parameters()
    from shardwise.commands.tables.roofline import RooflineRequest

    check_outputs()
    request = request_of(RooflineRequest, options)
    inputs = {"on": on, "matmul": request.dims(), "dtype": dtype}
    inputs |= {"weights": weights, "set": sets, "level": level}
    inputs |= {"batch": batch} if batch else {}
    answer = request.answer()
    show_answer(answer, options, inputs=inputs)
    if plot_path:
        from shardwise.apps.cli.roofline_chart import draw_roofline

        draw_roofline(answer, plot_path)
