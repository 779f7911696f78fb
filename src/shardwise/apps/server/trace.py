"""The last steps of the engine, as a trace for ui.perfetto.dev and beside their prediction."""

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from shardwise.commands.run.serving import StepRecord
from shardwise.planner.simulate.step_trace import step_name

log = logging.getLogger("shardwise.server")
KEPT = 4096
"""Steps that are kept."""


class StepTrace:
    """Hears every step; `predict` says how many seconds one should take, where that is known."""

    def __init__(self, predict: Callable[[StepRecord], float] | None) -> None:
        self.steps: deque[StepRecord] = deque(maxlen=KEPT)
        self._predict = predict

    def stepped(self, record: StepRecord) -> None:
        """One step more; called on the engine's thread."""
        self.steps.append(record)
        if log.isEnabledFor(logging.DEBUG):
            fields = {**record.shape._asdict(), "steps": record.steps, "seconds": record.seconds}
            log.debug("step", extra={"fields": {**fields, "predicted": self.predicted(record)}})

    def predicted(self, record: StepRecord) -> float | None:
        """Seconds that a step should have taken."""
        return None if self._predict is None else self._predict(record)

    def events(self, last: int) -> dict[str, Any]:
        """The last steps in the Trace Event Format; microseconds of the engine's clock."""
        steps = list(self.steps)[-last:]
        named = [("process_name", 1, "engine")]
        named += [("thread_name", 1 + n, f"steps of {n}") for n in {s.replica for s in steps}]
        events: list[dict[str, Any]] = [
            {"ph": "M", "ts": 0, "pid": 1, "tid": tid, "name": name, "args": {"name": text}}
            for name, tid, text in named
        ]
        for step in steps:
            events.append(self._event(step))
            counts = {"waiting": step.waiting, "cache pages": step.pages_used}
            events += [
                {"ph": "C", "ts": step.ended * 1e6, "pid": 1, "tid": 0, "name": k, "args": {k: v}}
                for k, v in counts.items()
            ]
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def _event(self, step: StepRecord) -> dict[str, Any]:
        arguments = {**step.shape._asdict(), "steps": step.steps}
        arguments["seconds_since_given"] = step.ended - step.begun
        if (predicted := self.predicted(step)) is not None:
            arguments["predicted_seconds"] = predicted
        return {
            "ph": "X",
            "ts": (step.ended - step.seconds) * 1e6,
            "dur": step.seconds * 1e6,
            "pid": 1,
            "tid": 1 + step.replica,
            "name": step_name(step.shape),
            "cat": "step",
            "args": arguments,
        }

    def summary(self, seconds: float) -> dict[str, Any]:
        """What the steps of the last so many seconds did, for the log."""
        since = time.monotonic() - seconds
        steps = [step for step in list(self.steps) if step.ended >= since]
        found: dict[str, Any] = {
            "steps": sum(step.steps for step in steps),
            "tokens_per_second": sum(s.shape.samples * s.steps for s in steps) / seconds,
        }
        if steps:
            found["step_seconds"] = sum(step.seconds for step in steps) / len(steps)
            if self._predict is not None:
                said = [self.predicted(step) or 0.0 for step in steps]
                found["predicted_step_seconds"] = sum(said) / len(said)
        return found
