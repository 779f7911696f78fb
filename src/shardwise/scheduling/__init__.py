"""Scheduling decides who does what in which order; it computes no time and touches no array.

`pipeline.py` writes the tables of pipeline schedules: per rank an ordered list of forward,
backward and weight-gradient passes. The planner prices such a table, the runtime executes it. The
serving scheduler (requests, KV pages, batching policies) will stand beside it. Not here: seconds
and closed forms (`planner/timeline.py`, `planner/pipeline.py`), and the choice of a schedule
(`plans/`). Read `pipeline.py` first.
"""

from shardwise.scheduling.pipeline import (
    Action,
    PassKind,
    PipelineKind,
    Schedule,
    pipeline_schedule,
    ready_order,
)

__all__ = [
    "Action",
    "PassKind",
    "PipelineKind",
    "Schedule",
    "pipeline_schedule",
    "ready_order",
]
