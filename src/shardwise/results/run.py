"""What is told of a whole training run: days, dollars, and what it loses."""

from dataclasses import dataclass

from shardwise.boundary.records import Record, part
from shardwise.models import params_total
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.expected import expected_range
from shardwise.planner.price.goodput import Goodput, Overheads, goodput
from shardwise.planner.training import run_of, tokens_per_second_at

AT_EXPECTED = "expected step time"


@dataclass(frozen=True, kw_only=True)
class DaysBetween(Record):
    """The days that 8 of 10 runs of this kind take."""

    low: float
    """Days at the fast end."""
    high: float
    """Days at the slow end."""


@dataclass(frozen=True, kw_only=True)
class WholeRun(Record):
    """A training run of a number of tokens; the price counts all chips, also idle ones."""

    tokens: float
    """Tokens of the run."""
    basis: str
    """Basis of the speed, in words."""
    tokens_per_second: float
    """Tokens per second of the whole slice."""
    days: float
    """Days that it takes."""
    chip_hours: float
    """Hours of all chips of the slice together."""
    days_80: DaysBetween | None
    """The days of 8 of 10 runs of this kind; null where the utilisation was given."""
    usd: float | None
    """Dollars; null without a price."""
    usd_per_chip_hour: float | None
    """Dollars per chip and hour; null without a price."""
    usd_idle: float | None = part()
    """Dollars of it for idle chips."""
    price: str | None = part()
    """The price in words."""
    price_as_of: str | None = part()
    """Month of the price."""
    price_source: str | None = part()
    """Provider of the price, and where it is published."""
    deadline_days: float | None = part()
    """Days that the run may take (--days)."""
    keeps_deadline: bool | None = part()
    """Whether the expected days are within them."""
    goodput: Goodput | None = part()
    """What stragglers, checkpoints and failures leave of the speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLength:
    """What is asked of a whole run: its tokens, a utilisation in place of the expected step time
    with the parameters that it counts, and what is lost."""

    tokens: float
    mfu: float | None = None
    params: float | None = None
    overheads: Overheads


def whole_run(answer: TrainAnswer, asked: RunLength, days: float | None = None) -> WholeRun:
    """Days and dollars of a run at the expected step time, or at a given utilisation of 6*N*tokens
    (the book's arithmetic), times the goodput that the overheads leave. With `days` it says whether
    it keeps that deadline."""
    tokens, mfu, params, overheads = asked.tokens, asked.mfu, asked.params, asked.overheads
    piece, dtype = answer.piece, answer.plan.dtypes.compute
    rate, basis, good = answer.tokens_per_second, AT_EXPECTED, None
    if mfu is not None:
        n = params or params_total(answer.cfg)
        rate = tokens_per_second_at(mfu, n, piece, dtype)
        basis = f"{100 * mfu:.6g}% MFU of 6*N*tokens with N = {n:,.0f}, of the {dtype} peak"
    if not overheads.none:
        good = goodput(overheads, piece.chips)
        rate, basis = rate * good.share, f"{basis}, goodput {good.share:.1%}"
    takes, price = run_of(tokens, rate, piece), piece.chip.price
    usd = price and takes["chip_hours"] * price.usd_per_chip_hour
    return WholeRun(
        tokens=tokens,
        basis=basis,
        tokens_per_second=rate,
        **takes,
        days_80=days_between(answer, takes["days"]) if mfu is None else None,
        usd=usd,
        usd_idle=None if usd is None else usd * answer.chips_idle / piece.chips,
        usd_per_chip_hour=price and price.usd_per_chip_hour,
        price=price and str(price),
        price_as_of=price and price.as_of,
        price_source=price and price.source,
        deadline_days=days,
        keeps_deadline=None if days is None else takes["days"] <= days,
        goodput=good,
    )


def days_between(answer: TrainAnswer, days: float | None) -> DaysBetween | None:
    """The days that 8 of 10 runs take, of one that is expected to take so many."""
    found = expected_range(answer)
    if found is None or days is None:
        return None
    times = days / answer.step_seconds.expected
    return DaysBetween(low=found.low * times, high=found.high * times)
