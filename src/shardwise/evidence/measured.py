"""What a published run measured, beside what is predicted of its plan."""

from dataclasses import dataclass

from shardwise.boundary.records import Record
from shardwise.planner.evaluate import TrainAnswer
from shardwise.plans.named import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun(Record):
    """A published run beside the prediction of its plan."""

    step_seconds: float | None
    """Seconds of a step, where they follow from what is published."""
    times_predicted: float | None
    """Those over the expected ones."""
    mfu: float | None
    """Utilisation at these seconds, by the count of FLOPs and the peak that the prediction has."""
    mfu_dtype: str
    """The dtype of whose peak that is."""
    published: str
    """What the source prints."""
    published_mfu: float | None
    """Utilisation as the source prints it."""
    published_mfu_dtype: str | None
    """The dtype of whose peak that is."""
    source: str
    """Where it is published."""
    note: str
    """How seconds follow from it."""


def measured_run(measured: Measured | None, answer: TrainAnswer) -> MeasuredRun | None:
    """A published run beside the prediction; None where nothing was published."""
    if measured is None:
        return None
    seconds = measured.step_seconds
    times = seconds and seconds / answer.step_seconds.expected
    return MeasuredRun(
        step_seconds=seconds,
        times_predicted=times,
        mfu=times and answer.mfu / times,
        mfu_dtype=answer.plan.dtypes.compute,
        published=measured.published,
        published_mfu=measured.mfu,
        published_mfu_dtype=measured.mfu_dtype if measured.mfu else None,
        source=measured.source,
        note=measured.note,
    )
