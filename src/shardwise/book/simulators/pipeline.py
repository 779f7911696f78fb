"""Pipeline schedules in time: the tables of `scheduling.pipeline`, laid out by the planner's own
event timeline (ch. 5.1.5 and 12, with the reduction of gradients at the end)."""

from shardwise.book.simulators.simulation import (
    Animation,
    Cell,
    Frame,
    check_size,
    check_whole,
    first_frames,
)
from shardwise.planner.price.pipeline import costs_of
from shardwise.planner.price.timeline import Event, Timeline, timeline
from shardwise.scheduling import pipeline_schedule

MOST_STAGES, MOST_MICROBATCHES = 64, 512


def pipeline(
    schedule: str = "1f1b",
    stages: int = 4,
    microbatches: int = 8,
    chunks: int = 1,
    forward: float = 1.0,
    backward: float = 1.0,
    weight: float = 1.0,
    transfer: float = 0.0,
    reduction: float = 0.0,
    optimizer: float = 0.0,
) -> Animation:
    """A schedule over so many `stages`, with uniform times in seconds: of a microbatch's forward
    pass, of the gradient of its input, of that of its weights, of a transfer between stages; and
    per stage of the reduction of gradients and the update. The bubble of 1F1B without transfers is
    (S - 1) / (M + S - 1)."""
    check_whole("stages", stages, 1, MOST_STAGES)
    check_whole("microbatches", microbatches, 1, MOST_MICROBATCHES)
    seconds = {
        "forward": forward, "backward": backward, "weight": weight, "transfer": transfer,
        "reduction": reduction, "optimizer": optimizer,
    }  # fmt: skip
    for name, value in seconds.items():
        check_size(name, value)
    table = pipeline_schedule(schedule, stages, microbatches, check_whole("chunks", chunks, 1, 16))
    costs = costs_of(
        table, forward=forward, backward=backward, weight=weight, transfer=transfer,
        reduction=reduction, optimizer=optimizer,
    )  # fmt: skip
    line = timeline(table, costs)
    moments = sorted({event.start for event in line.events} | {line.makespan})
    frames, left_out = first_frames([_frame(at, line) for at in moments])
    work = microbatches * (forward + backward + weight)
    return Animation(
        id="pipeline",
        chapter="5",
        title=f"{schedule}: {stages} stages, {microbatches} microbatches",
        source="ch. 5.1.5; ch. 12, Pipeline Parallelism",
        settings={
            "schedule": schedule, "stages": stages, "microbatches": microbatches,
            "chunks": chunks, **seconds,
        },
        readings={
            "seconds": line.makespan,
            "bubble": line.bubble_share,
            "plain_bubble": (stages - 1) / (microbatches + stages - 1),
            "work_seconds": work,
            "most_in_flight": max(line.in_flight) / table.chunks,
        },
        units={**dict.fromkeys((*seconds, "seconds", "work_seconds"), "s")},
        x_label="time",
        x_unit="s",
        rows=tuple(f"rank {rank}" for rank in range(stages)),
        bars=tuple(_bar(event) for event in line.events if event.stream != "send"),
        frames=frames,
        frames_left_out=left_out,
    )  # fmt: skip


def _bar(event: Event) -> Cell:
    text = str(event.microbatch) if event.microbatch >= 0 else ""
    thin = event.stream == "network"
    return Cell(
        x=event.start,
        y=event.rank + (0.8 if thin else 0.0),
        width=event.seconds,
        height=0.2 if thin else 0.8,
        text=text,
        kind=event.kind,
        values={
            "rank": event.rank, "microbatch": event.microbatch, "chunk": event.chunk,
            "end": event.end,
        },
    )  # fmt: skip


def _frame(at: float, line: Timeline) -> Frame:
    here = [e for e in line.events if e.stream != "send" and e.start <= at < e.end]
    said = ", ".join(
        f"rank {e.rank} {e.kind}{e.microbatch if e.microbatch >= 0 else ''}" for e in here
    )
    return Frame(at=at, label=said or "done")
