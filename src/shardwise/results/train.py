"""What is told of a priced training plan: the fields of `plan train` and `plan show`.

`PricedPlan` is one plan with its times and memory, `SearchedPlan` the best of a search with the
plans beside it. Their names are the keys of the documents, and stay the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.boundary.records import Record, part
from shardwise.hardware import describe
from shardwise.models.parameters import parameters
from shardwise.models.remat import RematPolicy
from shardwise.planner.beside import MESH, Beside, decisive
from shardwise.planner.evaluate import TrainAnswer, plan_shape
from shardwise.planner.expected import ExpectedRange, expected_range
from shardwise.planner.export import refusal
from shardwise.planner.price.memory import stage_memory
from shardwise.planner.price.plan import stack_for
from shardwise.planner.search.request import SEARCHED
from shardwise.planner.step.strategies.lora import adapters
from shardwise.planner.training import TrainPlanning
from shardwise.plans import TrainPlan, layout_table
from shardwise.plans.adapters import Quantized, short_name, targeted
from shardwise.plans.context_methods import ContextMethod
from shardwise.plans.software import SOFTWARE
from shardwise.plans.stacks import Gathers, Reduces, StackName, Wanted
from shardwise.roofline.bodies import OpTime
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.rests import Rest, limit, rests_on, roofline_share
from shardwise.scheduling.pipeline import PipelineKind

_SHOWN_OPS = 8


@dataclass(frozen=True, kw_only=True)
class SearchedChoices(Record):
    """The choices of a training plan that a search tries."""

    remat: RematPolicy
    """Remat policy: what the backward pass recomputes."""
    context_method: ContextMethod
    """How attention reaches tokens on other devices."""
    storage_axes: tuple[str, ...]
    """Mesh axes that store each parameter in pieces."""
    weight_gather: Gathers
    """How often stored pieces are gathered."""
    gradient_reduce: Reduces
    """How often gradients are summed."""
    zero: int
    """ZeRO stage over replicas: 1 shards the optimizer's state, 2 gradients too."""
    pipeline_schedule: PipelineKind
    """Order of microbatches on pipeline stages."""
    virtual_stages: int
    """Chunks of layers on each pipeline stage."""


@dataclass(frozen=True, kw_only=True)
class TrainOp(Record):
    """One op of a training step, all its runs together."""

    name: str
    """Component that computes or collective."""
    phase: str
    """The pass that it belongs to."""
    component: str
    """The part of the model that it is for."""
    stream: str
    """Resource that it uses: compute, hbm, or "net:" and the mesh axes of the collective."""
    count: float
    """Runs per step."""
    seconds: float
    """Seconds per step."""
    limited_by: str
    """The resource that takes longest at derated rates."""
    roofline_share: float
    """Seconds at the peak of its busiest resource over the seconds expected."""
    rests_on: Sequence[Rest]
    """The constants behind its rate."""


@dataclass(frozen=True, kw_only=True)
class StageMemory(Record):
    """The memory of one pipeline stage."""

    stage: int
    """Its number, from 0."""
    layers: int
    """Layers on it."""
    peak_bytes_per_chip: float
    """Bytes per chip at its peak."""
    at: str
    """The point of the step at which that is."""


@dataclass(frozen=True, kw_only=True)
class MathDtype(Record):
    """A dtype that FLOPs of the step are in."""

    dtype: str
    """Its name."""
    share: float
    """Share of the step's FLOPs."""
    components: Sequence[str]
    """Parts of the model whose FLOPs are in it."""


@dataclass(frozen=True, kw_only=True)
class AdaptersTrained(Record):
    """LoRA adapters, and the frozen weights."""

    rank: int
    """Columns of each A and rows of each B."""
    matrices: Sequence[str]
    """The matrices that have adapters."""
    trained_params: int
    """Parameters of the adapters."""
    quantize: Quantized
    """How the frozen matrices are stored."""


