"""`explain`: where the time of a compiled step goes, and what in it is a mistake."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from shardwise.boundary.options import option, several, switch
from shardwise.boundary.records import hidden, part, plain
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.inputs import Hardware, Words, words
from shardwise.commands.base.layout import wrapped
from shardwise.commands.base.request import verb
from shardwise.commands.program.against import (
    KeptProgram,
    ProgramAgainst,
    against,
    against_page,
    is_kept,
    kept_program,
    load_program,
    slower,
)
from shardwise.commands.program.compiling import PlanProgram, shortfall
from shardwise.commands.program.explaining import (
    ExplainedProgram,
    OpGraph,
    TimeShare,
    explained,
    explained_program,
    short_place,
)
from shardwise.commands.program.issue import issue_text
from shardwise.commands.program.programs import PHASES, ProgramRequest, is_function
from shardwise.commands.program.trying import TriedCure, tried, tried_page
from shardwise.errors import BadRequest
from shardwise.hardware import Slice
from shardwise.hardware.device_order import mesh_coordinates
from shardwise.profiler.ahead import target_of
from shardwise.profiler.explain import Explanation
from shardwise.profiler.explain.cures import Cure
from shardwise.profiler.explain.finding import WORTH
from shardwise.profiler.explain.partitioned import UNKNOWN, LineCollective
from shardwise.units import format_bytes, format_seconds

SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest(ProgramRequest):
    """Show where the time of a compiled step goes, and mistakes that cost time.

    The answer has seconds by component, source line and named scope, what bounds each, the layouts
    of the arguments in our notation, and findings with cost and remedy. For a serving plan the
    default `phase` is "decode". A text that was compiled elsewhere is read as it is; `on` is the
    slice that it ran on.
    """

    COMMAND: ClassVar[str] = "explain"
    READS_COMPILED: ClassVar[bool] = True

    phase: str | None = option("Step of a plan to explain.", values=PHASES)
    quick: bool = switch(
        "Partition only: communication, sharding and dtypes, within seconds.",
        group="Level of detail",
        meaning="partition the program and do not compile it: communication, sharding, duplicated "
        "work and dtypes, within seconds and without the chip's compiler",
    )
    package: Words = several(
        "Show the lines of this installed package as your own, as those of MODULE are.",
        metavar="NAME",
        group="What is planned",
        meaning="installed packages whose lines are told as the user's own, beside the package of "
        "MODULE; other installed ones are told by the part of the model that they compute",
    )
    against: Any = option(
        "Compare with an earlier program, a function or a file of --save: new, gone and slower "
        "parts.",
        metavar="MODULE:NAME|FILE",
    )
    fail_over: str | None = option(
        "Exit with code 1 if the step takes longer by more than this.",
        metavar="3%",
        group="Level of detail",
        meaning="the share by which a step may take longer than the one of --against",
    )

    try_: bool = switch(
        "Compile remedies that a call can make, and show what they save.",
        group="Level of detail",
        meaning="compile the cures that a call can make (donated arguments, other layouts), three "
        "at most, and say what they save",
    )

    issue: bool = switch(
        "Print the most expensive finding as Markdown for a maintainer, with a reproducer.",
        group="Level of detail",
        meaning="print the dearest finding as Markdown for a maintainer: op, cost, versions and a "
        "program of JAX alone that shows it",
    )

    def answer(self, watch: Any = None) -> "ProgramExplained":
        """Compile and explain; `watch` hears what the compiling process is at."""
        if self.fail_over is not None and self.against is None:
            raise BadRequest("--fail-over compares two programs; name the other one with --against")
        for given, flag in ((self.try_, "--try calls"), (self.issue, "--issue reports")):
            if given and not (is_function(self.what) and isinstance(self.what, str)):
                raise BadRequest(f"{flag} a function of yours; give one as MODULE:FUNCTION")
        before = self._before(watch)
        made = self.programs((self.phase,) if self.phase else (), watch, partition=self.quick)
        program = made.programs[0]
        compiled = program.compiled
        piece = Hardware(files=self.hw_files).slice(compiled.slice).slice
        explanation = explained(program, piece, self._packages(compiled.hlo))
        kept = kept_program(program, explanation)
        beside = None
        if before is not None:
            beside = against(
                before,
                kept,
                explanation,
                Hardware(files=self.hw_files),
                self._packages(compiled.hlo),
            )
        unfit = "the program does not fit; times are those it would have"
        return ProgramExplained.of(
            explained_program(
                program.phase, compiled.slice, explanation, partitioned=compiled.partitioned
            ),
            program=program,
            against=beside,
            tried=self._tried(program, explanation, piece, watch) if self.try_ else None,
            issue=self._report(program, explanation, piece, beside) if self.issue else None,
            graph=explanation.graph,
            kept=kept,
            slower=slower(beside, self.fail_over) if beside and self.fail_over else "",
            misses=[] if compiled.fits else [shortfall(program, made.plan)],
            warnings=[*made.warnings, *([] if compiled.fits else [unfit])],
            provenance={"versions": dict(compiled.versions)},
        )

    def _packages(self, hlo: str) -> tuple[str, ...]:
        """The packages whose lines are the user's: those named, and the function's. Raises
        BadRequest for one of which the program has no line."""
        has = sorted(set(re.findall(r"/(?:site|dist)-packages/(\w+)", hlo)))
        for name in words(self.package):
            if name not in has:
                raise BadRequest(
                    f"--package '{name}': the program has no line of an installed package of that "
                    f"name; it has lines of {', '.join(has) or 'none'}"
                )
        named = isinstance(self.what, str) and is_function(self.what)
        module = (str(self.what).partition(":")[0].partition(".")[0],) if named else ()
        return (*words(self.package), *module)

    def _tried(self, program: PlanProgram, e: Explanation, piece: Slice, watch: Any) -> Any:
        """What the cures of its findings save, compiled."""

        def compiled(cure: Cure) -> tuple[PlanProgram, float]:
            made = self.cured(cure, watch, self.quick)
            return made, explained(made, piece).timeline.expected

        return tried(program, e, compiled)

    def _report(
        self, program: PlanProgram, e: Explanation, piece: Slice, beside: ProgramAgainst | None
    ) -> str:
        """The dearest finding for a maintainer."""
        target = target_of(piece, mesh_coordinates(piece, program.compiled.mesh))
        other = "\n".join(map(str, against_page(beside))) if beside else ""
        return issue_text(program, e, target, str(self.args), other)

    def _before(self, watch: Any) -> KeptProgram | None:
        if self.against is None or isinstance(self.against, ProgramExplained):
            return self.against and self.against.kept
        if is_kept(self.against):
            return load_program(Path(self.against))
        alone = replace(self, against=None, fail_over=None, try_=False, issue=False)
        other = replace(alone, what=self.against)
        return other.answer(watch).kept


@dataclass(frozen=True, kw_only=True, repr=False)
class ProgramExplained(Answer, ExplainedProgram):
    """One program, explained, its dearest ops as a `graph`; `misses` says why it does not fit,
    `slower` that it takes longer than it may, and `kept` is what a later `against` takes."""

    against: ProgramAgainst | None = part()
    """The program beside another one."""
    tried: Sequence[TriedCure] | None = part()
    """Findings with their cures, compiled."""
    issue: str | None = part()
    """The dearest finding for a maintainer, as Markdown."""
    program: PlanProgram = hidden()
    kept: KeptProgram = hidden()
    slower: str = hidden()
    graph: OpGraph = hidden()
    misses: Sequence[str] = hidden()

    def table(self) -> list[Row]:
        """Seconds by source line."""
        return [plain(line) for line in self.lines]

    def page(self) -> Page:
        """Findings, and seconds by source line."""
        if self.issue is not None:
            return iter(self.issue.split("\n"))
        if self.against is not None:
            return against_page(self.against)
        return _explained_page(self)

    def sections(self) -> Mapping[str, Page]:
        """Seconds by named scope, and how the arguments lie."""
        return {"detail": _explained_detail(self)}


explain = verb("explain", ExplainRequest)


def _explained_page(r: ExplainedProgram) -> Page:
    if r.collectives is not None:
        yield from _partitioned_page(r, r.collectives)
        return
    step = r.step_seconds
    yield wrapped(
        f"{r.phase} on {r.slice}, compiled: {format_seconds(step.expected)} per step "
        f"({format_seconds(step.lower)} at least, {format_seconds(step.upper)} at most), "
        f"matrix units at their peak for {100 * r.hfu:.1f} % of the step, "
        f"{format_seconds(r.exposed_communication)} waiting for networks",
        0,
        2,
    )
    yield from _mistakes(r)
    yield ""
    yield _causes(r)
    yield ""
    yield _seconds("by component", r.components)
    yield ""
    yield _seconds("by source line", r.lines)


def _mistakes(r: ExplainedProgram) -> Page:
    yield ""
    yield from _findings(r)
    if isinstance(r, ProgramExplained) and r.tried is not None:
        yield from tried_page(r.tried)


def _partitioned_page(r: ExplainedProgram, collectives: Sequence[LineCollective]) -> Page:
    wires = sum(c.seconds for c in collectives)
    yield wrapped(
        f"{r.phase} on {r.slice}, partitioned and not compiled: its matmuls take "
        f"{format_seconds(r.streams.get('compute', 0.0))} per step at the roofline, its "
        f"collectives {format_seconds(wires)}, without overlap",
        0,
        2,
    )
    yield wrapped(UNKNOWN, 2)
    yield from _mistakes(r)
    if collectives:
        yield ""
        yield _line_collectives(collectives)
    yield ""
    yield _seconds("by source line", r.lines)


def _line_collectives(collectives: Sequence[LineCollective]) -> TextTable:
    return TextTable(
        ["collective", "over", "runs", "per step", "time", "at"],
        [
            [
                c.kind,
                ", ".join(c.axes),
                f"{c.runs:,.0f}",
                format_bytes(c.bytes),
                format_seconds(c.seconds),
                short_place(c.where),
            ]
            for c in collectives[:SHOWN]
        ],
        left=2,
    )


def _causes(r: ExplainedProgram) -> TextTable:
    """The step as what its ops must take, what makes it longer, and what nothing explains."""
    step = r.step_seconds.expected
    unknown = sum(u.seconds for u in r.unknown)
    shown = [c for c in r.causes if c.share >= WORTH][:SHOWN]
    others = sum(c.seconds for c in r.causes) - sum(c.seconds for c in shown)
    rows = [
        ("floor: its ops at peak rates", r.floor_seconds, ""),
        *((c.name, c.seconds, short_place(c.where)) for c in shown),
        ("other causes", others, ""),
        ("unknown", unknown, short_place(r.unknown[0].where) if r.unknown else ""),
    ]
    return TextTable(
        ["why it takes so long", "time", "of step", "mostly at"],
        [
            [name, format_seconds(seconds), f"{100 * seconds / step:.1f} %", where]
            for name, seconds, where in rows
            if seconds > 0
        ],
    )


def _findings(r: ExplainedProgram) -> Page:
    for f in r.findings:
        cost = f"{format_bytes(f.frees)} of memory" if f.frees else ""
        if not f.frees or f.seconds >= WORTH * r.step_seconds.expected:
            most = "at most " if f.at_most else ""
            cost += f"{' and ' if cost else ''}{most}{format_seconds(f.seconds)} per step"
        yield wrapped(f"{f.rule}, {cost}: {f.what}", 0, 2)
        left = format_seconds(max(r.step_seconds.expected - f.seconds, 0.0))
        told = f.seconds and not f.at_most
        yield f"  at {short_place(f.where)}" + (f"; {left} without it" if told else "")
        said, *code = f.remedy.split("\n")
        yield wrapped(said, 2)
        yield from (f"    {line}" for line in code)
    if not r.findings:
        yield "No findings: no known mistake costs 1 % of the step."
        if wait := r.longest_wait:
            yield wrapped(
                f"It waits {format_seconds(wait.exposed)} at {short_place(wait.where)}, bound by "
                f"{wait.bound_by}. These layouts need it; another sharding, a "
                "larger batch or another mesh may wait less."
            )


def _explained_detail(r: ExplainedProgram) -> Page:
    yield _seconds("by scope", r.scopes)
    yield ""
    yield TextTable(
        ["argument", "layout", "per device"],
        [
            [short_place(a.name), f"{a.layout} {a.dtype}", format_bytes(a.bytes)]
            for a in r.arguments[:SHOWN]
        ],
        left=2,
    )


def _seconds(title: str, lines: Sequence[TimeShare]) -> TextTable:
    return TextTable(
        [title, "time", "of step", "waits", "bound by"],
        [
            [
                short_place(line.where),
                format_seconds(line.seconds),
                f"{100 * line.share:.1f} %",
                format_seconds(line.exposed) if line.exposed else "",
                line.bound_by,
            ]
            for line in lines[:SHOWN]
            if line.seconds
        ],
    )
