"""What is told of a compiled program: the fields of `compile`, and of `report`, which reads them.

Bytes, FLOPs and seconds are of one step and device, with loops counted as often as they run. The
names are the keys of the documents, and stay the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.boundary.records import Record, part
from shardwise.commands.program.compiling import PlanProgram, chunk_tokens, cycles_of, shortfall
from shardwise.plans import ServePlan, TrainPlan
from shardwise.profiler.ahead import Buffer
from shardwise.profiler.stages import Stages as Stages
from shardwise.profiler.timeline import HloTimeline
from shardwise.roofline.bounds import Bounds

MOST_BUFFERS = 50
"""Of those that a document lists."""


@dataclass(frozen=True, kw_only=True)
class PeakBytes(Record):
    """Bytes of a device at the peak, or all that the compiler had assigned when it gave up."""

    predicted: float | None
    """As the plan counts them; null of a function."""
    compiled: int
    """As compiled."""


@dataclass(frozen=True, kw_only=True)
class MemoryKinds(Record):
    """Bytes of a device by kind."""

    predicted: Mapping[str, float] | None
    """At the peak, as the plan counts them; null of a function."""
    compiled: Mapping[str, int]
    """As the compiler tells them; {} where it refused the program."""
    arguments: Mapping[str, float]
    """The program's arguments, by the first words of their names."""


@dataclass(frozen=True, kw_only=True)
class ProgramFlops(Record):
    """FLOPs of a step."""

    predicted: float | None
    """As the plan counts them; null of a function."""
    compiled: float
    """As counted in the compiled program."""
    compiled_cycles: float
    """Cycles as the compiler estimates them; ops without an estimate count nothing."""


@dataclass(frozen=True, kw_only=True)
class TimelineSeconds(Bounds):
    """Seconds of a compiled schedule."""

    exposed: Mapping[str, float] | None = part()
    """Seconds that compute waits for each stream."""


@dataclass(frozen=True, kw_only=True)
class StepSeconds(Record):
    """Seconds of a step."""

    predicted: Bounds | None
    """As planned; null of a function."""
    compiled: TimelineSeconds | None
    """Of the compiled schedule; null on a part of a slice, or without a rate of its chip."""


@dataclass(frozen=True, kw_only=True)
class Sent(Record):
    """What collectives of a kind send over some axes."""

    count: float
    """Runs per step."""
    bytes: float
    """V in bytes per step."""


@dataclass(frozen=True, kw_only=True)
class CollectiveBeside(Record):
    """Collectives of one kind over some axes, as planned and as compiled."""

    kind: str
    """Kind of the collectives."""
    axes: Sequence[str]
    """The mesh axes that they go over."""
    predicted: Sent | None
    """As planned; null of a function."""
    compiled: Sent
    """As compiled."""


@dataclass(frozen=True, kw_only=True)
class ProgramResult(Record):
    """One program: predicted and compiled side by side."""

    phase: str
    """train, decode or prefill, or the name of a function."""
    sequences: int | None
    """Sequences of a server's step; null of other programs."""
    tokens: int | None
    """Tokens of a server's step; null of other programs."""
    slice: str
    """The chips, as COUNT*CHIP:SHAPE."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree, outermost first."""
    devices: int
    """Devices of the program."""
    notes: Sequence[str]
    """How the program computes, where that is worth telling."""
    fits: bool
    """Whether it fits a device's memory."""
    refusal: str
    """Message of the compiler if it does not fit, else empty."""
    shortfall: str
    """By how much it does not, its largest buffers and what would help; "" where it does."""
    usable_bytes: float
    """Bytes of a device that a program can use."""
    peak_bytes: PeakBytes
    """Bytes at the peak."""
    memory_by_kind: MemoryKinds
    """Bytes by kind."""
    flops: ProgramFlops
    """FLOPs of a step."""
    step_seconds: StepSeconds
    """Seconds of a step."""
    collectives: Sequence[CollectiveBeside]
    """Each kind over each set of axes."""
    unknown_ops: Sequence[str]
    """Ops without FLOPs and bytes in the compiled text."""
    buffers: Sequence[Buffer]
    """The largest places in memory."""
    cached: bool
    """Whether the program was kept from an earlier compile."""
    seconds: Mapping[str, float]
    """Seconds of lowering, of the compile, of its whole process and CPUs."""
    process_peak_bytes: int
    """Bytes of the compiling process at its peak."""
    versions: Mapping[str, str]
    """Versions of the compiler and of what wrote the program."""
    key: str
    """Key of the program in the cache."""
    stages: Stages | None = part()
    """One op at every stage of the compiler (--stages)."""


def program_result(
    program: PlanProgram,
    plan: TrainPlan | ServePlan | None = None,
    stages: Stages | None = None,
) -> ProgramResult:
    """One program, with one of its ops at every stage."""
    compiled, said = program.compiled, program.predicted
    sequences, tokens = _load(program.phase, plan)
    return ProgramResult.part_of(
        compiled,
        phase=program.phase,
        sequences=sequences,
        tokens=tokens,
        shortfall=shortfall(program, plan),
        usable_bytes=compiled.capacity_bytes,
        peak_bytes=PeakBytes(predicted=said and said.peak_bytes, compiled=compiled.needed_bytes),
        memory_by_kind=MemoryKinds(
            predicted=said and said.memory_by_kind,
            compiled=compiled.memory,
            arguments=compiled.arguments_by_name(),
        ),
        flops=ProgramFlops(
            predicted=said and said.flops,
            compiled=float(program.work.work.flops()),
            compiled_cycles=cycles_of(program),
        ),
        step_seconds=StepSeconds(
            predicted=said and said.seconds, compiled=_seconds(program.timeline)
        ),
        collectives=collective_rows(program),
        unknown_ops=[item.name for item in program.work.unknown()],
        buffers=compiled.buffers[:MOST_BUFFERS],
        stages=stages,
    )


def _load(phase: str, plan: TrainPlan | ServePlan | None) -> tuple[int | None, int | None]:
    """What one step of a server works on: the sequences that decode, or the tokens of a prompt."""
    if not isinstance(plan, ServePlan):
        return None, None
    return (plan.batch, plan.batch) if phase == "decode" else (1, chunk_tokens(plan))


def _seconds(t: HloTimeline | None) -> TimelineSeconds | None:
    if t is None:
        return None
    exposed = {stream: s for stream, s in t.exposed.items() if s}
    return TimelineSeconds(
        lower=t.lower, expected=t.expected, upper=t.upper, exposed=exposed or None
    )


def collective_rows(program: PlanProgram) -> list[CollectiveBeside]:
    """Each kind over each set of axes, predicted and compiled."""
    said = {} if program.predicted is None else program.predicted.collectives
    made = program.collectives
    return [
        CollectiveBeside(
            kind=kind,
            axes=axes,
            predicted=_sent(said.get((kind, axes))) if program.predicted is not None else None,
            compiled=_sent(made.get((kind, axes))),
        )
        for kind, axes in sorted({*said, *made}, key=lambda key: (key[0], key[1]))
    ]


def _sent(pair: tuple[float, float] | None) -> Sent:
    runs, size = pair or (0.0, 0.0)
    return Sent(count=runs, bytes=size)
