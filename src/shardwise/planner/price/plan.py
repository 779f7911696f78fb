"""One plan's step, priced: a column of length one, whose ops are kept to say where time goes.

Constants of the chip or of the stack may be arrays of n trial values; then n steps are priced.

Counting describes one device, the one with the most layers and the head. A pipeline is laid out in
time with what each of its own, uneven stages really holds: its layers by kind, the embedding on the
first, the logits on the last. `timeline_factor` is what it takes over the counted device's work.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf
from typing import Any

import numpy as np

from shardwise.hardware import Chip, Placement, Slice
from shardwise.models import ModelConfig
from shardwise.models.components import CORE, SCAN
from shardwise.planner.price.composition import Reduced, Seconds, Stored
from shardwise.planner.price.figures import Figures, Steps, figures_of, period_of, weight_of
from shardwise.planner.price.pipeline import StageCosts, costs_of, last_pass
from shardwise.planner.price.timeline import Timeline, timeline
from shardwise.planner.step.parts import Bodies, StepPart, tensors_of
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.work import Counted, Loop, Step, loops_of, step_of
from shardwise.plans import TrainPlan
from shardwise.plans.software.xla_flags import rings_of_matmuls
from shardwise.plans.stacks import STACK_ROWS
from shardwise.plans.train import Structure
from shardwise.roofline import Estimate
from shardwise.roofline.attention_kernels import kernel_rate
from shardwise.roofline.bodies import OpTime
from shardwise.roofline.price import WHOLE_STEP, price_ops
from shardwise.roofline.stacks import BEGIN_SECONDS, IDEAL, OP_SECONDS, Stack, load_stack
from shardwise.scheduling import Schedule, pipeline_schedule
from shardwise.scheduling.pipeline import PLAIN, check_counts
from shardwise.work import MemoryTimeline, Quantity, changed

Times = tuple[OpTime, ...]


def stack_for(structure: Structure, chip: Chip) -> Stack:
    """The constants of a plan's software on a chip; the book derates no rate and overlaps all that
    may."""
    if structure.constants == "book":
        return IDEAL
    stack = fused(load_stack(structure.stack), structure, load_stack)
    return as_chosen(stack.on(chip.generation), structure, chip)


def as_chosen(stack: Stack, structure: Structure, chip: Chip) -> Stack:
    """The stack with the attention kernel, the graphs and the kernels of experts of a plan."""
    scopes = structure.cuda_graph
    return replace(
        stack,
        attention=stack.attention * kernel_rate(structure.kernel, chip.generation),
        captured=frozenset(name for scope in scopes for name in CAPTURED[scope]),
        fused_experts=structure.grouped_kernel == "fused",
        **_host(structure),
        dispatch=_dispatch(stack, structure, chip),
    )


def _host(structure: Structure) -> Mapping[str, float]:
    """What the host works under PyTorch; XLA runs a step as one program, without it."""
    if not structure.stack_row.eager:
        return {}
    per_op = OP_SECONDS[structure.fuses_elementwise]
    begin = 0.0 if "full" in structure.cuda_graph else BEGIN_SECONDS
    return {"host_seconds": per_op, "begin_seconds": begin}


def _dispatch(stack: Stack, structure: Structure, chip: Chip) -> Quantity:
    """What bringing tokens to experts moves: whichever trainer asks for it, XLA sorts them as it
    does in the programs of ours. Slots of a fixed number are filled without sorting."""
    if stack.name != COMPILED or not structure.ragged:
        return stack.dispatch
    return load_stack("jax" if chip.vendor == "google" else "jax_gpu").dispatch


CAPTURED: Mapping[str, tuple[str, ...]] = {
    "full": (WHOLE_STEP,),
    "attn": ("attention", CORE, "norms"),
    "mlp": ("mlp_dense", "shared_experts", "moe_latent", "norms"),
    "mamba": ("linear_attention", SCAN, "norms"),
    "moe_router": ("router", "norms"),
    "moe_preprocess": (),
}
"""Components whose kernels a scope of CUDA graphs starts."""


def choices_on(structure: Structure, chip: Chip) -> dict[str, Any]:
    """Every choice by name, with the dispatcher that the software takes on such chips."""
    return structure.choices | {"dispatcher": structure.sent_by(chip.vendor)}


def memory_facts(structure: Structure, chip: Chip) -> dict[str, Any]:
    """What a compiler for the chip goes by, as `TrainShape` has it."""
    usable, trained = chip.hbm_usable_bytes, structure.stack_row.own_flags
    return {
        "loss_stored": chip.vendor != "google",
        "rings": rings_of_matmuls(chip.id, trained=trained) and not structure.rings_off,
        "room": usable / chip.jax_devices_per_chip if usable else inf,
    }


def fused(stack: Stack, structure: Structure, load: Callable[[str], Stack]) -> Stack:
    """The stack with a compiler that it has not by itself, or without the one that it has. What
    elementwise work moves and ops cost the host are then those of the other kind of software."""
    own = structure.stack_row.compiled
    if structure.fuses_elementwise == own:
        return stack
    other = load(EAGER if own else COMPILED)
    return replace(stack, passes=other.passes, launch_seconds=other.launch_seconds)


COMPILED, EAGER = (
    next(row.name for row in STACK_ROWS if row.compiled == compiled) for compiled in (True, False)
)


def price_step(
    cfg: ModelConfig,
    shape: TrainShape,
    counted: Counted,
    chip: Chip,
    placement: Placement,
    stack: Stack,
) -> "PricedStep":
    """Counted parts (`count_parts`) on a placed mesh, under a stack of software."""

    def priced(bodies: Bodies) -> tuple[Times, ...]:
        return tuple(price_ops(ops, chip, placement, stack) for ops in bodies)

    times = {name: tuple(map(priced, things)) for name, things in counted.items()}
    n = _trials(times)
    tensors = tensors_of(cfg, shape)

    def figures(part: StepPart, _: Structure) -> tuple[Figures, ...]:
        return tuple(
            figures_of(bodies, part.layers(cfg), n, shape.hidden) for bodies in times[part.name]
        )

    steps = Steps(
        tensors=tensors,
        stack=stack,
        stages=shape.degree("stage"),
        microbatches=shape.microbatches,
        share=shape.stage_share,
        n=n,
        pairs=shape.paired,
        expert_group=shape.layer_shape.expert_group,
        of=lambda _, figure, __: figure(shape),
        figures=figures,
    )
    reduced = Reduced(Stored(steps, shape), shape)
    tree = step_of(times)
    return PricedStep(steps=steps, shape=shape, times=tree, reduced=reduced)


def _trials(times: Mapping[str, tuple[tuple[Times, ...], ...]]) -> int:
    """Trial values that are priced at once."""
    bodies = (ops for things in times.values() for bodies in things for ops in bodies)
    shapes = [np.shape(t.derated) for ops in bodies for t in ops]
    return int(np.prod(np.broadcast_shapes(*shapes), dtype=int))


@dataclass(frozen=True, kw_only=True)
class PricedStep:
    """A step whose ops have times, put together but for what a pipeline idles."""

    steps: Steps
    shape: TrainShape
    times: Step[Times]
    reduced: Reduced

    @cached_property
    def loops(self) -> list[Loop[OpTime]]:
        """The step's ops with their times, loop by loop."""
        return loops_of(
            self.steps.cfg,
            self.shape,
            self.times,
            lambda t: t.op,
            lambda t, op: changed(t, op=op),
        )

    @property
    def own(self) -> Quantity:
        """Seconds of the counted device's own work in the pipeline's rounds, without what comes
        once."""
        forward, backward = self.reduced.layers_time(self.shape)
        return _one((forward + backward + self.reduced.around(self.shape).ends).plain)

    def seconds(self, factor: Quantity | None = None) -> Seconds:
        """The bounds with a pipeline's `factor`, by default the closed form's."""
        found = self.reduced.seconds(self.shape, factor)
        return Seconds(
            lower=_one(found.lower),
            expected=_one(found.expected),
            upper=_one(found.upper),
            resources={name: _one(seconds) for name, seconds in found.resources.items()},
            factor=_one(found.factor),
            host=_one(found.host),
        )

    def estimate(self, factor: Quantity | None = None) -> Estimate:
        """The same with every op and what each resource and stream is busy for."""
        found = self.seconds(factor)
        streams: dict[str, Quantity] = {}
        for loop in self.loops:
            for t in loop.items:
                once = loop.name == "optimizer" or (
                    t.op.id in loop.reductions and not self.reduced.often
                )
                seconds = t.total if once else t.total * found.factor
                streams[t.op.stream] = streams.get(t.op.stream, 0.0) + seconds
        return Estimate(
            lower=found.lower,
            expected=found.expected,
            upper=found.upper,
            resources=found.resources,
            streams=streams,
            ops=tuple(t for loop in self.loops for t in loop.items),
        )


