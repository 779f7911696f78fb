"""`compile`: a plan, or any JAX function, by the real compiler for a slice elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any

from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.train import mesh_text
from shardwise.units import format_bytes, format_count, format_gib, format_seconds, many
from shardwise.verbs.answer import LooseAnswer, Page, Row, TextTable
from shardwise.verbs.programs import ProgramRequest, Programs
from shardwise.verbs.request import verb
from shardwise.verbs.stages_page import passes_page, stages_page
from shardwise.workflows.compile import PlanProgram, program_result
from shardwise.workflows.compile_report import Followed, follow
from shardwise.workflows.inputs import Words, words


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest(ProgramRequest):
    """Compile for a slice that is not here, by the real compiler; no accelerator is needed.

    `phases` are those of a serving plan, "decode" and "prefill"; all where none is given. `stages`
    follows one op from JAX to the schedule: "dearest", a rank, a line ("mine.py:11"), a scope, an
    instruction or what JAX calls it; the program is then compiled anew. The other keywords are
    those of ProgramRequest.
    """

    phases: Words = ()
    stages: str | int | None = None

    def answer(self, watch: Any = None) -> "CompiledPrograms":
        """Compile; `watch` hears what the compiling process is at, and for how long."""
        if self.stages is None:
            return self._answer(self.programs(words(self.phases), watch))
        with TemporaryDirectory(prefix="shardwise-stages-") as folder:
            made = self.programs(words(self.phases), watch, Path(folder))
            followed = tuple(follow(made.programs, Path(folder), str(self.stages)))
        return self._answer(made, followed)

    def _answer(self, made: Programs, followed: Sequence[Followed] = ()) -> "CompiledPrograms":
        results = [program_result(program, made.plan) for program in made.programs]
        for one, result in zip(followed, results, strict=False):
            result["stages"] = one.stages.result()
        return CompiledPrograms(
            followed=tuple(followed),
            programs=made.programs,
            plan=made.plan,
            result={"programs": results},
            warnings=[*made.warnings, *(_uncounted(r) for r in results if r["unknown_ops"])],
            provenance={"versions": results[0]["versions"]},
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class CompiledPrograms(LooseAnswer):
    """Programs, each with what was predicted beside what the compiler made."""

    programs: tuple[PlanProgram, ...]
    followed: tuple[Followed, ...] = ()
    plan: TrainPlan | ServePlan | None

    @property
    def misses(self) -> list[str]:
        """Why programs do not fit."""
        return [r["shortfall"] for r in self.result["programs"] if not r["fits"]]

    def table(self) -> list[Row]:
        """Of each program its figures, predicted and compiled."""
        return [
            {"phase": r["phase"], "figure": name, **{side: r[name][side] for side in _SIDES}}
            for r in self.result["programs"]
            for name in ("peak_bytes", "flops")
        ]

    def page(self) -> Page:
        """One table per program, or one op of each at every stage."""
        for one in self.followed:
            yield from stages_page(one.stages)
        for i, result in enumerate(() if self.followed else self.result["programs"]):
            if i:
                yield ""
            yield from _program_page(result)

    def sections(self) -> Mapping[str, Page]:
        """All collectives, and all that lies in memory; of an op all that passes changed."""
        rows = self.result["programs"]
        figures = map(_program_page, rows if self.followed else ())
        passes = (passes_page(one.stages) for one in self.followed)
        return {"detail": chain(*passes, *figures, *map(_program_detail, rows))}


_SIDES = ("predicted", "compiled")
compile = verb("compile", CompileRequest)


def _program_page(r: Mapping[str, Any]) -> Page:
    mesh = mesh_text({axis: n for axis, n in r["mesh"].items() if n > 1})
    of = f" of {_load(r)}" if r["sequences"] else ""
    yield f"{r['phase']}{of} on {r['slice']}, {mesh}: {'fits' if r['fits'] else 'does not fit'}"
    seconds, peak = r["seconds"], r["process_peak_bytes"]
    took = f"compiled in {format_seconds(seconds['compile'])}, process {format_gib(peak)}"
    yield f"  {'from the cache; ' if r['cached'] else ''}{took}"
    for note in r["notes"]:
        yield from wrap(note, 100, initial_indent="  ", subsequent_indent="    ")
    yield _figures(r, MOST_NAMED)
    apart = [item for item in _memory(r).items() if item[0] not in SHARED]
    if most := apart[:MOST_NAMED]:
        yield f"  most of it: {', '.join(f'{name} {format_bytes(size)}' for name, size in most)}"


MOST_NAMED = 3
"""Collectives, and what lies in memory, on the first page."""
SHARED = ("outputs", "aliased")
"""What is, or may be, the same memory as arguments."""


def _figures(r: Mapping[str, Any], most: int) -> TextTable:
    """Memory, FLOPs, time and the collectives that move most."""
    said = [r[name]["predicted"] is not None for name in ("peak_bytes", "flops")]
    rows = [
        ["peak memory", *_two(r["peak_bytes"], format_gib)],
        ["usable", "", format_gib(r["usable_bytes"]), ""],
        ["FLOPs per step", *_two(r["flops"], format_count)],
    ]
    moved = sorted(r["collectives"], key=_bytes, reverse=True)
    for row in moved[:most]:
        both = {side: row[side] and row[side]["bytes"] for side in ("predicted", "compiled")}
        times = [f"{row[s]['count']:g}" if row[s] else "-" for s in ("predicted", "compiled")]
        name = f"{row['kind']} over {'+'.join(row['axes']) or '?'} ({' / '.join(times)} times)"
        rows.append([name, *_two(both, format_bytes)])
    times = {side: r["step_seconds"][side] for side in ("predicted", "compiled")}
    if left := len(moved[most:]):
        rows.append([f"{many(left, 'collective')} more: --detail", "", "", ""])
    if times["compiled"]:
        both = {side: bounds and bounds["expected"] for side, bounds in times.items()}
        rows.insert(3, ["step time, expected", *_two(both, format_seconds)])
    header = ["per device", "predicted", "compiled", "difference"]
    if not any(said):
        header, rows = ["per device", "compiled"], [[row[0], row[2]] for row in rows]
    return TextTable(header, rows)


def _load(r: Mapping[str, Any]) -> str:
    """What one step of a server works on."""
    if r["phase"] == "decode":
        return many(r["sequences"], "sequence")
    return f"{r['tokens']:,} tokens of a prompt"


def _memory(r: Mapping[str, Any]) -> Mapping[str, int]:
    """Arguments and what the program needs besides, the largest first."""
    kinds = r["memory_by_kind"]
    if not kinds["compiled"]:
        return {}
    found = {**kinds["arguments"], **_parts(kinds["compiled"])}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _bytes(row: Mapping[str, Any]) -> float:
    return max((row[side] or {"bytes": 0})["bytes"] for side in _SIDES)


def _program_detail(r: Mapping[str, Any]) -> Page:
    yield r["phase"]
    if len(r["collectives"]) > MOST_NAMED:
        yield _figures(r, len(r["collectives"]))
    if found := _memory(r):
        yield TextTable(["memory as compiled", "bytes"], _to_the_peak(r, found))
    yield ""


def _to_the_peak(r: Mapping[str, Any], found: Mapping[str, int]) -> list[list[str]]:
    """What lies in memory, added up to the peak: outputs that are arguments, too, count once."""
    kinds = r["memory_by_kind"]["compiled"]
    rows = {name: size for name, size in found.items() if name not in (*SHARED, "host")}
    if own := kinds.get("outputs", 0) - kinds.get("aliased", 0):
        rows["outputs that are no arguments"] = own
    peak = r["peak_bytes"]["compiled"]
    if left := peak - sum(rows.values()):
        rows["padding and the program" if left > 0 else "not alive at the peak"] = left
    text = [[n, f"-{format_bytes(-s)}" if s < 0 else format_bytes(s)] for n, s in rows.items()]
    return [*text, ["peak", format_bytes(peak)]]


def _uncounted(r: Mapping[str, Any]) -> str:
    """The warning that a program has ops which the compiled text says nothing of."""
    names = r["unknown_ops"]
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (
        f"{r['phase']}: {many(len(names), 'op')} without FLOPs or bytes in the compiled text, such "
        f"as kernels of Pallas, are not in its figures: {some}"
    )


def _parts(memory: Mapping[str, int]) -> dict[str, int]:
    return {k: v for k, v in memory.items() if v and k not in ("arguments", "peak")}


def _two(pair: Mapping[str, Any], text: Any) -> list[str]:
    one, other = pair["predicted"], pair["compiled"]
    if one is None:
        return ["-", text(other), ""]
    part = f"{100 * (other / one - 1):+.1f} %" if one and other else ""
    return [text(one), text(other), part]
