"""`shardwise plan train`: the simplest training plan as fast as predictions can tell, and why."""

from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, file_option
from shardwise.apps.cli.next_steps import next_lines
from shardwise.apps.cli.option_fields import request_options
from shardwise.apps.cli.options import request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.pages import sections_options
from shardwise.apps.cli.progress import progress_line, stage_line
from shardwise.apps.cli.timeline import timeline_options, write_timeline


@click.command(cls=AnswerCommand)
@request_options("plan train")
@timeline_options
@file_option("-o", "plan_path", help="Plan file.")
@sections_options("detail", "why", "book")
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
