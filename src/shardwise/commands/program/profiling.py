"""Run a plan or a function on the devices at hand and put measured seconds on its compiled ops.

A plan is run as it is; where the devices here are not those of its slice, what it predicts is of
another machine, and a warning says so. `shardwise calibrate` writes the hardware file with which a
plan for this very machine is priced.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from shardwise.boundary import finite, to_json, write_table, write_text
from shardwise.boundary.outputs import make_folder
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import Priced, price_plan
from shardwise.commands.program.compiling import (
    PHASES,
    PLAN_BUILDER,
    USER_BUILDER,
    need_parts,
    predicted_of,
)
from shardwise.commands.program.graphs import captured_without, graph_labels, with_graphs
from shardwise.errors import BadRequest
from shardwise.hardware import Chip, Slice
from shardwise.hardware.device_names import is_chip
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.files import plan_dict
from shardwise.profiler.child import Watch, run_here
from shardwise.profiler.explain.evidence import arguments_of, source_of
from shardwise.profiler.hlo.door import read_hlo, read_module
from shardwise.profiler.hlo.scopes import scope_of
from shardwise.profiler.hlo.text import Module
from shardwise.profiler.hlo.work import HloOp, HloWork, module_work
from shardwise.profiler.timeline import HloTimeline, schedule
from shardwise.profiler.trace import Capture, MeasuredProgram, measure, read_trace, trace_of
from shardwise.profiler.trace.events import TraceOp, lines_of, opcode_of
from shardwise.profiler.trace.match import MeasuredOp
from shardwise.results.profiled import (
    CapturedModule,
    ClassTimes,
    MeasuredStep,
    PlaceSeconds,
    PlaceTimes,
    ProfiledProgram,
    ProgramArgument,
    TracedStep,
    UnmatchedOp,
)
from shardwise.roofline.bounds import Bounds
from shardwise.sharding import Mesh

JOB = "shardwise.profiler.trace.job:run_job"
CAPTURED = "as captured"
"""The kind of the devices of a capture that was made elsewhere."""
SHOWN = 100  # lines of each table of a document


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """What `profiler.trace.job.run_job` says of a program: its text, the platform and kind of its
    devices, its mesh where it has one, the lines of its capture, seconds of its steps, of its
    compile, and of a product that was timed between the steps."""

    hlo: str
    platform: str
    kind: str
    mesh: Mapping[str, int] | None
    lines: Sequence[Mapping[str, Any]]
    seconds: Sequence[float]
    compile_seconds: float
    reference_seconds: Sequence[float]
    without_graphs: Sequence[float] = ()
    """Of steps of the program that was captured, where that is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifiedProgram:
    """What the planner says of a program: expected seconds of its step, and of its ops by class,
    in which what overlaps counts twice."""

    seconds: Bounds
    by_class: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """A program that ran. `seconds` are of each step without the profiler, `measured` those of its
    ops under it; `timeline` is the compiled program priced on `piece`, and `predicted` what the
    planner says of it; both None without. `reference_seconds` are
    of one product, timed after each step, where a size was asked for."""

    phase: str
    kind: str
    hlo: str
    seconds: tuple[float, ...]
    compile_seconds: float
    reference_seconds: tuple[float, ...]
    work: HloWork
    measured: MeasuredProgram
    timeline: HloTimeline | None
    predicted: ClassifiedProgram | None
    notes: tuple[str, ...]

    @property
    def step_seconds(self) -> float:
        """The median step, untraced; of a capture made elsewhere the traced one."""
        return median(self.seconds) if self.seconds else self.measured.step_seconds

    @property
    def priced(self) -> HloTimeline | None:
        """The timeline, where it is of the chip that the program ran on: of a capture made
        elsewhere that which its reader names."""
        at = self.timeline
        return at if at and (self.kind == CAPTURED or is_here(self.kind, at.slice.chip)) else None

    @property
    def least(self) -> Mapping[Any, float] | None:
        """Of each op the seconds per step at peak rates; None where they are of no chip."""
        at = self.priced
        return at and {row.op.op.id: row.lower * row.count for row in at.rows}


