"""The best plans of a search, compiled: what the compiler makes of each, beside its price.

A search prices what a step needs; the compiler may copy, keep or send more, and its schedule shows
it. So the first plans of a search are compiled, several at a time as memory allows, each plan that
does not fit is followed by the next, and the best of those that fit is the one whose schedule takes
the least time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwise.commands.base.answer import Page, TextTable
from shardwise.commands.base.layout import Fact
from shardwise.commands.program.candidate import (
    PROCESS_BYTES,
    CompiledCandidate,
    Compiling,
    beside,
    compiler_of,
    nothing,
    opinion_page,
    size_cell,
)
from shardwise.commands.program.tune import Tuning, check_tunable, tuned
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.search.loop import rank_of
from shardwise.planner.training import TrainPlanning
from shardwise.plans.train import mesh_text
from shardwise.results.compiled import BothWays, CompiledPlans, PhaseFinding, PlanAsCompiled
from shardwise.roofline.finding import Finding
from shardwise.units import format_seconds, gib

Candidate = CompiledCandidate[TrainAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondOpinion:
    """The plans that were compiled, in the order of their price; `best` is the best as compiled,
    `findings` the mistakes in its step, the dearest first (`shardwise explain`)."""

    candidates: tuple[Candidate, ...]
    best: Candidate
    findings: Sequence[PhaseFinding]
    tuning: Tuning | None = None

    def reranked(self, planning: TrainPlanning) -> TrainPlanning:
        """The search with the best as compiled as its best plan."""
        best = self.best.answer
        others = tuple(a for a in _compiled_first(planning) if a is not best)
        return replace(planning, best=best, fastest=best, runners_up=others, others=others)

    def result(self) -> CompiledPlans:
        """As a document has it."""
        program = self.best.program
        assert program is not None
        return CompiledPlans(
            versions=program.compiled.versions,
            options=program.compiled.options,
            plans=[_row(c, c is self.best) for c in self.candidates],
            findings=[Finding.part_of(f) for f in self.findings],
            tuning=self.tuning and self.tuning.result(),
        )

    def facts(self) -> list[Fact]:
        """What the compiler makes of the best plan."""
        best = self.best
        assert best.program is not None
        assert best.seconds is not None
        said = beside(best.seconds, best.answer.step_seconds.expected)
        size = gib(best.program.compiled.needed_bytes)
        facts = [
            Fact("compiled", f"{said}, {compiler_of(best.program)}; memory {size}{_waits(best)}")
        ]
        tuned = self.tuning and self.tuning.best
        if tuned and tuned.step.seconds:
            facts.append(
                Fact("tuned", f"{format_seconds(tuned.step.seconds)} with '{tuned.name}', below")
            )
        return facts

    def page(self) -> Page:
        """The flags that were tried, each plan that was compiled, and what costs the best one most
        that it need not."""
        if self.tuning is not None:
            yield from self.tuning.page()
        yield ""
        yield TextTable(
            ["as compiled", "microbatches", "remat", "predicted", "step", "predicted", "memory"],
            [_shown(c, c is self.best) for c in self.candidates],
            spare=("microbatches", "remat"),
            ruled=False,
        )
        yield from opinion_page(self.findings, self.candidates)


def second_opinion(
    planning: TrainPlanning, compiling: Compiling, *, tune: bool = False
) -> SecondOpinion:
    """Compile the first plans of a search until as many fit as were asked for; with `tune` the
    best of them with each set of flags for its chip, too.

    Raises MissingPart without the compiler, ShardwiseError where no plan could be compiled, and
    NoFeasiblePlan where none fits as compiled.
    """
    if tune:
        check_tunable(planning.best.piece.chip)

    def compiled(answer: TrainAnswer) -> Candidate:
        return _compiled(answer, compiling)

    found = compiling.until_enough(_compiled_first(planning), compiled)
    ranked = [
        (float(rank_of(planning.request, c.answer.chips_used, c.seconds)), i)
        for i, c in enumerate(found)
        if c.fits and c.seconds is not None
    ]
    if not ranked:
        raise nothing(found)
    _, best = min(ranked)
    answer, tuning = found[best].answer, None
    if tune:

        def with_flags(flags: Mapping[str, object]) -> Candidate:
            return _compiled(answer, replace(compiling, options={**compiling.options, **flags}))

        tuning = tuned(found[best], answer.piece.chip, with_flags, PROCESS_BYTES)
    return SecondOpinion(
        candidates=tuple(found),
        best=found[best],
        findings=found[best].findings(answer.piece),
        tuning=tuning,
    )


def _compiled_first(planning: TrainPlanning) -> tuple[TrainAnswer, ...]:
    """The plans to compile: the best, the fastest where that is another, and the next ones."""
    first = planning.best, planning.fastest
    return tuple({id(a): a for a in (*first, *planning.runners_up)}.values())


def _compiled(answer: TrainAnswer, compiling: Compiling) -> Candidate:
    return compiling.candidate(answer, answer.plan, [(answer.plan, "train")])


def _row(candidate: Candidate, best: bool) -> PlanAsCompiled:
    answer, program = candidate.answer, candidate.program
    return PlanAsCompiled(
        mesh=answer.plan.mesh,
        microbatches=answer.plan.microbatches,
        remat=answer.plan.remat,
        best=best,
        fits=candidate.fits,
        refusal=candidate.refusal,
        step_seconds=BothWays(predicted=answer.step_seconds.expected, compiled=candidate.seconds),
        peak_bytes=BothWays(predicted=_predicted_bytes(answer), compiled=candidate.needed_bytes),
        cached=program is not None and program.compiled.cached,
    )


def _shown(candidate: Candidate, best: bool) -> list[str]:
    answer, program = candidate.answer, candidate.program
    size = "-"
    if program is not None:
        size = size_cell(program.compiled.needed_bytes, program.compiled.fits)
    return [
        mesh_text(answer.plan.mesh) + (" (best)" if best else ""),
        str(answer.plan.microbatches),
        answer.plan.remat,
        format_seconds(answer.step_seconds.expected),
        "-" if candidate.seconds is None else format_seconds(candidate.seconds),
        gib(_predicted_bytes(answer)),
        size,
    ]


def _waits(candidate: Candidate) -> str:
    """What its step waits for networks, compiled and predicted; "" where neither is much."""
    assert candidate.program is not None
    assert candidate.program.timeline is not None
    exposed = candidate.program.timeline.exposed
    made = sum(seconds for name, seconds in exposed.items() if name.startswith("net:"))
    said = sum(candidate.answer.time_parts.waiting.values())
    if max(made, said) < WAITS * candidate.program.timeline.expected:
        return ""
    return f"; waits {format_seconds(made)} for networks ({format_seconds(said)} predicted)"


WAITS = 0.02
"""Share of a step from which on waiting is worth a word."""


def _predicted_bytes(answer: TrainAnswer) -> float:
    """Of a device, at the peak."""
    return sum(map(float, answer.memory.peak_point()[1].values()))
