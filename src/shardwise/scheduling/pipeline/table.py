"""The table of a pipeline schedule: per rank, the order of its passes. No time, no arrays.

A model is cut into global stages; a *rank* of the pipeline holds one or two or more of them, its
*chunks*. A pass is forward, backward or weight gradient of one microbatch through one chunk.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.errors import BadRequest
from shardwise.scheduling.pipeline.passes import Action
from shardwise.scheduling.pipeline.row import ScheduleRow
from shardwise.scheduling.pipeline.rows import PIPELINE_KINDS, PipelineKind, schedule_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The order of passes of every rank: `ranks[r]`, complete and free of deadlock.

    `stages` is the number of ranks. A rank may start an action when the one before it in its own
    list is over and so are those of `needs`.
    """

    kind: PipelineKind
    stages: int
    microbatches: int
    chunks: int
    ranks: tuple[tuple[Action, ...], ...]

    @property
    def row(self) -> ScheduleRow:
        """What is known of the schedule."""
        return schedule_row(self.kind)

    @property
    def splits_backward(self) -> bool:
        """Whether B is the input gradient alone, with W beside it."""
        return self.row.splits_backward

    @property
    def global_stages(self) -> int:
        """Parts that the layers are cut into; a mirrored schedule holds each of them twice."""
        return self.stages if self.row.doubled else self.stages * self.chunks

    def stage_of(self, rank: int, chunk: int) -> int:
        """The global stage that lies in a rank's chunk."""
        if chunk == 0 or self.row.arrangement == "line":
            return rank + chunk * self.stages
        return self.global_stages - 1 - rank

    def place_of(self, stage: int, microbatch: int) -> tuple[int, int]:
        """(rank, chunk) where a microbatch meets a global stage."""
        second = self.chunks == 2 and microbatch >= self.first_of(1)
        return self.row.place_of(stage, self.stages, second)

    def first_of(self, chunk: int) -> int:
        """The first microbatch that goes through a chunk: half of them enter a mirrored schedule
        from the other end, through chunk 1."""
        return self.microbatches // 2 if chunk and self.row.doubled else 0

    def bounds(self, layers_per_stage: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """The first layer and the one after the last of every global stage: layers in order, the
        `layers_per_stage[r]` of a rank dealt to its chunks as evenly as they go."""
        found, at = [], 0
        pieces = self.global_stages // self.stages
        for stage in range(self.global_stages):
            rank, chunk = self.place_of(stage, 0)
            here, more = divmod(layers_per_stage[rank], pieces)
            found.append((at, at + here + (chunk < more)))
            at = found[-1][1]
        return tuple(found)

    def needs(self, rank: int, action: Action) -> tuple[tuple[int, Action], ...]:
        """(rank, action) pairs that must be over first: whose result the action reads.

        F of a stage reads F of the stage before; B reads B of the stage after, and the activations
        that its own F kept; W reads what its own B left.
        """
        stage, microbatch = self.stage_of(rank, action.chunk), action.microbatch
        if action.kind == "W":
            return ((rank, Action("B", microbatch, action.chunk)),)
        found = []
        if action.kind == "B":
            found.append((rank, Action("F", microbatch, action.chunk)))
        source = stage - 1 if action.kind == "F" else stage + 1
        if 0 <= source < self.global_stages:
            where, chunk = self.place_of(source, microbatch)
            found.append((where, Action(action.kind, microbatch, chunk)))
        return tuple(found)

    def in_flight(self, rank: int) -> int:
        """The most chunk-microbatches whose activations a rank holds at once.

        They live from F to the end of the backward pass: W where it is split, else B.
        """
        last = "W" if self.splits_backward else "B"
        alive = peak = 0
        for action in self.ranks[rank]:
            alive += (action.kind == "F") - (action.kind == last)
            # The last pass still reads them: they leave after it, before the next F.
            peak = max(peak, alive)
        return peak


def pipeline_schedule(
    kind: str, stages: int, microbatches: int, virtual_stages: int = 1
) -> Schedule:
    """The table of a schedule over `stages` ranks.

    `virtual_stages` is the chunks per rank, 1 of every kind on one rank. Raises BadRequest for
    counts that the schedule does not take.
    """
    checked = check_counts(kind, stages, microbatches, virtual_stages)
    order = schedule_row(kind).order
    return Schedule(
        kind=checked,
        stages=stages,
        microbatches=microbatches,
        chunks=virtual_stages,
        ranks=tuple(
            tuple(order(rank, stages, microbatches, virtual_stages)) for rank in range(stages)
        ),
    )


def check_counts(kind: str, stages: int, microbatches: int, virtual_stages: int) -> PipelineKind:
    """The kind, if it takes these counts; raises BadRequest otherwise."""
    row = schedule_row(kind)
    for name, count in (("stages", stages), ("microbatches", microbatches)):
        if count < 1:
            raise BadRequest(f"{name} is {count}; a pipeline has at least 1, so give 1 or more")
    if not row.takes_chunks(stages, virtual_stages):
        takes = row.chunks_said or f"{row.chunks[0]}"
        raise BadRequest(
            f"virtual_stages is {virtual_stages}; the schedule '{kind}' over {stages} stage(s) "
            f"takes {'1 (one rank needs no chunks)' if stages == 1 else takes}"
        )
    if not row.takes(stages, microbatches, virtual_stages):
        raise BadRequest(row.refusal(stages, microbatches))
    return PIPELINE_KINDS[PIPELINE_KINDS.index(row.name)]


def ready_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """All actions of all ranks, each after what it needs and after its predecessor on its rank.

    Raises AssertionError where the table blocks: no schedule of this module does.
    """
    at = [0] * schedule.stages
    over: set[tuple[int, Action]] = set()
    waiting: dict[tuple[int, Action], list[int]] = {}
    awake = deque(range(schedule.stages))
    while awake:
        rank = awake.popleft()
        while at[rank] < len(schedule.ranks[rank]):
            action = schedule.ranks[rank][at[rank]]
            missing = next((n for n in schedule.needs(rank, action) if n not in over), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            yield rank, action
            at[rank] += 1
            over.add((rank, action))
            awake.extend(waiting.pop((rank, action), ()))
    assert not waiting, f"'{schedule.kind}' blocks: nothing brings {next(iter(waiting))}"
