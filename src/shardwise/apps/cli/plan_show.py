"""`shardwise plan show`: price a plan from a file, as written or edited by hand."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, file_option
from shardwise.apps.cli.options import as_option, hardware_options, request_of
from shardwise.apps.cli.output import json_option, show_answer
from shardwise.apps.cli.pages import sections_options
from shardwise.apps.cli.plan_train_options import evidence_option, run_options
from shardwise.apps.cli.timeline import timeline_options, write_timeline

plan_file = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=AnswerCommand)
@click.argument("path", type=plan_file)
@click.option(
    "--resolve",
    is_flag=True,
    help="Show every choice with where it comes from: the file, a search of what it leaves open "
    "(searched), computed of the others, what users of the program leave (usual), or the default.",
)
@as_option
@run_options
@evidence_option
@file_option("-o", "output", help="With --resolve: the whole plan as a file.")
@timeline_options
@hardware_options(constants=None)
@sections_options("detail", "book")
@json_option
def show(**options: Any) -> None:
    """Price the plan in a file and hold it against the book's rules.

    --set remat=block changes a field first. audit:NAME is a plan of a published run
    (`shardwise book list`).
    """
    from shardwise.apps.cli.next_steps import shown_lines
    from shardwise.commands.plan_file.show import PlanShowRequest
    from shardwise.errors import BadRequest
    from shardwise.plans import save_plan

    check_outputs()
    output = options["output"]
    if output and not options["resolve"]:
        raise BadRequest("-o writes the whole plan; it goes with --resolve")
    asked = request_of(PlanShowRequest, options)
    answer = asked.answer()
    if output:
        save_plan(answer.best.plan, output)
    inputs = {"path": str(options["path"]), "set": list(options["sets"])}
    more = shown_lines(asked, answer.priced.plan, output)
    show_answer(answer, options, inputs=inputs, more=("", *more) if more else ())
    write_timeline(answer.best, options)
