"""Compile a plan, or any JAX function, for a slice that is not here; what was predicted beside it.

The planner's figures and the compiler's are those of one device unless they say chip. A plan that
does not fit names the buffers that are too much, where they are made, and what would help.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any

from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import REMEDIES, Priced, price_plan
from shardwise.errors import BadRequest, MissingPart
from shardwise.hardware import Slice
from shardwise.hardware.device_order import device_coordinates, mesh_coordinates
from shardwise.models import load_model
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.price.plan import stack_for
from shardwise.planner.serve.memory import prefill_memory
from shardwise.planner.serve.replica import replica_of
from shardwise.planner.serve.server import server_of
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.files import plan_dict
from shardwise.profiler.ahead import (
    Buffer,
    CompileCache,
    CompiledProgram,
    Limits,
    compile_ahead,
    default_root,
    target_of,
)
from shardwise.profiler.child import Watch
from shardwise.profiler.collectives.lines import Line, by_axes, lines_of, written
from shardwise.profiler.explain.cures import Cure
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.work import HloWork, module_work
from shardwise.profiler.timeline import HloTimeline, schedule
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.engines import load_engine
from shardwise.roofline.price import sent_as
from shardwise.sharding import Mesh
from shardwise.units import format_gib
from shardwise.work import Work

PLAN_BUILDER = "shardwise.runtime.programs:plan_program"
USER_BUILDER = "shardwise.profiler.ahead.user:user_program"
CURED_BUILDER = "shardwise.profiler.ahead.cured:cured_program"
PHASES = {TrainPlan: ("train",), ServePlan: ("decode", "prefill")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedProgram:
    """What the planner counts for a program on one device: bytes at the peak, in all and by kind,
    FLOPs and seconds of a step, and its collectives as (kind, axes) -> (runs, V in bytes)."""

    peak_bytes: float
    memory_by_kind: Mapping[str, float]
    flops: float
    seconds: Bounds
    collectives: Mapping[tuple[str, tuple[str, ...]], tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgram:
    """One compiled program with its counted work; `phase` is train, decode or prefill, or the name
    of a function, for which `predicted` is None; `priced` is the plan where it is another one, of a
    prompt of one chunk. `timeline` is None where the program runs on a part of its slice, or the
    catalogue lacks a rate."""

    phase: str
    compiled: CompiledProgram
    work: HloWork
    timeline: HloTimeline | None
    predicted: PredictedProgram | None
    priced: Priced | None = None

    @property
    def planned(self) -> PredictedProgram:
        """What the planner counts for a program of a plan."""
        assert self.predicted is not None, f"{self.phase} is of no plan"
        return self.predicted

    @property
    def collectives(self) -> dict[tuple[str, tuple[str, ...]], tuple[float, float]]:
        """(kind, axes) -> (runs, V in bytes) per step, as compiled."""
        return collectives_of(self.work.work, self.work.mesh)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPlan:
    """A priced plan and its programs, with `notes` of what was compiled in its place."""

    priced: Priced
    programs: tuple[PlanProgram, ...]
    notes: tuple[str, ...] = ()


def compile_plan(
    plan: TrainPlan | ServePlan,
    hardware: Hardware,
    *,
    on: str | None = None,
    phases: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    limits: Limits | None = None,
    watch: Watch | None = None,
    at_once: bool = False,
) -> CompiledPlan:
    """Price a plan and compile its programs, on its own slice or another of as many devices; with
    `at_once`, of a plan for a load, the sequences that its pages hold at full length.

    Raises BadRequest for a phase that the plan does not have, and as `compile_ahead`.
    """
    if on is not None:
        plan = moved(plan, hardware.slice(on).slice)
    notes: list[str] = []
    if at_once and isinstance(plan, ServePlan) and plan.workload is not None:
        plan, notes = _of_held(plan, hardware)
    for phase in phases:
        if phase not in PHASES[type(plan)]:
            raise BadRequest(
                f"--phase {phase} is not a step of this plan; choose "
                f"{', '.join(PHASES[type(plan)])}"
            )
    need_parts()
    priced = price_plan(plan, hardware)
    target = target_of(priced.answer.piece, device_coordinates(priced.answer.placement))
    programs = []
    for phase in phases or PHASES[type(plan)]:
        chunk = chunk_of(plan) if phase == "prefill" else None
        compiled = compile_ahead(
            target,
            PLAN_BUILDER,
            {"plan": plan_dict(chunk or plan), "phase": phase},
            settled=True,
            options=options,
            limits=limits,
            watch=watch,
        )
        own = price_plan(chunk, hardware) if chunk else None
        said = predicted_of(own or priced, phase)
        made = program_of(phase, compiled, priced.answer.piece, said)
        programs.append(replace(made, priced=own))
        if chunk:
            notes.append(
                f"a prefill step takes one chunk: compiled and predicted for a prompt of "
                f"{chunk.input_length:,} tokens"
            )
    return CompiledPlan(priced=priced, programs=tuple(programs), notes=tuple(notes))


def _of_held(plan: ServePlan, hardware: Hardware) -> tuple[ServePlan, list[str]]:
    """The plan of no more sequences than its pages hold at full length, and that it has fewer."""
    held = held_at_once(plan, hardware)
    if held >= plan.batch:
        return plan, []
    note = (
        f"compiled with {held:,} of at most {plan.batch:,} sequences: the plan's pages hold "
        "no more at full length; --set batch=N compiles others"
    )
    return replace(plan, batch=held), [note]


def chunk_of(plan: TrainPlan | ServePlan) -> ServePlan | None:
    """The same plan for a prompt of one chunk, where its prompts have several."""
    if isinstance(plan, TrainPlan) or plan.input_length <= plan.prefill_chunk:
        return None
    return replace(plan, input_length=chunk_tokens(plan))


def chunk_tokens(plan: ServePlan) -> int:
    """Tokens of a chunk: prompts are cut evenly."""
    return ceil(plan.input_length / ceil(plan.input_length / plan.prefill_chunk))


def held_at_once(plan: ServePlan, hardware: Hardware) -> int:
    """Sequences of a plan's whole length that the pages of a server hold: a load's are shorter in
    the mean, so the plan admits more."""
    piece, size = hardware.of_plan(plan).slice(plan.slice).slice, plan.scheduling.page_size
    server = server_of(plan, load_model(plan.model), piece)
    pages = replica_of(server, memory_share=plan.scheduling.memory_share).kv_tokens // size
    return max(1, pages // ceil((plan.input_length + plan.output_length) / size))


def compile_function(
    function: str,
    args: str,
    piece: Slice,
    mesh: Mapping[str, int] | None = None,
    *,
    options: Mapping[str, object] | None = None,
    limits: Limits | None = None,
    watch: Watch | None = None,
    cure: Cure | None = None,
) -> PlanProgram:
    """Compile `module:function`, called as a `cure` says, with the arguments of
    `module:abstract_args`, which is given the mesh: of the axes asked for, or else one axis per
    physical axis of the slice."""
    need_parts()
    degrees = dict(mesh or physical_mesh(piece))
    target = target_of(piece, mesh_coordinates(piece, degrees))
    words: dict[str, Any] = {"function": function, "args": args, "mesh": degrees}
    if cure is not None:
        words |= {"donate": cure.donate, "specs": dict(cure.specs)}
    compiled = compile_ahead(
        target,
        USER_BUILDER if cure is None else CURED_BUILDER,
        words,
        options=options,
        limits=limits,
        watch=watch,
    )
    return program_of(function, compiled, piece, None)


def limits_of(*, seconds: float, memory_bytes: int, cache_bytes: int | None) -> Limits:
    """Limits of a compile; without `cache_bytes` nothing is kept."""
    cache = None if cache_bytes is None else CompileCache(root=default_root(), limit=cache_bytes)
    return Limits(seconds=seconds, memory_bytes=memory_bytes, cache=cache)


def program_of(
    phase: str, compiled: CompiledProgram, piece: Slice, predicted: PredictedProgram | None
) -> PlanProgram:
    """A compiled program, read. Axes of a server's mesh that are parts of the plan's `tensor` are
    that again (`runtime/engine/server_layout.py`)."""
    mesh = dict(compiled.mesh)
    for part in ("spread", "sequence"):
        if part in mesh:
            mesh["tensor"] *= mesh.pop(part)
    work = module_work(read_module(compiled.hlo), Mesh(tuple(mesh.items())))
    timeline = _timeline(work, piece)
    return PlanProgram(
        phase=phase, compiled=compiled, work=work, timeline=timeline, predicted=predicted
    )


def _timeline(work: HloWork, piece: Slice) -> HloTimeline | None:
    """None for a part of a slice, and where the catalogue lacks a rate that is needed."""
    if work.mesh.size != piece.devices:
        return None
    try:
        return schedule(work, piece)
    except BadRequest:
        return None


def physical_mesh(piece: Slice) -> dict[str, int]:
    """One axis per physical axis: slice, x, y, z (or domain), core; those of more than one."""
    names = ("x", "y", "z") if len(piece.shape) > 1 else ("domain",)
    axes = dict(zip(names, piece.shape, strict=False))
    axes = {"slice": piece.count, **axes, "core": piece.chip.jax_devices_per_chip}
    return {name: n for name, n in axes.items() if n > 1} or {names[0]: 1}


def moved(plan: TrainPlan | ServePlan, piece: Slice) -> TrainPlan | ServePlan:
    """The plan on another slice, all of it."""
    if isinstance(plan, TrainPlan):
        return replace(plan, slice=str(piece), box=piece.shape, slices=piece.count)
    return replace(plan, slice=str(piece), box=piece.shape)


def need_parts() -> None:
    """Raise MissingPart, with the install command, without what a compile imports."""
    import importlib.util

    for name in ("jax", "optax"):
        if importlib.util.find_spec(name) is None:
            raise MissingPart(
                f"compiling needs {name}, which is missing; install it with "
                "`pip install '.[tpu-compile]'`"
            )


def predicted_of(priced: Priced, phase: str) -> PredictedProgram:
    """What the planner says of one program, on one device."""
    answer = priced.answer
    if isinstance(answer, TrainAnswer):
        work, seconds = answer.work, answer.step_seconds
        memory = dict(answer.memory.peak_point()[1])
    else:
        prefill = phase == "prefill"
        work = (answer.prefill if prefill else answer.decode).work
        seconds = answer.prefill_seconds if prefill else answer.tpot_seconds
        memory = dict(dict(answer.memory.points)[phase])
        if prefill:  # sequences that wait meanwhile are no part of the program
            server = server_of(answer.plan, answer.cfg, answer.piece)
            memory = prefill_memory(answer.cfg, server.shape(float(answer.plan.batch)))
    return PredictedProgram(
        peak_bytes=sum(map(float, memory.values())),
        memory_by_kind={kind: float(size) for kind, size in memory.items()},
        flops=float(work.flops()),
        seconds=seconds,
        collectives={**by_axes(written(planned_lines(priced, phase)))},
    )


def said_of(priced: Priced, phase: str) -> tuple[Any, Any]:
    """The planner's Work and Estimate of a phase."""
    answer: Any = priced.answer
    if phase == "train":
        return answer.work, answer.estimate
    said = getattr(answer, phase)
    return said.work, said.estimate


