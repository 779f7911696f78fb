"""What is read back of the report folder of a compile: the fields of `report`.

Seconds are per device. The names of the fields are the keys of the document, and stay the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from shardwise.boundary import is_file, number, read_json, read_packed, read_table
from shardwise.boundary.items import json_items
from shardwise.boundary.records import Record, part
from shardwise.boundary.typed import record_of
from shardwise.commands.program.compile_result import (
    CollectiveBeside,
    PeakBytes,
    ProgramFlops,
    StepSeconds,
)
from shardwise.errors import BadRequest, ShardwiseError, check_known
from shardwise.hardware import parse_slice
from shardwise.profiler.explain.graph import waits
from shardwise.profiler.stages import Stages
from shardwise.results.profiled import ClassTimes, MeasuredStep


@dataclass(frozen=True, kw_only=True)
class OpTimes(Record):
    """One op of the program."""

    id: str
    """What names it in the report."""
    op: str
    """The instruction."""
    class_: str
    """The class of ops that it is of."""
    phase: str
    """The pass that it belongs to."""
    scope: str
    """Its named scope in JAX."""
    source: str
    """Its file:line; "" where the program tells none."""
    stream: str
    """Resource that it uses."""
    bound_by: str
    """What bounds it."""
    runs: float | None
    """Runs per step."""
    seconds: float | None
    """Seconds of one run."""
    seconds_per_step: float | None
    """Seconds of all runs."""
    exposed_seconds: float | None
    """Seconds per step that compute waits for it."""
    flops: float | None
    """FLOPs of one run."""
    hbm_bytes: float | None
    """HBM bytes of one run."""
    flops_per_byte: float | None
    """Its arithmetic intensity; null where it moves no bytes."""
    of_roofline: float | None
    """The roofline's seconds over its own."""
    attained_flops: float
    """FLOPs per second of one run."""
    spent_seconds: float
    """Seconds that it adds to a step: on other streams than compute, those that compute waits."""


@dataclass(frozen=True, kw_only=True)
class OpPlace(Record):
    """Where an op is drawn."""

    x: int
    """Its number in the order of the schedule."""
    y: int
    """Its row, of three for each stream."""


@dataclass(frozen=True, kw_only=True)
class ReportOp(OpTimes):
    """One op of the program with its place in the drawing of what waits for what."""

    place: OpPlace
    """Where it is drawn."""


@dataclass(frozen=True, kw_only=True)
class OpWait(Record):
    """An op that waits for another."""

    source: str
    """The id of the op that is waited for."""
    target: str
    """The id of the one that waits."""


@dataclass(frozen=True, kw_only=True)
class OpSpan(Record):
    """One run of an op, or all rounds of a loop."""

    op: str
    """The instruction."""
    stream: str
    """Resource that it uses, or "loops"."""
    start: float
    """Seconds from the start of the step."""
    seconds: float
    """Seconds that it takes."""


@dataclass(frozen=True, kw_only=True)
class BytesInUse(Record):
    """HBM in use from a time on."""

    seconds: float
    """Seconds from the start of the step."""
    bytes: float
    """Bytes of a device."""


@dataclass(frozen=True, kw_only=True)
class DeviceRates(Record):
    """Peak rates of a device; null where the catalogue lacks its chip or the rate."""

    chip: str | None
    """Its chip."""
    bf16_flops: float | None
    """FLOPs per second in bf16."""
    hbm_bandwidth: float | None
    """HBM bytes per second."""


@dataclass(frozen=True, kw_only=True)
class ReportFigures(Record):
    """What `compile.json` says of a program."""

    phase: str
    """train, decode or prefill, or the name of a function."""
    slice: str
    """The chips, as COUNT*CHIP:SHAPE."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree, outermost first."""
    fits: bool
    """Whether it fits a device's memory."""
    usable_bytes: float
    """Bytes of a device that a program can use."""
    peak_bytes: PeakBytes
    """Bytes at the peak."""
    flops: ProgramFlops
    """FLOPs of a step."""
    step_seconds: StepSeconds
    """Seconds of a step."""
    collectives: Sequence[CollectiveBeside]
    """Each kind over each set of axes."""


@dataclass(frozen=True, kw_only=True)
class ReportMeasured(Record):
    """A run of the program, as `profile --out` kept it in the report's folder."""

    kind: str
    """What JAX calls a device that ran it."""
    devices: int
    """Devices that ran it."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree of the run."""
    step_seconds: MeasuredStep
    """Seconds of a step."""
    by_class: Sequence[ClassTimes]
    """Classes of ops: measured, compiled and predicted."""


