"""Pipeline schedules as rows and as pure tables: per rank, the order of its passes.

`row.py` says what a row holds: chunks, where stages lie, whether the backward pass is split, the
order of passes, microbatches in flight, critical paths, and the counts that are legal. Each
schedule is a file (`gpipe.py`, `one_forward_one_backward.py`, `interleaved.py`, `zb_h1.py`,
`zb_v.py`, `dualpipe.py`) and `rows.py` lists them. `passes.py` has the passes and their phases,
`table.py` makes the table of all ranks. Not here: seconds (`planner/price/`). A new schedule is a
new file and its line in `rows.py`. Read `row.py` first, then `zb_v.py`.
"""

from shardwise.scheduling.pipeline.passes import Action, PassKind
from shardwise.scheduling.pipeline.row import ScheduleRow
from shardwise.scheduling.pipeline.rows import (
    PIPELINE_KINDS,
    PLAIN,
    SCHEDULES,
    PipelineKind,
    schedule_row,
)
from shardwise.scheduling.pipeline.table import (
    Schedule,
    check_counts,
    pipeline_schedule,
    ready_order,
)

__all__ = [
    "PIPELINE_KINDS",
    "PLAIN",
    "SCHEDULES",
    "Action",
    "PassKind",
    "PipelineKind",
    "Schedule",
    "ScheduleRow",
    "check_counts",
    "pipeline_schedule",
    "ready_order",
    "schedule_row",
]
