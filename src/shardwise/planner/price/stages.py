"""A priced plan with pipeline stages as an event timeline: its own uneven stages, laid out in time.

Counting describes one device, the one with the most layers and the head. Here every stage gets the
seconds of what it really holds: its layers by group, the embedding on the first, the logits on the
last. `timeline_factor` is then what the pipeline takes over the counted device's own work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shardwise.models import ModelConfig
from shardwise.planner.price.composition import round_time
from shardwise.planner.price.last_pass import last_pass
from shardwise.planner.price.plan import PricedStep, Times
from shardwise.planner.price.timeline import StageCosts, Timeline, costs_of, timeline
from shardwise.plans import TrainPlan
from shardwise.scheduling import Schedule, pipeline_schedule
from shardwise.scheduling.pipeline import PLAIN, check_counts

PHASES = ("forward", "backward", "weight")
"""Passes of a pipeline. What is recomputed belongs to the backward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Seconds per microbatch of each stage of a plan, and once per step its exposed reduction."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]
    reduction: tuple[float, ...]
    transfer: float
    optimizer: float


def step_timeline(plan: TrainPlan, cfg: ModelConfig, priced: PricedStep) -> Timeline:
    """The timeline of a plan whose step was priced; one stage gives a timeline of one rank."""
    schedule = schedule_of(plan)
    return timeline(schedule, _costs(schedule, stage_seconds(plan, cfg, priced)))


def _costs(schedule: Schedule, seconds: StageSeconds) -> StageCosts:
    return costs_of(
        schedule,
        forward=seconds.forward,
        backward=seconds.backward,
        weight=seconds.weight,
        transfer=seconds.transfer,
        reduction=seconds.reduction,
        optimizer=seconds.optimizer,
    )


def schedule_of(plan: TrainPlan) -> Schedule:
    """The plan's table of passes; BadRequest where its counts do not suit the schedule."""
    stages = plan.degree("stage")
    kind = plan.pipeline_schedule if stages > 1 else PLAIN
    return _schedule(kind, stages, plan.microbatches, plan.virtual_stages)


@lru_cache(maxsize=32)
def _schedule(kind: str, stages: int, microbatches: int, chunks: int) -> Schedule:
    return pipeline_schedule(kind, stages, microbatches, chunks)


def timeline_factor(plan: TrainPlan, cfg: ModelConfig, priced: PricedStep) -> float:
    """The pipeline's seconds, from the first pass to the last, over those of the counted device's
    own work; 1 without stages. Bubbles raise it. It falls where the counted device, which has the
    most layers and the head, stands for stages with less."""
    if plan.degree("stage") == 1:
        return 1.0
    return passes_end(plan, cfg, priced) / float(priced.own)


def passes_end(plan: TrainPlan, cfg: ModelConfig, priced: PricedStep) -> float:
    """When the last pass of the step's timeline ends, in seconds.

    In the middle of a long step every further round (a microbatch per stage) takes as long as the
    one before, so two short steps tell it: of 80 published plans 79 come out equal, one with a
    stage of two thirds of the layers 1 % off.
    """
    stages = plan.degree("stage")
    rounds, over = divmod(plan.microbatches, stages)
    seconds = stage_seconds(plan, cfg, priced)
    if rounds <= _SETTLED + 1:
        return _last_pass(plan, seconds, plan.microbatches)
    first = _last_pass(plan, seconds, _SETTLED * stages + over)
    further = _last_pass(plan, seconds, (_SETTLED + 1) * stages + over) - first
    return first + (rounds - _SETTLED) * further


_SETTLED = 2  # rounds after which a schedule repeats itself


def _last_pass(plan: TrainPlan, seconds: StageSeconds, microbatches: int) -> float:
    schedule = _schedule(
        plan.pipeline_schedule, plan.degree("stage"), microbatches, plan.virtual_stages
    )
    return last_pass(schedule, _costs(schedule, seconds))