@dataclass(frozen=True, kw_only=True)
class PricedPlan(SearchedChoices):
    """A training plan with its times and memory."""

    slice: str
    """The chips, as COUNT*CHIP:SHAPE."""
    slice_means: str
    """The same in words: chips, hosts, and which axes of the network wrap."""
    adapters: AdaptersTrained | None = part()
    """The adapters that are trained in place of the weights (--lora)."""
    software: Wanted
    """The program that the plan is for; "any" for none in particular."""
    stack: StackName
    """The software whose constants price it."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree, outermost first."""
    slices_used: int
    """Slices, or nodes of a data centre, that the mesh uses."""
    box: tuple[int, ...]
    """Chips of each physical axis of a slice that the mesh uses."""
    placement: Sequence[str]
    """Placement of each mesh axis on the network, in words."""
    microbatches: int
    """Microbatches of a step."""
    layers_per_stage: tuple[int, ...]
    """Layers of each pipeline stage."""
    layouts: Mapping[str, str]
    """How each parameter and activation is cut, in the notation."""
    chips_used: int
    """Chips that the mesh uses."""
    chips_idle: int
    """Chips of the slice that it does not use."""
    step_seconds: Bounds
    """Seconds of a step."""
    expected_80: ExpectedRange | None
    """The 80 % range of the expected step; null with the book's constants, which derate nothing."""
    tokens_per_second: float
    """Tokens per second of the whole slice."""
    mfu: float
    """Model FLOPs utilisation of all chips of the slice, causal attention counted by half."""
    mfu_dtype: str
    """The dtype of whose peak the utilisation is."""
    mfu_6nd: float
    """The same counting 6 x active parameters x tokens."""
    tokens_per_joule_upper: float | None
    """Tokens per joule at most: of the chips alone at their rated power."""
    peak_bytes_per_chip: float
    """Bytes per chip at the peak of the fullest stage."""
    usable_bytes_per_chip: float
    """Bytes per chip that a program can use."""
    memory_by_kind: Mapping[str, float]
    """Bytes per chip at the peak, by kind."""
    memory_peak_at: str
    """The point of the step at which most memory is in use."""
    memory_over_step: Sequence[Mapping[str, str | float]]
    """Bytes per chip by kind at each `point` of the step, in order, on the fullest stage."""
    memory_by_stage: Sequence[StageMemory]
    """Each pipeline stage; one row without stages."""
    bound_by: str
    """The resource with the most seconds at peak rates."""
    resource_seconds: Mapping[str, float]
    """Seconds of each resource at peak rates."""
    exposed_seconds: float
    """Expected seconds in which compute waits for a network or the host."""
    where_it_goes: Mapping[str, float]
    """Seconds of each part of the expected step; they add up to it."""
    math_dtypes: Sequence[MathDtype]
    """The dtypes of the FLOPs, most first."""
    top_ops: Sequence[TrainOp]
    """The longest ops."""


@dataclass(frozen=True, kw_only=True)
class PlanBeside(SearchedChoices):
    """Another plan, compared with the best."""

    mesh: Mapping[str, int]
    """Mesh axis -> degree, outermost first."""
    box: tuple[int, ...]
    """Chips of each physical axis of a slice that the mesh uses."""
    microbatches: int
    """Microbatches of a step."""
    chips_used: int
    """Chips that the mesh uses."""
    step_seconds: Bounds
    """Seconds of a step."""
    times_slower: float
    """Its expected step over that of the best plan."""
    mfu: float
    """Model FLOPs utilisation of all chips of the slice."""
    mfu_dtype: str
    """The dtype of whose peak the utilisation is."""
    peak_bytes_per_chip: float
    """Bytes per chip at the peak."""
    bound_by: str
    """The resource with the most seconds at peak rates."""
    exposed_seconds: float
    """Expected seconds in which compute waits for a network or the host."""


@dataclass(frozen=True, kw_only=True)
class ClosePlan(PlanBeside):
    """A plan that was close, and that a reader would tell apart."""

    differs: Sequence[str]
    """Choices other than the mesh that differ from the best."""


@dataclass(frozen=True, kw_only=True)
class ChoiceBeside(Record):
    """What another value of one choice would cost."""

    choice: str
    """The choice."""
    chosen: Any
    """Its value in the best plan."""
    next: Any
    """Its value in the best plan that was priced with another; null where none that fits was."""
    plan: PlanBeside | None
    """That plan."""
    grows: str | None
    """The part of the step that grows most; "" where none does."""
    grows_seconds: float | None
    """Seconds by which it grows."""


@dataclass(frozen=True, kw_only=True)
class KeptMargin(Record):
    """The memory that a plan leaves free for the error of its prediction."""

    share: float
    """Share of usable memory."""
    kept: bool
    """Whether the plan leaves it free: where no plan does, one that only fits is the answer."""


@dataclass(frozen=True, kw_only=True)
class SearchSize(Record):
    """Size of a search."""

    enumerated: int
    """Plans that were enumerated."""
    legal: int
    """Plans that can run and be placed."""
    candidates: int
    """Plans priced in full: lower bounds rule out the others."""
    seconds: float
    """Seconds that the search took."""


