"""The best plans of a search, compiled: what the compiler makes of each, beside its price.

A search prices what a step needs; the compiler may copy, keep or send more, and its schedule shows
it. So the first plans of a search are compiled, several at a time as memory allows, each plan that
does not fit is followed by the next, and the best of those that fit is the one whose schedule takes
the least time.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from shardwise.boundary.at_once import at_once, places_for
from shardwise.errors import MissingPart, NoFeasiblePlan, ShardwiseError
from shardwise.planner.search.loop import rank_of
from shardwise.planner.training import TrainAnswer, TrainPlanning
from shardwise.plans.train import mesh_text
from shardwise.units import format_seconds, sig
from shardwise.verbs.answer import Page, TextTable
from shardwise.verbs.candidate import CompiledCandidate
from shardwise.verbs.layout import Fact, wrapped
from shardwise.verbs.request import Watch
from shardwise.verbs.tune import Tuning, check_tunable, tuned
from shardwise.workflows.compile import PlanProgram, compile_plan, limits_of, need_parts
from shardwise.workflows.explain import explained
from shardwise.workflows.inputs import Hardware

MOST = 16
"""Plans that may be asked for; each takes a minute or more of a core."""
TRIED = 3
"""Plans that are looked at for each one asked for, where others do not fit."""
PROCESS_BYTES = 5 * 2**30
"""Memory that one compile is given room for: an 8B took 1.6 GiB, a 70B on 4,096 chips 4.4
(docs/log.md)."""
MEMORY_BYTES = 12 * 2**30
"""The most that one may take, as of `shardwise compile`."""
SHOWN = 3
"""Findings of a page."""
CACHE_BYTES = 2 * 2**30
"""Kept of compiled programs, as `shardwise compile` does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondOpinion:
    """The plans that were compiled, in the order of their price; `best` is the best as compiled."""

    candidates: tuple[CompiledCandidate, ...]
    best: CompiledCandidate
    tuning: Tuning | None = None

    def reranked(self, planning: TrainPlanning) -> TrainPlanning:
        """The search with the best as compiled as its best plan."""
        best = self.best.answer
        others = (a for a in (planning.best, *planning.runners_up) if a is not best)
        return replace(planning, best=best, runners_up=tuple(others))

    def result(self) -> dict[str, Any]:
        """Plain values; seconds are per step, bytes per device."""
        program = self.best.program
        assert program is not None
        return {
            "versions": dict(program.compiled.versions),
            "options": dict(program.compiled.options),
            "plans": [_row(c, c is self.best) for c in self.candidates],
            "findings": [asdict(f) for f in self.findings],
            **({} if self.tuning is None else {"tuning": self.tuning.result()}),
        }

    def facts(self) -> list[Fact]:
        """What the compiler makes of the best plan."""
        best = self.best
        assert best.program is not None
        assert best.seconds is not None
        more = best.seconds / best.answer.step_seconds["expected"] - 1
        said = f"{format_seconds(best.seconds)} ({100 * more:+.0f} % beside predicted)"
        size = _gib(best.program.compiled.needed_bytes)
        return [Fact("compiled", f"{said}, {_compiler(best.program)}; memory {size}")]

    def page(self) -> Page:
        """Each plan that was compiled, and what costs the best one most that it need not."""
        yield ""
        yield TextTable(
            ["as compiled", "microbatches", "remat", "predicted", "step", "predicted", "memory"],
            [_shown(c, c is self.best) for c in self.candidates],
            spare=("microbatches", "remat"),
            ruled=False,
        )
        for f in self.findings[:SHOWN]:
            yield wrapped(f"{f.rule}, {format_seconds(f.seconds)} of the step: {f.what}", 2, 4)
        for c in self.candidates:
            if c.refusal:
                yield wrapped(f"{mesh_text(c.answer.plan.mesh)}: {c.refusal}", 2, 4)
        if self.tuning is not None:
            yield from self.tuning.page()

    @property
    def findings(self) -> Sequence[Any]:
        """Mistakes in the best step, the dearest first (`shardwise explain`)."""
        assert self.best.program is not None
        return explained(self.best.program, self.best.answer.piece).findings


