"""The event timeline of a pipeline schedule: when every pass, transfer and reduction runs.

A schedule's table (`scheduling/pipeline/`) says the order of the passes of each rank; here each
starts as soon as its rank is free and its inputs have arrived. Stages may be uneven. Streams of a
rank run side by side: "compute" (passes, optimizer), "send" (activations and their gradients to
other ranks, one at a time per destination) and "network" (gradient reductions). That they slow
each other down where they share links is not modelled. `pipeline.py` tells when the last pass ends
without listing events, and for uniform stages in closed form.
"""

from dataclasses import dataclass
from typing import Literal

from shardwise.planner.price.pipeline import StageCosts, check_costs
from shardwise.scheduling import Action, Schedule, ready_order

Stream = Literal["compute", "send", "network"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that one stream of a rank does from `start` to `end`, in seconds.

    `kind` is "F", "B" or "W", "send F" or "send B", "reduce" or "optimizer". `to` is the receiving
    rank of a send. What belongs to no microbatch or chunk has -1 there.
    """

    rank: int
    stream: Stream
    kind: str
    start: float
    end: float
    microbatch: int = -1
    chunk: int = -1
    to: int = -1

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All events of a step, by rank and stream in order of time; `makespan` ends the last one.

    `idle[r]` is the time in which rank r neither computes a pass nor updates: the bubble, the wait
    for transfers and the reduction that nothing hides. `in_flight[r]` is the most
    chunk-microbatches whose activations it holds.
    """

    schedule: Schedule
    events: tuple[Event, ...]
    makespan: float
    idle: tuple[float, ...]
    in_flight: tuple[int, ...]

    @property
    def bubble(self) -> tuple[float, ...]:
        """Idle share of each rank's step, 0 to 1."""
        return tuple(seconds / self.makespan if self.makespan else 0.0 for seconds in self.idle)

    @property
    def bubble_share(self) -> float:
        """Idle share of all ranks together, 0 to 1; (S-1)/(M+S-1) for uniform 1F1B."""
        return sum(self.bubble) / len(self.idle)


def timeline(schedule: Schedule, costs: StageCosts) -> Timeline:
    """Lay a schedule out in time. Raises BadRequest where the costs are of another pipeline."""
    check_costs(schedule, costs)
    run = _Run(schedule, costs)
    for rank, action in ready_order(schedule):
        run.run_pass(rank, action)
    for rank in range(schedule.stages):
        run.reduce(rank)
    run.update()
    order = sorted(run.events, key=lambda e: (e.rank, e.stream, e.start, e.end))
    busy = [0.0] * schedule.stages
    for event in order:
        if event.stream == "compute":
            busy[event.rank] += event.seconds
    makespan = max(event.end for event in order)
    return Timeline(
        schedule=schedule,
        events=tuple(order),
        makespan=makespan,
        idle=tuple(max(makespan - seconds, 0.0) for seconds in busy),
        in_flight=tuple(schedule.in_flight(rank) for rank in range(schedule.stages)),
    )


class _Run:
    """The state of the walk: when each stream is free, and when each result is there."""

    def __init__(self, schedule: Schedule, costs: StageCosts) -> None:
        self.schedule, self.costs = schedule, costs
        self.events: list[Event] = []
        self.free = [0.0] * schedule.stages
        self.links: dict[tuple[int, int], float] = {}
        self.arrives: dict[tuple[int, Action, int], float] = {}
        self.gradients_done: dict[tuple[int, int], float] = {}
        self.reduced = [0.0] * schedule.stages

    def run_pass(self, rank: int, action: Action) -> None:
        """One pass, and the send of its result where another rank reads it."""
        stage = self.schedule.stage_of(rank, action.chunk)
        # What a rank reads of its own is over already: its list is in order.
        inputs = [
            self.arrives[source, needed, rank]
            for source, needed in self.schedule.needs(rank, action)
            if source != rank
        ]
        start = max([self.free[rank], *inputs])
        self.free[rank] = end = start + self.seconds(action, stage)
        self.add(rank, "compute", action.kind, start, end, action)
        if action.kind != "F":
            self.gradients_done[rank, action.chunk] = end
        target = {"F": stage + 1, "B": stage - 1, "W": -1}[action.kind]
        if 0 <= target < self.schedule.global_stages:
            to, _ = self.schedule.place_of(target, action.microbatch)
            if to != rank:
                self.send(rank, to, action, end, self.costs.transfer[min(stage, target)])

    def send(self, rank: int, to: int, action: Action, ready: float, seconds: float) -> None:
        """Ship a result when it is there and the link to that rank is free."""
        start = max(ready, self.links.get((rank, to), 0.0))
        self.links[rank, to] = self.arrives[rank, action, to] = start + seconds
        if seconds:
            self.add(rank, "send", f"send {action.kind}", start, start + seconds, action, to)

    def seconds(self, action: Action, stage: int) -> float:
        costs = self.costs
        if action.kind == "F":
            return costs.forward[stage]
        if action.kind == "W":
            return costs.weight[stage]
        whole = 0.0 if self.schedule.splits_backward else costs.weight[stage]
        return costs.backward[stage] + whole

    def reduce(self, rank: int) -> None:
        """The rank's gradient reductions, one after the other, the chunk done first in front."""
        done = {c: self.gradients_done[rank, c] for c in range(self.schedule.chunks)}
        at = 0.0
        for chunk in sorted(done, key=lambda c: done[c]):
            seconds = self.costs.reduction[self.schedule.stage_of(rank, chunk)]
            start = max(at, done[chunk] if self.costs.buckets else self.free[rank])
            at = start + seconds
            if seconds:
                event = Event(
                    rank=rank, stream="network", kind="reduce", start=start, end=at, chunk=chunk
                )
                self.events.append(event)
        self.reduced[rank] = at

    def update(self) -> None:
        """Every rank's optimizer, when its gradients (or everybody's) are reduced."""
        everybody = max([*self.reduced, *self.free])
        for rank in range(self.schedule.stages):
            start = max(self.reduced[rank], self.free[rank])
            if self.costs.global_norm:
                start = everybody
            chunks = range(self.schedule.chunks)
            stages = [self.schedule.stage_of(rank, chunk) for chunk in chunks]
            end = start + sum(self.costs.optimizer[stage] for stage in stages)
            if end > start:
                event = Event(rank=rank, stream="compute", kind="optimizer", start=start, end=end)
                self.events.append(event)

    def add(
        self,
        rank: int,
        stream: Stream,
        kind: str,
        start: float,
        end: float,
        action: Action,
        to: int = -1,
    ) -> None:
        event = Event(
            rank=rank,
            stream=stream,
            kind=kind,
            start=start,
            end=end,
            microbatch=action.microbatch,
            chunk=action.chunk,
            to=to,
        )
        self.events.append(event)
