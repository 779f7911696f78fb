"""Run a plan or a function on the devices at hand and put measured seconds on its compiled ops.

A plan is run as it is; where the devices here are not those of its slice, what it predicts is of
another machine, and a warning says so. `shardwise calibrate` writes the hardware file with which a
plan for this very machine is priced.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from shardwise.errors import BadRequest
from shardwise.hardware import Chip, Slice
from shardwise.hardware.device_names import is_chip
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.files import plan_dict
from shardwise.profiler.child import KEEP_HEAP, Watch, run_function
from shardwise.profiler.hlo.door import read_hlo, read_module
from shardwise.profiler.hlo.text import Module
from shardwise.profiler.hlo.work import HloWork, module_work
from shardwise.profiler.timeline import HloTimeline, schedule
from shardwise.profiler.trace import Measured, Trace, measure, read_trace, trace_of
from shardwise.profiler.trace.events import lines_of
from shardwise.sharding import Mesh
from shardwise.workflows.compile import (
    PHASES,
    PLAN_BUILDER,
    USER_BUILDER,
    need_parts,
    predicted_of,
)
from shardwise.workflows.inputs import Hardware
from shardwise.workflows.plan_file import Priced, price_plan

JOB = "shardwise.profiler.trace.job:run_job"
NO_LIMIT = 2**46
"""Bytes: drivers of accelerators reserve more addresses than there is memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """A program that ran. `seconds` are of each step without the profiler, `measured` those of its
    ops under it; `timeline` is the compiled program priced on `piece`, and `predicted` what the
    planner says of it in seconds by op class and in all; both None without. `reference_seconds` are
    of one product, timed after each step, where a size was asked for."""

    phase: str
    kind: str
    hlo: str
    seconds: tuple[float, ...]
    compile_seconds: float
    reference_seconds: tuple[float, ...]
    work: HloWork
    measured: Measured
    timeline: HloTimeline | None
    predicted: Mapping[str, Any] | None
    notes: tuple[str, ...]

    @property
    def step_seconds(self) -> float:
        """The median step, untraced; of a capture made elsewhere the traced one."""
        return median(self.seconds) if self.seconds else self.measured.step_seconds


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
        raise BadRequest(f"--phase {phase} is none of this plan's: {', '.join(phases)}")
    need_parts()
    priced = price_plan(plan, hardware)
    said = run_program(PLAN_BUILDER, {"plan": plan_dict(plan), "phase": phase}, plan.devices, **run)
    predicted = {**predicted_of(priced, phase), "by_class": _by_class(priced, phase)}
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


def run_program(
    builder: str,
    arguments: Mapping[str, Any],
    devices: int,
    *,
    steps: int,
    cpu_devices: int | None = None,
    seconds: float = 900.0,
    keep: Path | None = None,
    reference: int = 0,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """What `profiler.trace.job.run_job` says, from a child on this machine's devices, or on
    `cpu_devices` virtual ones. With `keep` the capture's files stay in that folder; `reference` is
    the size of a product that is timed between the steps."""
    if steps < 1:
        raise BadRequest(f"--steps is {steps}; at least 1 must run")
    if cpu_devices is not None and cpu_devices < 1:
        raise BadRequest(f"--cpu-devices is {cpu_devices}; it must be 1 or more")
    platform = "cpu" if cpu_devices is not None else os.environ.get("JAX_PLATFORMS", "")
    return run_function(
        JOB,
        {
            "builder": builder,
            "arguments": dict(arguments),
            "steps": steps,
            "devices": devices,
            "keep": None if keep is None else str(keep),
            "reference": reference,
        },
        devices=cpu_devices or 1,
        seconds=seconds,
        memory_bytes=NO_LIMIT,
        environment={"JAX_PLATFORMS": platform, **KEEP_HEAP},
        watch=watch,
        what="the profiled program",
    )


def profiled(
    phase: str,
    said: Mapping[str, Any],
    piece: Slice | None,
    predicted: Mapping[str, Any] | None,
    warnings: Sequence[str],
) -> Profiled:
    """A run's answer, read."""
    trace = trace_of("of this run", lines_of(said["lines"]))
    work, measured = matched(trace, read_module(said["hlo"]), said["mesh"])
    notes = list(warnings)
    if piece is not None and not is_here(said["kind"], piece.chip):
        notes.append(
            f"the program ran on '{said['kind']}', and compiled and predicted times are of "
            f"{piece.chip.id}; `shardwise calibrate -o machine.toml` makes a chip of this machine"
        )
    timeline = None
    if piece is not None and work.mesh.size == piece.devices:
        try:
            timeline = schedule(work, piece)
        except BadRequest as error:
            notes.append(f"no compiled time: {error}")
    return Profiled(
        phase=phase,
        kind=said["kind"],
        hlo=said["hlo"],
        seconds=tuple(said["seconds"]),
        compile_seconds=said["compile_seconds"],
        reference_seconds=tuple(said["reference_seconds"]),
        work=work,
        measured=measured,
        timeline=timeline,
        predicted=predicted,
        notes=tuple(notes),
    )


def matched(
    trace: Trace, module: Module, mesh: Mapping[str, int] | None
) -> tuple[HloWork, Measured]:
    """The compiled program as work, with the seconds of a capture on its ops."""
    found = dict(mesh or {})
    if spread := found.pop("spread", None):  # as `compile.program_of`
        found["tensor"] = found["tensor"] * spread
    work = module_work(module, Mesh(tuple(found.items())) if found else None)
    return work, measure(trace, work, module)


def profile_trace(path: Path, hlo: Path | None = None) -> tuple[Trace, Profiled | None]:
    """A capture made elsewhere; matched to a compiled program where its text is given."""
    module, text = read_hlo(hlo, "--hlo") if hlo is not None else (None, "")
    trace = read_trace(path)
    if module is None:
        return trace, None
    work, measured = matched(trace, module, None)
    found = Profiled(
        phase=work.name,
        kind="as captured",
        hlo=text,
        seconds=(),
        compile_seconds=0.0,
        reference_seconds=(),
        work=work,
        measured=measured,
        timeline=None,
        predicted=None,
        notes=(),
    )
    return trace, found


def is_here(kind: str, chip: Chip) -> bool:
    """Whether JAX's name of the devices here is the chip's: by its name, or the one that
    calibration has written."""
    return chip.core_kind == f"{kind} device" or is_chip(kind, chip)


def _by_class(priced: Priced, phase: str) -> dict[str, float]:
    """Expected seconds of the planner's ops by class; what overlaps counts twice."""
    answer = priced.answer
    names = {"train": "estimate", "prefill": "prefill", "decode": "decode"}
    found: dict[str, float] = {}
    for time in getattr(answer, names[phase]).ops:
        kind = time.op.op_class
        found[kind] = found.get(kind, 0.0) + float(time.total)
    return found
