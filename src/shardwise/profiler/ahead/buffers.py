"""The compiler's buffer assignment: what lies in a device's memory, and which source line made it.

XLA dumps the assignment of every module that it schedules, also of one that it then refuses for
lack of memory. Arguments, outputs and constants are allocations of their own; temporaries share
one, in which values that are never alive together lie at the same place. A place that several
values use counts once, under the largest that names its origin.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from shardwise.boundary.records import Record
from shardwise.profiler.hlo.sources import read_frames
from shardwise.work import grouped

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+)(?:, color (\d+))?, (.*):$")
_VALUE = re.compile(
    r"^ value: <\d+ ([\w.\-]+)(\{[\d,]*\})?( \(phi\))? @\d+> \(size=(\d+),offset=(\d+)\): (\S.*)$"
)
_PARAMETER = re.compile(r"parameter (\d+)")
_MADE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = .*?metadata=\{([^}]*)\}")
_ENTRY_PARAMETER = re.compile(r' parameter\((\d+)\).*metadata=\{op_name="((?:[^"\\]|\\.)*)"')
_FIELD = re.compile(r'(\w+)=(?:"((?:[^"\\]|\\.)*)"|(\d+))')
HBM = "0"
HOST = "5"
"""XLA's memory spaces ("colors"): 0 is HBM, 1 VMEM, 2 and 6 scalar memory, 5 the host's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer(Record):
    """Bytes of one place in a device's memory."""

    bytes: int
    """Its size."""
    kind: str
    """argument, output, temporary or constant, or host, of any of them."""
    name: str
    """The instruction of the largest value there."""
    shape: str
    """The shape of that value."""
    op: str
    """The JAX operation that makes it, of an argument its name; "" where that is not told."""
    source: str
    """file:line of the operation; "" where that is not told."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value at a place of an allocation; `index` is its place in a tuple, "" of the whole."""

    name: str
    index: str
    phi: bool
    size: int
    offset: int
    shape: str


def read_buffers(assignment: str, hlo: str) -> tuple[Buffer, ...]:
    """The 200 largest buffers of HBM and of the host, largest first.

    `assignment` is the dump `*buffer-assignment.txt`, `hlo` the module's text.
    """
    origin, names = origins(hlo)
    found: list[Buffer] = []
    for size, color, words, values in read_allocations(assignment.splitlines()):
        if color not in (HBM, HOST) or "thread-local" in words:
            continue
        parameter = _PARAMETER.search(words)
        if parameter:
            value = values[0] if values else Value("", "", False, size, 0, "")
            op = names.get(int(parameter[1]), "")
            found.append(buffer_of(value, size, "argument", color, (op, "")))
        elif "preallocated-temp" in words:
            found += [
                buffer_of(v, v.size, "temporary", color, origin.get(v.name, ("", "")))
                for v in places_of(values, origin)
            ]
        else:
            kind = "constant" if "constant" in words else "output"
            best = _named(values, origin)
            found.append(buffer_of(best, size, kind, color, origin.get(best.name, ("", ""))))
    found.sort(key=lambda b: -b.bytes)
    return tuple(found[:200])


def assigned_bytes(assignment: str) -> int:
    """Bytes of HBM of all allocations: what the compiler holds against what there is."""
    sizes = read_allocations(assignment.splitlines())
    return sum(size for size, color, words, _ in sizes if color == HBM and "thread" not in words)


def buffer_of(value: Value, size: int, kind: str, color: str, origin: tuple[str, str]) -> Buffer:
    """A value as a buffer; `origin` is its operation and its file:line."""
    return Buffer(
        bytes=size,
        kind="host" if color == HOST else kind,
        name=value.name,
        shape=value.shape,
        op=origin[0],
        source=origin[1],
    )


def read_allocations(lines: Iterable[str]) -> Iterator[tuple[int, str, str, list[Value]]]:
    """(size, memory space, words, values) of each allocation."""
    held: tuple[int, str, str, list[Value]] | None = None
    for line in lines:
        if found := _ALLOCATION.match(line):
            if held:
                yield held
            held = int(found[1]), found[2] or HBM, found[3], []
        elif held and (value := _VALUE.match(line)):
            name, index, phi, size, offset, shape = value.groups()
            shape = shape.partition("{")[0]
            held[3].append(
                Value(
                    name, (index or "").replace("{}", ""), bool(phi), int(size), int(offset), shape
                )
            )
        elif held and not line.startswith(" value"):
            yield held
            held = None
    if held:
        yield held


def places_of(values: list[Value], origin: Mapping[str, tuple[str, str]]) -> Iterator[Value]:
    """A set of values, largest first, that do not overlap: the places of a shared allocation."""
    taken: list[tuple[int, int]] = []
    by_place = grouped(values, lambda value: (value.offset, value.size))
    for offset, size in sorted(by_place, key=lambda place: (-place[1], place[0])):
        if size and all(offset + size <= a or b <= offset for a, b in taken):
            taken.append((offset, offset + size))
            yield _named(by_place[offset, size], origin)


def _named(values: list[Value], origin: Mapping[str, tuple[str, str]]) -> Value:
    """The value that tells most: one that an operation made, and says where, not a loop's."""
    if not values:
        return Value("", "", False, 0, 0, "")
    return max(values, key=lambda v: (v.size, bool(origin.get(v.name, ("", ""))[1]), not v.phi))


def origins(hlo: str) -> tuple[dict[str, tuple[str, str]], dict[int, str]]:
    """(instruction -> (operation, file:line), entry parameter -> the argument's name)."""
    lines = hlo.splitlines()
    frames = read_frames(takewhile(lambda line: not line.startswith(("%", "ENTRY")), lines))
    origin: dict[str, tuple[str, str]] = {}
    names: dict[int, str] = {}
    entry = False
    for line in lines:
        entry = line.startswith("ENTRY") or (entry and not line.startswith("}"))
        if found := _MADE.match(line):
            metadata = _metadata(found[2])
            source = next(iter(frames.sources(metadata)), "")
            origin[found[1]] = (metadata.get("op_name", "").replace("\\'", "'"), str(source))
        if entry and (parameter := _ENTRY_PARAMETER.search(line)):
            names[int(parameter[1])] = parameter[2].replace("\\'", "'")
    return origin, names


def _metadata(text: str) -> dict[str, str]:
    return {key: quoted or word for key, quoted, word in _FIELD.findall(text)}
