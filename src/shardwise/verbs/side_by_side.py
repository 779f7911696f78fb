"""The same training on several chips side by side: of each chip one slice, with its best plan.

With a deadline it is the smallest slice that keeps it, of those that double; else one of so many
chips. Each is planned for the program that the chip's users run, unless told another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import Slice
from shardwise.hardware.prices import Price, PriceRange, price_range
from shardwise.models import ModelConfig, load_model, params_active
from shardwise.models.flops import six_nd
from shardwise.units import DAY
from shardwise.workflows.predict import runs_in
from shardwise.workflows.sweep import SweepPoint, planned_point, slices_between, sweep_row
from shardwise.workflows.train_choices import TrainChoices

USUAL_MFU = 0.4
"""The utilisation that the first guess of the number of chips takes; no answer depends on it."""

Plan = Callable[[Slice], SweepPoint]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class ChipChoice:
    """One chip's slice and plan. `keeps`: within the deadline, where there is one."""

    point: SweepPoint
    keeps: bool

    @property
    def price(self) -> Price | None:
        """Per chip-hour, as the chip's file, or the user, has it."""
        return self.point.piece.chip.price

    @cached_property
    def prices(self) -> PriceRange | None:
        """Over the providers; None for a chip that none lists, or whose price is the user's own."""
        price = self.price
        if price is not None and price.kind == "override":
            return None
        spot = price is not None and price.kind == "spot"
        return price_range(self.point.piece.chip.id, spot=spot)

    def dollars(self, price: Price, tokens: float) -> float:
        """Of so many tokens at a price."""
        answer = self.point.answer
        assert answer is not None
        hours = tokens / answer.tokens_per_second / 3600
        return hours * self.point.piece.chips * price.usd_per_chip_hour


def by_deadline(
    cfg: ModelConfig, pieces: Sequence[Slice], tokens: float, days: float, plan: Plan
) -> ChipChoice:
    """The smallest slice of one chip that is done within so many days; where none is, the fastest
    that was planned.

    Slices stand in order of chips. The first that is planned is the one that a usual MFU would
    need; from there it goes down while the deadline holds, or up until it does.
    """
    start = _guess(cfg, pieces, tokens, days)
    found = plan(pieces[start])
    if _within(found, days):
        for piece in reversed(pieces[:start]):
            smaller = plan(piece)
            if not _within(smaller, days):
                break
            found = smaller
        return ChipChoice(point=found, keeps=True)
    for piece in pieces[start + 1 :]:
        larger = plan(piece)
        if _within(larger, days):
            return ChipChoice(point=larger, keeps=True)
        found = min(found, larger, key=_days)
    for piece in reversed(pieces[:start]):
        if found.answer is not None:
            break
        found = min(found, plan(piece), key=_days)
    return ChipChoice(point=found, keeps=False)


def _guess(cfg: ModelConfig, pieces: Sequence[Slice], tokens: float, days: float) -> int:
    """The place of the smallest slice that is large enough at a usual MFU."""
    rate = max(pieces[0].chip.peak_flops.values()) * USUAL_MFU
    chips = six_nd(params_active(cfg)) * tokens / (rate * days * DAY)
    return next((i for i, piece in enumerate(pieces) if piece.chips >= chips), len(pieces) - 1)


def _days(point: SweepPoint) -> float:
    return float("inf") if point.days is None else point.days


def _within(point: SweepPoint, days: float) -> bool:
    return _days(point) <= days


@dataclass(frozen=True, kw_only=True)
class BesideRequest:
    """One training on several chips: `places` are chips or slices, `low` to `high` the chips of a
    slice, `days` a deadline for `tokens`; without one every slice has `high` chips."""

    model: str | Path
    places: Sequence[str]
    batch: str
    length: int
    low: float
    high: float
    tokens: float | None
    days: float | None
    choices: TrainChoices


def side_by_side(asked: BesideRequest, progress: Progress | None = None) -> tuple[ChipChoice, ...]:
    """Of each place a slice with its best plan, in the order of the places. Raises NoFeasiblePlan
    where none has one."""
    found = []
    for done, place in enumerate(asked.places):
        if progress:
            progress(done, len(asked.places))
        found.append(_choice(asked, place))
    if progress:
        progress(len(asked.places), len(asked.places))
    if all(choice.point.answer is None for choice in found):
        raise NoFeasiblePlan(f"none of the chips has a plan; the last: {found[-1].point.miss}")
    return tuple(found)


def _choice(asked: BesideRequest, place: str) -> ChipChoice:
    hardware = asked.choices.hardware
    if asked.days is None or asked.tokens is None:
        point = _plan(asked, slices_between(place, asked.low, asked.high, hardware)[-1])
        return ChipChoice(point=point, keeps=point.answer is not None)
    pieces = slices_between(place, asked.low, asked.high, hardware)
    cfg = load_model(asked.model)
    return by_deadline(cfg, pieces, asked.tokens, asked.days, partial(_plan, asked))


def _plan(asked: BesideRequest, piece: Slice) -> SweepPoint:
    """The best plan on a slice; what its software or its chip cannot do is a miss."""
    point = SweepPoint(piece=piece, batch=asked.batch, sequence_length=asked.length, answer=None)
    try:
        return planned_point(point, asked.model, asked.tokens, asked.choices, None)
    except BadRequest as error:
        return replace(point, miss=str(error))


def choice_row(choice: ChipChoice, tokens: float) -> dict[str, Any]:
    """A chip's row of a document; the dollars are those of `tokens`."""
    point = choice.point
    row: dict[str, Any] = {**sweep_row(point), "keeps_deadline": choice.keeps}
    if point.answer is None:
        return row
    row["runs_in"] = runs_in(point.answer.plan)
    found = {"price": choice.price}
    if choice.prices is not None:
        found |= {"price_low": choice.prices.low, "price_high": choice.prices.high}
        row["providers"] = choice.prices.providers
    for name, price in found.items():
        if price is not None:
            row[name] = {
                "usd_per_chip_hour": price.usd_per_chip_hour,
                "as_of": price.as_of,
                "source": price.source,
                "stale": price.stale(),
            }
            row[f"usd_at_{name}"] = choice.dollars(price, tokens)
    return row
