"""`train`: run a training plan on the devices at hand."""

from dataclasses import dataclass

from shardwise.commands.base.answer import Answer, Page, Row
from shardwise.commands.base.request import verb
from shardwise.commands.run.training import Progress, TrainedRun, TrainRunRequest
from shardwise.commands.run.workers import train_plan
from shardwise.units import format_count, format_seconds


@dataclass(frozen=True, kw_only=True, repr=False)
class Trained(Answer, TrainedRun):
    """A run that is done."""

    def table(self) -> list[Row]:
        """One row: loss, speed, and where its files are."""
        return [self.result]

    def page(self) -> Page:
        """Loss, speed and the prediction beside it."""
        return _run_page(self)


def run_training(request: TrainRunRequest, hear: Progress = lambda *_: None) -> Trained:
    """Train; `hear` is told each step. Raises BadRequest before anything is started where plan,
    data or devices do not fit."""
    result = train_plan(request, hear)
    return Trained.of(result, warnings=result.notes)


train = verb("train", TrainRunRequest, run_training)


def _run_page(result: TrainedRun) -> Page:
    if result.loss is None:
        yield f"all {result.steps} steps were done already"
    else:
        yield (f"{result.steps} steps (from {result.from_step}), loss {result.loss:.4f}")
    measured = result.step_seconds.measured
    if result.tokens_per_second is not None and measured is not None:
        yield (
            f"{format_count(result.tokens_per_second)} tokens/s on {result.devices}, "
            f"{format_seconds(measured)} per step{_beside(result)}"
        )
    yield f"checkpoint: {result.checkpoint}"
    if result.hf_checkpoint:
        yield f"for transformers: {result.hf_checkpoint}"


def _beside(result: TrainedRun) -> str:
    predicted = result.step_seconds.predicted
    if predicted is None:
        return ""
    said = f"; {format_seconds(predicted)} predicted for {result.slice}"
    if result.devices_are_the_plans:
        return said
    return f"{said}; these devices are others, so their times do not test the plan"