@dataclass(frozen=True, kw_only=True)
class SearchedPlan(PricedPlan):
    """The best plan of a search, and alternatives."""

    runs_in: str
    """The program that runs it; "" for none in particular."""
    faster_outside: PlanBeside | None
    """The plan that is faster, but that the program does not run."""
    runners_up: Sequence[PlanBeside]
    """The next best meshes."""
    strategies: Sequence[PlanBeside]
    """The best plan of each other set of mesh axes."""
    as_fast: Sequence[PlanBeside]
    """Plans that take as long as the best, within 0.1 %."""
    fastest: PlanBeside | None
    """The fastest plan; null where that is the best."""
    told_apart: float
    """Share of a step by which two plans must differ for predictions to tell them apart."""
    margin: KeptMargin
    """The memory left free for the error of the prediction."""
    choices: Sequence[ChoiceBeside]
    """What another value of each choice would cost."""
    search: SearchSize
    """Size of the search."""


def priced_plan(answer: TrainAnswer) -> PricedPlan:
    """One priced training plan."""
    piece, plan = answer.piece, answer.plan
    return PricedPlan.part_of(
        answer,
        **{name: getattr(plan, name) for name in TRIED},
        slice=str(piece),
        slice_means=describe(piece),
        software=plan.software,
        stack=plan.stack,
        adapters=adapters_trained(answer),
        mesh=plan.mesh,
        slices_used=plan.slices,
        box=plan.box,
        placement=answer.placement.describe(),
        microbatches=plan.microbatches,
        layers_per_stage=plan.layers_per_stage,
        layouts=layouts(answer),
        expected_80=expected_range(answer),
        mfu_dtype=plan.dtypes.compute,
        tokens_per_joule_upper=tokens_per_joule(answer),
        usable_bytes_per_chip=piece.chip.require("hbm_usable_bytes"),
        memory_peak_at=answer.memory.peak_point()[0],
        memory_over_step=memory_over_step(answer),
        memory_by_stage=memory_by_stage(answer),
        bound_by=answer.estimate.bound_by(),
        resource_seconds={k: float(v) for k, v in answer.estimate.resources.items()},
        where_it_goes=answer.time_parts.named(),
        math_dtypes=math_dtypes(answer),
        top_ops=[_op(t, answer) for t in answer.estimate.top(_SHOWN_OPS)],
    )


def adapters_trained(answer: TrainAnswer) -> AdaptersTrained | None:
    """The adapters of a plan, None where it trains the weights themselves."""
    plan = answer.plan
    if not plan.lora_rank:
        return None
    rows = parameters(answer.cfg)
    return AdaptersTrained(
        rank=plan.lora_rank,
        matrices=list(dict.fromkeys(short_name(r) for r in rows if targeted(r, plan.lora_targets))),
        trained_params=sum(r.params for r in adapters(rows, plan.lora_rank, plan.lora_targets)),
        quantize=plan.quantize,
    )


def searched_plan(planning: TrainPlanning, choices: Iterable[Beside] = ()) -> SearchedPlan:
    """The best plan of a search, with what another value of each of the `choices` would cost."""
    best, outside, report = planning.best, planning.outside, planning.search

    def beside(answers: Iterable[TrainAnswer]) -> list[PlanBeside]:
        return [plan_beside(answer, best) for answer in answers]

    return SearchedPlan.of(
        priced_plan(best),
        runs_in=runs_in(best),
        faster_outside=outside and plan_beside(outside, best),
        runners_up=beside(planning.runners_up),
        strategies=beside(planning.strategies),
        as_fast=beside(planning.tied),
        fastest=None if planning.fastest is best else plan_beside(planning.fastest, best),
        told_apart=planning.request.apart,
        margin=KeptMargin(share=planning.request.margin, kept=planning.margin_kept),
        choices=[_choice(row, best) for row in choices],
        search=SearchSize.part_of(report),
    )


def plan_beside(answer: TrainAnswer, best: TrainAnswer) -> PlanBeside:
    """Another plan, compared with the best."""
    return PlanBeside.part_of(
        answer,
        **{name: getattr(answer.plan, name) for name in TRIED},
        mesh=answer.plan.mesh,
        box=answer.plan.box,
        microbatches=answer.plan.microbatches,
        times_slower=answer.step_seconds.expected / best.step_seconds.expected,
        mfu_dtype=answer.plan.dtypes.compute,
        bound_by=answer.estimate.bound_by(),
    )


