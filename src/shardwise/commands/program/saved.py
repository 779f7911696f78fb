"""Programs that were saved, or lowered or compiled in this process, as programs of a slice."""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shardwise.boundary import write_text
from shardwise.commands.program.compiling import PlanProgram, need_parts, physical_mesh, program_of
from shardwise.commands.program.profiling import RECOVERED
from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead import CompiledProgram, compile_ahead, target_of
from shardwise.profiler.ahead.saved import SavedProgram, program_of_text, saved_program
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.work import module_work
from shardwise.sharding import Mesh
from shardwise.units import many

SAVED_BUILDER = "shardwise.profiler.ahead.stablehlo:saved_module"


def saved_of(what: Any) -> SavedProgram | None:
    """The program of a file, a folder, a `jax.stages.Lowered` or a `Compiled`; None of anything
    else. Raises BadRequest for what can be no program and no plan."""
    if isinstance(what, str | Path):
        return saved_program(Path(what))
    stages: Any = sys.modules.get("jax.stages")  # imported by whoever has such a value
    if stages is not None and isinstance(what, stages.Lowered):
        return program_of_text(what.as_text(debug_info=True), "the lowered program")
    if stages is not None and isinstance(what, stages.Compiled):
        return program_of_text(what.as_text() or "", "the compiled program")
    return None


def saved_on(
    saved: SavedProgram, piece: Slice, mesh: Mapping[str, int] | None, **common: Any
) -> tuple[PlanProgram, Sequence[str]]:
    """The program on a slice, compiled where it is not yet, and what is to be said of it."""
    if saved.kind == "hlo":
        return _compiled_elsewhere(saved, piece, mesh)
    devices = saved.devices
    if mesh is None and devices != piece.devices:
        raise BadRequest(
            f"{saved.origin} was lowered for {many(devices, 'device')}, and {piece} has "
            f"{piece.devices}; give --on a slice of {devices}, or lower it for {piece.devices}"
        )
    degrees = dict(mesh or saved.mesh or physical_mesh(piece))
    if Mesh(tuple(degrees.items())).size != devices:
        raise BadRequest(
            f"{saved.origin} was lowered for {many(devices, 'device')}, and mesh "
            f"{Mesh(tuple(degrees.items()))} has another number; give the mesh it was lowered for, "
            "or none"
        )
    need_parts()
    target = target_of(piece, mesh_coordinates(piece, degrees))
    with TemporaryDirectory(prefix="shardwise-") as folder:
        path = Path(folder) / "program.mlir"
        write_text(path, saved.text, option="the program")
        arguments = {"path": str(path), "mesh": degrees}
        compiled = compile_ahead(target, SAVED_BUILDER, arguments, **common)
    return program_of(saved.name, compiled, piece, None), saved.notes


def _compiled_elsewhere(
    saved: SavedProgram, piece: Slice, mesh: Mapping[str, int] | None
) -> tuple[PlanProgram, Sequence[str]]:
    """A text that a compiler made elsewhere, read for the slice that it ran on."""
    module = read_module(saved.text, saved.origin)
    work = module_work(module, None if mesh is None else Mesh(tuple(mesh.items())))
    if work.devices != piece.devices:
        raise BadRequest(
            f"{saved.origin} was compiled for {many(work.devices, 'device')}, and {piece} has "
            f"{piece.devices}; give --on the slice that it ran on"
        )
    compiled = CompiledProgram(
        key=hashlib.sha256(saved.text.encode()).hexdigest()[:32],
        slice=str(piece),
        platform=platform_of(saved.text) or "unknown",
        devices=work.devices,
        mesh=dict(work.mesh),
        options={},
        versions={},
        seconds={},
        process_peak_bytes=0,
        fits=True,
        refusal="",
        needed_bytes=0,
        capacity_bytes=piece.chip.usable_bytes_per_device,
        memory={},
        buffers=saved.buffers,
        flops_once=None,
        cached=False,
        hlo=saved.text,
    )
    made = replace(program_of(saved.name, compiled, piece, None), work=work)
    notes = [*saved.notes, *_other_chip(saved, piece)]
    if mesh is None and work.mesh.size > 1:
        notes.append(RECOVERED)
    return made, notes


_MARKS = (("tpu", (":T(8,128)", ":T(1,128)", ":T(256)", ":T(128)", "tpu_custom_call")),)
_MARKS += (("cuda", ("fusion_backend_config", "__cublas$", "__triton", "gpu_backend_config")),)
_MARKS += (("cpu", ("outer_dimension_partitions", "__ynn", "__onednn", "xtile_compatible")),)
"""What each compiler alone writes into a text: TPUs tile their layouts, the others name their own
kinds of fusions and of backend configs. Seen in texts of jax 0.10.2."""


def platform_of(text: str) -> str:
    """The platform that a text was compiled for; empty where it has no mark of one."""
    return next((name for name, marks in _MARKS if any(m in text for m in marks)), "")


def _other_chip(saved: SavedProgram, piece: Slice) -> list[str]:
    """What is said of a text of another kind of chip than the slice's."""
    compiler, found = piece.chip.compiler, platform_of(saved.text)
    own = compiler.platform if compiler is not None else None
    if not found or own is None or found == own:
        return []
    names = {"tpu": "a TPU", "cuda": "a GPU", "cpu": "a CPU"}
    said = (
        f"{saved.origin} was compiled for {names[found]}: fusions, layouts and collectives are "
        f"those of that compiler, not of {piece.chip.id}'s; to compile for {piece.chip.id} give "
        "the StableHLO (`lowered.as_text(debug_info=True)`)"
    )
    return [said]
