"""Where an instruction comes from: the tables of files, functions and stack frames of a module.

    FileNames          1 "model.py"
    FunctionNames      1 "loss"
    FileLocations      1 {file_name_id=1 function_name_id=1 line=16 ... column=15 ...}
    StackFrames        1 {file_location_id=1 parent_frame_id=1}

A frame's parent is written one too high, so that 1 means none: XLA counts "none" as the first.
Older text has `source_file` and `source_line` in the metadata instead.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from shardwise.profiler.hlo.numbers import integer

_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ROW = re.compile(r'(\d+)\s+("(?:[^"\\]|\\.)*"|\{.*\})\s*$')
_NUMBERS = re.compile(r"(?<!\w)(\w++)=(\d+)")
MOST_FRAMES = 100
"""Frames of one instruction that are told, the innermost first."""


class Source(NamedTuple):
    """One frame: file, line and the function around it."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Stack frames by number: each a source and the number of the frame that called it, or 0."""

    frames: Mapping[int, tuple[Source, int]] = field(default_factory=dict)

    def sources(self, metadata: Mapping[str, str]) -> tuple[Source, ...]:
        """The frames that metadata names, the innermost first."""
        if "source_file" in metadata:
            line = _number(metadata.get("source_line", "0"))
            return (Source(metadata["source_file"], line),)
        found: list[Source] = []
        frame = _number(metadata.get("stack_frame_id", "0"))
        while frame in self.frames and len(found) < min(len(self.frames), MOST_FRAMES):
            source, frame = self.frames[frame]
            found.append(source)
        return tuple(found)


def read_frames(lines: Iterable[str]) -> Frames:
    """The frames in the tables above a module's computations; other lines are skipped."""
    tables: dict[str, dict[int, str]] = {name: {} for name in _TABLES}
    table: dict[int, str] | None = None
    for line in lines:
        if line.strip() in tables:
            table = tables[line.strip()]
        elif table is not None and (row := _ROW.match(line.strip())):
            table[_number(row[1])] = row[2]
    files, functions, locations, frames = (tables[name] for name in _TABLES)
    found: dict[int, tuple[Source, int]] = {}
    for number, text in frames.items():
        frame = _numbers(text)
        place = _numbers(locations.get(frame.get("file_location_id", 0), ""))
        source = Source(
            files.get(place.get("file_name_id", 0), "").strip('"'),
            place.get("line", 0),
            functions.get(place.get("function_name_id", 0), "").strip('"'),
        )
        found[number] = source, frame.get("parent_frame_id", 1) - 1
    return Frames(frames=found)


def _numbers(text: str) -> dict[str, int]:
    return {key: _number(value) for key, value in _NUMBERS.findall(text)}


def _number(text: str) -> int:
    """A line or the number of a row. Raises BadRequest."""
    return integer(text, "a number of a table of sources", most=2**31)


def own_frame(sources: Sequence[Source], packages: Sequence[str] = ()) -> Source:
    """The innermost frame that is in no installed package but `packages`, else the innermost."""
    return next((s for s in sources if not in_library(s.file, packages)), sources[0])


def in_library(file: str, packages: Sequence[str] = ()) -> bool:
    """Whether a file is of an installed package other than `packages`, or of this one, or none: no
    user can change it."""
    own = tuple(f"{name}{end}" for name in packages for end in ("/", ".py"))
    inside = (file.rpartition(folder)[2] for folder in INSTALLED if folder in file)
    return file.startswith(("<", *OURS)) or any(not path.startswith(own) for path in inside)


INSTALLED = ("/site-packages/", "/dist-packages/")
OURS = (f"{Path(__file__).parents[2]}/", "src/shardwise/", "shardwise/runtime/")
"""Where this package lies, as its own texts name it."""
