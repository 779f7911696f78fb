"""The best servers of a search, compiled: their decode and prefill steps, and what they hold then.

Each plan's fleet is simulated with its steps as long as the compiler's schedule has them
(`ScaledCost`), so the order of plans, and the load and times of the answer, are those of compiled
steps; `plan show` of its file prices the same load. What is compiled is a decode step of the
sequences that run at the mean, and a prefill step of a prompt of at most one chunk, each on the
servers that do it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.commands.base.answer import Page, TextTable
from shardwise.commands.base.layout import Fact
from shardwise.commands.program.candidate import (
    CompiledCandidate,
    Compiling,
    beside,
    compiler_of,
    gib,
    nothing,
    opinion_page,
    size_cell,
)
from shardwise.commands.program.compiling import PlanProgram, chunk_of
from shardwise.errors import NoFeasiblePlan, ShardwiseError
from shardwise.planner.serve.fleet import Fleet
from shardwise.planner.serve.served import Served, Serving, confirmed, contender, contenders
from shardwise.planner.simulate.demand import Demand
from shardwise.plans import ServePlan
from shardwise.plans.train import mesh_text
from shardwise.results.compiled import BothWays, CompiledServer, CompiledServers, PhaseFinding
from shardwise.units import format_seconds, many, sig

Candidate = CompiledCandidate[Fleet]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCandidate:
    """A compiled fleet: `near` is the rate that short runs of its priced steps say it holds, None
    where they hold none; `held` what it holds with compiled ones, None where that is nothing."""

    compiled: Candidate
    near: float | None
    held: Served | None

    @property
    def fleet(self) -> Fleet:
        """The servers."""
        return self.compiled.answer

    @property
    def refusal(self) -> str:
        """Why it is no answer; "" where it is one."""
        if self.compiled.refusal:
            return self.compiled.refusal
        return "" if self.held else "keeps the targets at no rate once compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedOpinion:
    """The plans that were compiled, in the order of their price; `best` is the cheapest as
    compiled, `served` its plan with what it holds then, `findings` the mistakes in its steps
    (`shardwise explain`)."""

    candidates: tuple[HeldCandidate, ...]
    best: HeldCandidate
    served: Served
    findings: Sequence[PhaseFinding]

    def reranked(self, serving: Serving) -> Serving:
        """The search with the cheapest as compiled as its answer."""
        return replace(serving, fleet=self.best.fleet, served=self.served)

    def result(self) -> CompiledServers:
        """As a document has it."""
        program = self.best.compiled.programs[0]
        return CompiledServers(
            versions=program.compiled.versions,
            options=program.compiled.options,
            plans=[_row(c, c is self.best) for c in self.candidates],
            findings=self.findings,
        )

    def facts(self) -> list[Fact]:
        """What the compiler makes of the best plan's steps."""
        steps = [
            f"{p.phase} {beside(found[1], found[0])}"
            for p in self.best.compiled.programs
            if (found := _seconds(p))
        ]
        made = compiler_of(self.best.compiled.programs[0])
        return [Fact("compiled", f"{', '.join(steps)}, {made}; the load and times are theirs")]

    def page(self) -> Page:
        """Each plan that was compiled, and what costs the best one most that it need not."""
        yield ""
        yield TextTable(
            ["compiled (predicted)", "decode step", "prefill step", "memory", "req/s"],
            [_shown(c, c is self.best) for c in self.candidates],
            ruled=False,
        )
        yield from opinion_page(self.findings, [c.compiled for c in self.candidates])


def served_opinion(
    serving: Serving, demand: Demand, trace: str | None, compiling: Compiling
) -> ServedOpinion:
    """Compile the first fleets of a search until as many fit as were asked for, and simulate each
    with its compiled steps.

    Raises MissingPart without the compiler, ShardwiseError where no plan could be compiled, and
    NoFeasiblePlan where none fits, or keeps the targets, as compiled.
    """
    compiled = compiling.until_enough(_first(serving), lambda fleet: _compiled(fleet, compiling))
    found = [_held(serving, c, demand, trace) for c in compiled]
    good = [(c.held.chips / c.held.rate, i) for i, c in enumerate(found) if c.held]
    if not good:
        raise _none(compiled)
    best = found[min(good)[1]]
    assert best.held is not None
    return ServedOpinion(
        candidates=tuple(found),
        best=best,
        served=best.held,
        findings=best.compiled.findings(best.fleet.piece),
    )


def _first(serving: Serving) -> Iterator[Fleet]:
    """The fleets of a search, the simulated answer first, then as they are ranked."""
    yield serving.fleet
    for fleet in contenders(serving.searched):
        if str(fleet) != str(serving.fleet):
            yield fleet