TRIED = (*SEARCHED, "virtual_stages")
"""The choices that a search tries."""


def memory_over_step(answer: TrainAnswer) -> list[Mapping[str, str | float]]:
    """Bytes per chip by kind at each point of the step, in order, on the fullest stage."""
    devices = answer.piece.chip.jax_devices_per_chip
    return [
        {"point": name, **{kind: float(size) * devices for kind, size in held.items()}}
        for name, held in answer.memory.points
    ]


def memory_by_stage(answer: TrainAnswer) -> list[StageMemory]:
    """Each pipeline stage; one row without stages."""
    devices, layers = answer.piece.chip.jax_devices_per_chip, answer.plan.layers_per_stage
    shape = plan_shape(answer.plan, answer.cfg, answer.piece.chip)
    return [
        StageMemory(
            stage=i,
            layers=layers[i],
            peak_bytes_per_chip=float(line.peak()) * devices,
            at=line.peak_point()[0],
        )
        for i, line in enumerate(stage_memory(answer.cfg, shape, layers))
    ]


def tokens_per_joule(answer: TrainAnswer) -> float | None:
    """Tokens per joule of the chips alone at their rated power, used and idle ones: an upper bound,
    as hosts, networks and cooling draw more. None where the catalogue has no power."""
    watts = answer.piece.chip.power_watts
    return None if watts is None else answer.tokens_per_second / (watts * answer.piece.chips)


def _op(t: OpTime, answer: TrainAnswer) -> TrainOp:
    """One op; a collective's stream names the axes that it really goes over."""
    op, stream, chip = t.op, t.op.stream, answer.piece.chip
    if op.collective is not None:
        used = [axis for axis in op.collective.axes if answer.plan.degree(axis) > 1]
        stream = f"net:{'+'.join(used)}" if used else stream
    return TrainOp(
        name=op.name,
        phase=op.phase,
        component=op.component,
        stream=stream,
        count=float(op.count),
        seconds=float(t.total),
        limited_by=limit(t),
        roofline_share=roofline_share(t, chip),
        rests_on=rests_on(t, chip, answer.placement, stack_for(answer.plan, chip)),
    )


def math_dtypes(answer: TrainAnswer) -> list[MathDtype]:
    """The dtypes that the step's FLOPs are in, most first."""
    flops: dict[str, dict[str, float]] = {}
    for op in answer.work.ops:
        for dtype, count in op.flops.items():
            of = flops.setdefault(dtype, {})
            of[op.component] = of.get(op.component, 0.0) + float(count) * float(op.count)
    sums = {dtype: sum(of.values()) for dtype, of in flops.items()}
    return [
        MathDtype(
            dtype=dtype,
            share=sums[dtype] / sum(sums.values()),
            components=sorted(name for name, count in flops[dtype].items() if count),
        )
        for dtype in sorted(sums, key=lambda name: -sums[name])
        if sums[dtype]
    ]


def layouts(answer: TrainAnswer) -> dict[str, str]:
    """How the trainer lays out every parameter and activation, in notation."""
    return {name: str(layout) for name, layout in layout_table(answer.plan, answer.cfg).items()}


def runs_in(answer: TrainAnswer) -> str:
    """What runs a plan, as a person calls it; "" where it is for no program in particular, or its
    program refuses it (`refused_by`)."""
    software = answer.plan.software
    return SOFTWARE[software].title if software in SOFTWARE and not refused_by(answer) else ""


def refused_by(answer: TrainAnswer) -> str:
    """Why the program that a plan names does not run it; "" where it does, or none is named."""
    plan = answer.plan
    return refusal(plan, answer.cfg, answer.piece, plan.software) if plan.software != "any" else ""


def _choice(row: Beside, best: TrainAnswer) -> ChoiceBeside:
    """A choice of the best plan, and the best that was priced with another value of it."""
    chosen, other = _value(row.choice, best.plan), row.other
    part, seconds = decisive(other, best) if other else (None, None)
    return ChoiceBeside(
        choice=row.choice,
        chosen=chosen,
        next=other and _value(row.choice, other.plan),
        plan=other and plan_beside(other, best),
        grows=part,
        grows_seconds=seconds,
    )


def _value(choice: str, plan: TrainPlan) -> Any:
    return plan.mesh if choice == MESH else getattr(plan, choice)
