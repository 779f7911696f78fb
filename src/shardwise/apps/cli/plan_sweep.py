"""`shardwise plan sweep`: the same training over slices, batches and lengths; what it is worth."""

from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, plot_option
from shardwise.apps.cli.numbers import NUMBER
from shardwise.apps.cli.options import hardware_options, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.plan_train_options import search_options
from shardwise.apps.cli.progress import progress_line


@click.command(cls=AnswerCommand)
@click.option("--model", required=True, help="Zoo name, config.json, or a folder with one.")
@click.option(
    "--on",
    required=True,
    multiple=True,
    help="Slice, or a bare chip for its slices within --chips; may be repeated.",
)
@click.option("--chips", default="1..65536", show_default=True, metavar="LOW..HIGH", help="Chips.")
@click.option("--batch", "batches", required=True, multiple=True, help="As in plan train; repeat.")
@click.option("--seq", "lengths", required=True, multiple=True, help="Tokens; may be repeated.")
@search_options
@click.option("--tokens", help="Length of the run, such as 15T: adds days and dollars.")
@click.option("--days", type=NUMBER, help="Deadline of --tokens.")
@plot_option("PNG or SVG.")
@hardware_options()
@csv_option
@json_option
def sweep(**options: Any) -> None:
    """Plan every slice, batch and length; show scaling, the cost-speed front and what is cheapest.

    `eff` is tokens/s per chip over that of the series' smallest slice, `added` the speed that the
    chips added since the row above bring (100% is perfect scaling), `*` marks rows that no other
    beats in both speed and cost.
    """
    from shardwise.verbs.plan_sweep import SweepRequest

    check_outputs()
    answer = request_of(SweepRequest, options).answer(progress_line("planning"))
    if options["plot_path"]:
        from shardwise.apps.cli.sweep_chart import plot_sweep

        plot_sweep(answer.points, answer.name, options["plot_path"], answer.days)
    show_answer(answer, options)
