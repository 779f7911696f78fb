"""A published plan beside the one that a search finds for the same job: priced alike, choice by
choice.

Both are priced on the same slice, by the same constants and software: what is left are the choices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from shardwise.boundary.records import Record
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.predict import waiting
from shardwise.errors import BadRequest
from shardwise.evidence.compare_plans import Difference, compare_plans
from shardwise.evidence.measured import MeasuredRun, measured_run
from shardwise.hardware import Slice
from shardwise.models.remat import RematPolicy
from shardwise.planner.evaluate import TrainAnswer, evaluate_train
from shardwise.planner.training import TrainPlanning
from shardwise.plans import TrainPlan, is_of
from shardwise.plans.named import Measured, audit_measured
from shardwise.plans.train import mesh_text
from shardwise.roofline.bounds import Bounds
from shardwise.scheduling.pipeline import PipelineKind
from shardwise.units import format_gib


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A plan priced for the job of a search. `notes` say what was changed to make the two
    comparable, and where theirs would not fit; `reasons` why their time differs; `measured` what
    their run took, where it was on these chips and is published."""

    name: str
    theirs: TrainAnswer
    times_slower: float
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    reasons: tuple[str, ...]
    measured: Measured | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstPlan(Record):
    """Another plan for the job of a search, priced alike."""

    plan: str
    """Its file, or "audit:NAME"."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree, outermost first."""
    microbatches: int
    """Microbatches of a step."""
    pipeline_schedule: PipelineKind
    """Order of microbatches on pipeline stages."""
    remat: RematPolicy
    """Remat policy: what the backward pass recomputes."""
    step_seconds: Bounds
    """Seconds of a step."""
    times_slower: float
    """Its expected step over that of the best plan."""
    tokens_per_second: float
    """Tokens per second of the whole slice."""
    mfu: float
    """Model FLOPs utilisation of all chips of the slice."""
    mfu_dtype: str
    """The dtype of whose peak the utilisation is."""
    peak_bytes_per_chip: float
    """Bytes per chip at the peak."""
    bound_by: str
    """The resource with the most seconds at peak rates."""
    measured: MeasuredRun | None
    """Measured time of its run, if published and on these chips."""
    differences: Sequence[Difference]
    """The choices that differ."""
    notes: Sequence[str]
    """Changes that make the two comparable, and where the plan does not fit."""
    why: Sequence[str]
    """Why its time differs."""


def published_plan(
    name: str, piece: Slice | None = None, hardware: Hardware | None = None
) -> TrainPlan:
    """The training plan in a file or of `audit:NAME`, for the `piece` where the file names none;
    BadRequest where it serves."""
    # Here, as what reads plans and other programs' files is a third of a plain search's imports.
    from shardwise.commands.pricing.plans import given_plan

    plan = given_plan(name, piece=piece, hardware=hardware)
    if not isinstance(plan, TrainPlan):
        raise BadRequest(f"'{name}' is a serving plan; --against takes a training plan")
    return plan


def set_against(
    planning: TrainPlanning, plan: TrainPlan, name: str, hardware: Hardware | None = None
) -> Against:
    """Price a plan on the searched slice and hold it against the best.

    Raises BadRequest where it is of another model, batch or length, or of a slice of another shape
    or count.
    """
    best = planning.best
    same, notes = _for_job(plan, best, name, hardware or Hardware())
    theirs = evaluate_train(same, best.cfg, best.piece).at(best.shift)
    limit = best.piece.chip.require("hbm_usable_bytes")
    if theirs.peak_bytes_per_chip > limit:
        notes.append(
            f"it does not fit: {format_gib(theirs.peak_bytes_per_chip)} per chip of "
            f"{format_gib(limit)} usable"
        )
    rows = compare_plans(best.plan, same, best.cfg, best.piece)
    seconds = [answer.step_seconds.expected for answer in (theirs, best)]
    return Against(
        name=name,
        theirs=theirs,
        times_slower=seconds[0] / seconds[1],
        differences=rows,
        notes=tuple(notes),
        reasons=_reasons(theirs, best, rows),
        measured=audit_measured(name) if plan.slice == same.slice else None,
    )


