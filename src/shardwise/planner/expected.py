"""The range around an expected step, and what runs of one's own do to both."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.boundary.records import Record
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.features import features_of
from shardwise.roofline.evidence import OwnRuns, Shift, read_spread
from shardwise.roofline.residuals import read_residuals


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRunsSaid(Record):
    """What runs of one's own did to a step and its range."""

    table: str
    """The table's name."""
    rows: int
    """Rows of the table."""
    like: int
    """Those that are like the plan, and move it."""
    times: float
    """The step over the one that published runs suggest."""
    low: float
    """Seconds of the fast end of the range without them."""
    high: float
    """Seconds of its slow end without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRange(Record):
    """The 80 % range of an expected step time: how far published runs that share the plan's
    features were missed, each by constants without its group (publisher and software)."""

    low: float
    """Seconds of the fast end."""
    high: float
    """Seconds of the slow end."""
    runs: int
    """Published runs behind it."""
    groups: int
    """Their groups."""
    why: Sequence[str]
    """Why it is wide, the widest reason first."""
    evidence: OwnRunsSaid | None
    """What runs of one's own did (--evidence)."""


def shift_of(answer: TrainAnswer, evidence: OwnRuns | None) -> Shift | None:
    """What runs of one's own say of a plan that is priced without them."""
    if evidence is None:
        return None
    features = features_of(answer)
    return evidence.of(features, read_residuals().range_of(features), read_spread())


def expected_range(answer: TrainAnswer) -> ExpectedRange | None:
    """The 80 % range of the expected step time; None for the book's constants, which derate
    nothing."""
    if answer.plan.constants == "book":
        return None
    table = read_residuals()
    found, shift = table.range_of(features_of(answer)), answer.shift
    low, high = (shift or found).interval(answer.step_seconds.expected)
    return ExpectedRange(
        low=low,
        high=high,
        runs=table.runs,
        groups=table.groups,
        why=found.why,
        evidence=shift and _own_runs(shift, answer.step_seconds.expected),
    )


def _own_runs(shift: Shift, seconds: float) -> OwnRunsSaid:
    low, high = shift.interval_before(seconds)
    return OwnRunsSaid(
        table=shift.name,
        rows=shift.rows,
        like=shift.like,
        times=shift.times,
        low=low,
        high=high,
    )
