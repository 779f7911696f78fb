"""`shardwise train`: run a training plan on the devices at hand."""

import sys
import time
from typing import TYPE_CHECKING

import click

from shardwise.apps.cli.command import by_name, command, request_of
from shardwise.apps.cli.options import Outputs
from shardwise.apps.cli.output import show_answer, spoken, tell
from shardwise.apps.cli.parts import needed_for
from shardwise.errors import Caution

if TYPE_CHECKING:
    from shardwise.commands.run.training import StepMetrics

EVERY = 10.0
"""Seconds between two lines of a log at most, where steps are slow."""


@command("train", "as_json")
def train(out: Outputs) -> None:
    """Train the model of PLAN on text, on the devices here.

    Each step prints its time beside the time that the plan predicts for its slice. After any stop,
    --resume continues the run exactly.
    """
    with needed_for("training"):
        from shardwise.commands.run.train import run_training
        from shardwise.commands.run.training import Stopped, TrainRunRequest
    request, shown = request_of(TrainRunRequest), _Shown()
    try:
        answer = run_training(request, shown)
    except Stopped as stop:
        click.echo(f"\n{stop}" if sys.stderr.isatty() else str(stop), err=True)
        sys.exit(stop.exit_code)
    if sys.stderr.isatty():
        click.echo(err=True)
    asked = by_name(request, "plan", "sets")
    inputs = {"plan": str(request.plan), "set": request.sets, **asked, "out": str(request.folder)}
    show_answer(answer, out, inputs, told=shown.warnings)


class _Shown:
    """One line that is written over on a terminal, but for warnings; in a log all before the first
    step, then every tenth and one every ten seconds."""

    def __init__(self) -> None:
        self._last, self.warnings = 0.0, set[str]()

    def __call__(self, line: str, metrics: "StepMetrics | None") -> None:
        if isinstance(line, Caution):
            self.warnings.add(line)
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[2K{spoken(line)}", nl=isinstance(line, Caution), err=True)
        elif self._is_due(metrics):
            self._last = time.monotonic()
            tell(line)

    def _is_due(self, metrics: "StepMetrics | None") -> bool:
        if metrics is None or metrics.step % 10 == 0 or metrics.step == 1:
            return True
        return time.monotonic() - self._last > EVERY
