"""`compile`: a plan, or any JAX function, by the real compiler for a slice elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any, ClassVar

from shardwise.boundary.options import option, several
from shardwise.boundary.records import hidden, part
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.inputs import Words, words
from shardwise.commands.base.request import verb
from shardwise.commands.program.compile_report import Followed, follow
from shardwise.commands.program.compile_result import (
    CollectiveBeside,
    ProgramResult,
    program_result,
)
from shardwise.commands.program.compiling import PlanProgram
from shardwise.commands.program.programs import PHASES, ProgramRequest, Programs
from shardwise.commands.program.stages_page import passes_page, stages_page
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.train import mesh_text
from shardwise.units import format_bytes, format_count, format_gib, format_seconds, many


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest(ProgramRequest):
    """Compile for a slice with the real compiler; no accelerator is needed.

    `stages` is "dearest", a rank, a line ("mine.py:11"), a scope, an instruction or its name in
    JAX; the program is then compiled again.
    """

    COMMAND: ClassVar[str] = "compile"

    phases: Words = several("Step of a serving plan. Default: all.", flag="--phase", values=PHASES)
    stages: str | int | None = option(
        "Follow one op from jaxpr to schedule: the most expensive, or a rank, FILE:LINE, scope or "
        "name.",
        alone="dearest",
        metavar="[OP]",
        group="Beside the answer",
    )

    def answer(self, watch: Any = None) -> "CompiledPrograms":
        """Compile; `watch` hears what the compiling process is at, and for how long."""
        if self.stages is None:
            return self._answer(self.programs(words(self.phases), watch))
        with TemporaryDirectory(prefix="shardwise-stages-") as folder:
            made = self.programs(words(self.phases), watch, Path(folder))
            followed = tuple(follow(made.programs, Path(folder), str(self.stages)))
        return self._answer(made, followed)

    def _answer(self, made: Programs, followed: Sequence[Followed] = ()) -> "CompiledPrograms":
        stages = [one.stages for one in followed] or [None] * len(made.programs)
        results = [
            program_result(program, made.plan, of)
            for program, of in zip(made.programs, stages, strict=True)
        ]
        return CompiledPrograms(
            programs=results,
            followed=tuple(followed),
            made=made.programs,
            plan=made.plan,
            warnings=[*made.warnings, *(_uncounted(r) for r in results if r.unknown_ops)],
            provenance={"versions": results[0].versions},
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class CompiledPrograms(Answer):
    """Programs, each with predicted and compiled figures."""

    programs: Sequence[ProgramResult]
    """Each program, in the order of the phases."""
    files: Sequence[str] | None = part()
    """Files of the report folder (--out)."""

    made: tuple[PlanProgram, ...] = hidden()
    followed: tuple[Followed, ...] = hidden(())
    plan: TrainPlan | ServePlan | None = hidden()

    @property
    def misses(self) -> list[str]:
        """Why programs do not fit."""
        return [r.shortfall for r in self.programs if not r.fits]

    def table(self) -> list[Row]:
        """Of each program its figures, predicted and compiled."""
        return [
            {"phase": r.phase, "figure": name, "predicted": of.predicted, "compiled": of.compiled}
            for r in self.programs
            for name, of in (("peak_bytes", r.peak_bytes), ("flops", r.flops))
        ]

    def page(self) -> Page:
        """One table per program, or one op of each at every stage."""
        for one in self.followed:
            yield from stages_page(one.stages)
        for i, result in enumerate(() if self.followed else self.programs):
            if i:
                yield ""
            yield from _program_page(result)

    def sections(self) -> Mapping[str, Page]:
        """All collectives, and all that lies in memory; of an op all that passes changed."""
        rows = self.programs
        figures = map(_program_page, rows if self.followed else ())
        passes = (passes_page(one.stages) for one in self.followed)
        return {"detail": chain(*passes, *figures, *map(_program_detail, rows))}


compile = verb("compile", CompileRequest)


def _program_page(r: ProgramResult) -> Page:
    mesh = mesh_text({axis: n for axis, n in r.mesh.items() if n > 1})
    of = f" of {_load(r)}" if r.sequences else ""
    yield f"{r.phase}{of} on {r.slice}, {mesh}: {'fits' if r.fits else 'does not fit'}"
    seconds, peak = format_seconds(r.seconds["compile"]), format_gib(r.process_peak_bytes)
    yield f"  {'from the cache; ' if r.cached else ''}compiled in {seconds}, process {peak}"
    for note in r.notes:
        yield from wrap(note, 100, initial_indent="  ", subsequent_indent="    ")
    yield _figures(r, MOST_NAMED)
    apart = [item for item in _memory(r).items() if item[0] not in SHARED]
    if most := apart[:MOST_NAMED]:
        yield f"  most of it: {', '.join(f'{name} {format_bytes(size)}' for name, size in most)}"


MOST_NAMED = 3
"""Collectives, and what lies in memory, on the first page."""
SHARED = ("outputs", "aliased")
"""What is, or may be, the same memory as arguments."""


def _figures(r: ProgramResult, most: int) -> TextTable:
    said = r.peak_bytes.predicted is not None or r.flops.predicted is not None
    rows = [
        ["peak memory", *_two(r.peak_bytes.predicted, r.peak_bytes.compiled, format_gib)],
        ["usable", "", format_gib(r.usable_bytes), ""],
        ["FLOPs per step", *_two(r.flops.predicted, r.flops.compiled, format_count)],
    ]
    moved = sorted(r.collectives, key=_bytes, reverse=True)
    for row in moved[:most]:
        times = " / ".join(f"{s.count:g}" if s else "-" for s in (row.predicted, row.compiled))
        name = f"{row.kind} over {'+'.join(row.axes) or '?'} ({times} times)"
        planned = row.predicted and row.predicted.bytes
        rows.append([name, *_two(planned, row.compiled.bytes, format_bytes)])
    seconds = r.step_seconds
    if left := len(moved[most:]):
        rows.append([f"{many(left, 'collective')} more: --detail", "", "", ""])
    if seconds.compiled:
        planned = seconds.predicted and seconds.predicted.expected
        both = _two(planned, seconds.compiled.expected, format_seconds)
        rows.insert(3, ["step time, expected", *both])
    header = ["per device", "predicted", "compiled", "difference"]
    if not said:
        header, rows = ["per device", "compiled"], [[row[0], row[2]] for row in rows]
    return TextTable(header, rows)


def _load(r: ProgramResult) -> str:
    """What one step of a server works on."""
    if r.phase == "decode":
        return many(r.sequences or 0, "sequence")
    return f"{r.tokens:,} tokens of a prompt"


def _memory(r: ProgramResult) -> Mapping[str, float]:
    """Arguments and what the program needs besides, the largest first."""
    kinds = r.memory_by_kind
    if not kinds.compiled:
        return {}
    found = {**kinds.arguments, **_parts(kinds.compiled)}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _bytes(row: CollectiveBeside) -> float:
    return max(row.predicted.bytes if row.predicted else 0, row.compiled.bytes)


def _program_detail(r: ProgramResult) -> Page:
    yield r.phase
    if len(r.collectives) > MOST_NAMED:
        yield _figures(r, len(r.collectives))
    if found := _memory(r):
        yield TextTable(["memory as compiled", "bytes"], _to_the_peak(r, found))
    yield ""


def _to_the_peak(r: ProgramResult, found: Mapping[str, float]) -> list[list[str]]:
    """What lies in memory, added up to the peak: outputs that are arguments, too, count once."""
    kinds = r.memory_by_kind.compiled
    rows = {name: size for name, size in found.items() if name not in (*SHARED, "host")}
    if own := kinds.get("outputs", 0) - kinds.get("aliased", 0):
        rows |= {"outputs that are not arguments": own}
    peak = r.peak_bytes.compiled
    if left := peak - sum(rows.values()):
        rows["padding and program code" if left > 0 else "not alive at the peak"] = left
    text = [[n, f"-{format_bytes(-s)}" if s < 0 else format_bytes(s)] for n, s in rows.items()]
    return [*text, ["peak", format_bytes(peak)]]


def _uncounted(r: ProgramResult) -> str:
    """The warning that a program has ops which the compiled text says nothing of."""
    names = r.unknown_ops
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (
        f"{r.phase}: {many(len(names), 'op')} without FLOPs or bytes in the compiled text, such "
        f"as Pallas kernels, are not counted: {some}"
    )


def _parts(memory: Mapping[str, int]) -> dict[str, int]:
    return {k: v for k, v in memory.items() if v and k not in ("arguments", "peak")}


def _two(one: float | None, other: float, text: Callable[[float], str]) -> list[str]:
    if one is None:
        return ["-", text(other), ""]
    part = f"{100 * (other / one - 1):+.1f} %" if one and other else ""
    return [text(one), text(other), part]
