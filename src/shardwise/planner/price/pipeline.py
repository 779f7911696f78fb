"""When the last pass of a pipeline ends: of uniform stages in closed form, of any by a walk.

The closed form serves columns of candidates. F, B, W are seconds of a microbatch through ALL chunks
of a rank: forward, input gradient with recompute, weight gradient; t is one transfer. S ranks, M
microbatches, v chunks per rank. The walk of `last_pass` is that of `timeline.py`, whose makespan
the tests hold both against, without its events: a pass starts when its rank is free and its input
has arrived, a result is sent when the link to its reader is free. Where a pass reads from and sends
to depends on its rank, kind and chunk alone, so that is looked up once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from shardwise.errors import BadRequest
from shardwise.scheduling import Action, Schedule
from shardwise.scheduling.pipeline import PassKind, schedule_row
from shardwise.work import Quantity, present, total


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of one kind of work: `backward` is the whole backward pass, `weight` the weight
    gradients among it."""

    forward: Quantity
    backward: Quantity
    weight: Quantity

    @property
    def parts(self) -> tuple[Quantity, Quantity, Quantity]:
        """The three."""
        return self.forward, self.backward, self.weight


class Pipeline:
    """A schedule on given counts of stages, microbatches and chunks, which broadcast.

    Its seconds are M (F + B + W) plus the longest of a few waits: a maximum over the schedule's
    critical paths, each a sum of passes and transfers of single chunks, f = F/v, b = B/v, w = W/v.

    Exact without transfers. With them exact while t <= min(f, b), and a lower bound beyond, as then
    sends queue up. The paths are found by tracing the event timeline's critical path, not derived
    in the papers; each schedule's file in `scheduling/pipeline/` says what they come to. Counts are
    those that `scheduling.pipeline_schedule` takes.
    """

    def __init__(
        self, kind: str, stages: Quantity, microbatches: Quantity, virtual_stages: Quantity
    ) -> None:
        self.row, self.stages = schedule_row(kind), np.asarray(stages)
        several, m = self.stages > 1, np.asarray(microbatches)
        parts = self.row.parts(np.where(several, virtual_stages, 1))
        self.paths: list[list[tuple[int, Quantity]]] = []
        for path in self.row.paths(self.stages, m, parts):
            chunks = zip(path, (parts, parts, parts, 1), strict=True)
            waits = [several * n / (part * m) for n, part in chunks]  # one rank waits for nothing
            self.paths.append([(i, times) for i, times in enumerate(waits) if present(times)])

    def seconds(self, *costs: Quantity) -> Quantity:
        """From the first pass to the last, of uniform stages: of M times F, B, W and t."""
        waits = (total(times * costs[i] for i, times in path) for path in self.paths)
        return total(costs[:3]) + reduce(np.maximum, waits)

    def idle_factor(
        self, layers: Passes, ends: Passes, transfer: Quantity, share: Quantity
    ) -> Quantity:
        """The pipeline's seconds over those that the counted device works; 1 without stages.

            factor = T(F, B - W, W, t) / (layers + ends),   layers = F_l + B_l,   ends = F_e + B_e

        T is `seconds`, in which all stages are alike, so all are taken to be as slow as the
        slowest. Layers are spread so that the stages with the ends have as few of them as any
        (`plan.spread`). The slowest is then one of two, whichever takes longer:

            a stage in the middle   layers                          most = ceil(count / S) layers
            the last stage          layers fewest / most + ends     fewest = floor(count / S)

        The counted device is neither of them: it has the most layers and the head too. So a
        pipeline that waits for little takes less than it would work, and the factor may be below 1.
        All seconds are M times those of a microbatch; `share` is fewest / most (`last_share`).
        """
        last = [here * share + end for here, end in zip(layers.parts, ends.parts, strict=True)]
        late = last[0] + last[1] >= layers.forward + layers.backward
        forward, backward, weight = (
            np.where(late, one, other) for one, other in zip(last, layers.parts, strict=True)
        )
        piped = self.seconds(forward, np.maximum(backward - weight, 0.0), weight, transfer)
        return piped / (layers.forward + layers.backward + ends.forward + ends.backward)

    def last_share(self, count: int) -> Quantity:
        """Layers of the last stage over those of a stage with the most, of `count` layers."""
        share = np.floor_divide(count, self.stages) / np.ceil(count / self.stages)
        if not self.row.ends_together:
            return share
        # Both ends lie on the first stage, which is the last but one to get a layer more.
        return np.where(np.remainder(count, self.stages) == self.stages - 1, 1.0, share)


