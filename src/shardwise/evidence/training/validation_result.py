"""What is told of training runs, predicted against measured: the fields of `validate`.

Their names are the keys of its document, and stay the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.boundary.records import Record
from shardwise.evidence.training.runs import LeftOut
from shardwise.evidence.training.scores import Summary
from shardwise.evidence.training.validate import (
    EfficiencyOf,
    ModelOrder,
    ScoredRun,
    SizeOrder,
    Validation,
    against_size,
    within_models,
)
from shardwise.plans.stacks import StackName


@dataclass(frozen=True, kw_only=True)
class TrainingErrors(Summary):
    """Errors of all training runs, and of the runs that share something."""

    in_sample: Summary
    """Of the constants of today on the runs that they were fitted on."""
    constant_mfu: Summary
    """Of one MFU per compute dtype, fitted without each run's group likewise."""
    by_group: Mapping[str, Summary]
    """By publisher and software, which are left out of a fit together."""
    by_source: Mapping[str, Summary]
    """By where the runs were published."""
    by_chip: Mapping[str, Summary]
    """By chip."""
    by_bound: Mapping[str, Summary]
    """By the resource that binds the predicted step."""
    by_grade: Mapping[str, Summary]
    """By how much of a run its source tells: A or B."""
    by_stack: Mapping[str, Summary]
    """By the software that ran them."""
    gates: Mapping[str, Summary]
    """Of the named kinds of runs whose errors are watched."""


@dataclass(frozen=True, kw_only=True)
class ClassCoverage(Record):
    """How often the ranges hold of runs that share a feature's value."""

    n: int
    """Runs."""
    inside: float
    """Share of them whose measured step lies in its 80 % range."""


@dataclass(frozen=True, kw_only=True)
class Coverage(Record):
    """How often the 80 % ranges hold."""

    all: float | None
    """Share of runs whose measured step lies in its range; null without ranges."""
    by_class: Mapping[str, ClassCoverage]
    """By "feature: value", where enough runs of enough groups share it."""


@dataclass(frozen=True, kw_only=True)
class OwnEvidence(Record):
    """What a table of runs of one's own says of a run."""

    like: int
    """Rows that are like it."""
    rows: int
    """Rows of the table, this run left out."""
    times: float
    """The step over the one that published runs suggest."""
    itself_left_out: bool
    """Whether the run is in the table: then its other rows alone say so."""


@dataclass(frozen=True, kw_only=True)
class ValidatedRun(Record):
    """One training run, predicted against measured."""

    id: str
    """Its name."""
    source: str
    """Where it was published."""
    group: str
    """Publisher and software, which are left out of a fit together."""
    chip: str
    """Its chip."""
    slice: str
    """Its chips, as COUNT*CHIP:SHAPE."""
    stack: StackName
    """The software that ran it."""
    grade: str
    """How much of the run its source tells: A or B."""
    moe: bool
    """Whether its model has routed experts."""
    model: str
    """Its model."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree, outermost first."""
    predicted: float
    """Predicted seconds per step, by constants without the run's group."""
    measured: float
    """Measured seconds per step."""
    error: float
    """predicted / measured - 1."""
    in_sample: float | None
    """Seconds by constants that were fitted on the run, too; null where none were."""
    constant_mfu: float | None
    """Seconds by one MFU per compute dtype of the other groups; null where it was not fitted."""
    interval: tuple[float, float] | None
    """The 80 % range of the measured seconds; null without fitted constants."""
    range_why: str
    """What makes the range wide."""
    evidence: OwnEvidence | None
    """What runs of one's own say of it (--evidence); null without them."""
    lower: float
    """Seconds of the busiest resource at its peak rate, with nothing else."""
    upper: float
    """Seconds where nothing overlaps."""
    mfu: float
    """Predicted model FLOPs utilisation."""
    mfu_dtype: str
    """The dtype of whose peak the utilisation is."""
    measured_mfu: float
    """Model FLOPs utilisation at the measured seconds."""
    bound_by: str
    """The resource with the most seconds at peak rates."""
    peak_bytes_per_chip: float
    """Predicted bytes per chip at the peak."""
    measured_peak_bytes_per_chip: float | None
    """Measured bytes per chip at the peak; null where the run tells none."""
    predicted_peak_as_measured: float | None
    """The predicted bytes as the run counts its own; null where it tells none."""
    peak_error: float | None
    """Error of the predicted peak as a share; null where the run tells none."""
    inferred: Sequence[str]
    """Choices that its source does not tell."""


@dataclass(frozen=True, kw_only=True)
class TrainingRuns(Record):
    """Training runs, predicted against measured."""

    efficiency: EfficiencyOf
    """Whether fitted constants priced, or chip rates alone (roofline)."""
    summary: TrainingErrors
    """Errors of seconds per step."""
    memory: Summary
    """Errors of the peak memory of the runs that tell it."""
    would_not_fit: Sequence[str]
    """Runs that ran, but whose counted memory exceeds what a chip can use."""
    coverage: Coverage
    """How often the 80 % ranges hold."""
    within_model: Sequence[ModelOrder]
    """How well the plans of each model are ordered."""
    against_size: Mapping[str, SizeOrder]
    """How well all plans of a source are ordered, beside a plain guess."""
    rows: Sequence[ValidatedRun]
    """Each run."""
    left_out: Sequence[LeftOut]
    """Rows that could not be priced."""


def training_runs(found: Validation) -> TrainingRuns:
    """All that is told of some runs."""
    within = within_models(found.rows)
    return TrainingRuns(
        efficiency=found.efficiency,
        summary=TrainingErrors.of(
            found.summary,
            in_sample=found.in_sample(),
            constant_mfu=found.constant_mfu(),
            by_group=found.by(lambda r: r.run.group),
            by_source=found.by(lambda r: r.run.source),
            by_chip=found.by(lambda r: r.run.chip),
            by_bound=found.by(lambda r: r.bound_by),
            by_grade=found.by(lambda r: r.run.grade),
            by_stack=found.by(lambda r: r.run.stack),
            gates=found.gates(),
        ),
        memory=found.memory(),
        would_not_fit=found.unfit(),
        coverage=Coverage(
            all=found.coverage(),
            by_class={
                name: ClassCoverage(n=n, inside=inside)
                for name, (n, inside) in found.coverage_by_class().items()
            },
        ),
        within_model=within,
        against_size={
            s: against_size(found.rows, s) for s in dict.fromkeys(w.source for w in within)
        },
        rows=[_validated(row) for row in found.rows],
        left_out=found.left_out,
    )


def _validated(row: ScoredRun) -> ValidatedRun:
    run, shift = row.run, row.shift
    return ValidatedRun.part_of(
        row,
        id=run.id,
        source=run.source,
        group=run.group,
        chip=run.chip,
        slice=str(run.piece),
        stack=run.stack,
        grade=run.grade,
        moe=run.moe,
        model=run.model,
        mesh=run.plan.mesh,
        evidence=shift
        and OwnEvidence(
            like=shift.like, rows=shift.rows, times=shift.times, itself_left_out=row.among
        ),
        lower=row.bounds[0],
        upper=row.bounds[1],
        mfu_dtype=run.plan.dtypes.compute,
        peak_bytes_per_chip=row.peak_bytes,
        measured_peak_bytes_per_chip=run.peak_mem_bytes,
        predicted_peak_as_measured=row.reported_peak,
        inferred=run.inferred,
    )