def _for_job(
    plan: TrainPlan, best: TrainAnswer, name: str, hardware: Hardware
) -> tuple[TrainPlan, list[str]]:
    """The plan on the slice of the search, with its constants and software."""
    ours = best.plan
    theirs = hardware.of_plan(plan).slice(plan.slice).slice
    problems = _mismatches(plan, theirs, best)
    if problems:
        raise BadRequest(
            f"'{name}' is another job: " + "; ".join(problems) + ". Plan for it with "
            f"--model {quote(plan.model)} --on {quote(plan.slice)} "
            f"--batch {plan.global_batch_sequences}seq "
            f"--seq {plan.sequence_length}"
        )
    notes = []
    if theirs.chip.id != best.piece.chip.id:
        notes.append(
            f"made for {theirs}, priced on {best.piece}, which has as many devices in the same box"
        )
    for what in ("stack", "constants"):
        if getattr(plan, what) != getattr(ours, what):
            notes.append(
                f"priced with {what} {getattr(ours, what)}, as the plan beside it; the file says "
                f"{getattr(plan, what)}"
            )
    same = replace(
        plan, slice=ours.slice, stack=ours.stack, constants=ours.constants, chips=ours.chips
    )
    return same, notes


def _mismatches(plan: TrainPlan, theirs: Slice, best: TrainAnswer) -> list[str]:
    """What makes two plans ones of different jobs."""
    ours, piece, said = best.plan, best.piece, []
    if not is_of(plan.model_hash, best.cfg):
        said.append(f"its model is {plan.model}, not {ours.model}")
    if (theirs.count, theirs.shape) != (piece.count, piece.shape):
        said.append(f"its slice is {theirs}, not {piece}")
    for field, unit in (("global_batch_sequences", "sequences"), ("sequence_length", "tokens")):
        if getattr(plan, field) != getattr(ours, field):
            said.append(f"its {field} is {getattr(plan, field)} {unit}, not {getattr(ours, field)}")
    return said


def _reasons(
    theirs: TrainAnswer, best: TrainAnswer, rows: tuple[Difference, ...]
) -> tuple[str, ...]:
    """What bounds each plan, and the choices of ours that would help theirs by themselves."""
    said = [
        f"{whose} ({mesh_text(a.plan.mesh)}) is bound by {a.estimate.bound_by()}, and {waiting(a)}"
        for whose, a in (("theirs", theirs), ("ours", best))
    ]
    helping = (r for r in rows if r.effect and r.effect < _HELPS and r.fits)
    helps = sorted(helping, key=lambda r: r.effect or 1)
    said += [f"our {row.field} alone would make theirs {gain_text(row)}" for row in helps]
    if not helps and rows:
        said.append("no choice of ours alone would make theirs faster: they work together")
    return tuple(said)


_HELPS = 0.999
"""A choice helps if it makes the step shorter than this share of it."""


def gain_text(row: Difference) -> str:
    """What one choice is worth to the other plan."""
    if row.effect is None:
        return "only with others"
    if abs(row.effect - 1) < 5e-4:
        return "no change"
    said = f"{abs(row.effect - 1):.1%} {'faster' if row.effect < 1 else 'slower'}"
    return said if row.fits else f"{said}, does not fit"


def against_plan(found: Against) -> AgainstPlan:
    """As a document's `against`."""
    plan, a = found.theirs.plan, found.theirs
    return AgainstPlan.part_of(
        a,
        plan=found.name,
        mesh=plan.mesh,
        microbatches=plan.microbatches,
        pipeline_schedule=plan.pipeline_schedule,
        remat=plan.remat,
        times_slower=found.times_slower,
        mfu_dtype=plan.dtypes.compute,
        bound_by=a.estimate.bound_by(),
        measured=measured_run(found.measured, a),
        differences=found.differences,
        notes=found.notes,
        why=found.reasons,
    )
