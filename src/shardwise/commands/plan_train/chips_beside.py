"""The page of `plan sweep` for several chips side by side: a row for each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from shardwise.boundary.records import hidden, plain
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.layout import WIDTH, Fact, Facts, wrapped
from shardwise.commands.plan_train.deadline import SliceChoice
from shardwise.commands.plan_train.points import SIZES, SweepPoint
from shardwise.commands.plan_train.side_by_side import BesideRequest
from shardwise.commands.plan_train.swept_result import ChipJob, ChipPlan, chip_row
from shardwise.commands.pricing.served_page import usd_text
from shardwise.commands.pricing.train_choices import coarsely
from shardwise.commands.pricing.whole_run import (
    days_text,
    own_runs,
    price_facts,
    slow_end,
    wide_ranges,
)
from shardwise.models import ModelConfig
from shardwise.models.describe import unpriced
from shardwise.plans.train import mesh_text
from shardwise.units import format_count, format_usd, sig

UNIT = 1e12
"""Tokens that a price is of where the request has none."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ChipsBeside(Answer):
    """Chips side by side, each with a slice and its best plan."""

    chips: Sequence[ChipPlan | ChipJob]
    """Each chip, with each batch and length."""
    verdicts: Sequence[str]
    """The slice to take, prices at which another is cheaper, and slices that are late."""

    name: str = hidden()
    asked: BesideRequest = hidden()
    choices: tuple[SliceChoice, ...] = hidden()

    @property
    def jobs(self) -> tuple[SweepPoint, ...]:
        """The planned jobs."""
        return tuple(choice.point for choice in self.choices)

    @property
    def days(self) -> float | None:
        """The deadline."""
        return self.asked.days

    @property
    def tokens(self) -> float:
        """What the dollars are of."""
        return self.asked.tokens or UNIT

    def table(self) -> list[Row]:
        """One row per chip."""
        return [_flat(row) for row in self.chips]

    @property
    def chosen(self) -> SweepPoint | None:
        """The plan to take, by the objective. None where all are late."""
        found = _chosen(self.asked, self.choices)
        return found and found.point

    def page(self) -> Page:
        """The table, the plans, the prices with their dates, and the one to take."""
        run = self.asked.tokens is not None
        header = ["slice", *(name for name, _ in self._varied), "chips", "runs in", "tokens/s"]
        header += ["MFU", *(["days"] if run else [])]
        header += ["cost" if run else f"$/{format_count(UNIT)}", "over providers"]
        rows = [self._cells(row, run) for row in self.chips]
        table = TextTable(header, rows, self._title(), left=1, spare=("MFU", "tokens/s"))
        yield table.within(WIDTH)
        yield ""
        yield Facts([Fact(self._label(c), _plan_text(c)) for c in self.choices])
        yield ""
        yield Facts([*price_facts(c.chip for c in self.choices), *self._sizes()])
        yield from (wrapped(line, 2, 4) for line in ["", *self.verdicts])
        if self.chosen and (slow := slow_end(self.chosen.days_80, self.asked.days)):
            yield wrapped(f"{self.chosen.piece}: {slow}", 2, 4)
        answers = [choice.point.answer for choice in self.choices]
        if run:
            yield from (wrapped(line, 2, 4) for line in wide_ranges(answers))
        yield from (wrapped(line, 2, 4) for line in own_runs(answers))

    def _sizes(self) -> list[Fact]:
        """Which slices were planned to find these."""
        if self.asked.days is None:
            return []
        said = []
        for choice in self.choices:
            chips = [piece.chips for piece in choice.looked]
            many = f"{len(chips)} from {min(chips):,} to {max(chips):,} chips"
            said.append(f"{self._label(choice).removesuffix(' plan')} {many}")
        return [Fact("tried", f"slices of {', '.join(said)} ({SIZES})")]

    @property
    def _varied(self) -> list[tuple[str, str]]:
        """What differs between the rows of a chip: its column, and the field of a point."""
        asked = self.asked
        found = [("batch", "batch")] if len(asked.batches) > 1 else []
        return found + ([("seq", "sequence_length")] if len(asked.lengths) > 1 else [])

    def _label(self, choice: SliceChoice) -> str:
        told = [str(getattr(choice.point, name)) for _, name in self._varied]
        return " ".join([choice.chip.id, *told, "plan"])

    def _title(self) -> str:
        text = self.name
        if len(self.asked.batches) == 1:
            text += f", batch {self.asked.batches[0]}"
        if len(self.asked.lengths) == 1:
            text += f", seq {self.asked.lengths[0]:,}"
        text += f", MFU of the {self.asked.choices.dtype} peak"
        if self.asked.tokens is not None:
            text += f", {format_count(self.asked.tokens)} tokens"
        if self.asked.days is not None:
            best = _BEST[self.asked.choices.objective]
            text += f" within {sig(self.asked.days)} days: {best}"
        return wrapped(text)

    def _cells(self, row: ChipPlan | ChipJob, run: bool) -> list[str]:
        start = [row.slice, *(str(getattr(row, name)) for _, name in self._varied)]
        start.append(f"{row.chips:,}")
        if isinstance(row, ChipJob):
            return [*start, "no plan", *[""] * (5 if run else 4)]
        return [
            *start,
            row.runs_in or "any",
            format_count(row.tokens_per_second),
            f"{row.mfu:.0%}",
            *([days_text(row.days or 0.0, row.days_80, self.asked.days)] if run else []),
            usd_text(row.usd_at_price),
            _range_text(row),
        ]


