"""Scheduling decides the order of work; it computes no time.

`pipeline/` has the pipeline schedules, a row each, and writes their tables: per rank an ordered
list of forward, backward and weight-gradient passes. The planner prices such a table, the runtime
executes it. `scheduler.py` is the scheduler of a serving replica, run by the simulator and by the
engine: with `policies.py` (what a step runs), `config.py`, `decoding.py`, `backlog.py`
(what waits), `preemption.py`, `requests.py`, `step.py`, `pages.py` (the cache's pages),
`kept.py` (those of layers that keep only the end of a sequence), `prefix.py` (the tree of cached
prefixes), `cache_manager.py` (who has which of them, and which slot), `forecast.py`. `routing.py`
spreads requests over replicas, `speculation.py` says what speculation brings. Not here: seconds
(`planner/`), and the choice of a schedule or policy (`plans/`). Read `pipeline/row.py` or
`scheduler.py` first.
"""

from shardwise.scheduling.config import SchedulerConfig
from shardwise.scheduling.pages import PagePool
from shardwise.scheduling.pipeline import (
    Action,
    PipelineKind,
    Schedule,
    pipeline_schedule,
    ready_order,
    schedule_row,
)
from shardwise.scheduling.prefix import PrefixTree
from shardwise.scheduling.requests import Request, Sequence
from shardwise.scheduling.routing import make_router
from shardwise.scheduling.scheduler import Scheduler
from shardwise.scheduling.speculation import Speculation
from shardwise.scheduling.step import StepPlan

__all__ = [
    "Action",
    "PagePool",
    "PipelineKind",
    "PrefixTree",
    "Request",
    "Schedule",
    "Scheduler",
    "SchedulerConfig",
    "Sequence",
    "Speculation",
    "StepPlan",
    "make_router",
    "pipeline_schedule",
    "ready_order",
    "schedule_row",
]
