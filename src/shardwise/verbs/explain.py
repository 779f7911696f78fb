"""`explain`: where the time of a compiled step goes, and what in it is a mistake."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.units import format_bytes, format_seconds
from shardwise.verbs.answer import Answer, Page, Row, TextTable
from shardwise.verbs.programs import ProgramRequest
from shardwise.verbs.request import verb
from shardwise.workflows.compile import PlanProgram, shortfall
from shardwise.workflows.explain import explain_result, explained
from shardwise.workflows.inputs import Hardware

SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest(ProgramRequest):
    """Say where the time of a compiled step goes and what in it is a mistake.

    Seconds by source line and named scope, what bounds each, the arguments' layouts in our
    notation, and findings with their cost and a remedy. `phase` picks a program of a serving plan,
    "decode" if not given. The other keywords are those of ProgramRequest.
    """

    phase: str | None = None

    def answer(self, watch: Any = None) -> "ProgramExplained":
        """Compile and explain; `watch` hears what the compiling process is at."""
        made = self.programs((self.phase,) if self.phase else (), watch)
        program = made.programs[0]
        compiled = program.compiled
        piece = Hardware(files=self.hw_files).slice(compiled.slice).slice
        found = explain_result(explained(program, piece))
        unfit = "the program does not fit; times are of what would run"
        return ProgramExplained(
            program=program,
            misses=[] if compiled.fits else [shortfall(program, made.plan)],
            result={"phase": program.phase, "slice": compiled.slice, **found},
            warnings=[*made.warnings, *([] if compiled.fits else [unfit])],
            provenance={"versions": dict(compiled.versions)},
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProgramExplained(Answer):
    """One program, explained; `misses` says why it does not fit."""

    program: PlanProgram
    misses: Sequence[str]

    def table(self) -> list[Row]:
        """Seconds by source line."""
        return self.result["lines"]

    def page(self) -> Page:
        """Lines, scopes, arguments and findings."""
        return _explained_page(self.result)


explain = verb("explain", ExplainRequest)


def _explained_page(r: Mapping[str, Any]) -> Page:
    step = r["step_seconds"]
    yield (
        f"{r['phase']} on {r['slice']}, compiled: {format_seconds(step['expected'])} per step "
        f"expected (lower {format_seconds(step['lower'])}, upper {format_seconds(step['upper'])}), "
        f"matrix units at their peak for {100 * r['hfu']:.1f} % of it, "
        f"{format_seconds(r['exposed_communication'])} of exposed communication"
    )
    for title, key in (("by source line", "lines"), ("by scope", "scopes")):
        yield ""
        yield TextTable(
            [title, "time", "of step", "exposed", "bound by"],
            [
                [
                    _short(line["where"]),
                    format_seconds(line["seconds"]),
                    f"{100 * line['share']:.1f} %",
                    format_seconds(line["exposed"]) if line["exposed"] else "",
                    line["bound_by"],
                ]
                for line in r[key][:SHOWN]
                if line["seconds"]
            ],
        )
    yield ""
    yield TextTable(
        ["argument", "layout", "per device"],
        [
            [_short(a["name"]), f"{a['layout']} {a['dtype']}", format_bytes(a["bytes"])]
            for a in r["arguments"][:SHOWN]
        ],
        left=2,
    )
    yield ""
    for f in r["findings"]:
        yield f"{f['rule']}, {format_seconds(f['seconds'])} per step: {f['what']}"
        yield f"  at {_short(f['where'])}"
        yield f"  {f['remedy']}"
    if not r["findings"]:
        yield "No findings: no mistake that is looked for costs 1 % of the step."
        if wait := r["longest_wait"]:
            yield (
                f"It waits {format_seconds(wait['exposed'])} at {_short(wait['where'])}, bound by "
                f"{wait['bound_by']}: what these layouts cost; a larger batch or another mesh may "
                "wait less."
            )


def _short(where: str) -> str:
    where = where.removeprefix(f"{Path.cwd()}/")
    return where if len(where) <= 60 else "..." + where[-57:]
