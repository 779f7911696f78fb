"""Plans of a search and what the compiler makes of them: several at a time, until enough fit.

`plan train --compile N` and `plan serve --compile N` share this; what the best of the compiled
plans is each says for itself (`second_opinion.py`, `served_opinion.py`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from shardwise.boundary import number
from shardwise.boundary.at_once import at_once, places_for
from shardwise.commands.base.answer import Page
from shardwise.commands.base.inputs import Hardware, Words, compiler_options, whole_number
from shardwise.commands.base.layout import wrapped
from shardwise.commands.base.request import Watch
from shardwise.commands.program.compiling import PlanProgram, compile_plan, limits_of, need_parts
from shardwise.commands.program.explaining import explained
from shardwise.errors import MissingPart, NoFeasiblePlan, ShardwiseError
from shardwise.hardware import Slice
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.train import mesh_text
from shardwise.results.compiled import PhaseFinding
from shardwise.units import format_gib, format_seconds, gib

Planned = TypeVar("Planned")

MOST = 16
"""Plans that may be asked for; each takes a minute or more of a core."""
TRIED = 3
"""Plans that are looked at for each one asked for, where others do not fit."""
PROCESS_BYTES = 5 * 2**30
"""Memory that one compile is given room for: an 8B took 1.6 GiB, a 70B on 4,096 chips 4.4
(docs/lab/log.md)."""
MEMORY_BYTES = 12 * 2**30
"""The most that one may take, as of `shardwise compile`."""
CACHE_BYTES = 2 * 2**30
"""Kept of compiled programs, as `shardwise compile` does."""
SHOWN = 3
"""Findings of a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCandidate(Generic[Planned]):
    """A plan of a search, as its `answer` has it, and its compiled programs; `failure` says why one
    is missing."""

    answer: Planned
    plan: TrainPlan | ServePlan
    programs: Sequence[PlanProgram] = ()
    failure: str = ""

    @property
    def fits(self) -> bool:
        """Whether all of its programs compiled and fit."""
        return not self.refusal

    @property
    def program(self) -> PlanProgram | None:
        """The first: a training step, or a decode step."""
        return self.programs[0] if self.programs else None

    @property
    def seconds(self) -> float | None:
        """Of a step of the first program, by the compiler's schedule; None without one, as of a
        program that it refused."""
        program = self.program
        if program is None or program.timeline is None or not program.compiled.fits:
            return None
        return program.timeline.expected

    @property
    def needed_bytes(self) -> float | None:
        """Of a device, of the program that takes most."""
        return max((p.compiled.needed_bytes for p in self.programs), default=None)

    @property
    def refusal(self) -> str:
        """Why it is no answer; "" where it is one."""
        for program in self.programs:
            compiled = program.compiled
            if not compiled.fits:
                over = format_gib(compiled.needed_bytes - compiled.capacity_bytes)
                which = "" if program.phase == "train" else f"{program.phase} "
                return f"{which}does not fit: {over} too much"
        return self.failure

    def findings(self, piece: Slice) -> list[PhaseFinding]:
        """Mistakes in its programs, those of each the dearest first (`shardwise explain`)."""
        return [
            PhaseFinding.of(finding, phase=program.phase)
            for program in self.programs
            for finding in explained(program, piece).findings
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiling:
    """How plans are compiled: `count` of them until so many fit, each program within `seconds` and
    with the compiler's `options`."""

    count: int
    hardware: Hardware
    seconds: float
    options: Mapping[str, Any]
    watch: Watch | None = None

    @classmethod
    def of(
        cls,
        count: int | str,
        hardware: Hardware,
        timeout: float | str,
        xla: Words,
        watch: Watch | None,
    ) -> "Compiling":
        """Of the words of a request. Raises BadRequest for one that makes no sense."""
        return cls(
            count=whole_number(count, "--compile", least=1, most=MOST),
            hardware=hardware,
            seconds=number(timeout, "--timeout", above=0, most=1e7, suffix=True),
            options=compiler_options(xla),
            watch=watch,
        )

    def candidate(
        self,
        answer: Planned,
        plan: TrainPlan | ServePlan,
        parts: Sequence[tuple[TrainPlan | ServePlan, str]],
    ) -> CompiledCandidate[Planned]:
        """A plan's programs: each part is what is compiled and its phase, up to one that does not
        fit; what the compiler does not take is a candidate without it."""
        limits = limits_of(seconds=self.seconds, memory_bytes=MEMORY_BYTES, cache_bytes=CACHE_BYTES)
        found: list[PlanProgram] = []
        for part, phase in parts:
            name = mesh_text(part.mesh) + (f" {phase}" if len(parts) > 1 else "")
            try:
                made = compile_plan(
                    part,
                    self.hardware,
                    phases=(phase,),
                    options=self.options,
                    limits=limits,
                    watch=self._watch(name),
                )
            except MissingPart:
                raise
            except ShardwiseError as error:
                failure = f"{phase}: {error}" if len(parts) > 1 else str(error)
                return CompiledCandidate(answer=answer, plan=plan, programs=found, failure=failure)
            found += made.programs
            if not found[-1].compiled.fits:
                break
        return CompiledCandidate(answer=answer, plan=plan, programs=found)

    def until_enough(
        self, answers: Iterable[Planned], compiled: Callable[[Planned], CompiledCandidate[Planned]]
    ) -> list[CompiledCandidate[Planned]]:
        """The first answers, compiled until `count` of them fit, several at a time as memory
        allows. Raises as `nothing` where none does."""
        need_parts()
        left = iter(answers)
        found: list[CompiledCandidate[Planned]] = []
        while (missing := self.count - sum(c.fits for c in found)) > 0:
            wave = list(islice(left, min(missing, self.count * TRIED - len(found))))
            if not wave:
                break
            found += at_once(compiled, wave, places_for(PROCESS_BYTES))
        if not any(c.fits for c in found):
            raise nothing(found)
        return found

    def _watch(self, name: str) -> Watch | None:
        if self.watch is None:
            return None
        heard = self.watch
        return lambda stage, past: heard(f"{name}: {stage}", past)


def nothing(found: Sequence[CompiledCandidate[Any]]) -> ShardwiseError:
    """The error of an opinion without an answer."""
    if all(not c.programs for c in found):
        return ShardwiseError(f"no plan could be compiled: {found[0].failure}")
    said = "; ".join(f"{mesh_text(c.plan.mesh)} {c.refusal}" for c in found)
    return NoFeasiblePlan(
        f"none of the first {len(found)} plans fits once compiled ({said}); leave room with "
        "--max-hbm"
    )


def opinion_page(
    findings: Sequence[PhaseFinding], candidates: Sequence[CompiledCandidate[Any]]
) -> Page:
    """What costs the best plan most that it need not, and why others are no answer."""
    for f in sorted(findings, key=lambda f: -f.seconds)[:SHOWN]:
        of = "step" if f.phase == "train" else f"{f.phase} step"
        yield wrapped(f"{f.rule}, {format_seconds(f.seconds)} of the {of}: {f.what}", 2, 4)
    for c in candidates:
        if c.refusal:
            yield wrapped(f"{mesh_text(c.plan.mesh)}: {c.refusal}", 2, 4)


def size_cell(size: float, fits: bool) -> str:
    """Bytes of a device for a cell, and whether they are too many.

    >>> size_cell(2**34, fits=False)
    '16 GiB: too much'
    """
    return gib(size) if fits else f"{gib(size)}: too much"


def beside(compiled: float, predicted: float) -> str:
    """Compiled seconds with how far they lie from the predicted ones.

    >>> beside(0.012, 0.010)
    '12 ms (+20 % against predicted)'
    """
    more = compiled / predicted - 1
    return f"{format_seconds(compiled)} ({100 * more:+.0f} % against predicted)"


def compiler_of(program: PlanProgram) -> str:
    """Its name and version."""
    versions = program.compiled.versions
    name = next((n for n in versions if n in ("libtpu", "jax-cuda12-plugin")), "jax")
    return f"{name} {versions.get(name, '')}".strip()
