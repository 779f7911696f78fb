"""`report`: what a folder that `compile --out` wrote says of a program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from shardwise.boundary import Command, whole
from shardwise.boundary.options import option, place
from shardwise.boundary.records import hidden, plain
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.layout import cut, wrapped
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.program.report_result import OpTimes, ReportedProgram, read_report
from shardwise.commands.program.stages_page import stages_page
from shardwise.units import format_bytes, format_count, format_gib, format_seconds

SAMPLE = Path(__file__).parent / "data" / "report"
"""A step of Llama-3.2-1B on four v5e, compiled by libtpu 0.0.42.1, without its program text."""
_IS_SAMPLE = (
    "the sample that ships with shardwise, a step of Llama-3.2-1B; for your own, give the folder "
    "of `shardwise compile --out`"
)
_KEPT, _SHOWN = 60, 12
"""Dearest ops of the document, and of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest(Command):
    """The timeline, the most expensive ops with their waits, and memory over the step of a program.
    `compile --out` wrote it to `folder`; nothing is compiled. Without a folder it reads the sample
    that ships with shardwise."""

    COMMAND: ClassVar[str] = "report"

    folder: str | Path | None = field(
        default=None, kw_only=False, metadata=place("[DIRECTORY]", required=False)
    )
    phase: str | None = option(
        "Which program. Default: the first.",
        metavar="NAME",
        group="What is planned",
        meaning="which program of a plan: train, decode or prefill",
    )
    top: int | str | None = option(
        "Most expensive ops to show. Default: 12, and 60 with --json.", kind="whole"
    )

    def answer(self, progress: Progress | None = None) -> "ReportAnswer":
        """Read it."""
        most = None if self.top is None else whole(self.top, "--top", least=1, most=10_000)
        return ReportAnswer.of(
            read_report(Path(self.folder or SAMPLE), self.phase, most or _KEPT),
            sample=not self.folder,
            shown=most or _SHOWN,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ReportAnswer(Answer, ReportedProgram):
    """One compiled program, as its report has it; `shown` are the ops of a page, `sample` says
    that it is none of the user's own."""

    sample: bool = hidden(False)
    shown: int = hidden(_SHOWN)

    def table(self) -> list[Row]:
        """A row per op, in the order of the schedule."""
        return [plain(OpTimes.part_of(op)) for op in self.ops]

    def page(self) -> Page:
        """Step and memory, then the dearest ops."""
        mesh = " x ".join(f"{axis}={n}" for axis, n in self.mesh.items() if n > 1)
        fits = "fits" if self.fits else "does not fit"
        yield f"{self.phase} on {self.slice}, {mesh or 'one device'}: {fits}"
        if self.sample:
            yield wrapped(_IS_SAMPLE, 2)
        yield TextTable(["per device", "predicted", "compiled"], _figures(self))
        yield from _measured_page(self)
        yield from _fullest(self)
        ops = sorted(self.ops, key=lambda op: -op.spent_seconds)
        total = sum(op.spent_seconds for op in ops) + self.left_seconds
        rows = [_row(op, total) for op in ops[: self.shown]]
        yield TextTable(["most expensive ops", "seconds", "share", "bound by", "of roofline"], rows)
        rest = total - sum(op.spent_seconds for op in ops[: self.shown])
        yield f"  all others {format_seconds(rest)}"

    def sections(self) -> Mapping[str, Page]:
        """Every op that is kept, with its place in the source; the one that was followed."""
        return {"detail": self._detail(), "stages": self._stages()}

    def _stages(self) -> Page:
        if self.stages is None:
            yield "no op was followed to the schedule: run `shardwise compile --stages --out`"
            return
        yield from stages_page(self.stages, more="--json")

    def _detail(self) -> Page:
        names = {op.id: op.op for op in self.ops}
        after: dict[str, list[str]] = {name: [] for name in names}
        for one in self.waits:
            after[one.target].append(names[one.source])
        rows = [
            [
                op.op,
                op.stream,
                format_seconds(op.spent_seconds),
                cut(op.scope.rpartition("/")[2], 26),
                cut(", ".join(after[op.id]), 26),
            ]
            for op in self.ops
        ]
        header = ["op, as scheduled", "stream", "seconds", "scope", "waits for"]
        yield TextTable(header, rows, left=1)


report = verb("report", ReportRequest)


def _figures(found: ReportedProgram) -> list[list[str]]:
    planned, compiled = found.step_seconds.predicted, found.step_seconds.compiled
    peak, flops = found.peak_bytes, found.flops
    steps = (planned and planned.expected, compiled and compiled.expected)
    rows = [
        ["step time, expected", *(_text(seconds, format_seconds) for seconds in steps)],
        ["peak memory", *(_text(n, format_gib) for n in (peak.predicted, peak.compiled))],
        ["FLOPs per step", *(_text(n, format_count) for n in (flops.predicted, flops.compiled))],
    ]
    for one in found.collectives:
        moved = (one.predicted and one.predicted.bytes, one.compiled.bytes)
        name = f"{one.kind} over {'+'.join(one.axes) or '?'}"
        rows.append([name, *(_text(size, format_bytes) for size in moved)])
    return rows


def _measured_page(found: ReportedProgram) -> Page:
    """The run that the folder has, beside what was expected of it."""
    if (run := found.measured) is None:
        return
    step, on = run.step_seconds, f"{run.devices} x {run.kind}"
    yield wrapped(f"measured on {on}: {format_seconds(step.measured)} a step", 2, 4)
    rows = [
        [
            row.where,
            *(_text(n, format_seconds) for n in (row.predicted, row.compiled, row.measured)),
        ]
        for row in run.by_class
    ]
    yield TextTable(["by class of ops", "predicted", "compiled", "measured"], rows)


def _fullest(found: ReportedProgram) -> Page:
    """When most HBM is in use."""
    if found.memory:
        most = max(found.memory, key=lambda one: one.bytes)
        when = format_seconds(most.seconds)
        yield f"  most HBM in use: {format_gib(most.bytes)}, {when} from the start of the step"


def _text(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def _row(op: OpTimes, total: float) -> list[str]:
    share = f"{op.spent_seconds / total:.1%}" if total else "-"
    return [op.op, format_seconds(op.spent_seconds), share, op.bound_by, f"{op.of_roofline:.0%}"]