def _compiled(fleet: Fleet, compiling: Compiling) -> Candidate:
    """A fleet's steps, on the servers that do each."""
    whole = fleet.plan()
    alone = {"prefill_replicas": 0, "prefill": None}
    plan = replace(whole, **alone, batch=max(1, min(round(fleet.running), whole.batch)))
    prompts = replace(whole.prefill_plan, **alone) if whole.prefill_replicas else plan
    parts = [(plan, "decode"), (chunk_of(prompts) or prompts, "prefill")]
    return compiling.candidate(fleet, plan, parts)


def _held(
    serving: Serving, compiled: Candidate, demand: Demand, trace: str | None
) -> HeldCandidate:
    """What a fleet holds: roughly with its priced steps, and simulated in full with compiled ones;
    a step without seconds is no answer."""
    near = contender(serving.request, compiled.answer, demand)
    found, held = [_seconds(p) for p in compiled.programs], None
    if compiled.fits and None not in found:
        decode, prefill = (made / said for said, made in filter(None, found))
        one = contender(serving.request, compiled.answer, demand, decode=decode, prefill=prefill)
        held = None if one is None else confirmed(one, demand, trace)
    return HeldCandidate(compiled=compiled, near=near and near.near, held=held)


def _seconds(program: PlanProgram) -> tuple[float, float] | None:
    """(predicted, compiled) of a step; None where the compiled one has no schedule."""
    line = program.timeline
    return None if line is None else (program.planned.seconds.expected, line.expected)


def _none(compiled: Sequence[Candidate]) -> ShardwiseError:
    """The error of an opinion of which no plan holds anything."""
    if not any(c.fits for c in compiled):
        return nothing(compiled)
    said = "; ".join(f"{c.answer} {c.refusal or _steps_text(c)}" for c in compiled)
    return NoFeasiblePlan(
        f"none of {many(len(compiled), 'plan')} keeps the targets once compiled ({said}); allow "
        "more time, or compile more of them with --compile"
    )


def _steps_text(candidate: Candidate) -> str:
    steps = [(p.phase, _seconds(p)) for p in candidate.programs]
    return ", ".join(f"{phase} {format_seconds(found[1])}" for phase, found in steps if found)


def _row(one: HeldCandidate, best: bool) -> CompiledServer:
    plan, programs, held = one.compiled.plan, one.compiled.programs, one.held
    assert isinstance(plan, ServePlan)
    ttft, tpot, _ = held.held.times if held else (None, None, None)
    return CompiledServer(
        slice=plan.slice,
        mesh=plan.mesh,
        servers=str(one.fleet),
        sequences=plan.batch,
        prompt_tokens=(chunk_of(plan) or plan).input_length,
        best=best,
        fits=one.compiled.fits,
        refusal=one.refusal,
        decode_step_seconds=_pair(one.compiled, "decode"),
        prefill_step_seconds=_pair(one.compiled, "prefill"),
        peak_bytes=BothWays(
            predicted=_predicted_bytes(one.compiled), compiled=one.compiled.needed_bytes
        ),
        requests_per_second=BothWays(predicted=one.near, compiled=held and held.rate),
        chips=held and held.chips,
        ttft_seconds=ttft,
        tpot_seconds=tpot,
        usd_per_million_tokens=held and held.usd_per_million["all"],
        cached=bool(programs) and all(p.compiled.cached for p in programs),
    )


def _pair(candidate: Candidate, phase: str) -> BothWays:
    found = next((_seconds(p) for p in candidate.programs if p.phase == phase), None)
    predicted, compiled = found or (None, None)
    return BothWays(predicted=predicted, compiled=compiled)


def _predicted_bytes(candidate: Candidate) -> float | None:
    """Of a device, of the compiled program that was to take most."""
    return max((p.planned.peak_bytes for p in candidate.programs), default=None)


def _shown(one: HeldCandidate, best: bool) -> list[str]:
    row = _row(one, best)

    def cell(both: BothWays, text: Callable[[float], str]) -> str:
        made, said = both.compiled, both.predicted
        return "-" if made is None or said is None else f"{text(made)} ({text(said)})"

    size = row.peak_bytes.compiled
    full = any(not program.compiled.fits for program in one.compiled.programs)
    return [
        f"{row.slice} ({mesh_text(row.mesh)})" + (" (best)" if best else ""),
        cell(row.decode_step_seconds, format_seconds),
        cell(row.prefill_step_seconds, format_seconds),
        size_cell(size or 0.0, fits=False) if full else cell(row.peak_bytes, gib),
        cell(row.requests_per_second, sig),
    ]
