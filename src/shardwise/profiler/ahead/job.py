"""What runs in the child: topology, program, lowering, compile; the answer is plain values.

JAX is imported when the job starts, with the environment that the parent made for it.
"""

import gzip
import json
import re
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardwise.boundary.child import function_named
from shardwise.errors import BadRequest, ShardwiseError
from shardwise.profiler.ahead.buffers import assigned_bytes, read_buffers
from shardwise.profiler.ahead.cache import CompileCache, key_of, versions, write_entry
from shardwise.profiler.ahead.occupancy import hbm_peak, read_alive, read_occupancy
from shardwise.profiler.child import stage
from shardwise.work import tally

MEMORY_FIELDS = {
    "peak": "peak_memory_in_bytes",
    "arguments": "argument_size_in_bytes",
    "outputs": "output_size_in_bytes",
    "aliased": "alias_size_in_bytes",
    "temporaries": "temp_size_in_bytes",
    "code": "generated_code_size_in_bytes",
    "host": "host_temp_size_in_bytes",
}
"""Parts of a device's memory by XLA's names. `aliased` bytes are arguments and outputs at once."""


def compile_job(
    target: Mapping[str, Any],
    builder: str,
    arguments: Mapping[str, Any],
    options: Mapping[str, Any],
    folder: str,
    cache: str | None,
    stages: str | None = None,
) -> dict[str, Any]:
    """Compile what `builder(devices, **arguments)` gives and write the entry into `folder`.

    The answer is {"key", "hit"}; with a hit nothing was compiled. `builder` is "module:function".
    With `stages` the texts of all stages are written there, too, as KEY.json.gz.
    """
    started = time.monotonic()
    stage(f"reading the topology of {target['slice']}")
    devices = topology_devices(target)
    program, lowered, lowering = _lowered(builder, devices, arguments)
    text = lowered.as_text(debug_info=True)
    asked = {**getattr(program, "options", {}), **options}
    key = key_of(text, {k: v for k, v in target.items() if k != "capacity"}, asked)
    if cache is not None and CompileCache(root=Path(cache)).load(key) is not None:
        return {"key": key, "hit": True}
    stage("compiling")
    begun = time.monotonic()
    passes: list[tuple[str, str]] | None = None if stages is None else []
    found, hlo = compiled(lowered, options, target["capacity"], passes)
    if stages is not None:
        jaxpr = program.function.trace(*program.arguments).jaxpr.pretty_print(
            source_info=True, name_stack=True, use_color=False
        )
        kept = {"jaxpr": jaxpr, "stablehlo": text, "passes": passes}
        with gzip.open(Path(stages) / f"{key}.json.gz", "wt", encoding="utf-8") as file:
            json.dump(kept, file)
    record = {
        "slice": target["slice"],
        "platform": target["platform"],
        "devices": len(devices),
        "mesh": dict(program.mesh.shape),
        "options": dict(options),
        "versions": versions(),
        "seconds": {
            "lower": lowering,
            "compile": time.monotonic() - begun,
            "process": time.monotonic() - started,
            "cpu": time.process_time(),
        },
        "process_peak_bytes": peak_rss(),
        "capacity_bytes": target["capacity"],
        "notes": list(getattr(program, "notes", ())),
        **found,
    }
    write_entry(Path(folder), record, hlo)
    return {"key": key, "hit": False}


def _lowered(builder: str, devices: list[Any], arguments: Mapping[str, Any]) -> Any:
    """The program that a builder makes, lowered, and the seconds that lowering took."""
    try:
        program = function_named(builder)(devices, **arguments)
        stage("lowering")
        begun = time.monotonic()
        return program, program.function.lower(*program.arguments), time.monotonic() - begun
    except ValueError as error:
        if "not found in mesh" not in str(error):
            raise
        rule = "name the mesh's axes as the shardings do (--mesh data=4,tensor=2)"
        raise BadRequest(f"{first_line(error)}; {rule}") from None


