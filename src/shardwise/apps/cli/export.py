"""`shardwise export`: a plan file in the words of another framework or launcher, and back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, file_option
from shardwise.apps.cli.options import as_option, request_of
from shardwise.apps.cli.output import json_option, show_answer


@click.command(cls=AnswerCommand)
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--to", metavar="TARGET", help="Write the plan for this target.")
@click.option("--from", "from_", metavar="TARGET", help="Read an export back into a plan file.")
@click.option("--model", help="With --from: the model, where the file does not say it.")
@as_option
@click.option("--on", help="With --from: the slice, where the file does not say it.")
@click.option("--input", help="With --from: tokens of a prompt, where the file does not say it.")
@click.option("--output", help="With --from: tokens of an answer, where the file does not say it.")
@file_option("-o", "file", metavar="FILE", help="Write here, not to stdout.")
@json_option
def export(**options: Any) -> None:
    """Write the plan in PATH for other software (--to), or read such a file back (--from).

    TARGET is maxtext, torchtitan, megatron, jax, xpk or skypilot for a training plan, and vllm,
    sglang, k8s or skypilot for a serving plan.
    """
    from shardwise.apps.cli.next_steps import against_lines
    from shardwise.boundary import spelt, write_text
    from shardwise.commands.base.layout import next_step
    from shardwise.commands.plan_file.export import ExportRequest
    from shardwise.plans import save_plan

    check_outputs()
    answer, file = request_of(ExportRequest, options).answer(), options["file"]
    if file is not None and options["to"]:
        write_text(file, answer.text, option="-o")
    elif file is not None:
        save_plan(answer.value, file)
    more: tuple[str, ...] = ()
    if file is not None and options["from_"]:
        shown = next_step("next:", spelt("plan show", [file], {}))
        more = (shown, *against_lines(file, answer.value))
    way = "to" if options["to"] else "from"
    show_answer(
        replace(answer, output=file and str(file)),
        options,
        inputs={"path": str(options["path"]), way: options["to"] or options["from_"]},
        page=[f"wrote {file}"] if file else None,
        more=more,
    )
