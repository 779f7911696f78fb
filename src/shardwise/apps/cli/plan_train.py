"""`shardwise plan train`: the fastest training plan that fits, and why."""

from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.files import check_outputs, file_option
from shardwise.apps.cli.numbers import WHOLE
from shardwise.apps.cli.options import hardware_options, request_of
from shardwise.apps.cli.output import csv_option, json_option, show_answer
from shardwise.apps.cli.pages import sections_options
from shardwise.apps.cli.plan_train_options import run_options, search_options
from shardwise.apps.cli.progress import progress_line
from shardwise.apps.cli.timeline import timeline_options, write_timeline
from shardwise.verbs.layout import wrapped


@click.command(cls=AnswerCommand)
@click.option("--model", required=True, help="Zoo name, config.json, or a folder with one.")
@click.option("--on", required=True, help="Slice such as v5p:16x16x16, or a bare chip.")
@click.option("--batch", required=True, help="Tokens (4Mi) or sequences (1024seq) per step.")
@click.option("--seq", required=True, help="Tokens per sequence.")
@search_options
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
@file_option("-o", "plan_path", help="Plan file.")
@sections_options("detail", "why", "book")
@hardware_options()
@csv_option
@json_option
def train(**options: Any) -> None:
    """Choose mesh, microbatches, schedule, storage and remat so that a step fits and is best.

    Which plans are looked at: docs/legality.md. The best are priced again by an event timeline of
    their own pipeline stages.
    """
    from shardwise.plans import save_plan
    from shardwise.verbs.plan_train import TrainPlanRequest

    check_outputs()
    answer = request_of(TrainPlanRequest, options).answer(progress_line("searching"))
    path = options["plan_path"]
    if path:
        save_plan(answer.best.plan, path)
    show_answer(answer, options, more=next_lines(path, answer.best.plan.software))
    write_timeline(answer.best, options)


def next_lines(path: Path | None, software: str) -> tuple[str, ...]:
    """What to type next: with a plan that was written, or to have it written."""
    target = "TARGET" if software == "any" else software
    if path is None:
        again = "the same with -o plan.yaml, then: shardwise export plan.yaml"
        return ("", wrapped(f"next: {again} --to {target}", 2, 4))
    then = f"shardwise export {path} --to {target}"
    if target in ("TARGET", "jax"):
        then += f", compile {path}, or train {path}"
    return ("", wrapped(f"{path} written; next: {then}", 2, 4))