def topology_devices(target: Mapping[str, Any]) -> list[Any]:
    """The devices of a topology in the order of `coordinates`."""
    from jax.experimental import topologies

    name = target["topology"]
    try:
        called = {"tpu": "topology_name", "cuda": "topology"}[target["platform"]]
        topology = topologies.get_topology_desc(
            platform=target["platform"], **{called: name}, **target["options"]
        )
    except Exception as error:
        raise BadRequest(
            f"the compiler does not take '{target['slice']}' (as '{name}'): {first_line(error)}"
        ) from None
    by_place = {_place(device, target): device for device in topology.devices}
    wanted = [tuple(row) for row in target["coordinates"]]
    missing = [row for row in wanted if row not in by_place]
    if missing:
        raise BadRequest(
            f"the compiler's '{name}' has no device at {missing[0]} (slice, axes, core); "
            f"it has {len(by_place)} devices"
        )
    return [by_place[row] for row in wanted]


def _place(device: Any, target: Mapping[str, Any]) -> tuple[int, ...]:
    if target["platform"] == "cuda":
        each = target["domain"]
        return device.id // each, device.id % each, 0
    axes = len(target["coordinates"][0]) - 2
    slice_index = getattr(device, "slice_index", 0) or 0
    return slice_index, *device.coords[:axes], device.core_on_chip


def compiled(
    lowered: Any,
    options: Mapping[str, Any],
    capacity: float,
    passes: list[tuple[str, str]] | None = None,
) -> tuple[dict[str, Any], str]:
    """What a compile gave, as plain values, and the scheduled HLO with cycle estimates. `passes`
    is filled with the module after each pass that changed it."""
    with tempfile.TemporaryDirectory(prefix="shardwise-dump-") as folder:
        dumping = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        if passes is not None:
            dumping["xla_dump_hlo_pass_re"] = ".*"
        refusal, executable = "", None
        try:
            executable = lowered.compile(compiler_options={**dumping, **options})
        except Exception as error:
            refusal = first_line(error)
            if "Ran out of memory" not in refusal and "hbm capacity" not in str(error):
                raise ShardwiseError(f"the compiler refused the program: {refusal}") from None
        hlo = _dumped(folder, "after_codegen", "oom_intermediate_module", "after_optimizations")
        hlo = hlo or (executable.as_text() if executable is not None else "")
        if passes is not None:
            passes += _passes(Path(folder))
        assignment, live = _dumped(folder, "buffer-assignment"), _dumped(folder, "live-range")
    memory = _memory(executable) if executable is not None else {}
    occupancy = read_occupancy(assignment, live)
    if memory and occupancy:
        memory["peak"] = hbm_peak(memory["peak"], assignment, occupancy)
    needed = memory.get("peak") or assigned_bytes(assignment)
    found = {
        "fits": not refusal and needed <= capacity,
        "refusal": refusal,
        "needed_bytes": needed,
        "memory": memory,
        "buffers": [asdict(b) for b in read_buffers(assignment, hlo)],
        "occupancy": occupancy,
        "alive": [asdict(b) for b in read_alive(assignment, live, hlo)],
        "flops_once": _flops(executable),
    }
    return found, hlo


def _dumped(folder: str, *endings: str) -> str:
    """The text of the last dumped file with the first of these endings that there is."""
    for ending in endings:
        found = sorted(Path(folder).glob(f"*{ending}.txt"), key=lambda p: p.stat().st_mtime)
        if found:
            return found[-1].read_text(encoding="utf-8", errors="replace")
    return ""


_PASS = re.compile(r"\.\d{4}\.[^.]+\.(?:after|before)_")


def _passes(folder: Path) -> Iterator[tuple[str, str]]:
    """(dumped file, module) after each pass of the largest dumped module, each text once."""
    files = sorted(p for p in folder.glob("*.txt") if _PASS.search(p.name))
    sizes = tally((p.name[: _PASS.search(p.name).start()], p.stat().st_size) for p in files)  # type: ignore[union-attr]
    main = max(sizes, key=lambda name: sizes[name], default="")
    last = ""
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.name.startswith(f"{main}.") and text != last:
            last = text
            yield path.name, text


def _memory(executable: Any) -> dict[str, int]:
    stats = executable.memory_analysis()
    return {name: int(getattr(stats, field, 0)) for name, field in MEMORY_FIELDS.items()}


def _flops(executable: Any) -> float | None:
    """XLA's own count, which enters loops once; None where it gives none (GPUs)."""
    try:
        return float(executable.cost_analysis()["flops"])
    except Exception:
        return None


def peak_rss() -> int:
    """Most bytes that this process held in memory."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def first_line(error: BaseException) -> str:
    """The first line of a message, without XLA's addresses of further pages."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:600]