def profile_plan(
    plan: TrainPlan | ServePlan,
    hardware: Hardware,
    *,
    phase: str | None = None,
    **run: Any,
) -> Profiled:
    """Run one program of a plan: `train`, `decode` (default of a serving plan) or `prefill`.

    `run` goes to `run_program`. Raises BadRequest for a phase that the plan does not have, and
    where its devices are not here.
    """
    phases = PHASES[type(plan)]
    phase = phase or phases[0]
    if phase not in phases:
        raise BadRequest(f"--phase {phase} is not a step of this plan; choose {', '.join(phases)}")
    need_parts()
    priced = price_plan(plan, hardware)
    said = run_program(PLAN_BUILDER, {"plan": plan_dict(plan), "phase": phase}, plan.devices, **run)
    predicted = ClassifiedProgram(
        seconds=predicted_of(priced, phase).seconds, by_class=_predicted_by_class(priced, phase)
    )
    return profiled(phase, said, priced.answer.piece, predicted, priced.warnings)


def profile_function(
    function: str,
    args: str,
    mesh: Mapping[str, int],
    piece: Slice | None = None,
    **run: Any,
) -> Profiled:
    """Run `module:function` on arguments made for the shapes of `module:abstract_args`, which is
    given the mesh. With a slice its compiled ops are priced too."""
    need_parts()
    devices = Mesh(tuple(mesh.items())).size
    arguments = {"function": function, "args": args, "mesh": dict(mesh)}
    said = run_program(USER_BUILDER, arguments, devices, **run)
    return profiled(function, said, piece, None, ())


RECOVERED = (
    "the mesh comes from the groups of the program's collectives, and its axes are named in order; "
    "--mesh gives them names"
)


def run_program(
    builder: str,
    arguments: Mapping[str, object],
    devices: int,
    *,
    steps: int,
    cpu_devices: int | None = None,
    seconds: float = 900.0,
    keep: Path | None = None,
    reference: int = 0,
    watch: Watch | None = None,
) -> ProgramRun:
    """What `profiler.trace.job.run_job` says, from a child on this machine's devices, or on
    `cpu_devices` virtual ones. With `keep` the capture's files stay in that folder; `reference` is
    the size of a product that is timed between the steps."""
    if steps < 1:
        raise BadRequest(f"--steps is {steps}; at least 1 must run")
    said = run_here(
        JOB,
        {
            "builder": builder,
            "arguments": dict(arguments),
            "steps": steps,
            "devices": devices,
            "keep": None if keep is None else str(keep),
            "reference": reference,
        },
        cpu_devices=cpu_devices,
        seconds=seconds,
        watch=watch,
        what="the profiled program",
    )
    return ProgramRun(**said)


def profiled(
    phase: str,
    said: ProgramRun,
    piece: Slice | None,
    predicted: ClassifiedProgram | None,
    warnings: Sequence[str],
) -> Profiled:
    """A run's answer, read."""
    trace = trace_of("of this run", lines_of(said.lines))
    work, measured = matched(trace, read_module(said.hlo), said.mesh)
    notes = list(warnings)
    if piece is not None and not is_here(said.kind, piece.chip):
        notes.append(
            f"the program ran on '{said.kind}', and compiled and predicted times are for "
            f"{piece.chip.id}; `shardwise calibrate -o machine.toml` describes this machine as a "
            "chip"
        )
    timeline = None
    if piece is not None and work.mesh.size == piece.devices:
        try:
            timeline = schedule(work, piece)
        except BadRequest as error:
            notes.append(f"no compiled time: {error}")
    measured, more = with_graphs(measured, timeline)
    notes += [*more, *captured_without(said.seconds, said.without_graphs)]
    return Profiled(
        phase=phase,
        kind=said.kind,
        hlo=said.hlo,
        seconds=tuple(said.seconds),
        compile_seconds=said.compile_seconds,
        reference_seconds=tuple(said.reference_seconds),
        work=work,
        measured=measured,
        timeline=timeline,
        predicted=predicted,
        notes=tuple(notes),
    )


def matched(
    trace: Capture, module: Module, mesh: Mapping[str, int] | None
) -> tuple[HloWork, MeasuredProgram]:
    """The compiled program as work, with the seconds of a capture on its ops."""
    found = dict(mesh or {})
    if spread := found.pop("spread", None):  # as `compile.program_of`
        found["tensor"] = found["tensor"] * spread
    work = module_work(module, Mesh(tuple(found.items())) if found else None)
    return work, measure(trace, work, module)