def planned_lines(priced: Priced, phase: str) -> tuple[Line, ...]:
    """The collectives of a phase as the plan's compiler sends them."""
    answer: Any = priced.answer
    chip, plan = answer.piece.chip, answer.plan
    trains = isinstance(plan, TrainPlan)
    stack = stack_for(plan, chip) if trains else load_engine(plan.engine).stack
    sent = partial(sent_as, chip=chip, placement=answer.placement, stack=stack)
    return lines_of(said_of(priced, phase)[0], priced.plan, sent)


def collectives_of(
    work: Work, mesh: Mapping[str, int]
) -> dict[tuple[str, tuple[str, ...]], tuple[float, float]]:
    """(kind, axes) -> (runs, V in bytes) per step; axes of one device move nothing."""
    found: dict[tuple[str, tuple[str, ...]], tuple[float, float]] = {}
    for key, sums in work.over(mesh).by_key().items():
        if key.collective:
            runs, size = found.get((key.collective, key.axes), (0.0, 0.0))
            more = float(sums["runs"]), float(sums["collective_bytes"])
            found[key.collective, key.axes] = runs + more[0], size + more[1]
    return found


def shortfall(program: PlanProgram, plan: TrainPlan | ServePlan | None = None) -> str:
    """By how much a program does not fit, its largest buffers and what would help; empty if it
    does. What the compiler holds against the HBM is everything that it had assigned when it gave
    up, fragments included."""
    compiled = program.compiled
    if compiled.fits:
        return ""
    over = compiled.needed_bytes - compiled.capacity_bytes
    first = (
        f"{program.phase} does not fit {compiled.slice}: {format_gib(compiled.needed_bytes)} per "
        f"device, {format_gib(compiled.capacity_bytes)} usable, {format_gib(over)} too much"
    )
    shown = [b for b in largest(compiled.buffers) if b.bytes >= _SHOWN * compiled.needed_bytes]
    lines = [first, *(f"  {text}" for text in map(buffer_text, shown))]
    if plan is None:
        lines.append(f"  {_SMALLER}")
    if plan is not None and program.predicted is not None:
        kinds = program.predicted.memory_by_kind
        most = sorted(kinds, key=lambda kind: -kinds[kind])[:2]
        lines += [
            f"  the plan's {kind} ({format_gib(kinds[kind])} predicted): {REMEDIES[kind]}"
            for kind in most
            if kind in REMEDIES
        ]
    return "\n".join(lines)


