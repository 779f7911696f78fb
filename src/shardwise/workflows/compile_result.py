"""What a compile says, as plain values for a document and as files of a report folder."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest
from shardwise.plans import ServePlan, TrainPlan, save_plan
from shardwise.workflows.compile import Program, short_source, shortfall

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


def write_report(
    folder: Path,
    programs: Sequence[Program],
    plan: TrainPlan | ServePlan | None,
    doc: Mapping[str, Any],
) -> list[str]:
    """Keep the plan, and of each program its scheduled HLO and its buffers; names of the files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = ["compile.json"]
        (folder / "compile.json").write_text(json.dumps(doc, indent=2), encoding="utf-8")
        if plan is not None:
            save_plan(plan, folder / "plan.yaml")
            names.append("plan.yaml")
        for program in programs:
            stem = program.phase.replace(":", ".")
            (folder / f"{stem}.hlo.txt").write_text(program.compiled.hlo, encoding="utf-8")
            with (folder / f"{stem}.buffers.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(["bytes", "kind", "shape", "op", "source"])
                for b in program.compiled.buffers:
                    writer.writerow([b.bytes, b.kind, b.shape, b.op, short_source(b.source)])
            names += [f"{stem}.hlo.txt", f"{stem}.buffers.csv"]
    except OSError as error:
        raise BadRequest(
            f"cannot write to '{folder}': {error.strerror}; give another --out"
        ) from None
    return names
