"""tests/kept/servers: steps of servers in every layout of their caches, compiled for a TPU slice.

    python scripts/kept_servers.py [NAME ...]

Compiles decode and prefill of each layout by libtpu for slices that are not here (about ten CPU
seconds each; kept in the cache of `shardwise compile`), all or those named, and writes NAME.hlo.gz
and index.json, which has of each program a hash of what was lowered: a slow test lowers them anew,
and one that has changed must be made again.
"""

import gzip
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, NamedTuple

from kept_programs import HERE
from made import made

from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import Priced, price_plan
from shardwise.commands.program.compiling import PLAN_BUILDER
from shardwise.hardware import parse_slice
from shardwise.hardware.device_order import device_coordinates
from shardwise.models import load_model
from shardwise.plans import ServeDtypes, ServePlan
from shardwise.plans.files import plan_dict
from shardwise.plans.identity import model_hash
from shardwise.profiler.ahead import Limits, compile_ahead, target_of
from shardwise.profiler.ahead.compile import environment
from shardwise.profiler.ahead.job import topology_devices
from shardwise.profiler.child import run_function

FOLDER = HERE.parent / "tests" / "kept" / "servers"
SCHEMA = 1
ON = "v5e:2x4"
PHASES = "decode", "prefill"
BATCH, SEQUENCE = "heads_then_batch", "heads_then_batch_then_sequence"


class Layout(NamedTuple):
    """Where a server's weights and cache lie, and how many sequences it has at once."""

    model: str
    mesh: Mapping[str, int]
    kv: str
    batch: int


LAYOUTS = {
    "replicas": Layout("qwen2.5-3b", {"data": 8}, "heads", 32),
    "heads": Layout("qwen2.5-3b", {"data": 4, "tensor": 2}, "heads", 32),
    "whole_heads": Layout("qwen2.5-3b", {"tensor": 8}, "heads", 32),
    "batch": Layout("qwen2.5-3b", {"tensor": 8}, BATCH, 32),
    "batch_of_two_pools": Layout("qwen2.5-3b", {"data": 2, "tensor": 4}, BATCH, 32),
    "sequence": Layout("qwen2.5-3b", {"tensor": 8}, SEQUENCE, 2),
    "sequence_of_two_pools": Layout("qwen2.5-3b", {"data": 2, "tensor": 4}, SEQUENCE, 2),
    "stationary": Layout("qwen2.5-3b", {"fsdp": 4, "tensor": 2}, BATCH, 32),
    "experts": Layout("olmoe-1b-7b", {"expert": 8}, "heads", 32),
}
"""Every way to cut a cache that a plan can say, on eight devices; Qwen2.5-3B has two KV heads."""
PROGRAMS = {f"{name}.{phase}": (name, phase) for name in LAYOUTS for phase in PHASES}


def plan(name: str) -> ServePlan:
    """The plan of a layout: answers of 256 tokens to prompts of 768, whole pages."""
    one, piece = LAYOUTS[name], parse_slice(ON)
    return ServePlan(
        model=one.model,
        model_hash=model_hash(load_model(one.model)),
        slice=ON,
        mesh=dict(one.mesh),
        box=piece.shape,
        batch=one.batch,
        input_length=768,
        output_length=256,
        dtypes=ServeDtypes(),
        kv_sharding=one.kv,
        engine="jax",
    )


@cache
def priced(name: str) -> Priced:
    """The plan with its prices."""
    return price_plan(plan(name), Hardware())


def target(name: str) -> Any:
    """What the compiler is told of the slice."""
    answer = priced(name).answer
    return target_of(answer.piece, device_coordinates(answer.placement))


def main() -> None:
    """Compile the programs, then write the folder."""
    FOLDER.mkdir(exist_ok=True)
    head, hashes = made(), lowered()
    for program in sys.argv[1:] or PROGRAMS:
        name, phase = PROGRAMS[program]
        given = {"plan": plan_dict(plan(name)), "phase": phase}
        compiled = compile_ahead(target(name), PLAN_BUILDER, given, limits=Limits())
        with gzip.GzipFile(FOLDER / f"{program}.hlo.gz", "wb", mtime=0) as file:
            file.write(compiled.hlo.replace(f"{HERE.parent}/", "").encode())
        print(program, file=sys.stderr, flush=True)
    rows = [{"name": name, "lowered": hashes[name]} for name in PROGRAMS]
    doc = {"schema_version": SCHEMA, **head, "rows": rows}
    (FOLDER / "index.json").write_text(json.dumps(doc, indent=1) + "\n", encoding="utf-8")


def lowered() -> dict[str, str]:
    """A hash of every program as it is given to the compiler, from a child; nothing is compiled."""
    cases, around = [], {"PYTHONPATH": str(HERE)}
    for program, (name, phase) in PROGRAMS.items():
        around |= environment(target(name))
        case = {"plan": plan_dict(plan(name)), "phase": phase, "target": asdict(target(name))}
        cases.append({"name": program, **case})
    return run_function("kept_servers:hashes", {"cases": cases}, environment=around)


def hashes(cases: list[dict[str, Any]]) -> dict[str, str]:
    """What runs in the child of `lowered`."""
    import jax

    from shardwise.runtime.programs import plan_program

    jax.config.update("jax_traceback_in_locations_limit", 0)
    found = {}
    for case in cases:
        devices = topology_devices(case["target"])
        program = plan_program(devices, plan=case["plan"], phase=case["phase"])
        text = program.function.lower(*program.arguments).as_text()
        found[case["name"]] = hashlib.sha256(text.encode()).hexdigest()
    return found


if __name__ == "__main__":
    main()
