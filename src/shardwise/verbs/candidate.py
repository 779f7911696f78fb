"""A plan of a search and what the compiler makes of it."""

from dataclasses import dataclass

from shardwise.planner.training import TrainAnswer
from shardwise.units import format_gib
from shardwise.workflows.compile import PlanProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCandidate:
    """A plan of a search and its compiled step; without a `program` `failure` says why there is
    none."""

    answer: TrainAnswer
    program: PlanProgram | None = None
    failure: str = ""

    @property
    def fits(self) -> bool:
        """Whether it compiled to a step that fits."""
        return self.program is not None and self.program.compiled.fits

    @property
    def seconds(self) -> float | None:
        """Of a step, by the compiler's schedule; None without one."""
        line = self.program.timeline if self.program else None
        return None if line is None else line.expected

    @property
    def refusal(self) -> str:
        """Why it is no answer; "" where it is one."""
        if self.program is None:
            return self.failure
        compiled = self.program.compiled
        if compiled.fits:
            return ""
        return f"does not fit: {format_gib(compiled.needed_bytes - compiled.capacity_bytes)} beyond"