# Stages of their own ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Seconds per microbatch of one chunk, by global stage; `costs_of` fills it.

    `backward` is the gradient of the input with what it recomputes, `weight` that of the weights;
    a schedule that does not split them runs both as one pass. `transfer[s]` is the time between
    stages s and s+1, the same both ways, and nothing where they lie on one rank. `reduction` is the
    data-parallel reduction of a chunk's gradients, `optimizer` the update of its parameters, once
    per step. With `buckets` a chunk's reduction starts after its own last backward pass and runs
    beside later passes; without, after the last pass of the rank. With `global_norm` no update
    starts before every rank's gradients are reduced (clipping needs their norm).
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]
    transfer: tuple[float, ...]
    reduction: tuple[float, ...]
    optimizer: tuple[float, ...]
    buckets: bool = False
    global_norm: bool = False


def costs_of(
    schedule: Schedule,
    *,
    forward: float | Sequence[float],
    backward: float | Sequence[float],
    weight: float | Sequence[float],
    transfer: float | Sequence[float] = 0.0,
    reduction: float | Sequence[float] = 0.0,
    optimizer: float | Sequence[float] = 0.0,
    buckets: bool = False,
    global_norm: bool = False,
) -> StageCosts:
    """Costs of a schedule's chunks from those of whole stages, one number or one per rank.

    What a plan calls a stage is all chunks of a rank together: each has an equal share. Where
    stages exist twice a rank holds two whole ones (its own and the mirrored one), and a microbatch
    meets one of them. `transfer` is one number, or one per boundary between global stages. Raises
    BadRequest for a wrong count or a negative number.
    """

    def spread(name: str, given: float | Sequence[float]) -> tuple[float, ...]:
        stages = _numbers(name, given, schedule.stages)
        share = schedule.global_stages // schedule.stages
        places = (schedule.place_of(s, 0)[0] for s in range(schedule.global_stages))
        return tuple(stages[rank] / share for rank in places)

    return StageCosts(
        forward=spread("forward", forward),
        backward=spread("backward", backward),
        weight=spread("weight", weight),
        transfer=_numbers("transfer", transfer, schedule.global_stages - 1),
        reduction=spread("reduction", reduction),
        optimizer=spread("optimizer", optimizer),
        buckets=buckets,
        global_norm=global_norm,
    )


def _numbers(name: str, given: float | Sequence[float], count: int) -> tuple[float, ...]:
    numbers = tuple(given) if isinstance(given, Sequence) else (given,) * count
    if len(numbers) != count:
        raise BadRequest(
            f"{name} has {len(numbers)} entries; the pipeline has {count} places for them, so give "
            f"{count} or one number for all"
        )
    return tuple(float(number) for number in numbers)


def check_costs(schedule: Schedule, costs: StageCosts) -> None:
    """Raise BadRequest where costs are of another pipeline, or no seconds."""
    for name in ("forward", "backward", "weight", "transfer", "reduction", "optimizer"):
        numbers = getattr(costs, name)
        count = schedule.global_stages - (name == "transfer")
        if len(numbers) != count:
            raise BadRequest(
                f"{name} has {len(numbers)} entries; the schedule has {schedule.global_stages} "
                f"stages in all, so give {count} (costs_of does)"
            )
        if any(not 0 <= number < float("inf") for number in numbers):
            worst = next(number for number in numbers if not 0 <= number < float("inf"))
            raise BadRequest(f"{name} holds {worst}; seconds are finite and 0 or more")


_NOT_YET = -1.0
"""The arrival time of a microbatch that has not arrived."""


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


def busiest_stage(schedule: Schedule, costs: StageCosts) -> float:
    """Seconds per microbatch that the rank which works longest is at work, waits left out."""
    spent = []
    for rank, passes in enumerate(schedule.ranks):
        routes = _routes(schedule, costs, rank)
        spent.append(sum(routes[kind, chunk][0] for kind, _, chunk in passes))
    return max(spent) / schedule.microbatches


def _routes(schedule: Schedule, costs: StageCosts, rank: int) -> Mapping[tuple[str, int], tuple]:
    """Routes of one rank by kind and chunk."""
    found = {}
    for chunk in range(schedule.chunks):
        stage = schedule.stage_of(rank, chunk)
        microbatch = schedule.first_of(chunk)  # any that goes through the chunk
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
