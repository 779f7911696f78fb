"""`compare`: a plan, its compiled program and a capture of it, part by part."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest
from shardwise.units import format_bytes, format_count, format_gib, format_seconds
from shardwise.verbs.answer import LooseAnswer, Page, Row, TextTable
from shardwise.verbs.layout import wrapped
from shardwise.verbs.programs import ProgramRequest, is_function
from shardwise.verbs.request import verb
from shardwise.verbs.train_page import where_table
from shardwise.workflows.compare import Compared, compare_program, compared_result, read_trace
from shardwise.workflows.compile import shortfall
from shardwise.workflows.inputs import words

PARTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "step": ("step time", format_seconds),
    "seconds": ("seconds by op class, one after the other", format_seconds),
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
    """Hold a plan beside its programs, as compiled for a slice that is not here.

    `phase` is one of "train", "decode" and "prefill", all where not given; `capture` one of
    that program, whose measured seconds stand beside both. The other keywords are those of
    ProgramRequest.
    """

    phase: str | None = None
    capture: str | Path | None = None

    def answer(self, watch: Any = None) -> "ProgramsCompared":
        """Compile and compare; `watch` hears what the compiling process is at."""
        if is_function(self.what):
            name = f"'{self.what}' is a function, of which nothing is planned"
            raise BadRequest(f"{name}; name a plan's file")
        captured = None if self.capture is None else read_trace(Path(self.capture))
        done = self.planned(words(self.phase or ()), watch)
        if self.capture is not None and len(done.programs) > 1:
            raise BadRequest("--capture is a capture of one program; say which with --phase")
        compared = tuple(compare_program(done.priced, p, captured) for p in done.programs)
        lacking = [p for p in done.programs if not p.compiled.fits]
        return ProgramsCompared(
            compared=compared,
            misses=[shortfall(program, done.priced.plan) for program in lacking],
            result={"programs": [compared_result(one) for one in compared]},
            warnings=[*done.notes, *done.priced.warnings],
            provenance={"versions": dict(next(iter(done.programs)).compiled.versions)},
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ProgramsCompared(LooseAnswer):
    """Each program of a plan beside the plan; `misses` says why programs do not fit."""

    compared: tuple[Compared, ...]
    misses: Sequence[str]

    def table(self) -> list[Row]:
        """One row per figure."""
        return [
            {"phase": result["phase"], "part": part, **row}
            for result in self.result["programs"]
            for part in PARTS
            for row in result.get(part, [])
        ]

    def page(self) -> Page:
        """Of each program its step and memory beside the plan's, and in sentences what differs."""
        for result in self.result["programs"]:
            yield from _compared_page(result)

    def sections(self) -> Mapping[str, Page]:
        """Each part as a table."""
        return {"detail": chain(*map(_parts_page, self.result["programs"]))}


compare = verb("compare", CompareRequest)


def _compared_page(result: Mapping[str, Any]) -> Page:
    fits = "fits" if result["fits"] else "does not fit"
    yield f"{result['phase']} on {result['slice']}: {fits}"
    yield where_table(result["where_it_goes"], "where the planned step goes")
    for part in _FIRST:
        if rows := result.get(part, []):
            yield _table(PARTS[part][0], rows, PARTS[part][1], ruled=False)
    if not result["differences"]:
        yield "Nothing differs by more than 2 %."
    for sentence in result["differences"]:
        yield wrapped(f"- {sentence}", 2, 4)


_FIRST = ("step", "memory")
"""Parts that a page has; --detail has them all."""


def _parts_page(result: Mapping[str, Any]) -> Page:
    yield f"{result['phase']} on {result['slice']}"
    for part, (title, text) in PARTS.items():
        if part not in _FIRST and (rows := _worth(part, result.get(part, []))):
            yield ""
            yield _table(title, rows, text)


def _worth(part: str, rows: Sequence[Row]) -> Sequence[Row]:
    """The rows that are shown; of those by key, the large ones."""
    sizes = [max(row["predicted"] or 0.0, row["compiled"] or 0.0) for row in rows]
    least = LEAST * max(sizes, default=0.0) if part.endswith("_by_key") else 0.0
    return [row for row, size in zip(rows, sizes, strict=True) if size >= least]


def _table(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    text: Callable[[float], str],
    ruled: bool = True,
) -> TextTable:
    sides = ["predicted", "compiled", *(["measured"] if any("measured" in r for r in rows) else [])]
    cells = [
        [row["what"], *(_figure(row.get(side), text) for side in sides), _part(row)] for row in rows
    ]
    return TextTable([title, *sides, "compiled/predicted"], cells, ruled=ruled)


def _figure(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def _part(row: Mapping[str, Any]) -> str:
    one, other = row["predicted"], row["compiled"]
    return f"{100 * (other / one - 1):+.1f} %" if one and other else ""
