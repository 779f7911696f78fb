"""A simulation as a trace file: every step of every replica, and every request's life.

Opens in ui.perfetto.dev or chrome://tracing. A replica is a process; its steps are one track, its
queue, its running sequences and its cache are counters. Requests are asynchronous events: their
bars may overlap.
"""

from collections.abc import Iterator
from typing import Any

from shardwise.planner.simulate.clock import TICKS
from shardwise.planner.simulate.metrics import levels
from shardwise.planner.simulate.replica import Replica, StepRun
from shardwise.planner.simulate.run import Outcome
from shardwise.scheduling.step import StepShape

_MICRO = TICKS // 10**6
_NANO = TICKS // 10**9


def step_events(outcome: Outcome, until: float = float("inf")) -> dict[str, Any]:
    """The trace as a JSON object, up to `until` seconds after the first arrival.

    The simulation must have kept its steps. Times are microseconds from the first arrival.
    """
    last = outcome.start + until * TICKS
    events: list[dict[str, Any]] = []
    for replica in outcome.replicas:
        events += _names(replica)
        events += _steps(replica, outcome.start, last)
        events += _counters(replica, outcome.start, last)
    events += _requests(outcome, last)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"replicas": str(len(outcome.replicas)), "requests": str(len(outcome.jobs))},
    }


def _process(replica: int) -> int:
    """Process ids start at 1: 0 is the kernel's idle process to readers of traces."""
    return replica + 1


def _names(replica: Replica) -> list[dict[str, Any]]:
    policy = replica.scheduler.config.policy
    pid = _process(replica.index)
    named = {"process_name": {"name": f"replica {replica.index} ({policy})"}}
    named |= {"process_sort_index": {"sort_index": replica.index}, "thread_name": {"name": "steps"}}
    return [
        {"ph": "M", "ts": 0, "pid": pid, "tid": 1, "name": name, "args": args}
        for name, args in named.items()
    ]


def _steps(replica: Replica, start: int, last: float) -> Iterator[dict[str, Any]]:
    """Every step; those of a run by themselves."""
    for run in replica.record.steps:
        for step in range(run.steps):
            begin, end = run.start + run.after(step), run.start + run.after(step + 1)
            if begin >= last:
                return
            # Whole nanoseconds at both ends: else rounding lets neighbours overlap.
            at, to = (begin - start) // _NANO, (end - start) // _NANO
            yield {
                "ph": "X",
                "ts": at / 1e3,
                "dur": (to - at) / 1e3,
                "pid": _process(replica.index),
                "tid": 1,
                "name": step_name(run.plan.shape),
                "cat": "step",
                "args": _arguments(run, step),
            }


def step_name(shape: StepShape) -> str:
    """What a step does: "decode 12", "prefill 2048", or "mixed 2048 + 12"."""
    if not shape.prefill_tokens:
        return f"decode {shape.decodes}"
    if not shape.decodes:
        return f"prefill {shape.prefill_tokens}"
    return f"mixed {shape.prefill_tokens} + {shape.decodes}"


def _arguments(run: StepRun, step: int) -> dict[str, Any]:
    shape = run.plan.shape
    found: dict[str, Any] = {
        "decodes": shape.decodes,
        "decode_context": shape.decode_context + step * shape.decodes,
    }
    if shape.prefill_tokens:
        found["prefill_tokens"] = shape.prefill_tokens
        found["requests"] = [chunk.sequence.request.id for chunk in run.plan.chunks]
    if run.plan.preempted:
        found["preempted"] = [job.request.id for job in run.plan.preempted]
    return found


def _counters(replica: Replica, start: int, last: float) -> Iterator[dict[str, Any]]:
    for moment, waiting, running, pages in levels(replica).tolist():
        if moment >= last:
            return
        counts = {"waiting": int(waiting), "running": int(running), "cache pages": int(pages)}
        for name, value in counts.items():
            yield {
                "ph": "C",
                "ts": (moment - start) / _MICRO,
                "pid": _process(replica.index),
                "tid": 0,
                "name": name,
                "args": {name: value},
            }


def _requests(outcome: Outcome, last: float) -> Iterator[dict[str, Any]]:
    """Each request's wait and its answer, on the replica that answered."""
    for job, place in zip(outcome.jobs, outcome.placed, strict=True):
        arrival, first, end = job.request.arrival, job.first_token, job.finished
        if arrival >= last or first is None or end is None:
            continue
        parts = (("to first token", arrival, first), ("answer", first, end))
        for name, begin, finish in parts:
            shared = {"cat": "request", "id": job.request.id, "pid": _process(place), "tid": 0}
            at = {"ts": (begin - outcome.start) / _MICRO}
            to = {"ts": (finish - outcome.start) / _MICRO}
            tokens = {"prompt": job.request.prompt, "output": job.emitted, "hit": job.hit}
            yield {"ph": "b", "name": name, **shared, **at, "args": tokens}
            yield {"ph": "e", "name": name, **shared, **to, "args": {}}
