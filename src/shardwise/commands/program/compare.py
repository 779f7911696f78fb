"""`compare`: a plan, its compiled program and a capture of it, part by part."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from shardwise.boundary.options import option, place
from shardwise.boundary.records import hidden, plain
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.inputs import words
from shardwise.commands.base.layout import wrapped
from shardwise.commands.base.request import verb
from shardwise.commands.pricing.train_page import where_table
from shardwise.commands.program.comparing import (
    Compared,
    ComparedFigure,
    compare_program,
    read_trace,
)
from shardwise.commands.program.compiling import shortfall
from shardwise.commands.program.programs import PHASES, ProgramRequest, is_function
from shardwise.errors import BadRequest
from shardwise.units import format_bytes, format_count, format_gib, format_seconds

PARTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "step": ("step time", format_seconds),
    "seconds": ("seconds by op class, without overlap", format_seconds),
    "flops": ("FLOPs by op class", format_count),
    "hbm_bytes": ("HBM bytes by op class", format_bytes),
    "collective_bytes": ("bytes V by collective", format_bytes),
    "collective_runs": ("runs by collective", lambda n: f"{n:g}"),
    "flops_by_key": ("FLOPs by phase, component, class", format_count),
    "hbm_bytes_by_key": ("HBM bytes by phase, component, class", format_bytes),
    "collective_bytes_by_key": ("bytes V by phase, component, collective", format_bytes),
    "memory": ("memory by kind", format_gib),
}
"""Parts of a comparison, their titles and how their figures are written."""
LEAST = 0.01
"""Share of a part's largest row from which a row by key is shown; --json has them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest(ProgramRequest):
    """Compare a plan with its compiled programs; no accelerator is needed. `capture` adds measured
    seconds."""

    COMMAND: ClassVar[str] = "compare"

    what: Any = field(kw_only=False, metadata=place("PLAN"))
    phase: str | None = option("Default: all.", values=PHASES)
    capture: str | Path | None = option(
        "A capture of the program (.xplane.pb or trace.json.gz): adds measured times.",
        kind="path",
        metavar="FILE",
        group="Beside the answer",
    )

    def answer(self, watch: Any = None) -> "ProgramsCompared":
        """Compile and compare; `watch` hears what the compiling process is at."""
        if is_function(self.what):
            name = f"'{self.what}' is a function and has no plan"
            raise BadRequest(f"{name}; name a plan's file")
        captured = None if self.capture is None else read_trace(Path(self.capture))
        done = self.planned(words(self.phase or ()), watch)
        if self.capture is not None and len(done.programs) > 1:
            raise BadRequest("--capture is a capture of one program; name it with --phase")
        compared = tuple(compare_program(done.priced, p, captured) for p in done.programs)
        lacking = [p for p in done.programs if not p.compiled.fits]
        return ProgramsCompared(
            programs=compared,
            misses=[shortfall(program, done.priced.plan) for program in lacking],
            warnings=[*done.notes, *done.priced.warnings],
            provenance={"versions": dict(next(iter(done.programs)).compiled.versions)},
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ProgramsCompared(Answer):
    """Each program of a plan, compared with the plan; `misses` says why programs do not fit."""

    programs: Sequence[Compared]
    """Each program, in the order of the phases."""

    misses: Sequence[str] = hidden()

    def table(self) -> list[Row]:
        """One row per figure."""
        return [
            {"phase": one.phase, "part": part, **plain(row)}
            for one in self.programs
            for part in PARTS
            for row in one.figures(part)
        ]

    def page(self) -> Page:
        """Of each program its step and memory beside the plan's, and in sentences what differs."""
        for one in self.programs:
            yield from _compared_page(one)

    def sections(self) -> Mapping[str, Page]:
        """Each part as a table."""
        return {"detail": chain(*map(_parts_page, self.programs))}


compare = verb("compare", CompareRequest)


def _compared_page(one: Compared) -> Page:
    fits = "fits" if one.fits else "does not fit"
    yield f"{one.phase} on {one.slice}: {fits}"
    yield where_table(one.where_it_goes, "where the planned step goes")
    for part in _FIRST:
        if rows := one.figures(part):
            yield _table(PARTS[part][0], rows, PARTS[part][1], ruled=False)
    if not one.differences:
        yield "Nothing differs by more than 2 %."
    for sentence in one.differences:
        yield wrapped(f"- {sentence}", 2, 4)


_FIRST = ("step", "memory")
"""Parts that a page has; --detail has them all."""


def _parts_page(one: Compared) -> Page:
    yield f"{one.phase} on {one.slice}"
    for part, (title, text) in PARTS.items():
        if part not in _FIRST and (rows := _worth(part, one.figures(part))):
            yield ""
            yield _table(title, rows, text)


def _worth(part: str, rows: Sequence[ComparedFigure]) -> Sequence[ComparedFigure]:
    """The rows that are shown; of those by key, the large ones."""
    sizes = [max(row.predicted or 0.0, row.compiled or 0.0) for row in rows]
    least = LEAST * max(sizes, default=0.0) if part.endswith("_by_key") else 0.0
    return [row for row, size in zip(rows, sizes, strict=True) if size >= least]


def _table(
    title: str,
    rows: Sequence[ComparedFigure],
    text: Callable[[float], str],
    ruled: bool = True,
) -> TextTable:
    sides = ["predicted", "compiled"]
    if any(row.measured is not None for row in rows):
        sides.append("measured")
    cells = [
        [row.what, *(_figure(getattr(row, side), text) for side in sides), _part(row)]
        for row in rows
    ]
    return TextTable([title, *sides, "compiled/predicted"], cells, ruled=ruled)


def _figure(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def _part(row: ComparedFigure) -> str:
    one, other = row.predicted, row.compiled
    return f"{100 * (other / one - 1):+.1f} %" if one and other else ""
