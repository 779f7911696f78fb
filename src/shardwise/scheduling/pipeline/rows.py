"""The pipeline schedules that a plan may name, one row each."""

from collections.abc import Mapping
from typing import Literal, cast, get_args

from shardwise.errors import unknown
from shardwise.scheduling.pipeline.dualpipe import DUALPIPE
from shardwise.scheduling.pipeline.gpipe import GPIPE
from shardwise.scheduling.pipeline.interleaved import INTERLEAVED
from shardwise.scheduling.pipeline.one_forward_one_backward import ONE_FORWARD_ONE_BACKWARD
from shardwise.scheduling.pipeline.row import ScheduleRow
from shardwise.scheduling.pipeline.zb_h1 import ZB_H1
from shardwise.scheduling.pipeline.zb_v import ZB_V

PipelineKind = Literal["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe"]
PIPELINE_KINDS: tuple[PipelineKind, ...] = get_args(PipelineKind)

SCHEDULES: Mapping[str, ScheduleRow] = {
    row.name: row for row in (GPIPE, ONE_FORWARD_ONE_BACKWARD, INTERLEAVED, ZB_H1, ZB_V, DUALPIPE)
}

PLAIN = cast(PipelineKind, ONE_FORWARD_ONE_BACKWARD.name)
"""The schedule of a plan that names none, and of every plan on one rank. No other has fewer
microbatches in flight, and its ends lie on two devices."""


def schedule_row(kind: str) -> ScheduleRow:
    """The row of a schedule; BadRequest for a name that there is not."""
    row = SCHEDULES.get(kind)
    if row is None:
        raise unknown("pipeline schedule", kind, PIPELINE_KINDS)
    return row
