"""The range around an expected step, and what runs of one's own do to both."""

from typing import Any

from shardwise.planner.features import features_of
from shardwise.planner.training import TrainAnswer
from shardwise.roofline.evidence import OwnRuns, Shift, read_spread
from shardwise.roofline.residuals import read_residuals


def shift_of(answer: TrainAnswer, evidence: OwnRuns | None) -> Shift | None:
    """What runs of one's own say of a plan that is priced without them."""
    if evidence is None:
        return None
    features = features_of(answer)
    return evidence.of(features, read_residuals().range_of(features), read_spread())


def expected_range(answer: TrainAnswer) -> dict[str, Any] | None:
    """The 80 % range of the expected step time, from how far published runs that share the plan's
    features were missed, each by constants without its group, and why it is wide; None for the
    book's constants, which derate nothing."""
    if answer.plan.constants == "book":
        return None
    table = read_residuals()
    found, shift = table.range_of(features_of(answer)), answer.shift
    low, high = (shift or found).interval(answer.step_seconds["expected"])
    return {
        "low": low,
        "high": high,
        "runs": table.runs,
        "groups": table.groups,
        "why": list(found.why),
        "evidence": shift and _evidence_result(shift, answer.step_seconds["expected"]),
    }


def _evidence_result(shift: Shift, seconds: float) -> dict[str, Any]:
    """What runs of one's own did to a step and its range: `low` and `high` without them."""
    low, high = shift.interval_before(seconds)
    return {
        "table": shift.name,
        "rows": shift.rows,
        "like": shift.like,
        "times": shift.times,
        "low": low,
        "high": high,
    }