def profile_trace(
    path: Path,
    hlo: Path | None = None,
    piece: Slice | None = None,
    mesh: Mapping[str, int] | None = None,
) -> tuple[Capture, Profiled | None]:
    """A capture made elsewhere; matched to a compiled program where its text is given, whose ops
    are priced on a slice if that is. The mesh names the axes, which are else recovered from the
    groups of its collectives. Raises BadRequest for a slice of other devices."""
    module, text = read_hlo(hlo, "--hlo") if hlo is not None else (None, "")
    trace = read_trace(path)
    if module is None:
        return trace, None
    work, measured = matched(trace, module, mesh)
    timeline = schedule(work, piece) if piece else None
    measured, notes = with_graphs(measured, timeline)
    if not mesh and work.mesh.size > 1:
        notes.append(RECOVERED)
    found = Profiled(
        phase=work.name,
        kind=CAPTURED,
        hlo=text,
        seconds=(),
        compile_seconds=0.0,
        reference_seconds=(),
        work=work,
        measured=measured,
        timeline=timeline,
        predicted=None,
        notes=tuple(notes),
    )
    return trace, found


def is_here(kind: str, chip: Chip) -> bool:
    """Whether JAX's name of the devices here is the chip's: by its name, or the one that
    calibration has written."""
    return chip.core_kind == f"{kind} device" or is_chip(kind, chip)


def _predicted_by_class(priced: Priced, phase: str) -> dict[str, float]:
    """Expected seconds of the planner's ops by class; what overlaps counts twice."""
    answer: Any = priced.answer
    estimate = answer.estimate if phase == "train" else getattr(answer, phase).estimate
    found: dict[str, float] = {}
    for time in estimate.ops:
        kind = time.op.op_class
        found[kind] = found.get(kind, 0.0) + float(time.total)
    return found


# ---- the document --------------------------------------------------------------------------------


def profile_result(p: Profiled) -> ProfiledProgram:
    """One profile."""
    m = p.measured
    return ProfiledProgram(
        phase=p.phase,
        devices=m.devices,
        kind=p.kind,
        step_seconds=_step(p),
        steps=len(p.seconds),
        captured_steps=m.runs,
        matched_seconds=m.matched_seconds,
        unmatched_seconds=m.unmatched_seconds,
        unmatched=[
            UnmatchedOp(name=name, seconds=spent)
            for name, spent in islice(m.unmatched.items(), SHOWN)
        ],
        silent_ops=m.silent,
        by_class=_by_class(p),
        by_line=_grouped(p, source_of),
        by_scope=_grouped(p, lambda item: item.scope.split("/")[0] or "(no scope)"),
        by_op=_by_op(p) if p.priced else None,
        compile_seconds=p.compile_seconds,
        mesh=dict(p.work.mesh),
        arguments=_arguments(p),
    )


def _by_op(p: Profiled) -> list[PlaceTimes]:
    """Each op; those of a CUDA graph that is one event together."""
    label = graph_labels(p.measured)
    return _grouped(p, lambda item: label.get(item.name, item.name))


def _step(p: Profiled) -> MeasuredStep:
    t = p.timeline
    return MeasuredStep(
        measured=p.step_seconds,
        least=min(p.seconds, default=None),
        most=max(p.seconds, default=None),
        traced=p.measured.step_seconds,
        compiled=t and Bounds(lower=t.lower, expected=t.expected, upper=t.upper),
        predicted=p.predicted and p.predicted.seconds,
        of_roofline=_share(p.priced and p.priced.lower, p.step_seconds),
    )


def _share(least: float | None, measured: float) -> float | None:
    """The share of the roofline; None of what is not priced, or faster than it."""
    return least / measured if least is not None and 0 < measured >= least else None


def _arguments(p: Profiled, most: int = 30) -> list[ProgramArgument]:
    """The largest arguments as they lie on the mesh, with whole dims."""
    mesh, header = p.work.mesh, p.hlo.partition("\n")[0]
    found = arguments_of(read_module(p.hlo), header, mesh)
    return [
        ProgramArgument(
            name=a.name,
            layout=a.layout,
            dtype=a.dtype,
            dims=[
                n * prod(mesh[axis] for axis in axes)
                for n, axes in zip(a.dims, a.cuts, strict=True)
            ],
            bytes=a.bytes,
        )
        for a in sorted(found, key=lambda a: -a.bytes)[:most]
    ]