_BEST = {
    "cost": "the cheapest slice, for each chip",
    "chips": "the slice of fewest chips, for each chip",
    "time": "the fastest slice, for each chip",
}
"""What an objective means here."""


def chips_beside(
    cfg: ModelConfig, asked: BesideRequest, choices: Sequence[SliceChoice]
) -> ChipsBeside:
    """The answer."""
    rows = [chip_row(choice, asked.tokens or UNIT) for choice in choices]
    return ChipsBeside(
        chips=rows,
        verdicts=_verdicts(asked, choices, rows),
        name=cfg.name,
        asked=asked,
        choices=tuple(choices),
        warnings=[*unpriced(cfg), *coarsely(asked.choices.coarse)],
        provenance={c.point.piece.chip.id: c.point.piece.chip.efficiency.source for c in choices},
    )


def _chosen(asked: BesideRequest, choices: Sequence[SliceChoice]) -> SliceChoice | None:
    """Of those in time that of the objective: the fastest, the fewest chips, or the cheapest; where
    not all have a price the fewest chips for the cheapest. None where all are late."""
    kept = [choice for choice in choices if choice.keeps]
    priced = all(choice.chip.price for choice in kept)

    def worth(choice: SliceChoice) -> tuple[float, float]:
        answer = choice.point.answer
        assert answer is not None
        dollars = _dollars(choice, asked) if priced else 0.0
        if asked.choices.objective == "time":
            return -answer.tokens_per_second, dollars
        if asked.choices.objective == "chips" or not priced:
            return choice.point.piece.chips, dollars
        return dollars, 0.0

    return min(kept, key=worth) if kept else None


def _dollars(choice: SliceChoice, asked: BesideRequest) -> float:
    price = choice.chip.price
    return choice.dollars(price, asked.tokens or UNIT) if price else inf