_SHOWN = 1e-3
"""The least share of the memory that a buffer has to be named."""
_SMALLER = (
    "donate arguments that an output may replace (donate_argnums), shard more dims over the mesh, "
    "take a smaller batch, or use jax.checkpoint on what a backward pass keeps"
)


def largest(buffers: Sequence[Buffer], most: int = 6) -> list[Buffer]:
    """The buffers of most bytes, those of one shape and origin as one."""
    merged: dict[tuple[str, str, str], Buffer] = {}
    for b in buffers:
        key = (b.kind, b.shape, b.source or b.op)
        held = merged.get(key)
        merged[key] = b if held is None else replace(held, bytes=held.bytes + b.bytes)
    return sorted(merged.values(), key=lambda b: -b.bytes)[:most]


def buffer_text(buffer: Buffer) -> str:
    """One line: bytes, shape, kind, and where it comes from."""
    origin = " ".join(text for text in (short_op(buffer.op), short_source(buffer.source)) if text)
    return f"{format_gib(buffer.bytes)} {buffer.kind} {buffer.shape}: {origin or buffer.name}"


def short_op(op: str) -> str:
    """The last words of an operation's path."""
    return "/".join(op.split("/")[-2:])


def short_source(source: str) -> str:
    """The last words of a file's path, with the line."""
    return "/".join(source.split("/")[-3:])


def cycles_of(program: PlanProgram) -> float:
    """The compiler's estimates, each as often as it runs; ops without one count nothing."""
    return sum(item.cycles * float(item.op.count) for item in program.work.ops if item.cycles)
