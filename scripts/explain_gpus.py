"""Compile the corpus of reported faults for GPUs, and record what `explain` finds in it.

`PYTHONPATH=scripts python scripts/explain_gpus.py [NAME ...]` compiles faults and their twins for
`ON` (`gpu-compile`, no GPU) and writes their texts, gzipped, into tests/explain/corpus/h100, and
what is found in them into h100.json beside it. Without names what lies there is not compiled again,
but explained as the rules are now. `applies` says whether the compiler for GPUs leaves the fault in
the program: the twin saves at least `WORTH` of the step, or memory is named, and corpus.toml does
not say (`on_gpus`) that the twin saves it by something else.
"""

import gzip
import json
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from explain_corpus import CORPUS, ROWS, mesh_of
from explain_programs import placeless

from shardwise.hardware import parse_slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead import compile_ahead, target_of
from shardwise.profiler.explain import Explanation, explain_program

ON = "h100:8"
RECORD, TEXTS = CORPUS / "h100.json", CORPUS / "h100"
WORTH = 0.02


def text_of(name: str, kind: str) -> Path:
    """Where the text of a program is kept."""
    return TEXTS / f"{name}.{kind}.hlo.gz"


def compiled(name: str) -> Mapping[str, str]:
    """Compile a fault and its twin for GPUs and keep their texts; the versions of the compiler."""
    TEXTS.mkdir(exist_ok=True)
    versions: Mapping[str, str] = {}
    for kind in ("fault", "twin"):
        piece, faulty = parse_slice(ON), kind == "fault"
        target = target_of(piece, mesh_coordinates(piece, mesh_of(name, faulty)))
        made = compile_ahead(target, "explain_corpus:build", {"name": name, "faulty": faulty})
        text_of(name, kind).write_bytes(gzip.compress(placeless(made.hlo).encode(), mtime=0))
        versions = dict(made.versions)
    return versions


def explained(name: str, kind: str) -> Explanation:
    """A program as it was compiled for GPUs."""
    hlo = gzip.decompress(text_of(name, kind).read_bytes()).decode()
    return explain_program(hlo, parse_slice(ON), mesh_of(name, kind == "fault"))


def row(name: str, compiled: Mapping[str, Any]) -> dict[str, Any]:
    """What is recorded of a fault; `compiled` says when and with what it was."""
    rule = ROWS[name]["rule"]
    fault, twin = explained(name, "fault"), explained(name, "twin")
    step = fault.timeline.expected
    told = [f for f in fault.findings if f.rule == rule]
    saved = step - twin.timeline.expected
    left = saved >= WORTH * step or any(f.frees for f in told)
    return {
        "rule": rule,
        "date": compiled["date"],
        "on": ON,
        "versions": compiled["versions"],
        "step": step,
        "saved": saved,
        "told": sum(f.seconds for f in told),
        "frees": sum(f.frees for f in told),
        "first": list(dict.fromkeys(f.rule for f in fault.findings))[:2],
        "twin": sorted({f.rule for f in twin.findings}),
        "applies": bool(left) and "on_gpus" not in ROWS[name],
    }


def main(names: list[str]) -> None:
    found = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    for name in names or [n for n in ROWS if ROWS[n].get("rule")]:
        try:
            kept = found.get(name, {})
            if names or "date" not in kept or not text_of(name, "twin").is_file():
                kept = {"date": date.today().isoformat(), "versions": compiled(name)}
            found[name] = row(name, kept)
        except Exception as error:
            found[name] = {"rule": ROWS[name]["rule"], "refused": str(error).splitlines()[0][:200]}
        RECORD.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
        print(name, found[name].get("first", found[name].get("refused")), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