def stage_seconds(plan: TrainPlan, cfg: ModelConfig, priced: PricedStep) -> StageSeconds:
    """What each stage computes per microbatch, from the rounds of the priced step."""
    layers = layers_of_stages(plan, cfg)
    rounds = _rounds(priced)
    passes = {
        phase: [
            float(sum(n * r for n, r in zip(held, rounds[phase], strict=True))) for held in layers
        ]
        for phase in (*PHASES, "reduction")
    }
    for stage, end in zip((0, -1), priced.steps.times.ends, strict=True):
        for part in (end.chain, end.casts, end.accumulation):
            for phase, seconds in _compute(part).items():
                passes[phase if phase in PHASES else "backward"][stage] += seconds
    transfers = priced.steps.times.transfer
    return StageSeconds(
        forward=tuple(passes["forward"]),
        backward=tuple(passes["backward"]),
        weight=tuple(passes["weight"]),
        reduction=tuple(passes["reduction"]),
        transfer=max((float(t.derated) for t in transfers), default=0.0),
        optimizer=float(np.sum(priced.reduced.around(priced.structure).update)),
    )


def _rounds(priced: PricedStep) -> dict[str, np.ndarray]:
    """Seconds of one layer of every kind and one microbatch by phase, and its exposed reduction.

    Weight gradients have the share of a backward round that they have of its compute."""
    reduced, stack = priced.reduced, priced.steps.stack
    chunks = priced.structure.virtual_stages if priced.steps.piped else 0
    ahead, early = reduced.rounds_of(chunks, reduced.stored.paired(priced.structure))
    late = early.beside(reduced.reduction.sides)
    forward, usual, last = (
        np.reshape(round_time(each, 1.0, stack).period, -1) for each in (ahead, early, late)
    )
    weight = np.reshape(early.weight / np.maximum(early.chain, 1e-300), -1)
    whole = last if reduced.often else usual
    exposed = (last - whole) * (reduced.rounds_reduced()[:, 0] > 0)
    return {
        "forward": forward,
        "backward": whole * (1 - weight),
        "weight": whole * weight,
        "reduction": np.maximum(exposed, 0.0),
    }


def _compute(part: Times) -> dict[str, float]:
    """Seconds on the compute stream by phase. The first stage's end runs on another device than the
    counted one, where it counts 0: hence of one run."""
    seconds: dict[str, float] = {}
    for t in part:
        if t.op.stream == "compute":
            seconds[t.op.phase] = seconds.get(t.op.phase, 0.0) + float(t.derated)
    return seconds


def _places(plan: TrainPlan) -> Schedule:
    """The plan's schedule without its passes: where every chunk lies."""
    stages, microbatches, chunks = plan.degree("stage"), plan.microbatches, plan.virtual_stages
    kind = plan.pipeline_schedule if stages > 1 else PLAIN
    checked = check_counts(kind, stages, microbatches, chunks)
    return Schedule(kind=checked, stages=stages, microbatches=microbatches, chunks=chunks, ranks=())


def layers_of_stages(plan: TrainPlan, cfg: ModelConfig) -> tuple[tuple[int, ...], ...]:
    """Layers of each group that each stage of the plan holds, in the order of `layers_per_stage`.

    Layers go to global stages in order; a stage with chunks holds several that lie apart.
    """
    schedule = _places(plan)
    count = [[0] * len(cfg.groups) for _ in plan.layers_per_stage]
    for stage, (first, last) in enumerate(schedule.bounds(plan.layers_per_stage)):
        rank, _ = schedule.place_of(stage, 0)
        for group in cfg.pattern[first:last]:
            count[rank][group] += 1
    return tuple(tuple(row) for row in count)


def spread(layers: int, stages: int) -> tuple[int, ...]:
    """Layers per stage as even as they go; the first and the last, which also hold the embedding
    and the logits, get fewer where some must (as Llama-3-405B did: 126 over 16 stages).

    >>> spread(126, 16)[0], spread(126, 16)[1], spread(126, 16)[-1]
    (7, 8, 7)
    """
    whole, more = divmod(layers, stages)
    order: Sequence[int] = [*range(1, stages - 1), 0, stages - 1] if stages > 1 else [0]
    extra = set(order[:more])
    return tuple(whole + (stage in extra) for stage in range(stages))