def _grouped(p: Profiled, place: Callable[[HloOp], str]) -> list[PlaceTimes]:
    """Rows of one table, most measured seconds first."""
    compiled = {row.op.op.id: row.per_step for row in p.timeline.rows} if p.timeline else None
    least = p.least
    places: dict[str, list[MeasuredOp]] = {}
    for found in p.measured.ops:
        places.setdefault(place(found.op), []).append(found)
    rows = [_row(where, ops, compiled, least) for where, ops in places.items()]
    return sorted(rows, key=lambda row: -row.measured)[:SHOWN]


def _row(
    where: str,
    found: Sequence[MeasuredOp],
    compiled: Mapping[Any, float] | None,
    least: Mapping[Any, float] | None,
) -> PlaceTimes:
    ops = [one.op.op for one in found]

    def taken(seconds: Mapping[Any, float] | None) -> float | None:
        return None if seconds is None else sum((seconds[op.id] for op in ops), 0.0)

    measured = sum((one.seconds for one in found), 0.0)
    return PlaceTimes(
        where=where,
        measured=measured,
        compiled=taken(compiled),
        of_roofline=_share(taken(least), measured),
        flops=sum((float(sum(map(float, op.flops.values()))) * float(op.count) for op in ops), 0.0),
        hbm_bytes=sum((float(op.hbm_bytes) * float(op.count) for op in ops), 0.0),
        ops=len(ops),
    )


def _by_class(p: Profiled) -> list[ClassTimes]:
    """By op class, with what the planner says; a class that only the planner has comes last."""
    rows, planned = _grouped(p, lambda item: item.op.op_class), p.predicted
    if planned is None:
        return [ClassTimes.of(row, predicted=None) for row in rows]
    said = planned.by_class
    measured = {row.where for row in rows}
    none = 0.0 if p.timeline else None
    return [ClassTimes.of(row, predicted=said.get(row.where, 0.0)) for row in rows] + [
        ClassTimes(
            where=where,
            measured=0.0,
            compiled=none,
            flops=0.0,
            hbm_bytes=0.0,
            ops=0,
            predicted=seconds,
        )
        for where, seconds in said.items()
        if seconds and where not in measured
    ]


def trace_result(trace: Capture) -> CapturedModule:
    """A capture alone: what its own events say of the module of most seconds."""
    name = next(iter(trace.modules))
    found = trace.of(name)
    runs = len(found.spans)
    opcode, scope = cache(opcode_of), cache(scope_of)

    def rows(place: Callable[[TraceOp], str]) -> list[PlaceSeconds]:
        spent = _sums((place(op), op.own / runs) for op in found.ops)
        return [PlaceSeconds(where=where, measured=s) for where, s in islice(spent.items(), SHOWN)]

    return CapturedModule(
        module=name,
        modules=trace.modules,
        devices=found.devices,
        runs=runs / found.devices,
        step_seconds=TracedStep(traced=median(found.spans.values())),
        by_class=rows(lambda op: op.category or opcode(op.name)),
        by_line=rows(lambda op: op.source or "(not in the capture)"),
        by_scope=rows(lambda op: scope(op.op_name).split("/")[0] or "(no scope)"),
        by_op=rows(lambda op: op.name),
    )


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, seconds in pairs:
        found[name] = found.get(name, 0.0) + seconds
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _op_row(m: MeasuredOp, share: float | None) -> list[Any]:
    item = m.op
    where = (item.op.op_class, item.scope, source_of(item), item.op.count)
    return [item.name, *where, m.events, m.seconds, share]


OPS = ("op", "class", "scope", "source", "count", "events", "seconds", "of_roofline")


def write_profile(folder: Path, p: Profiled, doc: Mapping[str, object]) -> list[str]:
    """Keep the document, a table of all ops and the compiled text beside the capture's files."""
    make_folder(folder)
    write_text(folder / "profile.json", to_json(finite(doc)[0]), option="--out")
    write_text(folder / "program.hlo.txt", p.hlo, option="--out")
    least = p.least or {}
    rows = (_op_row(m, _share(least.get(m.op.op.id), m.seconds)) for m in p.measured.ops)
    write_table(folder / "ops.csv", OPS, rows, option="--out")
    return ["profile.json", "program.hlo.txt", "ops.csv"]
