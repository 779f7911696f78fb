"""Plan the same training many times: over slices, batches and sequence lengths.

Each point is a search of its own. From the points follow what a capacity planner asks: how far the
job scales and where more chips stop being worth it, what is cheapest within a deadline, and which
points no other beats in both time and cost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import inf
from pathlib import Path

from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.predict import plan_training
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import Chip, Slice, Spelling, slices_of
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.training import TrainPlanning
from shardwise.results.run import DaysBetween, days_between
from shardwise.units import DAY, format_count, format_usd, sig

WORTH = 0.5
"""Below this share of the added chips' speed, more chips count as not worth it."""

USUAL_CHIPS = 65_536
"""No slice has more, unless --chips says so."""
_ODD = 15
"""The largest odd factor of a number of chips that is looked at: all numbers of boxes up to 16, and
eight beyond for each doubling, those that meshes divide best."""
SIZES = "whole boxes, or the most cube-like shape of each chip count; odd factors up to 15"
"""The rule of the list of slices, as answers say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One planned job: the best of its `planning`. `answer` is None where nothing fits or divides,
    and `miss` says why.

    `days` and `usd` are of the whole run of `tokens`; `usd` is None without a price. `efficiency`
    is tokens/s per chip over that of the smallest slice of its series, `marginal` the speed that
    the chips added since the point before bring, over their share; 1 is perfect scaling.
    """

    piece: Slice
    batch: str
    sequence_length: int
    answer: TrainAnswer | None
    planning: TrainPlanning | None = None
    miss: str = ""
    days: float | None = None
    usd: float | None = None
    efficiency: float | None = None
    marginal: float | None = None
    on_front: bool = False

    @property
    def days_80(self) -> DaysBetween | None:
        """The days of 8 of 10 runs."""
        return days_between(self.answer, self.days) if self.answer else None


def slices_between(target: str, low: float, high: float, hardware: Hardware) -> tuple[Slice, ...]:
    """A spelt slice as it is; of a bare chip its slices of `low` to `high` chips, one per doubling.

    Beyond one domain or pod the slices are whole ones, joined by the data-centre network.
    """
    found = hardware.target(target)
    if isinstance(found, Spelling):
        return (found.slice,)
    return doublings(slices_offered(found, low, high))