@dataclass(frozen=True, kw_only=True)
class ReportedProgram(ReportFigures):
    """One compiled program, as its report has it."""

    phases: Sequence[str]
    """Programs of the report."""
    stages: Stages | None
    """The op that was followed from JAX to the schedule; null where none was."""
    device: DeviceRates
    """Peak rates of a device."""
    ops: Sequence[ReportOp]
    """The dearest ops, in the order of the schedule."""
    waits: Sequence[OpWait]
    """Which of them wait for which."""
    left_seconds: float
    """Seconds of a step that the other ops add."""
    spans: Sequence[OpSpan]
    """The runs of the dearest ops, and loops."""
    memory: Sequence[BytesInUse]
    """HBM in use at each change."""
    measured: ReportMeasured | None = part()
    """The program's run, where the folder has one (`profile --out`)."""


WORDS = ("id", "op", "class", "phase", "scope", "source", "stream", "bound_by")
AMOUNTS = ("runs", "seconds", "seconds_per_step", "exposed_seconds", "flops", "hbm_bytes")
AMOUNTS += ("flops_per_byte", "of_roofline")
"""Columns of PHASE.ops.csv that are read."""
MOST_EVENTS = 300_000
"""Spans and counters of a timeline that are kept."""
Part = TypeVar("Part")
PROFILE = "profile.json"
PROFILE_REMEDY = "write it again by `shardwise profile --out`, or delete it"
REMEDY = "give a folder that `shardwise compile --out` wrote"


def read_report(folder: Path, phase: str | None, most: int) -> ReportedProgram:
    """A program of a report: its spans, its `most` dearest ops in the order of the schedule with
    what they wait for, and HBM in use over the step. Seconds are per device.

    Raises BadRequest for what is no such folder, a phase that it lacks, or a program without times.
    """
    whole = _key(read_json(folder / "compile.json", "report", remedy=REMEDY), "result")
    programs = {_key(one, "phase"): one for one in _key(whole, "programs")}
    check_known("program of the report", phase or next(iter(programs), ""), programs)
    name = phase or next(iter(programs))
    program, stem = programs[name], name.replace(":", ".")
    if not is_file(folder / f"{stem}.ops.csv"):
        raise BadRequest(f"report '{folder}' has no times of '{name}'; {REMEDY}")
    rows = read_table(folder / f"{stem}.ops.csv", "ops", needed=("after", *WORDS, *AMOUNTS)).rows
    ops = [_op(row) for row in rows]
    dear = {op.id for op in sorted(ops, key=lambda op: -op.spent_seconds)[:most]}
    found = _nearest(waits([(row["id"], row["after"].split()) for row in rows], dear))
    named = {op.op for op in ops if op.id in dear}
    spans, memory = _timeline(trace_path(folder, name), named)
    figures = _read(ReportFigures, program, f"figures of '{name}'", folder)
    stages = program.get("stages")
    return ReportedProgram.of(
        figures,
        phases=list(programs),
        stages=stages and _read(Stages, stages, "stages of an op", folder),
        device=_device(figures.slice),
        ops=_placed([op for op in ops if op.id in dear]),
        waits=[OpWait(source=a, target=b) for b, sources in found.items() for a in sources],
        left_seconds=sum(op.spent_seconds for op in ops if op.id not in dear),
        spans=spans,
        memory=memory,
        measured=_measured(folder, name),
    )


def _measured(folder: Path, phase: str) -> ReportMeasured | None:
    """The run of a program that `profile --out` kept in the folder. BadRequest where it is
    damaged."""
    path = folder / PROFILE
    if not is_file(path):
        return None
    document = read_json(path, "profile", remedy=PROFILE_REMEDY)
    result = document.get("result") if isinstance(document, dict) else None
    if isinstance(result, dict) and result.get("phase") != phase:
        return None
    try:
        return record_of(ReportMeasured, result)
    except ValueError:
        raise BadRequest(f"profile '{path}' is damaged; {PROFILE_REMEDY}") from None


def trace_path(folder: Path, phase: str) -> Path:
    """The timeline of a program of a report, as Perfetto opens it."""
    return folder / f"{phase.replace(':', '.')}.trace.json.gz"


