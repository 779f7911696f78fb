"""What a published run measured, beside what is predicted of its plan."""

from typing import Any

from shardwise.planner.training import TrainAnswer
from shardwise.plans.named import Measured


def measured_result(measured: Measured | None, answer: TrainAnswer) -> dict[str, Any] | None:
    """A run as a document's `measured`, None where nothing was published. `times_predicted` is its
    seconds a step over the expected ones, `mfu` at these by the count of FLOPs and the peak that
    the prediction's `mfu` has, `published_mfu` as the source prints it."""
    if measured is None:
        return None
    seconds = measured.step_seconds
    times = seconds and seconds / answer.step_seconds["expected"]
    return {
        "step_seconds": seconds,
        "times_predicted": times,
        "mfu": times and answer.mfu / times,
        "mfu_dtype": answer.plan.dtypes.compute,
        "published": measured.published,
        "published_mfu": measured.mfu,
        "published_mfu_dtype": measured.mfu and measured.mfu_dtype,
        "source": measured.source,
        "note": measured.note,
    }