def second_opinion(
    planning: TrainPlanning,
    count: int,
    hardware: Hardware,
    *,
    seconds: float,
    options: Mapping[str, Any],
    watch: Watch | None = None,
    tune: bool = False,
) -> SecondOpinion:
    """Compile the first plans of a search until `count` of them fit, each within `seconds`; with
    `tune` the best of them with each set of flags for its chip, too.

    Raises MissingPart without the compiler, ShardwiseError where no plan could be compiled, and
    NoFeasiblePlan where none fits as compiled.
    """
    if tune:
        check_tunable(planning.best.piece.chip)
    need_parts()
    answers = deque([planning.best, *planning.runners_up])

    def compiled(answer: TrainAnswer) -> CompiledCandidate:
        return _compiled(answer, hardware, seconds, options, watch)

    found: list[CompiledCandidate] = []
    while answers and (missing := count - sum(c.fits for c in found)) > 0:
        wave = [answers.popleft() for _ in range(min(missing, len(answers)))]
        found += at_once(compiled, wave, places_for(PROCESS_BYTES))
    ranked = [
        (float(rank_of(planning.request, c.answer.chips_used, c.seconds)), i)
        for i, c in enumerate(found)
        if c.fits and c.seconds is not None
    ]
    if not ranked:
        raise _nothing(found)
    _, best = min(ranked)
    answer, tuning = found[best].answer, None
    if tune:
        tuning = tuned(
            found[best],
            answer.piece.chip,
            lambda flags: _compiled(answer, hardware, seconds, {**options, **flags}, watch),
            PROCESS_BYTES,
        )
    return SecondOpinion(candidates=tuple(found), best=found[best], tuning=tuning)


def _compiled(
    answer: TrainAnswer,
    hardware: Hardware,
    seconds: float,
    options: Mapping[str, Any],
    watch: Watch | None,
) -> CompiledCandidate:
    """One plan's step; what the compiler does not take is a candidate without a program."""
    name = mesh_text(answer.plan.mesh)
    limits = limits_of(seconds=seconds, memory_bytes=MEMORY_BYTES, cache_bytes=CACHE_BYTES)

    def told(stage: str, past: float) -> None:
        if watch is not None:
            watch(f"{name}: {stage}", past)

    try:
        made = compile_plan(answer.plan, hardware, options=options, limits=limits, watch=told)
    except MissingPart:
        raise
    except ShardwiseError as error:
        return CompiledCandidate(answer=answer, failure=str(error))
    (program,) = made.programs
    return CompiledCandidate(answer=answer, program=program)


def _nothing(found: Sequence[CompiledCandidate]) -> ShardwiseError:
    """The error of an opinion without an answer."""
    if all(c.program is None for c in found):
        return ShardwiseError(f"no plan could be compiled: {found[0].failure}")
    said = "; ".join(f"{mesh_text(c.answer.plan.mesh)} {c.refusal}" for c in found)
    return NoFeasiblePlan(
        f"of the first {len(found)} plans none fits as compiled ({said}); leave room with --max-hbm"
    )


def _row(candidate: CompiledCandidate, best: bool) -> dict[str, Any]:
    answer, program = candidate.answer, candidate.program
    return {
        "mesh": dict(answer.plan.mesh),
        "microbatches": answer.plan.microbatches,
        "remat": answer.plan.remat,
        "best": best,
        "fits": candidate.fits,
        "refusal": candidate.refusal,
        "step_seconds": {
            "predicted": answer.step_seconds["expected"],
            "compiled": candidate.seconds,
        },
        "peak_bytes": {
            "predicted": _predicted_bytes(answer),
            "compiled": None if program is None else program.compiled.needed_bytes,
        },
        "cached": program is not None and program.compiled.cached,
    }


def _shown(candidate: CompiledCandidate, best: bool) -> list[str]:
    """A row of the page."""
    answer, program = candidate.answer, candidate.program
    held = "-" if program is None else "does not fit"
    if program is not None and program.compiled.fits:
        held = _gib(program.compiled.needed_bytes)
    return [
        mesh_text(answer.plan.mesh) + (" (best)" if best else ""),
        str(answer.plan.microbatches),
        answer.plan.remat,
        format_seconds(answer.step_seconds["expected"]),
        "-" if candidate.seconds is None else format_seconds(candidate.seconds),
        _gib(_predicted_bytes(answer)),
        held,
    ]


def _predicted_bytes(answer: TrainAnswer) -> float:
    """Of a device, at the peak."""
    return sum(map(float, answer.memory.peak_point()[1].values()))


def _gib(size: float) -> str:
    return f"{sig(size / 2**30)} GiB"


def _compiler(program: PlanProgram) -> str:
    """Its name and version."""
    versions = program.compiled.versions
    name = next((n for n in versions if n in ("libtpu", "jax-cuda12-plugin")), "jax")
    return f"{name} {versions.get(name, '')}".strip()
