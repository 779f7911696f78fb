"""A program beside another one: what came, what went, and what it costs.

The other program is a function, which is compiled as this one is; or a file that `explain --save`
wrote of it; or an answer of this process.
"""

import linecache
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shardwise.boundary import is_file, number, read_json, to_json, write_text
from shardwise.boundary.records import Record, plain
from shardwise.boundary.typed import record_of
from shardwise.commands.base.answer import Page, TextTable
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.base.layout import wrapped
from shardwise.commands.program.compiling import PlanProgram
from shardwise.commands.program.explaining import PlacedFinding, placed, seen, short_place
from shardwise.errors import BadRequest
from shardwise.profiler.ahead import Buffer
from shardwise.profiler.explain import Explanation, explain_program
from shardwise.profiler.explain.against import (
    CollectiveChange,
    LineChange,
    collective_changes,
    line_changes,
    paired,
)
from shardwise.sharding import Mesh
from shardwise.units import format_bytes, format_seconds

MOST_BYTES = 2**28
"""Of a kept program that is read: one of 80 layers in a row has some 20 MB of text."""
MOST_LINES = 30
SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class KeptProgram(Record):
    """A program as `explain --save` keeps it: what it was compiled to, and its lines of source."""

    phase: str
    """train, decode or prefill, or the name of a function."""
    slice: str
    """The chips that it was compiled for."""
    mesh: Mapping[str, int]
    """Axes and degrees, the devices in the order of the partition ids."""
    partitioned: bool
    """Whether it was partitioned and not compiled."""
    versions: Mapping[str, str]
    """Versions of jax and of the compiler."""
    fits: bool
    """Whether it fits the memory."""
    texts: Mapping[str, str]
    """Text of its source lines, by file:line."""
    hlo: str
    """Its text."""
    buffers: Sequence[Buffer]
    """Buffers in memory."""


@dataclass(frozen=True, kw_only=True)
class ProgramAgainst(Record):
    """A program beside another one, line by line of the user's; seconds are per step and device."""

    other: str
    """The other program."""
    before: float
    """Seconds of a step of the other one."""
    after: float
    """Seconds of a step of this one."""
    costs: float
    """By what share this one takes longer; below 0 where it is faster."""
    versions: Sequence[str]
    """Versions of jax and of the compiler that differ."""
    places: Sequence[str]
    """Slices or mesh axes that differ."""
    lines: Sequence[LineChange]
    """Lines whose seconds differ: first what costs most more, last what saves most."""
    collectives: Sequence[CollectiveChange]
    """Collectives that differ in bytes."""
    came: Sequence[PlacedFinding]
    """Findings that the other program does not have."""
    went: Sequence[PlacedFinding]
    """Findings that only the other program has."""


def kept_program(program: PlanProgram, e: Explanation) -> KeptProgram:
    """What is kept of a program."""
    compiled = program.compiled
    places = {row.where for row in (*e.lines, *e.collectives)}
    return KeptProgram(
        phase=program.phase,
        slice=compiled.slice,
        mesh=dict(program.work.mesh),
        partitioned=compiled.partitioned,
        versions=dict(compiled.versions),
        fits=compiled.fits,
        texts={place: _text(place) for place in sorted(places)},
        hlo=compiled.hlo,
        buffers=compiled.buffers,
    )


def _text(place: str) -> str:
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdigit() else ""


def save_program(path: Path, kept: KeptProgram) -> None:
    """Write a program for a later `--against`."""
    write_text(path, to_json(plain(kept)) + "\n", option="--save")


def load_program(path: Path) -> KeptProgram:
    """A program of a file; raises BadRequest for a file that `--save` did not write."""
    try:
        return record_of(KeptProgram, read_json(path, "the kept program", most=MOST_BYTES))
    except ValueError:
        raise BadRequest(
            f"--against '{path}' is not a file of `shardwise explain --save FILE`; save "
            "the earlier program, or name a function"
        ) from None


def is_kept(other: object) -> bool:
    """Whether it is a file of a kept program, and not a function."""
    return isinstance(other, Path) or (
        isinstance(other, str) and (is_file(Path(other)) or ":" not in other)
    )


