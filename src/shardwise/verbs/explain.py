"""`explain`: where the time of a compiled step goes, and what in it is a mistake."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.units import format_bytes, format_seconds
from shardwise.verbs.answer import LooseAnswer, Page, Row, TextTable
from shardwise.verbs.layout import wrapped
from shardwise.verbs.programs import ProgramRequest
from shardwise.verbs.request import verb
from shardwise.workflows.compile import PlanProgram, shortfall
from shardwise.workflows.explain import OpGraph, explain_result, explained
from shardwise.workflows.inputs import Hardware

SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest(ProgramRequest):
    """Say where the time of a compiled step goes and what in it is a mistake.

    Seconds by component, source line and named scope, what bounds each, the arguments' layouts in
    our notation, and findings with their cost and a remedy. `phase` picks a program of a serving
    plan, "decode" if not given. The other keywords are those of ProgramRequest.
    """

    phase: str | None = None

    def answer(self, watch: Any = None) -> "ProgramExplained":
        """Compile and explain; `watch` hears what the compiling process is at."""
        made = self.programs((self.phase,) if self.phase else (), watch)
        program = made.programs[0]
        compiled = program.compiled
        piece = Hardware(files=self.hw_files).slice(compiled.slice).slice
        explanation = explained(program, piece)
        found = explain_result(explanation)
        unfit = "the program does not fit; times are of what would run"
        return ProgramExplained(
            program=program,
            graph=explanation.graph,
            misses=[] if compiled.fits else [shortfall(program, made.plan)],
            result={"phase": program.phase, "slice": compiled.slice, **found},
            warnings=[*made.warnings, *([] if compiled.fits else [unfit])],
            provenance={"versions": dict(compiled.versions)},
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ProgramExplained(LooseAnswer):
    """One program, explained, its dearest ops as a `graph`; `misses` says why it does not fit."""

    program: PlanProgram
    graph: OpGraph
    misses: Sequence[str]

    def table(self) -> list[Row]:
        """Seconds by source line."""
        return self.result["lines"]

    def page(self) -> Page:
        """Findings, and seconds by source line."""
        return _explained_page(self.result)

    def sections(self) -> Mapping[str, Page]:
        """Seconds by named scope, and how the arguments lie."""
        return {"detail": _explained_detail(self.result)}


explain = verb("explain", ExplainRequest)


def _explained_page(r: Mapping[str, Any]) -> Page:
    step = r["step_seconds"]
    yield wrapped(
        f"{r['phase']} on {r['slice']}, compiled: {format_seconds(step['expected'])} per step "
        f"({format_seconds(step['lower'])} at least, {format_seconds(step['upper'])} at most), "
        f"matrix units at their peak for {100 * r['hfu']:.1f} % of it, "
        f"{format_seconds(r['exposed_communication'])} of it waiting for networks",
        0,
        2,
    )
    yield ""
    yield from _findings(r)
    yield from _unexplained(r["unexplained"])
    yield ""
    yield _seconds(r, "by component", "components")
    yield ""
    yield _seconds(r, "by source line", "lines")


def _unexplained(u: Mapping[str, Any] | None) -> Page:
    """Seconds that neither the ops' work nor a finding explains."""
    if u is None:
        return
    yield wrapped(
        f"unexplained, {format_seconds(u['seconds'])} per step ({100 * u['share']:.0f} %): more "
        "than its products, bytes and waits need, and no finding tells why; most of it, "
        f"{format_seconds(u['most'])}, where '{u['name']}' takes {format_seconds(u['takes'])} and "
        f"needs {format_seconds(u['needs'])}",
        0,
        2,
    )
    yield f"  at {_short(u['where'])}"


def _findings(r: Mapping[str, Any]) -> Page:
    """Each mistake with its cost and remedy."""
    for f in r["findings"]:
        yield wrapped(f"{f['rule']}, {format_seconds(f['seconds'])} per step: {f['what']}", 0, 2)
        yield f"  at {_short(f['where'])}"
        yield wrapped(f["remedy"], 2)
    if not r["findings"]:
        yield "No findings: no mistake that is looked for costs 1 % of the step."
        if wait := r["longest_wait"]:
            yield wrapped(
                f"It waits {format_seconds(wait['exposed'])} at {_short(wait['where'])}, bound by "
                f"{wait['bound_by']}: what these layouts cost; a larger batch or another mesh may "
                "wait less."
            )


def _explained_detail(r: Mapping[str, Any]) -> Page:
    yield _seconds(r, "by scope", "scopes")
    yield ""
    yield TextTable(
        ["argument", "layout", "per device"],
        [
            [_short(a["name"]), f"{a['layout']} {a['dtype']}", format_bytes(a["bytes"])]
            for a in r["arguments"][:SHOWN]
        ],
        left=2,
    )


def _seconds(r: Mapping[str, Any], title: str, key: str) -> TextTable:
    return TextTable(
        [title, "time", "of step", "waits", "bound by"],
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


def _short(where: str) -> str:
    return where if len(where) <= 60 else "..." + where[-57:]