def slices_offered(chip: Chip, low: float, high: float) -> tuple[Slice, ...]:
    """The slices of `low` to `high` chips, fewest first: of each number of chips the most cube-like
    shape, or whole boxes; numbers with an odd factor above 15 are left out."""
    inside = slices_of(chip)
    largest = inside[-1]
    most = int(high // largest.chips) if chip.data_centre is not None else 1
    counts = sorted(m << k for m in range(1, _ODD + 1, 2) for k in range(most.bit_length()))
    joined = [replace(largest, count=n) for n in counts if 1 < n <= most]
    few = [s for s in inside if s.chips // (s.chips & -s.chips) <= _ODD]
    offered = tuple(s for s in (*few, *joined) if low <= s.chips <= high)
    if not offered:
        raise BadRequest(
            f"{chip.id} has no slice of {low:,.0f} to {high:,.0f} chips; it has "
            f"{inside[0].chips:,} to {max(largest.chips, most * largest.chips):,}: widen --chips"
        )
    return offered


def doublings(pieces: Sequence[Slice]) -> tuple[Slice, ...]:
    """The smallest of the slices between each power of two and the next."""
    smallest: dict[int, Slice] = {}
    for piece in pieces:
        smallest.setdefault(piece.chips.bit_length(), piece)
    return tuple(smallest.values())


def sweep(
    model: str | Path,
    pieces: Sequence[Slice],
    *,
    batches: Sequence[str],
    lengths: Sequence[int],
    tokens: float | None = None,
    choices: TrainChoices | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[SweepPoint, ...]:
    """Plan every slice x batch x sequence length.

    `tokens` of a run adds days, and dollars where the chip has a price. A point that cannot be
    planned as asked, such as a batch that no mesh of its slice divides, has no plan and says why.
    Raises the first such BadRequest where all are so, NoFeasiblePlan where no point has a plan.
    """
    jobs = [(b, n, p) for b in batches for n in lengths for p in pieces]
    points, refused = [], []
    for done, (batch, length, piece) in enumerate(jobs):
        inside = _inside(progress, done, len(jobs)) if progress else None
        point = SweepPoint(piece=piece, batch=batch, sequence_length=length, answer=None)
        try:
            points.append(planned_point(point, model, tokens, choices, inside))
        except BadRequest as error:
            refused.append(error)
            points.append(replace(point, miss=str(error)))
    if progress:
        progress(len(jobs), len(jobs))
    if len(refused) == len(jobs):
        raise refused[0]
    if all(point.answer is None for point in points):
        raise NoFeasiblePlan(f"no point of the sweep has a plan; the last: {points[-1].miss}")
    return _front(_scaling(points))


def _inside(
    progress: Callable[[int, int], None], done: int, jobs: int
) -> Callable[[int, int], None]:
    """What one search tells of its own parts, as the progress of all searches."""
    return lambda *_: progress(done, jobs)


def planned_point(
    asked: SweepPoint,
    model: str | Path,
    tokens: float | None,
    choices: TrainChoices | None,
    progress: Callable[[int, int], None] | None,
    better_than: float = inf,
) -> SweepPoint:
    """The point with its plan, if its step takes less than `better_than` seconds; or with the
    reason why none fits. All chips of the slice are paid for, so that is the cheapest, too. Raises
    BadRequest where the slice cannot be asked so.
    """
    try:
        planning = plan_training(
            model,
            str(asked.piece),
            batch=asked.batch,
            seq=asked.sequence_length,
            top=0,
            choices=replace(choices or TrainChoices(), objective="time"),
            progress=progress,
            better_than=better_than,
            outside=False,
        )
    except NoFeasiblePlan as error:
        return replace(asked, miss=str(error))
    answer = planning.best
    asked = replace(asked, planning=planning)
    if float(answer.estimate.expected) >= better_than:
        return replace(asked, miss="no plan takes less time than the one that is known")
    if tokens is None:
        return replace(asked, answer=answer)
    days = tokens / answer.tokens_per_second / DAY
    price = asked.piece.chip.price
    usd = days * 24 * asked.piece.chips * price.usd_per_chip_hour if price else None
    return replace(asked, answer=answer, days=days, usd=usd)


def _scaling(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Efficiency along each series of one chip, batch and length, by number of chips."""

    def series(p: SweepPoint) -> tuple:
        return p.piece.chip.id, p.batch, p.sequence_length

    done: list[SweepPoint] = []
    for _, same in groupby(sorted(points, key=lambda p: (*series(p), p.piece.chips)), series):
        first: SweepPoint | None = None
        last: SweepPoint | None = None
        for point in same:
            if point.answer is None:
                done.append(point)
                continue
            first, before = first or point, last
            marginal = None
            if before is not None and point.piece.chips > before.piece.chips:
                chips = point.piece.chips / before.piece.chips - 1
                marginal = (_rate(point) / _rate(before) - 1) / chips
            each = (_rate(point) / point.piece.chips) / (_rate(first) / first.piece.chips)
            last = point
            done.append(replace(point, efficiency=each, marginal=marginal))
    return done


def _rate(point: SweepPoint) -> float:
    assert point.answer is not None
    return point.answer.tokens_per_second


def _front(points: Sequence[SweepPoint]) -> tuple[SweepPoint, ...]:
    """Mark what no other point beats in tokens/s and in cost: dollars per token where every chip
    has a price, else chips."""
    priced = all(p.piece.chip.price for p in points)
    planned = [p for p in points if p.answer is not None]

    def cost(p: SweepPoint) -> float:
        return _usd_per_token(p) if priced else p.piece.chips

    front, best = set(), float("inf")
    for p in sorted(planned, key=lambda p: (-_rate(p), cost(p))):
        if cost(p) < best:
            best = cost(p)
            front.add(id(p))
    return tuple(replace(p, on_front=id(p) in front) for p in points)


def verdicts(points: Sequence[SweepPoint], *, days: float | None = None) -> list[str]:
    """Where scaling stops being worth it, and the cheapest point within `days`."""
    said = [line for line in map(_stop, _series(points)) if line]
    if days is None:
        return said
    best = chosen_point(points, "cost", days)
    if best is None:
        fastest = min((p for p in points if p.days is not None), key=lambda p: p.days or 0.0)
        text = (
            f"no slice here trains it within {sig(days)} days; the fastest is {fastest.piece} with "
            f"{sig(fastest.days or 0.0)} days: sweep more chips (--chips)"
        )
        return [*said, text]
    cost = format_usd(best.usd) if best.usd is not None else "no price"
    if any(p.days is not None and p.usd is None for p in points):
        cost += ", by fewest chips: some chips have no price"
    text = (
        f"cheapest within {sig(days)} days: {best.piece} with batch {best.batch}, "
        f"{sig(best.days or 0.0)} days, {cost}"
    )
    return [*said, text]


def chosen_point(
    points: Sequence[SweepPoint], objective: str, days: float | None
) -> SweepPoint | None:
    """The point to take, of those within so many days: the fastest ("time"), that of the fewest
    chips ("chips"), or the cheapest per token ("cost", if every chip has a price). None where none
    is in time."""
    planned = [p for p in points if p.answer is not None]
    within = [p for p in planned if days is None or (p.days is not None and p.days <= days)]
    priced = all(p.piece.chip.price for p in planned)

    def worth(p: SweepPoint) -> float:
        if objective == "time":
            return -_rate(p)
        return _usd_per_token(p) if objective == "cost" and priced else p.piece.chips

    return min(within, key=worth, default=None)


def _usd_per_token(p: SweepPoint) -> float:
    price = p.piece.chip.price
    return p.piece.chips / _rate(p) * price.usd_per_chip_hour if price else float("inf")


def _series(points: Sequence[SweepPoint]) -> list[list[SweepPoint]]:
    def key(p: SweepPoint) -> tuple:
        return p.piece.chip.id, p.batch, p.sequence_length

    return [[p for p in same if p.answer] for _, same in groupby(points, key)]


def _stop(series: Sequence[SweepPoint]) -> str:
    for before, point in pairwise(series):
        if point.marginal is not None and point.marginal < WORTH and point.answer:
            return (
                f"{point.piece.chip.id}, batch {point.batch}: beyond {before.piece.chips:,} chips "
                f"scaling does not pay: with {point.piece.chips:,} chips the added ones bring "
                f"{point.marginal:.0%} of their speed; bound by "
                f"{point.answer.estimate.bound_by()}, "
                f"{format_count(point.answer.plan.tokens / point.piece.chips)} tokens per chip"
            )
    return ""
