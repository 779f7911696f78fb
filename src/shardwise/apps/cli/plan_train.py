"""`shardwise plan train`: the simplest training plan as fast as predictions can tell, and why."""

from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, file_option
from shardwise.apps.cli.next_steps import next_lines
from shardwise.apps.cli.numbers import NUMBER, WHOLE
from shardwise.apps.cli.options import as_option, hardware_options, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.pages import sections_options
from shardwise.apps.cli.plan_train_options import (
    compile_options,
    objective_option,
    run_options,
    search_options,
    tune_option,
)
from shardwise.apps.cli.progress import progress_line, stage_line
from shardwise.apps.cli.timeline import timeline_options, write_timeline


@click.command(cls=AnswerCommand)
@click.option("--model", required=True, help="Zoo name, config.json, or a folder with one.")
@as_option
@click.option("--on", required=True, help="Slice such as v5p:16x16x16, or a bare chip.")
@click.option("--batch", required=True, help="Tokens (4Mi) or sequences (1024seq) per step.")
@click.option("--seq", required=True, help="Tokens per sequence.")
@search_options
@objective_option(
    "time",
    "time: the fastest step on the slice. cost: the fewest dollars per token, if only the chips in "
    "use are paid for; with --days the cheapest slice in time, all of whose chips are. chips: the "
    "smallest part of the slice on which a plan fits, and the fastest plan there.",
)
@click.option("--days", type=NUMBER, help="Deadline of --tokens; of a bare chip the fewest chips.")
@click.option(
    "--top", type=WHOLE, default=3, show_default=True, help="Next best meshes to show, up to 50."
)
@run_options
@timeline_options
@click.option(
    "--against",
    metavar="PLAN",
    help="A plan file or audit:NAME (`shardwise book list`) to price beside the best plan.",
)
@compile_options(
    "Compile the best plans for our trainer until N fit, three times as many at most (implies "
    "--for jax; one to four minutes each on a core, then kept): the best as compiled is the answer."
)
@tune_option
@file_option("-o", "plan_path", help="Plan file.")
@sections_options("detail", "why", "book")
@hardware_options()
@csv_option
@json_option
def train(**options: Any) -> None:
    """Choose mesh, microbatches, schedule, storage and remat so that a step fits and is best.

    Which plans are looked at: docs/legality.md; what axes, remat and ZeRO mean:
    docs/site/concepts.md. The best are priced again by an event timeline of their own pipeline
    stages.
    """
    from shardwise.commands.plan_train.train import TrainPlanRequest
    from shardwise.plans import save_plan

    check_outputs()
    asked = request_of(TrainPlanRequest, options)
    with stage_line() as watch:
        answer = asked.answer(progress_line("searching"), watch)
    path = options["plan_path"]
    if path:
        save_plan(answer.best.plan, path)
    show_answer(answer, options, more=next_lines(asked, path, answer.best))
    write_timeline(answer.best, options)
