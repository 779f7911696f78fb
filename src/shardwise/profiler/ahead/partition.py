"""What XLA's partitioner makes of a program, in seconds: no compiler of the chip is asked.

The program is lowered for the chip's platform and compiled for as many virtual CPU devices; the
text is the module right behind the partitioner, before any pass of the CPU's own. It has every
collective, product and dtype of one device, and nothing fused, laid out or overlapped.
"""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.boundary.child import function_named
from shardwise.errors import BadRequest
from shardwise.profiler.ahead.cache import versions
from shardwise.profiler.ahead.job import first_line
from shardwise.profiler.ahead.target import CompileTarget
from shardwise.profiler.child import QUICK_COMPILE, Watch, run_function, stage

PASS = "spmd-partitioning"
CUT, WHOLE = f"*.after_{PASS}.*.txt", "*.before_optimizations.txt"
"""Names of a dumped module: behind the partitioner, and of one device, which it leaves alone."""


def partitioned(
    target: CompileTarget,
    builder: str,
    arguments: Mapping[str, Any],
    *,
    seconds: float,
    memory_bytes: int,
    watch: Watch | None,
) -> tuple[dict[str, Any], str]:
    """The record and the text of `builder(devices, **arguments)` behind the partitioner, with the
    fields of a `CompiledProgram`; raises as `compile_ahead`."""
    with tempfile.TemporaryDirectory(prefix="shardwise-", ignore_cleanup_errors=True) as folder:
        devices = len(target.coordinates)
        record = run_function(
            "shardwise.profiler.ahead.partition:partition_job",
            {
                "platform": target.platform,
                "devices": devices,
                "builder": builder,
                "arguments": dict(arguments),
                "folder": folder,
            },
            devices=devices,
            seconds=seconds,
            memory_bytes=memory_bytes,
            xla_flags=QUICK_COMPILE,
            raised_by=("--timeout", "--memory"),
            folder=Path(folder),
            watch=watch,
            what=f"the partitioner's run for '{target.slice}'",
        )
        hlo = _text(Path(folder) / "dump", devices)
    return {"slice": target.slice, "capacity_bytes": target.capacity, **record}, hlo


def partition_job(
    platform: str, devices: int, builder: str, arguments: Mapping[str, Any], folder: str
) -> dict[str, Any]:
    """Inside the child: lower for the platform, and compile for the CPU as far as it goes."""
    import jax

    started = time.monotonic()
    program = function_named(builder)(jax.devices()[:devices], **arguments)
    stage("lowering")
    lowered = program.function.trace(*program.arguments).lower(lowering_platforms=(platform,))
    lower = time.monotonic() - started
    stage("partitioning")
    dump = Path(folder) / "dump"
    dumping = {"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True, "xla_dump_hlo_pass_re": PASS}
    try:
        lowered.compile(compiler_options=dumping)
    except Exception as error:  # behind the partitioner: kernels that only the chip knows
        if _text(dump, devices) == "":
            words = f"the partitioner refused the program: {first_line(error)}"
            raise BadRequest(f"{words}; compile it without --quick") from None
    whole = time.monotonic() - started
    return {
        "platform": platform,
        "devices": devices,
        "mesh": dict(program.mesh.shape),
        "options": {},
        "versions": versions(),
        "seconds": {
            "lower": lower,
            "compile": whole - lower,
            "process": whole,
            "cpu": time.process_time(),
        },
        "process_peak_bytes": 0,
        "fits": True,
        "refusal": "",
        "needed_bytes": 0,
        "memory": {},
        "buffers": [],
        "flops_once": None,
        "notes": list(getattr(program, "notes", ())),
        "partitioned": True,
    }


def _text(dump: Path, devices: int) -> str:
    """The largest module that was dumped behind the partitioner; "" where there is none."""
    found = dump.glob(WHOLE if devices == 1 else CUT)
    largest = max(found, key=lambda path: path.stat().st_size, default=None)
    return "" if largest is None else largest.read_text(encoding="utf-8", errors="replace")
