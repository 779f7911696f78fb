"""`shardwise report`: what a report folder of `shardwise compile` holds."""

from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs
from shardwise.apps.cli.numbers import WHOLE
from shardwise.apps.cli.options import parameters, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.pages import sections_options


@click.command(cls=AnswerCommand)
@click.argument("folder", required=False, metavar="[DIRECTORY]")
@click.option("--phase", metavar="NAME", help="Which of its programs; default the first.")
@click.option("--top", type=WHOLE, help="Dearest ops to show; else 12, and 60 with --json.")
@sections_options("detail", "stages")
@json_option
@csv_option
def report(folder: Any, **_: Any) -> None:
    """Timeline, ops, memory and graph of a program that `compile --out` kept.

    Nothing is compiled. Without DIRECTORY it reads the sample that comes with shardwise.
    """
    options = parameters()
    from shardwise.commands.program.report import ReportRequest

    check_outputs(folder)
    inputs = {name: options[name] for name in ("folder", "phase", "top")}
    show_answer(request_of(ReportRequest, options).answer(), options, inputs=inputs)