def _verdicts(
    asked: BesideRequest, choices: Sequence[SliceChoice], rows: Sequence[ChipPlan | ChipJob]
) -> list[str]:
    """The one to take, where another price or another objective would make it another, and what is
    late."""
    said = []
    plans = [row for row in rows if isinstance(row, ChipPlan)]
    priced = [row for row in plans if row.keeps_deadline and row.price]
    chosen, led = _chosen(asked, choices), _LED.get(asked.choices.objective)
    if led and chosen:
        piece, price = chosen.point.piece, chosen.chip.price
        usd = usd_text(_dollars(chosen, asked) if price else None)
        cheaper = _cheaper(chosen, asked, choices)
        said.append(f"{led}: {piece}, {piece.chips:,} chips, {usd}{cheaper}")
    elif priced:
        best = min(priced, key=lambda row: _at_price(row)[0])
        said.append(f"cheapest: {best.slice}, {usd_text(best.usd_at_price)}{_turn(best, priced)}")
    late = [row.slice for row in plans if not row.keeps_deadline]
    if late and asked.days is not None:
        said.append(
            f"no slice tried meets {sig(asked.days)} days; the fastest are "
            f"{', '.join(late)}: give more --days or --chips, or a larger --batch"
        )
    return said


_LED = {"chips": "fewest chips", "time": "fastest"}
"""What a verdict calls the one to take, by objectives other than its cost."""


def _cheaper(chosen: SliceChoice, asked: BesideRequest, choices: Sequence[SliceChoice]) -> str:
    """The cheapest in time of all slices looked at, where it is another."""
    here = _dollars(chosen, asked)
    others = [replace(c, point=point) for c in choices if c.keeps for point in c.in_time]
    best = min(others, key=lambda other: _dollars(other, asked), default=chosen)
    there = _dollars(best, asked)
    if there >= here:
        return ""
    piece = best.point.piece
    return (
        f"; the cheapest of those tried is {piece}, {piece.chips:,} chips, "
        f"{format_usd(there)}: --objective cost takes that one"
    )


def _turn(best: ChipPlan, rows: Sequence[ChipPlan]) -> str:
    """Where another chip is the cheapest at a price that some provider asks: which, and from what
    price on."""
    here, price = _at_price(best)
    most = here if best.usd_at_price_high is None else best.usd_at_price_high
    for row in (row for row in rows if row.chip != best.chip):
        there, own = _at_price(row)
        least = there if row.usd_at_price_low is None else row.usd_at_price_low
        if least < here:
            told = f"a chip-hour of {row.chip} is below ${own * here / there:.2f}"
        elif there < most:
            told = f"a chip-hour of {best.chip} is above ${price * there / here:.2f}"
        else:
            continue
        over = f" ({text} over providers)" if (text := _range_text(best)) else ""
        return f"{over}; {row.slice} costs less where {told}"
    return ""


def _at_price(row: ChipPlan) -> tuple[float, float]:
    assert row.price is not None
    assert row.usd_at_price is not None
    return row.usd_at_price, row.price.usd_per_chip_hour


def _plan_text(choice: SliceChoice) -> str:
    answer = choice.point.answer
    if answer is None:
        return choice.point.miss
    plan = answer.plan
    many = f"{plan.microbatches} microbatches" if plan.microbatches > 1 else "1 microbatch"
    return f"{mesh_text(plan.mesh)}, {many}, remat {plan.remat}"


def _range_text(row: ChipPlan) -> str:
    """The dollars over the providers."""
    ends = [
        usd_text(usd) for usd in (row.usd_at_price_low, row.usd_at_price_high) if usd is not None
    ]
    return " to ".join(dict.fromkeys(ends))


def _flat(row: ChipPlan | ChipJob) -> Row:
    """A row of the document with plain values."""
    flat = {k: v for k, v in plain(row).items() if not isinstance(v, dict)}
    if isinstance(row, ChipJob):
        return {**flat, "mesh": ""}
    flat |= {"mesh": mesh_text(row.mesh)}
    for name, price in (
        ("price", row.price),
        ("price_low", row.price_low),
        ("price_high", row.price_high),
    ):
        if price is not None:
            flat |= {name: price.usd_per_chip_hour, f"{name}_as_of": price.as_of}
    return flat
