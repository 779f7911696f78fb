"""`shardwise plan diff`: what changes between two plan files, and what it does to the estimate."""

from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.options import hardware_options, request_of
from shardwise.apps.cli.output import json_option, show_answer
from shardwise.apps.cli.pages import sections_options
from shardwise.apps.cli.plan_show import plan_file


@click.command(cls=AnswerCommand)
@click.argument("first", type=plan_file)
@click.argument("second", type=plan_file)
@hardware_options(constants=None, price=False)
@sections_options("detail")
@json_option
def diff(**options: Any) -> None:
    """What changes between two plan files, and what it does to the estimate."""
    from shardwise.commands.plan_file.diff import PlanDiffRequest

    inputs = {name: str(options[name]) for name in ("first", "second")}
    show_answer(request_of(PlanDiffRequest, options).answer(), options, inputs=inputs)
