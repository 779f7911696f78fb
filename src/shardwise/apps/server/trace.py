"""The last steps of the engine, as a trace for ui.perfetto.dev and beside their prediction."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardwise.boundary.records import Record, part
from shardwise.commands.run.serving import StepRecord
from shardwise.planner.simulate.step_trace import step_name

log = logging.getLogger("shardwise.server")
KEPT = 4096
"""Steps that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent(Record):
    """An event of the Trace Event Format: a step (`X`), a counter (`C`) or a name (`M`)."""

    ph: str
    ts: float
    """Microseconds."""
    dur: float | None = part()
    pid: int = 1
    tid: int
    name: str
    cat: str | None = part()
    args: Mapping[str, str | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary(Record):
    """What the steps of some seconds did."""

    steps: int
    tokens_per_second: float
    step_seconds: float | None = part()
    """The mean of the steps."""
    predicted_step_seconds: float | None = part()


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

    def events(self, last: int) -> list[StepEvent]:
        """The last steps in the Trace Event Format; microseconds of the engine's clock."""
        steps = list(self.steps)[-last:]
        named = [("process_name", 1, "engine")]
        named += [("thread_name", 1 + n, f"steps of {n}") for n in {s.replica for s in steps}]
        events = [
            StepEvent(ph="M", ts=0, tid=tid, name=name, args={"name": text})
            for name, tid, text in named
        ]
        for step in steps:
            events.append(self._event(step))
            counts = {"waiting": step.waiting, "cache pages": step.pages_used}
            events += [
                StepEvent(ph="C", ts=step.ended * 1e6, tid=0, name=k, args={k: v})
                for k, v in counts.items()
            ]
        return events

    def _event(self, step: StepRecord) -> StepEvent:
        arguments = {**step.shape._asdict(), "steps": step.steps}
        arguments["seconds_since_given"] = step.ended - step.begun
        if (predicted := self.predicted(step)) is not None:
            arguments["predicted_seconds"] = predicted
        return StepEvent(
            ph="X",
            ts=(step.ended - step.seconds) * 1e6,
            dur=step.seconds * 1e6,
            tid=1 + step.replica,
            name=step_name(step.shape),
            cat="step",
            args=arguments,
        )

    def summary(self, seconds: float) -> StepSummary:
        """What the steps of the last so many seconds did, for the log."""
        since = time.monotonic() - seconds
        steps = [step for step in list(self.steps) if step.ended >= since]
        predict, count = self._predict, len(steps)
        return StepSummary(
            steps=sum(step.steps for step in steps),
            tokens_per_second=sum(s.shape.samples * s.steps for s in steps) / seconds,
            step_seconds=sum(step.seconds for step in steps) / count if steps else None,
            predicted_step_seconds=(
                sum(map(predict, steps)) / count if steps and predict is not None else None
            ),
        )
