"""The last steps of the engine, as a trace for ui.perfetto.dev and beside their prediction."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from shardwise.planner.simulate.step_trace import step_name
from shardwise.workflows.serving import StepRecord, StepShape

KEPT = 4096
"""Steps that are kept."""


class StepTrace:
    """Hears every step; `predict` says how many seconds one should take, where that is known."""

    def __init__(self, predict: Callable[[StepShape], float] | None) -> None:
        self.steps: deque[StepRecord] = deque(maxlen=KEPT)
        self._predict = predict

    def stepped(self, record: StepRecord) -> None:
        """One step more; called on the engine's thread."""
        self.steps.append(record)

    def predicted(self, record: StepRecord) -> float | None:
        """Seconds that a step should have taken."""
        return None if self._predict is None else self._predict(record.shape) * record.steps

    def events(self, last: int) -> dict[str, Any]:
        """The last steps in the Trace Event Format; microseconds of the engine's clock."""
        steps = list(self.steps)[-last:]
        names = {"process_name": "engine", "thread_name": "steps"}
        events: list[dict[str, Any]] = [
            {"ph": "M", "ts": 0, "pid": 1, "tid": 1, "name": name, "args": {"name": text}}
            for name, text in names.items()
        ]
        end = 0.0
        for step in steps:
            begun = max(step.begun, end)  # one may be given before the last one is read
            end = max(step.ended, begun)
            events.append(self._event(step, begun, end))
            counts = {"waiting": step.waiting, "cache pages": step.pages_used}
            events += [
                {"ph": "C", "ts": step.ended * 1e6, "pid": 1, "tid": 0, "name": k, "args": {k: v}}
                for k, v in counts.items()
            ]
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def _event(self, step: StepRecord, begun: float, end: float) -> dict[str, Any]:
        arguments = {**step.shape._asdict(), "steps": step.steps}
        arguments["seconds_since_given"] = step.ended - step.begun
        if (predicted := self.predicted(step)) is not None:
            arguments["predicted_seconds"] = predicted
        return {
            "ph": "X",
            "ts": begun * 1e6,
            "dur": (end - begun) * 1e6,
            "pid": 1,
            "tid": 1,
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
            busy = sum(b.ended - max(a.ended, b.begun) for a, b in zip(steps, steps[1:]))  # noqa: B905, RUF007
            found["step_seconds"] = busy / max(len(steps) - 1, 1)
            if self._predict is not None:
                said = [self.predicted(step) or 0.0 for step in steps]
                found["predicted_step_seconds"] = sum(said) / len(said)
        return found
