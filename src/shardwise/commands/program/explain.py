"""`explain`: where the time of a compiled step goes, and what in it is a mistake."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from shardwise.boundary.options import option
from shardwise.boundary.records import hidden, plain
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.inputs import Hardware
from shardwise.commands.base.layout import wrapped
from shardwise.commands.base.request import verb
from shardwise.commands.program.compiling import PlanProgram, shortfall
from shardwise.commands.program.explaining import (
    ExplainedProgram,
    OpGraph,
    TimeShare,
    explained,
    explained_program,
)
from shardwise.commands.program.programs import PHASES, ProgramRequest
from shardwise.profiler.explain.finding import WORTH
from shardwise.units import format_bytes, format_seconds

SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest(ProgramRequest):
    """Say where the time of a compiled step goes and what in it is a mistake.

    Seconds by component, source line and named scope, what bounds each, the arguments' layouts in
    our notation, and findings with their cost and a remedy. Of a serving plan it is "decode" if no
    `phase` is given.
    """

    COMMAND: ClassVar[str] = "explain"

    phase: str | None = option("Of a plan.", values=PHASES)

    def answer(self, watch: Any = None) -> "ProgramExplained":
        """Compile and explain; `watch` hears what the compiling process is at."""
        made = self.programs((self.phase,) if self.phase else (), watch)
        program = made.programs[0]
        compiled = program.compiled
        piece = Hardware(files=self.hw_files).slice(compiled.slice).slice
        explanation = explained(program, piece)
        unfit = "the program does not fit; times are of what would run"
        return ProgramExplained.of(
            explained_program(program.phase, compiled.slice, explanation),
            program=program,
            graph=explanation.graph,
            misses=[] if compiled.fits else [shortfall(program, made.plan)],
            warnings=[*made.warnings, *([] if compiled.fits else [unfit])],
            provenance={"versions": dict(compiled.versions)},
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ProgramExplained(Answer, ExplainedProgram):
    """One program, explained, its dearest ops as a `graph`; `misses` says why it does not fit."""

    program: PlanProgram = hidden()
    graph: OpGraph = hidden()
    misses: Sequence[str] = hidden()

    def table(self) -> list[Row]:
        """Seconds by source line."""
        return [plain(line) for line in self.lines]

    def page(self) -> Page:
        """Findings, and seconds by source line."""
        return _explained_page(self)

    def sections(self) -> Mapping[str, Page]:
        """Seconds by named scope, and how the arguments lie."""
        return {"detail": _explained_detail(self)}


explain = verb("explain", ExplainRequest)


def _explained_page(r: ExplainedProgram) -> Page:
    step = r.step_seconds
    yield wrapped(
        f"{r.phase} on {r.slice}, compiled: {format_seconds(step.expected)} per step "
        f"({format_seconds(step.lower)} at least, {format_seconds(step.upper)} at most), "
        f"matrix units at their peak for {100 * r.hfu:.1f} % of it, "
        f"{format_seconds(r.exposed_communication)} of it waiting for networks",
        0,
        2,
    )
    yield ""
    yield from _findings(r)
    yield ""
    yield _causes(r)
    yield ""
    yield _seconds("by component", r.components)
    yield ""
    yield _seconds("by source line", r.lines)


def _causes(r: ExplainedProgram) -> TextTable:
    """The step as what its ops must take, what makes it longer, and what nothing explains."""
    step = r.step_seconds.expected
    unknown = sum(u.seconds for u in r.unknown)
    shown = [c for c in r.causes if c.share >= WORTH][:SHOWN]
    others = sum(c.seconds for c in r.causes) - sum(c.seconds for c in shown)
    rows = [
        ("floor: its ops at the chip's peaks", r.floor_seconds, ""),
        *((c.name, c.seconds, _short(c.where)) for c in shown),
        ("other causes", others, ""),
        ("unknown", unknown, _short(r.unknown[0].where) if r.unknown else ""),
    ]
    return TextTable(
        ["why it takes so long", "time", "of step", "most of it at"],
        [
            [name, format_seconds(seconds), f"{100 * seconds / step:.1f} %", where]
            for name, seconds, where in rows
            if seconds > 0
        ],
    )


def _findings(r: ExplainedProgram) -> Page:
    """Each mistake with its cost and remedy."""
    for f in r.findings:
        cost = f"{format_bytes(f.frees)} of memory" if f.frees else ""
        if not f.frees or f.seconds >= WORTH * r.step_seconds.expected:
            cost += f"{' and ' if cost else ''}{format_seconds(f.seconds)} per step"
        yield wrapped(f"{f.rule}, {cost}: {f.what}", 0, 2)
        left = format_seconds(max(r.step_seconds.expected - f.seconds, 0.0))
        yield f"  at {_short(f.where)}" + (f"; {left} without it" if f.seconds else "")
        said, *code = f.remedy.split("\n")
        yield wrapped(said, 2)
        yield from (f"    {line}" for line in code)
    if not r.findings:
        yield "No findings: no mistake that is looked for costs 1 % of the step."
        if wait := r.longest_wait:
            yield wrapped(
                f"It waits {format_seconds(wait.exposed)} at {_short(wait.where)}, bound by "
                f"{wait.bound_by}: what these layouts cost; a larger batch or another mesh may "
                "wait less."
            )


def _explained_detail(r: ExplainedProgram) -> Page:
    yield _seconds("by scope", r.scopes)
    yield ""
    yield TextTable(
        ["argument", "layout", "per device"],
        [
            [_short(a.name), f"{a.layout} {a.dtype}", format_bytes(a.bytes)]
            for a in r.arguments[:SHOWN]
        ],
        left=2,
    )


def _seconds(title: str, lines: Sequence[TimeShare]) -> TextTable:
    return TextTable(
        [title, "time", "of step", "waits", "bound by"],
        [
            [
                _short(line.where),
                format_seconds(line.seconds),
                f"{100 * line.share:.1f} %",
                format_seconds(line.exposed) if line.exposed else "",
                line.bound_by,
            ]
            for line in lines[:SHOWN]
            if line.seconds
        ],
    )


def _short(where: str) -> str:
    return where if len(where) <= 60 else "..." + where[-57:]