def _one(values: Quantity) -> Quantity:
    """A number where there is one."""
    return values if np.size(values) > 1 else float(np.reshape(values, ()))


# Stages -------------------------------------------------------------------------------------------

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
    return timeline(schedule, stage_costs(schedule, stage_seconds(plan, cfg, priced)))


def stage_costs(schedule: Schedule, seconds: StageSeconds) -> StageCosts:
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
    """A pipeline's seconds, from the first pass to the last, over those of the counted device's own
    work. Bubbles raise it. It falls where the counted device, which has the
    most layers and the head, stands for stages with less."""
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


def microbatch_costs(
    plan: TrainPlan, cfg: ModelConfig, priced: PricedStep
) -> tuple[Schedule, StageCosts]:
    """A short pipeline of the plan, and what its passes cost: each of them comes as often per
    microbatch as in a long one."""
    stages = plan.degree("stage")
    rounds, over = divmod(plan.microbatches, stages)
    few = min(rounds, _SETTLED) * stages + over
    schedule = _schedule(plan.pipeline_schedule, stages, few, plan.virtual_stages)
    return schedule, stage_costs(schedule, stage_seconds(plan, cfg, priced))


_SETTLED = 2  # rounds after which a schedule repeats itself


def _last_pass(plan: TrainPlan, seconds: StageSeconds, microbatches: int) -> float:
    schedule = _schedule(
        plan.pipeline_schedule, plan.degree("stage"), microbatches, plan.virtual_stages
    )
    return last_pass(schedule, stage_costs(schedule, seconds))


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
    for stage, end in zip((0, -1), priced.times.ends, strict=True):
        for part in (end.chain, end.casts, end.accumulation):
            for phase, seconds in _compute(part).items():
                passes[phase if phase in PHASES else "backward"][stage] += seconds
    transfers, beside = priced.times.transfer, priced.reduced.stored.sends(priced.shape)
    return StageSeconds(
        forward=tuple(passes["forward"]),
        backward=tuple(passes["backward"]),
        weight=tuple(passes["weight"]),
        reduction=tuple(passes["reduction"]),
        transfer=0.0 if beside else max((float(t.derated) for t in transfers), default=0.0),
        optimizer=float(np.sum(priced.reduced.around(priced.shape).update)),
    )


