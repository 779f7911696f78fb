"""When the last pass of a pipeline ends, without its events: all that pricing needs of a timeline.

The walk is that of `timeline.py`, whose makespan the tests hold it against: a pass starts when its
rank is free and its input has arrived, a result is sent when the link to its reader is free. Where
a pass reads from and sends to depends on its rank, kind and chunk alone, so that is looked up once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.planner.price.timeline import StageCosts, check_costs
from shardwise.scheduling import Action, Schedule
from shardwise.scheduling.pipeline import PassKind

_NOT_YET = -1.0


@dataclass(frozen=True, slots=True)
class _Route:
    """What all passes of one kind and chunk of a rank have in common. `reads` and `writes` are rows
    of arrival times, None where nothing comes from or goes to another rank."""

    seconds: float
    reads: int | None
    writes: int | None
    link: tuple[int, int]
    transfer: float

    @property
    def parts(self) -> tuple[float, int | None, int | None, tuple[int, int], float]:
        """The fields, to be unpacked in the loop."""
        return self.seconds, self.reads, self.writes, self.link, self.transfer


def last_pass(schedule: Schedule, costs: StageCosts) -> float:
    """Seconds from the first pass to the last: a timeline's makespan without reductions and update.

    Raises BadRequest where the costs are of another pipeline.
    """
    check_costs(schedule, costs)
    routes = [_routes(schedule, costs, rank) for rank in range(schedule.stages)]
    rows = 2 * schedule.global_stages
    arrived = [[_NOT_YET] * schedule.microbatches for _ in range(rows)]
    links: dict[tuple[int, int], float] = {}
    free, at = [0.0] * schedule.stages, [0] * schedule.stages
    waiting: dict[tuple[int, int], int] = {}
    awake = list(range(schedule.stages))
    while awake:
        rank = awake.pop()
        passes, mine, now, done = schedule.ranks[rank], routes[rank], free[rank], at[rank]
        for kind, microbatch, chunk in passes[done:]:
            seconds, reads, writes, link, transfer = mine[kind, chunk]
            if reads is not None:
                input_at = arrived[reads][microbatch]
                if input_at == _NOT_YET:
                    waiting[reads, microbatch] = rank
                    break
                now = max(now, input_at)
            now += seconds
            done += 1
            if writes is not None:
                links[link] = arrived[writes][microbatch] = (
                    max(now, links.get(link, 0.0)) + transfer
                )
                if (writes, microbatch) in waiting:
                    awake.append(waiting.pop((writes, microbatch)))
        free[rank], at[rank] = now, done
    assert not waiting, f"'{schedule.kind}' blocks: nothing brings {next(iter(waiting))}"
    return max(free)


def _routes(schedule: Schedule, costs: StageCosts, rank: int) -> Mapping[tuple[str, int], tuple]:
    """Routes of one rank by kind and chunk."""
    found = {}
    half = schedule.microbatches // 2 if schedule.kind == "dualpipe" else 0
    for chunk in range(schedule.chunks):
        stage = schedule.stage_of(rank, chunk)
        # Any microbatch that goes through the chunk: dualpipe sends the second half through 1.
        microbatch = half if chunk else 0
        whole = 0.0 if schedule.splits_backward else costs.weight[stage]
        ways: tuple[tuple[PassKind, float, int], ...] = (
            ("F", costs.forward[stage], stage + 1),
            ("B", costs.backward[stage] + whole, stage - 1),
        )
        for kind, seconds, to in ways:
            sources = [s for s, _ in schedule.needs(rank, Action(kind, microbatch, chunk))]
            apart = [s for s in sources if s != rank]
            row = schedule.global_stages * (kind == "B")
            target = rank
            if 0 <= to < schedule.global_stages:
                target = schedule.place_of(to, microbatch)[0]
            source = stage - 1 if kind == "F" else stage + 1
            found[kind, chunk] = _Route(
                seconds=seconds,
                reads=row + source if apart else None,
                writes=row + stage if target != rank else None,
                link=(rank, target),
                transfer=costs.transfer[min(stage, to)] if target != rank else 0.0,
            ).parts
        found["W", chunk] = _Route(costs.weight[stage], None, None, (rank, rank), 0.0).parts
    return found