def against(
    kept: KeptProgram,
    now: KeptProgram,
    e: Explanation,
    hardware: Hardware,
    packages: Sequence[str] = (),
) -> ProgramAgainst:
    """The kept program, which is the one before, beside the one that `now` and `e` are of; lines of
    installed `packages` count as the user's."""
    if kept.partitioned != now.partitioned:
        ways = ("compiled", "partitioned")
        raise BadRequest(
            f"--against '{kept.phase}' was {ways[kept.partitioned]} and this one is "
            f"{ways[now.partitioned]}; give --quick to both, or to none"
        )
    old = explain_program(
        kept.hlo,
        hardware.slice(kept.slice).slice,
        Mesh(tuple(kept.mesh.items())),
        buffers=kept.buffers,
        fits=kept.fits,
        partitioned=kept.partitioned,
        packages=packages,
    )
    before, after = old.timeline.expected, e.timeline.expected
    pairs = paired(kept.texts, now.texts)
    lines = line_changes(pairs, (old.lines, e.lines), (kept.texts, now.texts))
    renamed = dict(pairs)
    had = {(f.rule, renamed.get(f.where) or f.where) for f in old.findings}
    has = {(f.rule, f.where) for f in e.findings}
    gone = (f for f in old.findings if (f.rule, renamed.get(f.where) or f.where) not in has)
    return ProgramAgainst(
        other=kept.phase,
        before=before,
        after=after,
        costs=after / before - 1 if before else 0.0,
        versions=_changed(kept.versions, now.versions),
        places=_changed(_place(kept), _place(now)),
        lines=[replace(c, where=seen(c.where)) for c in _ends(lines)],
        collectives=[
            replace(c, where=seen(c.where))
            for c in _ends(collective_changes(pairs, old.collectives, e.collectives))
        ],
        came=_findings(f for f in e.findings if (f.rule, f.where) not in had),
        went=_findings(gone),
    )


def _ends(rows: Sequence) -> Sequence:
    """The first and the last, of many."""
    half = MOST_LINES // 2
    return rows if len(rows) <= MOST_LINES else [*rows[:half], *rows[-half:]]


def _findings(found: Iterable) -> list[PlacedFinding]:
    return [placed(f) for f in found]


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [
        f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _place(program: KeptProgram) -> Mapping[str, str]:
    axes = ",".join(f"{axis}={degree}" for axis, degree in program.mesh.items())
    return {"slice": program.slice, "mesh": axes}


def slower(found: ProgramAgainst, most: str) -> str:
    """What to say where a program takes longer than the share `most` more; else empty. Raises
    BadRequest for programs of different slices: their seconds differ by the chips."""
    text = most.strip()
    if slices := [place for place in found.places if place.startswith("slice ")]:
        raise BadRequest(
            f"--fail-over compares two programs on one slice, and '{found.other}' is for another "
            f"({slices[0]}); compile both for the same --on"
        )
    share = number(text.removesuffix("%"), "--fail-over", least=0, most=1e6)
    share = share / 100 if text.endswith("%") else share
    if found.costs <= share:
        return ""
    return (
        f"the step takes {format_seconds(found.after)}, {100 * found.costs:.1f} % more than "
        f"'{found.other}' ({format_seconds(found.before)}); --fail-over allows {100 * share:g} %"
    )


def against_page(found: ProgramAgainst) -> Page:
    """What came, what went and what it costs."""
    gain = "longer" if found.costs > 0 else "shorter"
    yield wrapped(
        f"against {found.other}: {format_seconds(found.before)} before, "
        f"{format_seconds(found.after)} now, {100 * abs(found.costs):.1f} % {gain}"
        + "".join(f"; {text}" for text in found.versions),
        0,
        2,
    )
    if found.places:
        yield wrapped(
            f"The two are for different machines ({'; '.join(found.places)}): this also changes "
            "seconds and bytes.",
            0,
            2,
        )
    for word, findings in (("new", found.came), ("gone", found.went)):
        for f in findings:
            at = f"{format_seconds(f.seconds)} at {short_place(f.where)}"
            yield wrapped(f"{word}: {f.rule}, {at}: {f.what}", 0, 2)
    if not found.lines and not found.collectives:
        yield "No line changes its time, and no collective its bytes."
        return
    yield ""
    yield TextTable(
        ["line", "before", "now", "costs", "what it says"],
        [
            [short_place(c.where), _time(c.before), _time(c.after), _signed(c.costs), c.text[:40]]
            for c in _most(found.lines)
        ],
    )
    if found.collectives:
        yield ""
        yield TextTable(
            ["collective", "over", "at", "before", "now", "costs"],
            [
                [
                    c.kind,
                    ", ".join(c.axes),
                    short_place(c.where),
                    format_bytes(c.bytes_before),
                    format_bytes(c.bytes_after),
                    _signed(c.costs),
                ]
                for c in _most(found.collectives)
            ],
            left=3,
        )


def _most(rows: Sequence) -> Sequence:
    """Those that change the step most, in their order."""
    worth = sorted(rows, key=lambda row: -abs(row.costs))[:SHOWN]
    return [row for row in rows if row in worth]


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "-"


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "-") + format_seconds(abs(seconds))