def _rounds(priced: PricedStep) -> dict[str, np.ndarray]:
    """Seconds of one layer of every kind and one microbatch by phase, and its exposed reduction.

    Weight gradients have the share of a backward round that they have of its compute."""
    reduced, stack = priced.reduced, priced.steps.stack
    sends = reduced.stored.sends(priced.shape)
    paired = reduced.stored.paired(priced.shape)
    ahead, early = reduced.stored.rounds_of(sends, paired)
    late = early.beside(reduced.reduction.sides)
    forward, usual, last = (
        np.reshape(period_of(each, stack).seconds, -1) for each in (ahead, early, late)
    )
    _, backward = reduced.stored.layers(paired).bodies
    weight = np.reshape(weight_of(backward) / np.maximum(early.chain, 1e-300), -1)
    whole = last if reduced.often else usual
    exposed = (last - whole) * (reduced.rounds_reduced[:, 0] > 0)
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


# Answers ------------------------------------------------------------------------------------------


class Usage:
    """Chips and bytes of an answer that has a plan, a slice and a memory timeline per device."""

    __slots__ = ()

    plan: Any  # a TrainPlan or a ServePlan
    piece: Slice
    memory: MemoryTimeline

    @property
    def chips_used(self) -> int:
        """Chips that the mesh uses."""
        return self.plan.devices // self.piece.chip.jax_devices_per_chip

    @property
    def chips_idle(self) -> int:
        """Chips of the slice that the mesh leaves out; they are paid for."""
        return self.piece.chips - self.chips_used

    @property
    def peak_bytes_per_chip(self) -> float:
        """Peak HBM bytes of one chip (all its devices)."""
        return float(self.memory.peak()) * self.piece.chip.jax_devices_per_chip

    @property
    def memory_by_kind(self) -> dict[str, float]:
        """Bytes per chip by kind at the peak."""
        devices = self.piece.chip.jax_devices_per_chip
        return {k: float(v) * devices for k, v in self.memory.peak_point()[1].items()}
