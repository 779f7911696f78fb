"""`shardwise train`: run a training plan on the devices at hand."""

import sys
import time
from typing import Any

import click

from shardwise.apps.cli.command import AnswerCommand
from shardwise.apps.cli.numbers import NUMBER, WHOLE, Word
from shardwise.apps.cli.options import request_of
from shardwise.apps.cli.output import json_option, show_answer, spoken, tell
from shardwise.apps.cli.parts import needed_for
from shardwise.errors import Caution

SCHEDULES = Word(["cosine", "linear", "constant"])
MATMULS = Word(["plain", "one_way", "both_ways"])
EVERY = 10.0
"""Seconds between two lines of a log at most, where steps are slow."""


@click.command(cls=AnswerCommand)
@click.argument("plan", type=click.Path(dir_okay=False))
@click.option("--data", required=True, metavar="FILE|DIR", help="Text to train on.")
@click.option(
    "--steps", required=True, type=WHOLE, help="Steps of the whole run, resumed ones included."
)
@click.option("--out", metavar="DIR", help="Checkpoints and metrics; default PLAN.run.")
@click.option("--seed", type=WHOLE, default=0, help="Weights and order of the data.  [0]")
@click.option("--lr", type=NUMBER, default=1e-3, help="Peak learning rate.  [0.001]")
@click.option("--warmup", type=WHOLE, default=0, help="Steps up to the peak.  [0]")
@click.option("--lr-schedule", type=SCHEDULES, default="cosine", help="Down to 10 %.  [cosine]")
@click.option(
    "--clip",
    type=NUMBER,
    default=1.0,
    help="Norm of the gradient at most; 0 for none.  [1]",
)
@click.option(
    "--decay",
    type=NUMBER,
    default=0.1,
    help="Weight decay of matrices and tables.  [0.1]",
)
@click.option(
    "--save-every",
    type=WHOLE,
    default=0,
    metavar="N",
    help="Steps per checkpoint; the last always.",
)
@click.option("--resume", is_flag=True, help="Go on from the newest checkpoint in --out.")
@click.option("--tokenizer", metavar="FILE", help="A tokenizer.json; default --init's, or bytes.")
@click.option("--init", metavar="DIR", help="Begin with a Hugging Face checkpoint.")
@click.option("--save-hf", metavar="DIR", help="Save the trained model as one, too.")
@click.option(
    "--tensor-matmul", type=MATMULS, default="plain", help="Rings over tensor, or XLA's.  [plain]"
)
@click.option("--profile", is_flag=True, help="Trace three steps into DIR/profile.")
@click.option("--cpu-devices", type=WHOLE, metavar="N", help="N virtual CPU devices per process.")
@click.option("--coordinator", metavar="HOST:PORT", help="Where the processes meet.")
@click.option("--processes", type=WHOLE, metavar="N", help="How many; alone it starts them here.")
@click.option("--process", type=WHOLE, metavar="I", help="Which of them this is, from 0.")
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="Change the plan first.")
@json_option
def train(**options: Any) -> None:
    """Train the model of PLAN on text, on the devices at hand.

    Every step is printed beside what the plan predicts for its slice. A run that was stopped, by
    whatever, goes on with --resume exactly as it would have.
    """
    with needed_for("training"):
        from shardwise.commands.run.train import run_training
        from shardwise.commands.run.training import Stopped, TrainRunRequest
    request = request_of(TrainRunRequest, options)
    try:
        answer = run_training(request, _Shown())
    except Stopped as stop:
        click.echo(f"\n{stop}" if sys.stderr.isatty() else str(stop), err=True)
        sys.exit(stop.exit_code)
    if sys.stderr.isatty():
        click.echo(err=True)
    asked = {k: v for k, v in options.items() if k not in ("plan", "sets", "as_json")}
    inputs = {"plan": options["plan"], "set": list(options["sets"]), **asked}
    show_answer(answer, options, inputs=inputs | {"out": str(request.folder)})


class _Shown:
    """One line that is written over on a terminal, but for warnings; in a log all before the first
    step, then every tenth and one every ten seconds."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, line: str, metrics: dict[str, Any]) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[2K{spoken(line)}", nl=isinstance(line, Caution), err=True)
        elif self._is_due(metrics):
            self._last = time.monotonic()
            tell(line)

    def _is_due(self, metrics: dict[str, Any]) -> bool:
        if not metrics or metrics["step"] % 10 == 0 or metrics["step"] == 1:
            return True
        return time.monotonic() - self._last > EVERY
