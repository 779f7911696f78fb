"""One replica of the simulator: a scheduler, a step cost, and a record of what ran when.

Steps that only decode the same sequences are run together: their times are an arithmetic
progression, summed in closed form. What arrives meanwhile ends the run after the step that is
under way, so nothing differs from running them one by one.
"""

from array import array
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from shardwise.planner.simulate.clock import seconds, ticks
from shardwise.planner.simulate.cost import DecodeLine, ReplicaModel
from shardwise.scheduling import Request, Scheduler, SchedulerConfig, Speculation
from shardwise.scheduling.step import StepPlan, StepResult, StepShape


class StepRun(NamedTuple):
    """`steps` steps of one plan from `start`: step j takes `first` + j * `rise` ticks."""

    plan: StepPlan
    start: int
    steps: int
    first: int
    rise: int

    def after(self, steps: int) -> int:
        """Ticks of the first so many steps."""
        return steps * self.first + self.rise * (steps * (steps - 1) // 2)

    @property
    def end(self) -> int:
        return self.start + self.after(self.steps)

    def steps_to(self, moment: int) -> int:
        """The fewest steps, at least one, that end at `moment` or later; all where none do."""
        low, high = 1, self.steps
        span = moment - self.start
        if self.first > 0 < span:  # steps get no shorter: the first and the last bound the count
            last = self.first + self.rise * (self.steps - 1)
            low = min(high, -(-span // last))
            high = min(high, -(-span // self.first))
        while low < high:
            middle = (low + high) // 2
            if self.after(middle) >= span:
                high = middle
            else:
                low = middle + 1
        return low


@dataclass(slots=True)
class RunRecord:
    """What a replica did. Times in ticks. `gaps` are rows of inter-token latencies: the first, by
    how much the next is longer, how many there are, and the weight of each. `levels` are rows of
    time, waiting requests, running sequences and cache pages in use, whenever a step was planned.
    `steps` holds the runs themselves where they are kept."""

    gaps: array
    levels: array
    steps: list[StepRun]
    busy: int = 0
    prompt_ticks: int = 0
    """By how much steps took longer for the chunks in them."""
    step_count: int = 0
    runs: int = 0
    preempted: int = 0
    host_tokens: int = 0


class Replica:
    """A scheduler that runs on simulated time. `single_steps` runs every step by itself."""

    def __init__(
        self,
        index: int,
        model: ReplicaModel,
        config: SchedulerConfig,
        *,
        speculation: Speculation | None = None,
        seed: int = 0,
        single_steps: bool = False,
        keep_steps: bool = False,
    ) -> None:
        self.index = index
        self.model = model
        self.scheduler = Scheduler(config)
        self.record = RunRecord(gaps=array("d"), levels=array("d"), steps=[])
        self.run: StepRun | None = None
        self._taken = 0  # steps of the run whose pages are taken
        self._beat_end = 0
        self._speculation = speculation
        self._draw = Random(f"{seed}.{index}")
        self._single = single_steps
        self._keep = keep_steps
        self._lines: dict[int, tuple[int, int, int, float]] = {}

    # What a router looks at.

    @property
    def outstanding(self) -> int:
        return self.scheduler.outstanding

    @property
    def backlog(self) -> int:
        return self.scheduler.backlog

    def hit_tokens(self, request: Request) -> int:
        return self.scheduler.hit_tokens(request)

    def sync(self, now: int) -> None:
        """Take the pages of the steps that have begun before `now`."""
        if self.run is not None and self.run.steps > self._taken:
            begun = self.run.steps_to(now)
            if begun > self._taken:
                self.scheduler.extend(self.run.plan, self._taken, begun)
                self._taken = begun

    def begin(self, now: int) -> None:
        """Plan the next run, if there is work."""
        scheduler, record = self.scheduler, self.record
        plan = scheduler.schedule(now)
        running = len(scheduler.decoding) + len(scheduler.prefilling)
        used = scheduler.config.pages - scheduler.available
        record.levels.extend((now, scheduler.queued, running, used))
        if plan is None:
            return
        record.preempted += len(plan.preempted)
        record.host_tokens += plan.host_tokens
        if plan.shape.decodes or plan.chunks:
            self.run = self._priced(plan, now)
            self._taken = 1

    def interrupt(self, now: int) -> bool:
        """End the run after the step that is under way; whether that changes its end."""
        run = self.run
        if run is None or run.steps == 1:
            return False
        steps = run.steps_to(now)
        if steps == run.steps:
            return False
        self.run = run._replace(steps=steps)
        return True

    def finish(self) -> StepResult:
        """The run is over: hand its tokens to the scheduler and keep what it was."""
        run, record, scheduler = self.run, self.record, self.scheduler
        assert run is not None
        plan, steps, end = run.plan, run.steps, run.end
        if steps > self._taken:
            scheduler.extend(plan, self._taken, steps)
        accepted = None
        if self._speculation is not None and plan.shape.decodes:
            accepted = {job: self._speculation.accepted(self._draw) for job in scheduler.decoding}
        result = scheduler.postprocess(plan, end, steps, accepted)
        record.busy += end - run.start
        record.step_count += steps
        record.runs += 1
        if plan.chunks:
            record.prompt_ticks += run.first - self._decode_ticks(plan.shape)
        self._keep_gaps(run, result)
        self.run = None
        if self._keep:
            record.steps.append(run)
        return result

    def _keep_gaps(self, run: StepRun, result: StepResult) -> None:
        """The times between tokens, as rows of `RunRecord.gaps`."""
        gaps, first_end = self.record.gaps, run.start + run.first
        for moment in (*result.joined, *result.resumed):
            gaps.extend((first_end - int(moment), 0, 1, 1))
        if not result.decoded:
            return
        old = result.decoded - len(result.joined)
        if old:
            gaps.extend((first_end - self._beat_end, 0, 1, old))
        if run.steps > 1:
            gaps.extend((run.first + run.rise, run.rise, run.steps - 1, result.decoded))
        self._beat_end = run.end

    def _priced(self, plan: StepPlan, now: int) -> StepRun:
        """The run of a plan: how many steps, and their times."""
        shape = plan.shape
        copied = ticks(self.model.cost.host_seconds(plan.host_tokens)) if plan.host_tokens else 0
        if plan.chunks or self._speculation is not None:
            took = self._with_guesses(shape) if self._speculation else self._seconds(shape)
            return StepRun(plan, now, 1, ticks(took) + copied, 0)
        base, slope, until = self._line(shape.decodes, shape.decode_context)
        first = base + slope * shape.decode_context + copied
        steps = 1 if self._single else plan.repeat
        if steps > 1 and until < float("inf"):
            steps = max(1, min(steps, -int((shape.decode_context - until) // shape.decodes)))
        run = StepRun(plan, now, steps, first, slope * shape.decodes)
        if steps > 1 and plan.until < run.end:
            run = run._replace(steps=run.steps_to(int(plan.until) + 1))
        return run

    def _seconds(self, shape: StepShape) -> float:
        return float(self.model.cost.seconds(shape))

    def _with_guesses(self, shape: StepShape) -> float:
        took = self._seconds(shape)
        speculation = self._speculation
        if speculation is not None and speculation.cost:
            step = seconds(self._decode_ticks(shape))
            took += speculation.tokens * speculation.cost * step
        return took

    def _decode_ticks(self, shape: StepShape) -> int:
        """What the decoding of a step would take without the chunks in it."""
        if not shape.decodes:
            return 0
        base, slope, _ = self._line(shape.decodes, shape.decode_context)
        return base + slope * shape.decode_context

    def _line(self, decodes: int, context: int) -> tuple[int, int, float]:
        """Base and slope in ticks, and the context up to which they hold."""
        known = self._lines.get(decodes)
        if known is not None and known[2] <= context < known[3]:
            return known[0], known[1], known[3]
        line: DecodeLine = self.model.cost.decode_line(decodes, context)
        base, slope = ticks(line.base), ticks(line.per_token)
        self._lines[decodes] = (base, slope, context, line.until)
        return base, slope, line.until
