"""Programs that were saved elsewhere: what a file or a folder holds, told by what is in it. No JAX.

A file is StableHLO text, which is compiled here (`stablehlo.py`), or HLO text that was compiled
elsewhere, packed by gzip or not; a folder is that of XLA's dump. What is neither is named, with
what reads it instead.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shardwise.boundary.archives import read_packed
from shardwise.boundary.files import decode, is_file, is_folder
from shardwise.errors import BadRequest, shown
from shardwise.profiler.ahead.buffers import Buffer, read_buffers
from shardwise.units import format_bytes

TEXT_BYTES = 256 * 2**20
"""Of a text; StableHLO of large models with its constants and locations has tens of megabytes."""
MOST_FILES = 100_000
"""Of a folder."""
OPTIMIZED = "after_optimizations.txt"
CODEGEN = "after_codegen.txt"
"""Ends of the names of dumped modules; the second has the cycles that libtpu estimates."""
SHOWN = 5

_STABLEHLO = re.compile(r"\s*(?:(?:#|//)[^\n]*\n\s*)*(?:builtin\.)?module\b[^\n]*\{")
_MESH = re.compile(r"\bsdy\.mesh @\w+ = <\[([^\]]*)\]")
_AXIS = re.compile(r'"([^"]+)"=(\d+)')
_COUNT = re.compile(r"\bmhlo\.num_(partitions|replicas) = (\d+)")
_NAME = re.compile(r"module @([\w.\-]+)")
_RUN = re.compile(r"module_\d+\.(.+?)(?:\.cl_\d+|\.sm_[\d.]+_gpu|\.cpu|\.gpu)?[._]?$")

REMEDY = (
    "give a plan, MODULE:FUNCTION, StableHLO text (`lowered.as_text(debug_info=True)`), the text "
    "of a compiled program (`compiled.as_text()`), or the folder of a run with "
    "XLA_FLAGS=--xla_dump_to=FOLDER"
)
CAPTURE = "`shardwise profile --capture FILE` reads it"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedProgram:
    """A program's text. Of `stablehlo` the `mesh` is what it was lowered for and `devices` how many
    there are; of `hlo`, which is compiled already, both are in the text. `origin` is what messages
    call it, `buffers` are those of a dump, `notes` what else it holds."""

    kind: Literal["stablehlo", "hlo"]
    name: str
    text: str
    origin: str
    mesh: Mapping[str, int] | None = None
    devices: int = 0
    buffers: tuple[Buffer, ...] = ()
    notes: tuple[str, ...] = ()


def saved_program(path: Path) -> SavedProgram | None:
    """The program of a file or a folder; None for what may be a plan: a text of another kind, or
    nothing at all. Raises BadRequest for what is not a program and no plan."""
    if is_folder(path):
        return _of_folder(path)
    if not is_file(path):
        return None
    data = read_packed(path, "the program", most=TEXT_BYTES, remedy=REMEDY)
    if found := _foreign(data, path.name):
        what, remedy = found
        raise BadRequest(f"'{path}' is {what}, which is not a program; {remedy}")
    head = data[:65536].decode("utf-8", "replace").lstrip("\ufeff")
    if not head.lstrip().startswith("HloModule") and not _STABLEHLO.match(head):
        return None
    return program_of_text(decode(data, path, "the program"), f"'{path}'")


def program_of_text(text: str, origin: str) -> SavedProgram:
    """The program that a text is. Raises BadRequest for HLO that is not compiled to the end."""
    if not text.lstrip().startswith("HloModule"):
        return _stablehlo(text, origin)
    header = text.lstrip().partition("\n")[0]
    name = [*header.split(), ""][1].rstrip(",")
    if "is_scheduled=true" not in header:
        raise BadRequest(
            f"{origin} is HLO that is not compiled to the end (its first line lacks "
            "is_scheduled=true), so nothing says what runs; give the StableHLO that it was made of "
            "(`lowered.as_text(debug_info=True)`), or *.after_optimizations.txt of the same dump"
        )
    return SavedProgram(kind="hlo", name=name, text=text, origin=origin)


def _stablehlo(text: str, origin: str) -> SavedProgram:
    head = text[: text.find("{", text.find("module")) + 1] or text[:4096]
    counts = dict(_COUNT.findall(text[: text.find("func.func")] or head))
    devices = int(counts.get("partitions", 1)) * int(counts.get("replicas", 1))
    meshes = (dict(_AXIS.findall(found)) for found in _MESH.findall(text))
    mesh = next((m for m in ({a: int(n) for a, n in one.items()} for one in meshes) if m), None)
    name = _NAME.search(head)
    return SavedProgram(
        kind="stablehlo",
        name=name[1] if name else "program",
        text=text,
        origin=origin,
        mesh=mesh,
        devices=devices,
    )


# ---- folders -------------------------------------------------------------------------------------


def _of_folder(folder: Path) -> SavedProgram:
    """The largest program of a dump, as compiled; where none is, the largest StableHLO text."""
    names = sorted(p.name for p in _within(folder, MOST_FILES))
    endings = (OPTIMIZED, f"{OPTIMIZED}.gz"), (".mlir", ".mlir.gz")
    for ends in endings:
        found = [name for name in names if name.endswith(ends)]
        if found:
            break
    else:
        raise BadRequest(_nothing(folder, names))
    found.sort(key=lambda name: -(folder / name).stat().st_size)
    return _chosen(folder, found, ends is endings[0])


def _chosen(folder: Path, found: Sequence[str], optimized: bool) -> SavedProgram:
    first, others = found[0], found[1:]
    prefix = first.removesuffix(".gz").removesuffix(OPTIMIZED)
    better = folder / f"{prefix}{CODEGEN}"
    path = better if optimized and is_file(better) else folder / first
    made = saved_program(path)
    if made is None:
        raise BadRequest(f"'{path}' is no text of a program, as its name says; {REMEDY}")
    assignment = folder / f"{prefix}{OPTIMIZED.removesuffix('.txt')}-buffer-assignment.txt"
    buffers: tuple[Buffer, ...] = ()
    if optimized and is_file(assignment):
        data = read_packed(assignment, "the buffers", most=TEXT_BYTES)
        buffers = read_buffers(decode(data, assignment, "the buffers"), made.text)
    run = _RUN.match(prefix.rstrip("._")) if optimized else None
    return SavedProgram(
        kind=made.kind,
        name=run[1] if run else made.name,
        text=made.text,
        origin=f"'{path}'",
        mesh=made.mesh,
        devices=made.devices,
        buffers=buffers,
        notes=tuple(_others(folder, path.name, others)),
    )


def _others(folder: Path, chosen: str, others: Sequence[str]) -> list[str]:
    """What is said of a folder's other programs."""
    if not others:
        return []
    sizes = [f"{name} ({format_bytes((folder / name).stat().st_size)})" for name in others[:SHOWN]]
    more = f" and {len(others) - SHOWN} smaller ones" if len(others) > SHOWN else ""
    there = f"'{chosen}' is the largest program of '{folder}'; there are also {', '.join(sizes)}"
    return [f"{there}{more}: give the file of one to explain it"]


