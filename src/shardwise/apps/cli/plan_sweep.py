"""`shardwise plan sweep`: the same training over slices, batches and lengths; what it is worth."""

from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, file_option, plot_option
from shardwise.apps.cli.next_steps import next_lines
from shardwise.apps.cli.option_fields import request_options
from shardwise.apps.cli.options import request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.progress import progress_line


@click.command(cls=AnswerCommand)
@request_options("plan sweep")
@file_option("-o", "plan_path", help="Plan file: the plan of the objective, within --days.")
@plot_option("PNG or SVG.")
@csv_option
@json_option
def sweep(**options: Any) -> None:
    """Plan every slice, batch and length; show scaling, the cost-speed front and what is cheapest.

    `eff` is tokens/s per chip over that of the series' smallest slice, `added` the speed that the
    chips added since the row above bring (100% is perfect scaling), `*` marks rows that no other
    beats in both speed and cost. Of a bare chip stand the slices that double. Several bare chips
    with --days, or with --chips N, stand side by side, a row for each: the cheapest slice that
    keeps the deadline, of whole boxes or cube-like shapes, not of powers of two alone; what runs
    the plan, dollars with the range over providers, and the date of each price.
    """
    from shardwise.commands.plan_train.sweep import SweepRequest
    from shardwise.errors import NoFeasiblePlan
    from shardwise.plans import save_plan

    check_outputs()
    watch = progress_line("planning", "rows")
    asked = request_of(SweepRequest, options)
    answer = asked.answer(watch)
    chosen, path = answer.chosen, options["plan_path"]
    if chosen is None or chosen.answer is None:
        more = ()
    else:
        more = next_lines(asked, path, chosen.answer, f" ({chosen.piece})")
        if path:
            save_plan(chosen.answer.plan, path)
    show_answer(answer, options, more=more)
    if options["plot_path"]:
        from shardwise.apps.cli.sweep_chart import plot_sweep

        plot_sweep(answer.jobs, answer.name, options["plot_path"], answer.days)
    if path and not more:
        raise NoFeasiblePlan(f"no row keeps the deadline, so {path} was not written")
