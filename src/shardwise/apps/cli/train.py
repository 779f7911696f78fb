"""`shardwise train`: run a training plan on the devices at hand."""

import sys
import time
from pathlib import Path
from typing import Any

import click

from shardwise.apps.cli.numbers import DEVICES, PROCESSES, SEED, STEPS, Number, Whole
from shardwise.apps.cli.output import document, emit, json_option
from shardwise.apps.cli.parts import needed_for
from shardwise.errors import BadRequest
from shardwise.units import format_count, format_seconds

SCHEDULES = click.Choice(["cosine", "linear", "constant"])
MATMULS = click.Choice(["plain", "one_way", "both_ways"])
EVERY = 10.0
"""Seconds between two lines of a log at most, where steps are slow."""


@click.command()
@click.argument("plan", type=click.Path(dir_okay=False))
@click.option("--data", required=True, metavar="FILE|DIR", help="Text to train on.")
@click.option(
    "--steps", required=True, type=STEPS, help="Steps of the whole run, resumed ones included."
)
@click.option("--out", metavar="DIR", help="Checkpoints and metrics; default PLAN.run.")
@click.option("--seed", type=SEED, default=0, help="Weights and order of the data.  [0]")
@click.option(
    "--lr", type=Number(above=0, most=1e3), default=1e-3, help="Peak learning rate.  [0.001]"
)
@click.option("--warmup", type=Whole(most=10**9), default=0, help="Steps up to the peak.  [0]")
@click.option("--schedule", type=SCHEDULES, default="cosine", help="Down to 10 %.  [cosine]")
@click.option(
    "--clip",
    type=Number(least=0, most=1e9),
    default=1.0,
    help="Norm of the gradient at most; 0 for none.  [1]",
)
@click.option(
    "--decay",
    type=Number(least=0, most=1e3),
    default=0.1,
    help="Weight decay of matrices and tables.  [0.1]",
)
@click.option(
    "--save-every",
    type=Whole(most=10**9),
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
@click.option("--cpu-devices", type=DEVICES, metavar="N", help="N virtual CPU devices per process.")
@click.option("--coordinator", metavar="HOST:PORT", help="Where the processes meet.")
@click.option(
    "--processes", type=PROCESSES, metavar="N", help="How many; alone it starts them here."
)
@click.option(
    "--process", type=Whole(most=100_000), metavar="I", help="Which of them this is, from 0."
)
@click.option("--set", "sets", multiple=True, metavar="PATH=VALUE", help="Change the plan first.")
@json_option
def train(plan: str, sets: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Train the model of PLAN on text, on the devices at hand.

    Every step is printed beside what the plan predicts for its slice. A run that was stopped, by
    whatever, goes on with --resume exactly as it would have.
    """
    with needed_for("training"):
        from shardwise.workflows.train import Stopped, TrainRequest, train_plan
    options["out"] = options["out"] or f"{Path(plan).stem}.run"
    request = TrainRequest(plan=plan, overrides=_overrides(sets), **options)
    try:
        result = train_plan(request, _Shown())
    except Stopped as stop:
        click.echo(f"\n{stop}" if sys.stderr.isatty() else str(stop), err=True)
        sys.exit(stop.exit_code)
    if sys.stderr.isatty():
        click.echo(err=True)
    inputs = {"plan": plan, "set": list(sets), **options}
    doc = document(inputs=inputs, result=result, warnings=result.pop("notes"))
    emit(doc, as_json, lambda: _render(result))


def _overrides(sets: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    found = []
    for text in sets:
        path, equals, value = text.partition("=")
        if not equals:
            raise BadRequest(f"--set '{text}' is not PATH=VALUE; write it like --set remat=block")
        found.append((path, value))
    return tuple(found)


class _Shown:
    """One line that is written over on a terminal, but for warnings; in a log all before the first
    step, then every tenth and one every ten seconds."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, line: str, metrics: dict[str, Any]) -> None:
        if sys.stderr.isatty():
            stays = line.startswith("warning: ")
            click.echo(f"\r\x1b[2K{line}", nl=stays, err=True)
        elif self._is_due(metrics):
            self._last = time.monotonic()
            click.echo(line, err=True)

    def _is_due(self, metrics: dict[str, Any]) -> bool:
        if not metrics or metrics["step"] % 10 == 0 or metrics["step"] == 1:
            return True
        return time.monotonic() - self._last > EVERY


def _render(result: dict[str, Any]) -> None:
    if result["loss"] is None:
        click.echo(f"all {result['steps']} steps were done already")
    else:
        click.echo(
            f"{result['steps']} steps (from {result['from_step']}), loss {result['loss']:.4f}"
        )
    if result["tokens_per_second"] is not None:
        times = result["step_seconds"]
        click.echo(
            f"{format_count(result['tokens_per_second'])} tokens/s on {result['devices']}, "
            f"{format_seconds(times['measured'])} per step{_beside(result)}"
        )
    click.echo(f"checkpoint: {result['checkpoint']}")
    if result["hf_checkpoint"]:
        click.echo(f"for transformers: {result['hf_checkpoint']}")


def _beside(result: dict[str, Any]) -> str:
    """The prediction, and whether it is one for these devices."""
    predicted = result["step_seconds"]["predicted"]
    if predicted is None:
        return ""
    said = f"; {format_seconds(predicted)} predicted for {result['slice']}"
    if result["devices_are_the_plans"]:
        return said
    return f"{said}, which these devices are not: their times do not test the plan"
