"""The same training on several chips side by side: of each chip one slice, with its best plan.

With a deadline it is the slice of the objective that keeps it (`deadline.py`); else one
of so many chips. Each is planned for the program that the chip's users run, unless told another.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.commands.base.request import Progress
from shardwise.commands.plan_train.deadline import DatedRun, SliceChoice
from shardwise.commands.plan_train.points import SweepPoint, slices_offered
from shardwise.errors import NoFeasiblePlan
from shardwise.hardware import Slice, Spelling


@dataclass(frozen=True, kw_only=True)
class BesideRequest(DatedRun):
    """One training on several chips: `places` are chips or slices, `low` to `high` the chips of a
    slice; without a deadline every slice has `high` chips, or as many below as there are."""

    places: Sequence[str]
    batches: Sequence[str]
    lengths: Sequence[int]
    low: float
    high: float

    @property
    def jobs(self) -> Iterator[tuple[SweepPoint, tuple[Slice, ...]]]:
        """Each place with each batch and length, still to be planned, and its slices."""
        for place in self.places:
            pieces = self._offered(place)
            for batch in self.batches:
                for length in self.lengths:
                    yield (
                        SweepPoint(
                            piece=pieces[-1], batch=batch, sequence_length=length, answer=None
                        ),
                        pieces,
                    )

    def _offered(self, place: str) -> tuple[Slice, ...]:
        found = self.choices.hardware.target(place)
        if isinstance(found, Spelling):
            return (found.slice,)
        return slices_offered(found, self.low, self.high)


def side_by_side(asked: BesideRequest, progress: Progress | None = None) -> tuple[SliceChoice, ...]:
    """A slice with its best plan for each place, batch and length, in that order. Raises
    NoFeasiblePlan where none has one."""
    jobs, found = list(asked.jobs), []
    for done, (job, pieces) in enumerate(jobs):

        def tell(done: int = done) -> None:
            if progress:
                progress(done, len(jobs))

        found.append(asked.choice(job, pieces, tell))
    if progress:
        progress(len(jobs), len(jobs))
    if all(choice.point.answer is None for choice in found):
        raise NoFeasiblePlan(f"none of the chips has a plan; the last: {found[-1].point.miss}")
    return tuple(found)