def _within(folder: Path, most: int) -> list[Path]:
    found = []
    try:
        for path in folder.iterdir():
            found.append(path)
            if len(found) > most:
                raise BadRequest(f"'{folder}' has more than the {most:,} files that are read")
    except OSError as error:
        raise BadRequest(f"cannot read folder '{folder}': {error.strerror}") from None
    return found


def _nothing(folder: Path, names: Sequence[str]) -> str:
    if any(name.endswith(".hlo.pb") for name in names):
        return (
            f"'{folder}' has its programs as protocol buffers alone; dump them with "
            "XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_text'"
        )
    if "plugins" in names or any(name.endswith(".xplane.pb") for name in names):
        return f"'{folder}' is a folder of JAX's profiler; {CAPTURE}: its *.xplane.pb"
    holds = f"it holds {', '.join(map(shown, names[:SHOWN]))}" if names else "it is empty"
    return f"'{folder}' has no *{OPTIMIZED} or *.mlir: {holds}; {REMEDY}"


# ---- files that are none -------------------------------------------------------------------------

_BEGINNINGS: Mapping[bytes, tuple[str, str]] = {
    b"ML\xefR": (
        "MLIR bytecode",
        "save it as text: `lowered.as_text(debug_info=True)`",
    ),
    b"\x89PNG": ("a PNG picture", REMEDY),
    b"\xff\xd8\xff": ("a JPEG picture", REMEDY),
    b"%PDF": ("a PDF document", REMEDY),
    b"PK\x03\x04": ("a zip archive", f"unpack it: {REMEDY}"),
    b"\x28\xb5\x2f\xfd": ("packed by zstd", "unpack it with `zstd -d`, or pack it with gzip"),
    b"\xfd7zXZ": ("packed by xz", "unpack it with `xz -d`, or pack it with gzip"),
    b"\x7fELF": ("an executable (ELF)", REMEDY),
    b"\x80\x04": ("a Python pickle", "it is not opened, as a pickle may run anything; " + REMEDY),
    b"\x80\x05": ("a Python pickle", "it is not opened, as a pickle may run anything; " + REMEDY),
    b"\x93NUMPY": ("a NumPy array", REMEDY),
    b"GGUF": ("a GGUF checkpoint", REMEDY),
}
_ENDINGS: Mapping[str, tuple[str, str]] = {
    ".xplane.pb": ("a capture of JAX's profiler", CAPTURE),
    ".hlo.pb": (
        "an HLO protocol buffer",
        "dump text beside it: XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_text'",
    ),
}
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a]")  # bytes that no text has


def _foreign(data: bytes, name: str) -> tuple[str, str] | None:
    """(what a file is, what to do) where it is known to be no program and no plan."""
    for begins, row in _BEGINNINGS.items():
        if data.startswith(begins):
            return row
    for ends, row in _ENDINGS.items():
        if name.removesuffix(".gz").endswith(ends):
            return row
    if data[8:10] == b'{"' and int.from_bytes(data[:8], "little") < len(data):
        return "a safetensors checkpoint", REMEDY
    if _CONTROL.search(data[:4096]):
        return "binary data of an unknown kind", REMEDY
    return _foreign_text(data, name)


def _foreign_text(data: bytes, name: str) -> tuple[str, str] | None:
    text = data[:65536].decode("utf-8", "replace")
    if not text.strip():
        return "empty", REMEDY
    if text.lstrip().startswith("{ lambda"):
        return "a jaxpr", "lower it: `jax.jit(f).lower(*args).as_text(debug_info=True)`"
    if '"traceEvents"' in text[:4096] and text.lstrip().startswith("{"):
        return "a capture of JAX's profiler", CAPTURE
    if name.endswith(".py"):
        module = Path(name).stem
        return "Python source", f"name a function of it: {module}:FUNCTION --args {module}:ARGS"
    return None
