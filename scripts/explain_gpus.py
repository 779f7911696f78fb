"""Compile the corpus of reported faults for GPUs, and record what `explain` finds in it.

`PYTHONPATH=scripts python scripts/explain_gpus.py [NAME ...]` (`gpu-compile`, no GPU) compiles
each fault and its twin for `ON` and writes tests/explain/corpus/h100.json, row by row: it can be
stopped and started again; a row that is there stays. `applies` says whether the compiler for GPUs
leaves the fault in the program: the twin saves at least `WORTH` of the step, or memory is named.
"""

import json
import sys
from datetime import date
from typing import Any

from explain_corpus import CORPUS, ROWS

from shardwise.hardware import parse_slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead import compile_ahead, target_of
from shardwise.profiler.explain import Explanation, explain_program
from shardwise.sharding import Mesh

ON = "h100:8"
RECORD = CORPUS / "h100.json"
WORTH = 0.02


def explained(name: str, faulty: bool) -> tuple[Explanation, Any]:
    """A program of the corpus as it is compiled for GPUs, and what compiled it."""
    piece, mesh = parse_slice(ON), Mesh.parse(ROWS[name]["mesh"])
    target = target_of(piece, mesh_coordinates(piece, mesh))
    made = compile_ahead(target, "explain_corpus:build", {"name": name, "faulty": faulty})
    found = explain_program(made.hlo, piece, mesh, buffers=made.buffers, fits=made.fits)
    return found, made


def row(name: str) -> dict[str, Any]:
    """What is recorded of a fault."""
    rule = ROWS[name]["rule"]
    fault, made = explained(name, True)
    twin, _ = explained(name, False)
    step = fault.timeline.expected
    told = [f for f in fault.findings if f.rule == rule]
    saved = step - twin.timeline.expected
    return {
        "rule": rule,
        "date": date.today().isoformat(),
        "on": ON,
        "versions": dict(made.versions),
        "step": step,
        "saved": saved,
        "told": sum(f.seconds for f in told),
        "frees": sum(f.frees for f in told),
        "first": list(dict.fromkeys(f.rule for f in fault.findings))[:2],
        "twin": sorted({f.rule for f in twin.findings}),
        "applies": bool(saved >= WORTH * step or sum(f.frees for f in told)),
    }


def main(names: list[str]) -> None:
    found = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    for name in names or [n for n in ROWS if ROWS[n].get("rule") and n not in found]:
        try:
            found[name] = row(name)
        except Exception as error:
            found[name] = {"rule": ROWS[name]["rule"], "refused": str(error).splitlines()[0][:200]}
        RECORD.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
        print(name, found[name].get("first", found[name].get("refused")), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
