"""The page of `plan sweep` for several chips side by side: a row for each."""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.models import ModelConfig
from shardwise.models.describe import unpriced
from shardwise.plans.train import mesh_text
from shardwise.units import format_count, format_usd, sig
from shardwise.verbs.answer import Answer, Page, Row, TextTable
from shardwise.verbs.layout import Fact, Facts, wrapped
from shardwise.verbs.side_by_side import BesideRequest, ChipChoice, choice_row
from shardwise.workflows.sweep import SweepPoint

UNIT = 1e12
"""Tokens that a price is of where the request has none."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ChipsBeside(Answer):
    """Chips side by side, each with a slice and its best plan."""

    name: str
    asked: BesideRequest
    choices: tuple[ChipChoice, ...]

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

    def page(self) -> Page:
        """The table, the plans, the prices with their dates, and the cheapest."""
        run = self.asked.tokens is not None
        header = ["slice", "chips", "runs in", "tokens/s", "MFU", *(["days"] if run else [])]
        header += ["cost" if run else f"$/{format_count(UNIT)}", "over providers"]
        rows = [self._cells(choice, run) for choice in self.choices]
        yield TextTable(header, rows, self._title(), left=1)
        yield ""
        yield Facts([Fact(f"{c.point.piece.chip.id} plan", _plan_text(c)) for c in self.choices])
        yield ""
        yield Facts([Fact(f"{c.point.piece.chip.id} $/h", _price_text(c)) for c in self.choices])
        yield from (wrapped(line, 2, 4) for line in ["", *self.result["verdicts"]])

    def _title(self) -> str:
        text = f"{self.name}, batch {self.asked.batch}, seq {self.asked.length:,}"
        if self.asked.tokens is not None:
            text += f", {format_count(self.asked.tokens)} tokens"
        if self.asked.days is not None:
            text += f" within {sig(self.asked.days)} days, with the fewest chips that do it"
        return wrapped(text)

    def _cells(self, choice: ChipChoice, run: bool) -> list[str]:
        point, answer = choice.point, choice.point.answer
        chips = f"{point.piece.chips:,}"
        if answer is None:
            return [str(point.piece), chips, "no plan", *[""] * (5 if run else 4)]
        row = choice_row(choice, self.tokens)
        late = "" if choice.keeps else " (late)"
        return [
            str(point.piece),
            chips,
            row["runs_in"] or "any",
            format_count(answer.tokens_per_second),
            f"{answer.mfu:.0%}",
            *([sig(point.days or 0.0) + late] if run else []),
            _usd(row, "usd_at_price"),
            _range_text(row),
        ]


def chips_beside(
    cfg: ModelConfig, asked: BesideRequest, choices: Sequence[ChipChoice]
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


def _verdicts(
    asked: BesideRequest, choices: Sequence[ChipChoice], rows: Sequence[Row]
) -> list[str]:
    """The cheapest, which chips are late, and which have no price."""
    said = []
    priced = [row for row in rows if row["keeps_deadline"] and "usd_at_price" in row]
    if priced:
        best = min(priced, key=lambda row: row["usd_at_price"])
        said.append(f"cheapest: {best['slice']}, {format_usd(best['usd_at_price'])}")
    late = [row["slice"] for row in rows if not row["keeps_deadline"] and not row["miss"]]
    if late and asked.days is not None:
        said.append(f"not within {sig(asked.days)} days on any slice looked at: {', '.join(late)}")
    return said


def _plan_text(choice: ChipChoice) -> str:
    answer = choice.point.answer
    if answer is None:
        return choice.point.miss
    plan = answer.plan
    many = f"{plan.microbatches} microbatches" if plan.microbatches > 1 else "1 microbatch"
    return f"{mesh_text(plan.mesh)}, {many}, remat {plan.remat}"


def _price_text(choice: ChipChoice) -> str:
    price, prices = choice.price, choice.prices
    if price is None:
        return f"no price; give one with --price {choice.point.piece.chip.id}=USD"
    return str(price) if prices is None else f"{price}; {prices}"


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
