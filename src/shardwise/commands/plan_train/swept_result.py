"""What is told of the jobs of `plan sweep`: a row each, and what a chip's row has beside it."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.boundary.records import Record, part
from shardwise.commands.plan_train.deadline import SliceChoice
from shardwise.commands.plan_train.points import SweepPoint
from shardwise.hardware import Price
from shardwise.models.remat import RematPolicy
from shardwise.planner.expected import ExpectedRange, expected_range
from shardwise.plans.stacks import Wanted
from shardwise.results.run import DaysBetween
from shardwise.results.train import runs_in
from shardwise.roofline.bounds import Bounds


@dataclass(frozen=True, kw_only=True)
class SweepJob(Record):
    """A training on a slice, with one batch and one length."""

    slice: str
    """The chips, as COUNT*CHIP:SHAPE."""
    chip: str
    """The chip."""
    chips: int
    """Chips of the slice."""
    batch: str
    """Tokens or sequences of a step, as given."""
    sequence_length: int
    """Tokens of a sequence."""
    miss: str
    """Why it has no plan; "" where it has one."""


@dataclass(frozen=True, kw_only=True)
class SweepPlan(SweepJob):
    """A training with its plan."""

    software: Wanted
    """The program that the plan is for; "any" for none in particular."""
    batch_tokens: int
    """Tokens in a step."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree, outermost first."""
    microbatches: int
    """Microbatches of a step."""
    remat: RematPolicy
    """Remat policy: what the backward pass recomputes."""
    step_seconds: Bounds
    """Seconds of a step."""
    tokens_per_second: float
    """Tokens per second of the whole slice."""
    mfu: float
    """Model FLOPs utilisation of all chips of the slice."""
    mfu_dtype: str
    """The dtype of whose peak the utilisation is."""
    bound_by: str
    """The resource with the most seconds at peak rates."""
    peak_bytes_per_chip: float
    """Bytes per chip at the peak."""
    efficiency: float | None
    """Tokens per second and chip over those of the smallest slice of its series; null for chips
    side by side."""
    marginal: float | None
    """Speed that chips added since the slice before bring, over their share; 1 is perfect; null
    for the smallest."""
    days: float | None
    """Days of the run; null without --tokens."""
    days_80: DaysBetween | None
    """The days of 8 of 10 runs of this kind."""
    expected_80: ExpectedRange | None
    """The 80 % range of the expected step; null with the book's constants, which derate nothing."""
    usd: float | None
    """Dollars of the run; null without --tokens or a price."""
    on_front: bool
    """Whether no other row is both faster and cheaper; false for chips side by side."""


@dataclass(frozen=True, kw_only=True)
class ChipJob(SweepJob):
    """A chip for which there is no plan."""

    keeps_deadline: bool
    """Whether it is in time."""


@dataclass(frozen=True, kw_only=True)
class PriceThen(Record):
    """A price and its date."""

    usd_per_chip_hour: float
    """Dollars per chip and hour."""
    as_of: str
    """Date on which it was asked."""
    source: str
    """Provider, and where it is published."""
    stale: bool
    """Whether it is older than half a year."""


@dataclass(frozen=True, kw_only=True)
class ChipPlan(SweepPlan):
    """A chip's slice with its plan; dollars are of the run, or of 1T tokens without --tokens."""

    keeps_deadline: bool
    """Whether it is in time; true where there is no deadline."""
    runs_in: str
    """The program that runs the plan; "" for none in particular."""
    providers: int | None = part()
    """Providers behind the range of prices."""
    price: PriceThen | None = part()
    """The price that answers take."""
    usd_at_price: float | None = part()
    """Dollars at that price."""
    price_low: PriceThen | None = part()
    """The price of the cheapest provider."""
    usd_at_price_low: float | None = part()
    """Dollars at that price."""
    price_high: PriceThen | None = part()
    """The price of the dearest provider."""
    usd_at_price_high: float | None = part()
    """Dollars at that price."""


def sweep_row(point: SweepPoint) -> SweepJob:
    """One point of a sweep."""
    job = SweepJob(
        slice=str(point.piece),
        chip=point.piece.chip.id,
        chips=point.piece.chips,
        batch=point.batch,
        sequence_length=point.sequence_length,
        miss=point.miss,
    )
    if point.answer is None:
        return job
    answer, plan = point.answer, point.answer.plan
    return SweepPlan.of(
        job,
        software=plan.software,
        batch_tokens=plan.tokens,
        mesh=plan.mesh,
        microbatches=plan.microbatches,
        remat=plan.remat,
        step_seconds=answer.step_seconds,
        tokens_per_second=answer.tokens_per_second,
        mfu=answer.mfu,
        mfu_dtype=plan.dtypes.compute,
        bound_by=answer.estimate.bound_by(),
        peak_bytes_per_chip=answer.peak_bytes_per_chip,
        efficiency=point.efficiency,
        marginal=point.marginal,
        days=point.days,
        days_80=point.days_80,
        expected_80=expected_range(answer),
        usd=point.usd,
        on_front=point.on_front,
    )


def chip_row(choice: SliceChoice, tokens: float) -> ChipPlan | ChipJob:
    """A chip beside others; the dollars are those of `tokens`."""
    row, answer, prices = sweep_row(choice.point), choice.point.answer, choice.prices
    if answer is None:
        return ChipJob.of(row, keeps_deadline=choice.keeps)
    dollars = _at("price", choice.chip.price, choice, tokens)
    if prices is not None:
        dollars |= _at("price_low", prices.low, choice, tokens)
        dollars |= _at("price_high", prices.high, choice, tokens)
    return ChipPlan.of(
        row,
        keeps_deadline=choice.keeps,
        runs_in=runs_in(answer),
        providers=prices and prices.providers,
        **dollars,
    )


def _at(name: str, price: Price | None, choice: SliceChoice, tokens: float) -> dict[str, object]:
    """A price of a chip, and the dollars at it, as keywords."""
    if price is None:
        return {}
    then = PriceThen(
        usd_per_chip_hour=price.usd_per_chip_hour,
        as_of=price.as_of,
        source=price.source,
        stale=price.stale(),
    )
    return {name: then, f"usd_at_{name}": choice.dollars(price, tokens)}
