"""What is told of a program that ran, and of a capture that was made elsewhere.

Seconds of rows are own seconds per step and device, means over devices and captured runs; those as
compiled are one device's on its timeline, collectives and copies as if nothing hid them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.boundary.records import Record, part
from shardwise.roofline.bounds import Bounds


@dataclass(frozen=True, kw_only=True)
class PlaceSeconds(Record):
    """Measured seconds of one place: a class of ops, a source line, a scope or an op."""

    where: str
    """The place."""
    measured: float
    """Measured seconds of its ops."""


@dataclass(frozen=True, kw_only=True)
class PlaceTimes(PlaceSeconds):
    """A place in a program, measured and compiled."""

    compiled: float | None
    """Seconds of its ops as compiled; null where the program has no times on a slice."""
    flops: float
    """FLOPs of its ops per step."""
    hbm_bytes: float
    """HBM bytes of its ops per step."""
    ops: int
    """Its ops that were measured."""
    of_roofline: float | None = part()
    """Share of the roofline that its ops reach: their seconds at peak rates over those measured;
    of a program that is priced on the chip it ran on. Null where those measured are fewer: what
    other ops hide, or an error of measurement."""


@dataclass(frozen=True, kw_only=True)
class ClassTimes(PlaceTimes):
    """A class of ops, measured, compiled and predicted."""

    predicted: float | None
    """Expected seconds of the planner's ops, where what overlaps counts twice; null of a
    program without a plan."""


@dataclass(frozen=True, kw_only=True)
class MeasuredStep(Record):
    """Seconds of a step."""

    measured: float
    """Median of the steps without the profiler; of a capture alone, those under it."""
    least: float | None
    """The shortest step; null of a capture."""
    most: float | None
    """The longest step; null of a capture."""
    traced: float
    """Median under the profiler."""
    compiled: Bounds | None
    """As compiled; null where the program has no times on a slice."""
    predicted: Bounds | None
    """As planned; null of a program without a plan."""
    of_roofline: float | None = part()
    """Share of the roofline that the step reaches, as `of_roofline` of its ops."""


@dataclass(frozen=True, kw_only=True)
class UnmatchedOp(Record):
    """An op of a capture that the compiled program lacks."""

    name: str
    """Its name in the capture."""
    seconds: float
    """Its seconds per step."""


@dataclass(frozen=True, kw_only=True)
class ProgramArgument(Record):
    """An argument of a program as it lies on the mesh."""

    name: str
    """Its name in the program."""
    layout: str
    """Its dims, each with the mesh axes that cut it."""
    dtype: str
    """The type of its elements."""
    dims: Sequence[int]
    """Its whole dims, uncut."""
    bytes: float
    """Its bytes on one device."""


@dataclass(frozen=True, kw_only=True)
class ProfiledProgram(Record):
    """A program with the seconds of its ops."""

    phase: str
    """train, decode or prefill, the name of a function, or that of a captured program."""
    devices: int
    """Devices that ran it."""
    kind: str
    """What JAX calls a device; "as captured" of a capture."""
    step_seconds: MeasuredStep
    """Seconds of a step."""
    steps: int
    """Steps that were timed without the profiler; 0 of a capture."""
    captured_steps: float
    """Steps under the profiler."""
    matched_seconds: float
    """Seconds per step of events that belong to ops of the program."""
    unmatched_seconds: float
    """Seconds per step of events that belong to none."""
    unmatched: Sequence[UnmatchedOp]
    """Those events by name."""
    silent_ops: Sequence[str]
    """Ops of the program without an event."""
    by_class: Sequence[ClassTimes]
    """Classes of ops, the one of most measured seconds first."""
    by_line: Sequence[PlaceTimes]
    """Source lines, the one of most measured seconds first."""
    by_scope: Sequence[PlaceTimes]
    """First words of named scopes, the one of most measured seconds first."""
    by_op: Sequence[PlaceTimes] | None = part()
    """Ops, the one of most measured seconds first, where they have a share of the roofline."""
    compile_seconds: float
    """Seconds of the compile; 0 of a capture."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree."""
    arguments: Sequence[ProgramArgument]
    """The largest arguments."""
    files: Sequence[str] | None = part()
    """Files beside the capture (--out)."""


@dataclass(frozen=True, kw_only=True)
class TracedStep(Record):
    """Seconds of a run under the profiler."""

    traced: float
    """Median of the runs."""


@dataclass(frozen=True, kw_only=True)
class CapturedModule(Record):
    """The module of most seconds of a capture whose program is not known."""

    module: str
    """Its name."""
    modules: Mapping[str, float]
    """Seconds of each module of the capture."""
    devices: int
    """Devices that ran it."""
    runs: float
    """Runs on each device."""
    step_seconds: TracedStep
    """Seconds of a run."""
    by_class: Sequence[PlaceSeconds]
    """Classes of ops, as the capture or the op's name has them."""
    by_line: Sequence[PlaceSeconds]
    """Source lines."""
    by_scope: Sequence[PlaceSeconds]
    """First words of named scopes."""
    by_op: Sequence[PlaceSeconds]
    """Ops."""
