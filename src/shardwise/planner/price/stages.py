"""A priced plan with pipeline stages as an event timeline: its own uneven stages, laid out in time.

Counting describes one device, the one with the most layers and the head. Here every stage gets the
seconds of what it really holds: its layers by group, the embedding on the first, the logits on the
last. `stretch` turns the timeline back into what `roofline.price` multiplies bodies by.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from shardwise.models import ModelConfig
from shardwise.planner.price.last_pass import last_pass
from shardwise.planner.price.timeline import StageCosts, Timeline, costs_of, timeline
from shardwise.plans import TrainPlan
from shardwise.roofline import Estimate
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


def step_timeline(plan: TrainPlan, cfg: ModelConfig, estimate: Estimate) -> Timeline:
    """The timeline of a plan whose Work was priced; one stage gives a timeline of one rank."""
    schedule = schedule_of(plan)
    return timeline(schedule, _costs(schedule, stage_seconds(plan, cfg, estimate)))


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


def stretch(plan: TrainPlan, cfg: ModelConfig, estimate: Estimate) -> dict[str, float]:
    """What bodies take in the pipeline over what the counted device computes: bubbles, less what it
    was charged that lies on other stages. `estimate` is priced without any."""
    if plan.degree("stage") == 1:
        return {}
    passes = passes_end(plan, cfg, estimate)
    bodies = estimate.bodies
    alone = 0.0
    last_factor: dict[str, float] = {}
    for name, body in bodies.items():
        if name == "optimizer":
            continue
        _, _, group = name.partition(".")
        period = _plain_period(estimate, name, group)
        alone += float(body.count) * period
        last_factor[name] = period / max(float(body.period), 1e-300)
    factor = passes / alone
    # The exposed reduction within `backward_last` comes once, at the end: no bubble repeats it.
    return {name: 1 + (factor - 1) * share for name, share in last_factor.items()}


def passes_end(plan: TrainPlan, cfg: ModelConfig, estimate: Estimate) -> float:
    """When the last pass of the step's timeline ends, in seconds.

    In the middle of a long step every further round (a microbatch per stage) takes as long as the
    one before, so two short steps tell it: of 80 published plans 79 come out equal, one with a
    stage of two thirds of the layers 1 % off.
    """
    stages = plan.degree("stage")
    rounds, over = divmod(plan.microbatches, stages)
    seconds = stage_seconds(plan, cfg, estimate)
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


def _plain_period(estimate: Estimate, name: str, group: str) -> float:
    """A body's seconds per round; of the last microbatch those without the reduction."""
    usual = estimate.bodies.get(f"backward.{group}")
    if name.startswith("backward_last") and usual is not None:
        return float(usual.period)
    return float(estimate.bodies[name].period)


def stage_seconds(plan: TrainPlan, cfg: ModelConfig, estimate: Estimate) -> StageSeconds:
    """What each stage computes per microbatch, from the periods of the priced bodies."""
    layers = layers_of_stages(plan, cfg)
    rounds = [_round(estimate, group) for group in range(len(cfg.groups))]
    passes = {
        phase: [sum(n * rounds[g][phase] for g, n in enumerate(held)) for held in layers]
        for phase in PHASES
    }
    first, last = _end(estimate, "first"), _end(estimate, "last")
    for phase in PHASES:
        passes[phase][0] += first[phase]
        passes[phase][-1] += last[phase]
    reduction = [sum(n * rounds[g]["reduction"] for g, n in enumerate(held)) for held in layers]
    transfers = [t for t in estimate.ops if t.op.name == "transfer.stage"]
    optimizer = estimate.bodies.get("optimizer")
    return StageSeconds(
        forward=tuple(passes["forward"]),
        backward=tuple(passes["backward"]),
        weight=tuple(passes["weight"]),
        reduction=tuple(reduction),
        transfer=max((float(t.derated) for t in transfers), default=0.0),
        optimizer=float(optimizer.expected) if optimizer else 0.0,
    )


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


def _round(estimate: Estimate, group: int) -> dict[str, float]:
    """Seconds of one layer of a group and one microbatch by phase, and its exposed reduction."""
    bodies = estimate.bodies
    back = f"backward.{group}"
    name = back if back in bodies else f"backward_last.{group}"
    whole = float(bodies[name].period)
    split = _shares(estimate, name)
    weight = whole * split.get("weight", 0.0)
    last = bodies.get(f"backward_last.{group}")
    exposed = float(last.period) - whole if last is not None else 0.0
    return {
        "forward": float(bodies[f"forward.{group}"].period),
        "backward": whole - weight,
        "weight": weight,
        "reduction": max(exposed, 0.0) * (float(last.count > 0) if last is not None else 0.0),
    }


def _end(estimate: Estimate, name: str) -> Mapping[str, float]:
    """Seconds of one end of the model by phase. The first stage's runs on another device than the
    counted one, where it counts 0, so that its ops are summed."""
    seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    for t in estimate.ops:
        if t.op.body == name and t.op.stream == "compute":
            phase = t.op.phase if t.op.phase in PHASES else "backward"
            seconds[phase] += float(t.derated)
    return seconds


def _shares(estimate: Estimate, body: str) -> dict[str, float]:
    """Shares of a body's compute by phase."""
    times: dict[str, float] = {}
    for t in estimate.ops:
        if t.op.body == body and t.op.stream == "compute":
            seconds = float(t.derated) * float(t.op.count)
            times[t.op.phase] = times.get(t.op.phase, 0.0) + seconds
    whole = sum(times.values()) or 1.0
    return {phase: seconds / whole for phase, seconds in times.items()}


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
