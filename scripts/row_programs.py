"""Published training runs through the real compiler: their step as our runtime has it, compiled for
the slice that they ran on, laid out on the timeline and held against the published step time.

Nothing of a row's measurement enters: the program follows from its shape, mesh, batch and recompute
columns, the compiler's flags are the same for all rows of a chip (`options_on`), and the chip's
constants are those from before any run was fitted (`before_fit`).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.boundary import read_toml
from shardwise.evidence.training.runs import PublishedRun, read_run
from shardwise.hardware.catalogue import GENERATIONS
from shardwise.hardware.device_order import device_coordinates
from shardwise.hardware.placement import place
from shardwise.hardware.slices import Slice
from shardwise.models.runnable import plain
from shardwise.plans.software.xla_flags import flag_sets, together
from shardwise.profiler.ahead import CompiledProgram, Limits, compile_ahead, target_of
from shardwise.profiler.timeline import HloTimeline
from shardwise.work import tally

BUILDER = "row_programs:row_program"
SCRIPTS = str(Path(__file__).resolve().parent)
"""Where the child finds the builder."""


def options_on(chip: str) -> dict[str, str]:
    """Compiler flags of a TPU's rows: LIBTPU_INIT_ARGS of MaxText's v5p scripts
    (AI-Hypercomputer/maxtext@0777510 MaxText/configs/v5p/128b.sh), of which those of v5e are a
    part; on v6e the VMEM of its recipes; and no windowed einsums, as MaxText's later ones have it
    (its DISABLE_COLLECTIVE_MATMUL): libtpu 0.0.42 makes chains of one-way permutes of the exchanges
    over tensor, and where memory is short it overlaps none of them (docs/lab/log.md)."""
    return together([one for one in flag_sets(chip) if one.of_maxtext])


def row_program(devices: Sequence[Any], row: Mapping[str, str]) -> Any:
    """The builder of a row: its step as `shardwise train` would run it but for the compiler's
    flags, which are those of `options_on` alone, with plain numerics where the model is a shape."""
    from shardwise.runtime.programs import train_program
    from shardwise.runtime.sharding import mesh_of

    run = read_run(row)
    cfg = run.cfg
    if cfg.numerics is None:
        cfg = replace(cfg, numerics=plain(cfg))
    return train_program(run.plan, cfg, mesh_of(run.plan.mesh, devices), flags={})


def compile_row(
    row: Mapping[str, str], run: PublishedRun, *, limits: Limits | None = None
) -> CompiledProgram:
    """Compile a row's step for its slice. Raises as `compile_ahead`."""
    placement = place(run.piece, dict(run.plan.mesh))
    os.environ["PYTHONPATH"] = f"{SCRIPTS}:{os.environ.get('PYTHONPATH', '')}"
    return compile_ahead(
        target_of(run.piece, device_coordinates(placement)),
        BUILDER,
        {"row": dict(row)},
        options=options_on(run.piece.chip.id),
        limits=limits,
    )


def before_fit(piece: Slice) -> Slice:
    """The slice with each constant that published runs had a part in at its value from before, the
    column `prior` of its generation's table."""
    chip = piece.chip
    table = GENERATIONS / f"{chip.generation}.toml"
    rows = read_toml(table, "the constants of a generation") if chip.generation else {}
    priors = {name: float(row["prior"]) for name, row in rows.items() if "prior" in row}
    narrow = {
        dtype: priors.pop(f"matmul_{dtype}", rate)
        for dtype, rate in chip.efficiency.matmul_by_dtype.items()
    }
    rates = replace(chip.efficiency, matmul_by_dtype=narrow, **priors)  # type: ignore[arg-type]
    return replace(piece, chip=replace(chip, efficiency=rates))


def row_result(run: PublishedRun, timeline: HloTimeline) -> dict[str, Any]:
    """A row of the table as plain values: seconds per step, of the compute stream by class of op,
    of the networks by axes, and what the compute stream waits for."""
    streams = timeline.streams
    computing = (row for row in timeline.rows if row.op.op.stream == "compute")
    classes = tally((row.op.op.op_class, row.per_step) for row in computing)
    return {
        "id": run.id,
        "source": run.source,
        "chip": run.piece.chip.id,
        "slice": str(run.piece),
        "mesh": dict(run.plan.mesh),
        "published_seconds": run.measured_seconds,
        "step_seconds": {
            "lower": timeline.lower,
            "expected": timeline.expected,
            "upper": timeline.upper,
        },
        "error": timeline.expected / run.measured_seconds - 1,
        "compute_seconds": classes,
        "network_seconds": {
            name.removeprefix("net:"): s for name, s in streams.items() if name.startswith("net:")
        },
        "exposed_seconds": {name.removeprefix("net:"): s for name, s in timeline.exposed.items()},
        "unknown_ops": [item.name for item in timeline.unknown],
    }
