"""One training plan priced, searched or written by hand, with what is read of it.

`mfu` counts 6 x active parameters (4 x those that are not trained) without the embedding lookup
plus causal attention, over the dense peak of all chips of the slice, used or idle; `mfu_6nd` counts
6 x all active parameters.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from shardwise.errors import BadRequest
from shardwise.hardware import (
    Chip,
    Placement,
    Slice,
    place,
    place_or_refuse,
)
from shardwise.models import ModelConfig
from shardwise.models.counts import params_active
from shardwise.models.flops import model_flops_per_token, six_nd
from shardwise.models.parameters import parameters
from shardwise.planner.checks import check_plan
from shardwise.planner.price.memory import train_memory
from shardwise.planner.price.plan import (
    PricedStep,
    Usage,
    choices_on,
    memory_facts,
    price_step,
    stack_for,
    timeline_factor,
)
from shardwise.planner.price.where import step_parts
from shardwise.planner.search.loop import (
    Found,
    TrainRequest,
)
from shardwise.planner.step.work import TrainShape, count_parts
from shardwise.plans import MESH_AXES, TrainPlan, model_hash
from shardwise.plans.software import SoftwareRow
from shardwise.plans.stacks import WANTED, Wanted
from shardwise.plans.train import mesh_text, spread
from shardwise.roofline import Estimate, Stack
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.evidence import Shift
from shardwise.roofline.time_parts import TimeParts
from shardwise.work import MemoryTimeline, Work

_LOOKED_UP = "embedding_per_layer"


@dataclass(frozen=True, kw_only=True)
class TrainAnswer(Usage):
    """A priced training plan. Times are seconds per step, memory bytes per device; `factor` is a
    pipeline's by the timeline of its own stages; `shift` is what runs of one's own say of it, where
    there are any."""

    plan: TrainPlan
    cfg: ModelConfig
    piece: Slice
    placement: Placement
    priced: PricedStep
    factor: float
    estimate: Estimate
    memory: MemoryTimeline
    shift: Shift | None = None

    def at(self, shift: Shift | None) -> "TrainAnswer":
        """The same as runs of one's own move it: the expected step by one factor."""
        if shift is None:
            return self
        return replace(self, shift=shift, estimate=self.estimate.moved(shift.times))

    @property
    def work(self) -> Work:
        """The ops of the step."""
        return Work(tuple(t.op for t in self.estimate.ops))

    @property
    def step_seconds(self) -> Bounds:
        """lower, expected and upper seconds per step."""
        e = self.estimate
        return Bounds(lower=float(e.lower), expected=float(e.expected), upper=float(e.upper))

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the whole slice per expected second."""
        return self.plan.tokens / float(self.estimate.expected)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation of the whole slice at the expected step time."""
        per_token = model_flops_per_token(
            self.cfg, self.plan.sequence_length, causal=True, trained=self.plan.trains_component
        )
        return float(per_token) * self.tokens_per_second / self._slice_peak

    @property
    def mfu_6nd(self) -> float:
        """The same counting 6 x active parameters x tokens; tables of per-layer embeddings, which
        are looked up and never multiplied, are left out."""
        lookups = sum(r.params for r in parameters(self.cfg) if r.component == _LOOKED_UP)
        return (
            float(six_nd(params_active(self.cfg) - lookups))
            * self.tokens_per_second
            / self._slice_peak
        )

    @property
    def time_parts(self) -> TimeParts:
        """Where the expected seconds go; the parts add up to them."""
        found = self.parts_as_priced
        own = float(self.estimate.expected) - found.seconds if self.shift else 0.0
        return found + TimeParts(own_runs=own)

    @cached_property
    def parts_as_priced(self) -> TimeParts:
        """Where they would go without what runs of one's own say."""
        return step_parts(self.plan, self.cfg, self.priced, self.factor)

    @property
    def _slice_peak(self) -> float:
        return self.piece.chips * self.piece.chip.peak(self.plan.dtypes.compute)

    @property
    def exposed_seconds(self) -> float:
        """Expected seconds in which the chip's compute waits for a network or the host."""
        return float(self.estimate.expected) - float(self.estimate.streams.get("compute", 0.0))


def evaluate_train(
    plan: TrainPlan, cfg: ModelConfig, piece: Slice, stack: Stack | None = None
) -> TrainAnswer:
    """Count and price one plan; pipelines by the event timeline of their stages. A `stack` gives
    the constants in place of the tables.

    Raises BadRequest if the plan cannot be placed or does not divide, or if its schedule does not
    allow its counts.
    """
    check_plan(plan, cfg, piece)
    placement, shape = _placed(plan, piece), plan_shape(plan, cfg, piece.chip)
    stack = stack or stack_for(plan, piece.chip)
    priced = price_step(cfg, shape, count_parts(cfg, shape), piece.chip, placement, stack)
    factor = timeline_factor(plan, cfg, priced) if plan.degree("stage") > 1 else 1.0
    return TrainAnswer(
        plan=plan,
        cfg=cfg,
        piece=piece,
        placement=placement,
        priced=priced,
        factor=factor,
        estimate=priced.estimate(factor),
        memory=train_memory(cfg, shape),
    )


def evaluated(request: TrainRequest, found: Found) -> TrainAnswer:
    """The plan of a candidate, priced alone."""
    return evaluate_train(plan_of(request, found), request.cfg, request.piece).at(request.shift)


def plan_of(request: TrainRequest, found: Found) -> TrainPlan:
    """The finished plan of a candidate."""
    stages = found.mesh.get("stage", 1)
    return TrainPlan(
        model=request.model,
        model_hash=model_hash(request.cfg),
        slice=str(request.piece),
        mesh={axis: found.mesh[axis] for axis in MESH_AXES if axis in found.mesh},
        slices=found.slices,
        box=found.box,
        placement=found.placement,
        global_batch_sequences=request.sequences,
        sequence_length=request.sequence_length,
        microbatches=found.microbatches,
        layers_per_stage=spread(request.cfg.layers, stages),
        software=_runner(request.software),
        chips=request.chips,
        **found.structure.choices,
    )


def plan_shape(plan: TrainPlan, cfg: ModelConfig, chip: Chip | None = None) -> TrainShape:
    """The plan as the numbers that counting needs; without a chip, on TPUs of any memory."""
    return TrainShape(
        **(memory_facts(plan, chip) if chip else {}),
        degrees={axis: float(d) for axis, d in plan.mesh.items() if d > 1},
        sequences=plan.global_batch_sequences / (plan.batch_shards * plan.microbatches),
        sequence_length=plan.sequence_length,
        microbatches=float(plan.microbatches),
        stage_share=max(plan.layers_per_stage) / cfg.layers,
        **(choices_on(plan, chip) if chip else plan.choices),
    )


def _placed(plan: TrainPlan, piece: Slice) -> Placement:
    """The placement in the plan's box, or the error that names the axis that does not fit."""
    mesh, part = plan.degrees, replace(piece, count=plan.slices)
    placement = place(part, mesh, box=plan.box, finish=plan.placement == "finish")
    if not placement.legal:
        place_or_refuse(part, {a: d for a, d in mesh.items() if d > 1})
        raise BadRequest(
            f"the mesh {mesh_text(plan.mesh)} does not fill the box "
            f"{'x'.join(map(str, plan.box))} of {piece}; choose another box"
        )
    return placement


def _runner(software: SoftwareRow | None) -> Wanted:
    """The program as a plan's file has it; one that only exports know is none in particular."""
    known: dict[str, Wanted] = {name: name for name in WANTED}
    return known.get(software.name, "any") if software else "any"