def _read(kind: type[Part], value: object, what: str, folder: Path) -> Part:
    """A part of `compile.json`. BadRequest where it is damaged."""
    try:
        return record_of(kind, value)
    except ValueError:
        raise BadRequest(f"report '{folder}' has damaged {what}; {REMEDY}") from None


def _placed(ops: Sequence[OpTimes]) -> list[ReportOp]:
    """With a place in a drawing: one after the other, three rows for each stream."""
    streams = sorted({op.stream for op in ops}, key=lambda name: (name != "compute", name))
    rows = {name: 4 * i for i, name in enumerate(streams)}
    return [
        ReportOp.of(op, place=OpPlace(x=i, y=rows[op.stream] + i % 3)) for i, op in enumerate(ops)
    ]


def _nearest(found: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Of what each op waits for the last ones: without those that one of the others waits for."""
    bit = {name: 1 << i for i, name in enumerate(found)}
    before: dict[str, int] = {}
    nearest = {}
    for name, sources in found.items():
        earlier = 0
        for source in sources:
            earlier |= before.get(source, 0)
        nearest[name] = [source for source in sources if not bit[source] & earlier]
        before[name] = earlier | sum(bit[source] for source in sources)
    return nearest


def _key(document: Any, name: str) -> Any:
    if not isinstance(document, dict) or name not in document:
        raise BadRequest(f"the report has no '{name}'; {REMEDY}")
    return document[name]


def _op(row: Mapping[str, str]) -> OpTimes:
    seconds, flops = _amount(row, "seconds"), _amount(row, "flops")
    spent = "seconds_per_step" if row["stream"] == "compute" else "exposed_seconds"
    return OpTimes(
        **{f"{name}_" if name == "class" else name: row[name] for name in WORDS},  # type: ignore[arg-type]
        **{name: _amount(row, name) for name in AMOUNTS},
        attained_flops=(flops or 0.0) / seconds if seconds else 0.0,
        spent_seconds=_amount(row, spent) or 0.0,
    )


def _amount(row: Mapping[str, str], name: str) -> float | None:
    return None if row[name] == "inf" else number(row[name], f"column {name} of ops")


def _timeline(path: Path, names: set[str]) -> tuple[list[OpSpan], list[BytesInUse]]:
    """Of a trace the runs of these ops and loops, and HBM in use, read event by event. Raises
    BadRequest for another document."""
    data = read_packed(path, "timeline", remedy=REMEDY)
    spans, memory = [], []
    for event in json_items(data, "traceEvents", path, "timeline", remedy=REMEDY):
        try:
            found = _event(event)
        except (TypeError, ShardwiseError):
            raise BadRequest(f"timeline '{path}' is not a trace of a compile; {REMEDY}") from None
        if isinstance(found, BytesInUse):
            memory.append(found)
        elif found is not None and (found.op in names or found.stream == "loops"):
            spans.append(found)
        if len(spans) + len(memory) > MOST_EVENTS:
            raise BadRequest(
                f"timeline '{path}' has more than {MOST_EVENTS:,} spans and counters that are "
                "drawn; ask for fewer ops (--top)"
            )
    return spans, memory


def _event(event: object) -> OpSpan | BytesInUse | None:
    """One event of a trace; None of a kind that is not drawn."""
    match event:
        case {"ph": "X", "name": str(op), "cat": str(stream), "ts": start, "dur": took}:
            seconds = _seconds(took, "dur")
            return OpSpan(op=op, stream=stream, start=_seconds(start, "ts"), seconds=seconds)
        case {"ph": "C", "ts": at, "args": {"bytes": held}}:
            held = number(held, "bytes of an event")
            return BytesInUse(seconds=_seconds(at, "ts"), bytes=held)
        case {"ph": kind} if kind not in ("X", "C"):
            return None
    raise TypeError


def _seconds(value: object, key: str) -> float:
    return number(value, f"{key} of an event") / 1e6


def _device(slice_name: str) -> DeviceRates:
    """Peak rates of a device, unknown where the catalogue lacks its chip."""
    try:
        chip = parse_slice(slice_name).chip
    except ShardwiseError:
        return DeviceRates(chip=None, bf16_flops=None, hbm_bandwidth=None)
    each, flops = chip.jax_devices_per_chip, chip.peak_flops.get("bf16")
    bandwidth = chip.hbm_bandwidth
    return DeviceRates(
        chip=chip.id,
        bf16_flops=flops / each if flops else None,
        hbm_bandwidth=bandwidth / each if bandwidth else None,
    )
