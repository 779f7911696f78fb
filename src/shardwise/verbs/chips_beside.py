"""The page of `plan sweep` for several chips side by side: a row for each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from shardwise.models import ModelConfig
from shardwise.models.describe import unpriced
from shardwise.plans.train import mesh_text
from shardwise.units import format_count, format_usd, sig
from shardwise.verbs.answer import LooseAnswer, Page, Row, TextTable
from shardwise.verbs.layout import WIDTH, Fact, Facts, wrapped
from shardwise.verbs.run_page import days_text, own_runs, price_facts, slow_end, wide_ranges
from shardwise.verbs.side_by_side import BesideRequest, choice_row
from shardwise.workflows.deadline import SliceChoice
from shardwise.workflows.sweep import SIZES, SweepPoint

UNIT = 1e12
"""Tokens that a price is of where the request has none."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ChipsBeside(LooseAnswer):
    """Chips side by side, each with a slice and its best plan."""

    name: str
    asked: BesideRequest
    choices: tuple[SliceChoice, ...]

    @property
    def points(self) -> tuple[SweepPoint, ...]:
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
        return [_flat(row) for row in self.result["chips"]]

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
        rows = [self._cells(choice, run) for choice in self.choices]
        table = TextTable(header, rows, self._title(), left=1, spare=("MFU", "tokens/s"))
        yield table.within(WIDTH)
        yield ""
        yield Facts([Fact(self._label(c), _plan_text(c)) for c in self.choices])
        yield ""
        yield Facts([*price_facts(c.chip for c in self.choices), *self._sizes()])
        yield from (wrapped(line, 2, 4) for line in ["", *self.result["verdicts"]])
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
        return [Fact("looked at", f"slices of {', '.join(said)} ({SIZES})")]

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

    def _cells(self, choice: SliceChoice, run: bool) -> list[str]:
        point, answer = choice.point, choice.point.answer
        start = [str(point.piece), *(str(getattr(point, name)) for _, name in self._varied)]
        start.append(f"{point.piece.chips:,}")
        if answer is None:
            return [*start, "no plan", *[""] * (5 if run else 4)]
        row = choice_row(choice, self.tokens)
        return [
            *start,
            row["runs_in"] or "any",
            format_count(answer.tokens_per_second),
            f"{answer.mfu:.0%}",
            *([days_text(point.days or 0.0, point.days_80, self.asked.days)] if run else []),
            _usd(row, "usd_at_price"),
            _range_text(row),
        ]


_BEST = {
    "cost": "the cheapest slice of each chip",
    "chips": "the fewest chips of each",
    "time": "the fastest slice of each chip",
}
"""What an objective means here."""


def chips_beside(
    cfg: ModelConfig, asked: BesideRequest, choices: Sequence[SliceChoice]
) -> ChipsBeside:
    """The answer."""
    rows = [choice_row(choice, asked.tokens or UNIT) for choice in choices]
    return ChipsBeside(
        name=cfg.name,
        asked=asked,
        choices=tuple(choices),
        result={"chips": rows, "verdicts": _verdicts(asked, choices, rows)},
        warnings=unpriced(cfg),
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
    asked: BesideRequest, choices: Sequence[SliceChoice], rows: Sequence[Row]
) -> list[str]:
    """The one to take, where another price or another objective would make it another, and what is
    late."""
    said = []
    priced = [row for row in rows if row["keeps_deadline"] and "usd_at_price" in row]
    chosen, led = _chosen(asked, choices), _LED.get(asked.choices.objective)
    if led and chosen:
        row = rows[list(choices).index(chosen)]
        text = f"{led}: {row['slice']}, {row['chips']:,} chips, {_usd(row, 'usd_at_price')}"
        said.append(text + _cheaper(chosen, asked, choices))
    elif priced:
        best = min(priced, key=lambda row: row["usd_at_price"])
        said.append(f"cheapest: {best['slice']}, {_usd(best, 'usd_at_price')}{_turn(best, priced)}")
    late = [row["slice"] for row in rows if not row["keeps_deadline"] and not row["miss"]]
    if late and asked.days is not None:
        said.append(
            f"not within {sig(asked.days)} days on any slice looked at, of which these are the "
            f"fastest: {', '.join(late)}; give more --days or --chips, or a larger --batch"
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
        f"; the cheapest of those looked at is {piece}, {piece.chips:,} chips, "
        f"{format_usd(there)}: --objective cost takes the cheapest"
    )


def _turn(best: Row, rows: Sequence[Row]) -> str:
    """Where another chip is the cheapest at a price that some provider asks: which, and from what
    price on."""
    here, most = best["usd_at_price"], best.get("usd_at_price_high", best["usd_at_price"])
    for row in (row for row in rows if row["chip"] != best["chip"]):
        there, least = row["usd_at_price"], row.get("usd_at_price_low", row["usd_at_price"])
        if least < here:
            price = row["price"]["usd_per_chip_hour"] * here / there
            told = f"a chip-hour of {row['chip']} is below ${price:.2f}"
        elif there < most:
            price = best["price"]["usd_per_chip_hour"] * there / here
            told = f"a chip-hour of {best['chip']} is above ${price:.2f}"
        else:
            continue
        return f" ({_range_text(best)} over providers); {row['slice']} costs less where {told}"
    return ""


def _plan_text(choice: SliceChoice) -> str:
    answer = choice.point.answer
    if answer is None:
        return choice.point.miss
    plan = answer.plan
    many = f"{plan.microbatches} microbatches" if plan.microbatches > 1 else "1 microbatch"
    return f"{mesh_text(plan.mesh)}, {many}, remat {plan.remat}"


def _range_text(row: Row) -> str:
    """The dollars over the providers."""
    ends = [_usd(row, f"usd_at_{name}") for name in ("price_low", "price_high") if name in row]
    return " to ".join(dict.fromkeys(ends))


def _usd(row: Row, name: str) -> str:
    return format_usd(row[name]) if name in row else "unknown"


def _flat(row: Row) -> Row:
    """A row of the document with plain values."""
    flat = {k: v for k, v in row.items() if not isinstance(v, dict)}
    flat["mesh"] = mesh_text(row["mesh"]) if "mesh" in row else ""
    for name in ("price", "price_low", "price_high"):
        if name in row:
            flat[name] = row[name]["usd_per_chip_hour"]
            flat[f"{name}_as_of"] = row[name]["as_of"]
    return flat
