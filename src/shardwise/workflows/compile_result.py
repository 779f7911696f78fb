"""What a compile says, as plain values for a document."""

from dataclasses import asdict
from typing import Any

from shardwise.plans import ServePlan, TrainPlan
from shardwise.workflows.compile import Program, shortfall

MOST_BUFFERS = 50


def program_result(program: Program, plan: TrainPlan | ServePlan | None = None) -> dict[str, Any]:
    """One program: predicted and compiled side by side, per device. Bytes and FLOPs are of one
    step, with loops counted as often as they run."""
    compiled, said = program.compiled, program.predicted
    return {
        "phase": program.phase,
        "slice": compiled.slice,
        "mesh": dict(compiled.mesh),
        "devices": compiled.devices,
        "fits": compiled.fits,
        "refusal": compiled.refusal,
        "shortfall": shortfall(program, plan),
        "usable_bytes": compiled.capacity_bytes,
        "peak_bytes": {"predicted": said.get("peak_bytes"), "compiled": compiled.needed_bytes},
        "memory_by_kind": {
            "predicted": said.get("memory_by_kind"),
            "compiled": dict(compiled.memory),
            "arguments": compiled.arguments_by_name(),
        },
        "flops": {
            "predicted": said.get("flops"),
            "compiled": float(program.work.work.flops()),
            "compiled_cycles": cycles_of(program),
        },
        "step_seconds": {"predicted": said.get("seconds"), "compiled": _seconds(program)},
        "collectives": collective_rows(program),
        "unknown_ops": [item.name for item in program.work.unknown()],
        "buffers": [asdict(b) for b in compiled.buffers[:MOST_BUFFERS]],
        "cached": compiled.cached,
        "seconds": dict(compiled.seconds),
        "process_peak_bytes": compiled.process_peak_bytes,
        "versions": dict(compiled.versions),
        "key": compiled.key,
    }


def _seconds(program: Program) -> dict[str, Any] | None:
    """The timeline of the compiled schedule; None for a program on a part of its slice."""
    t = program.timeline
    if t is None:
        return None
    exposed = {stream: s for stream, s in t.exposed.items() if s}
    bounds = {"lower": t.lower, "expected": t.expected, "upper": t.upper}
    return {**bounds, "exposed": exposed} if exposed else bounds


def cycles_of(program: Program) -> float:
    """The compiler's estimates, each as often as it runs; ops without one count nothing."""
    return sum(item.cycles * float(item.op.count) for item in program.work.ops if item.cycles)


def collective_rows(program: Program) -> list[dict[str, Any]]:
    """Each kind over each set of axes: runs per step and V in bytes, predicted and compiled."""
    said, made = program.predicted.get("collectives", {}), program.collectives
    rows = []
    for kind, axes in sorted({*said, *made}, key=lambda key: (key[0], key[1])):
        one, other = said.get((kind, axes)), made.get((kind, axes))
        rows.append(
            {
                "kind": kind,
                "axes": list(axes),
                "predicted": _counted(one) if program.predicted else None,
                "compiled": _counted(other),
            }
        )
    return rows


def _counted(pair: tuple[float, float] | None) -> dict[str, float]:
    runs, size = pair or (0.0, 0.0)
    return {"count": runs, "bytes": size}
