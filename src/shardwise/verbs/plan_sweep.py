"""`plan sweep`: the same training over slices, batches and lengths; what it is worth."""

from dataclasses import dataclass, field
from pathlib import Path

from shardwise.boundary import number
from shardwise.errors import BadRequest
from shardwise.models import load_model
from shardwise.models.describe import unpriced
from shardwise.plans.batch_words import parse_batch, parse_length
from shardwise.plans.train import mesh_text
from shardwise.units import format_count, format_seconds, format_usd, parse_count, sig
from shardwise.verbs.answer import Answer, Page, Row, TextTable
from shardwise.verbs.request import Progress, verb
from shardwise.workflows.inputs import (
    Words,
    parse_total,
    words,
)
from shardwise.workflows.sweep import SweepPoint, slices_between, sweep, sweep_result
from shardwise.workflows.train_choices import TrainChoices


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest(TrainChoices):
    """Plan every slice, batch and length: scaling, the front of cost and speed, what is cheapest.

    `on` are slices, or bare chips for their slices of `chips` ("256..16384") chips, one per
    doubling; `batches` and `lengths` those of a step, in tokens or sequences ("1024seq") and in
    tokens. `tokens` ("15T") adds days and dollars of a whole run, `days` is its deadline. Raises
    BadRequest, and NoFeasiblePlan where no point has a plan.
    """

    model: str | Path = field(kw_only=False)
    on: Words
    chips: str = "1..65536"
    batches: Words
    lengths: Words
    tokens: float | str | None = None
    days: float | str | None = None

    def answer(self, progress: Progress | None = None) -> "Swept":
        """Search each point."""
        if self.days and not self.tokens:
            raise BadRequest("--days is a deadline for a run; say its length with --tokens")
        cfg, batches = load_model(self.model), words(self.batches)
        lengths = [parse_length(text, "--seq") for text in words(self.lengths)]
        for batch in batches:
            for length in lengths:
                parse_batch(batch, length)
        low, high = _range(self.chips)
        found = [p for t in words(self.on) for p in slices_between(t, low, high, self.hardware)]
        pieces = list({str(p): p for p in found}.values())
        points = sweep(
            self.model,
            pieces,
            batches=batches,
            lengths=lengths,
            tokens=parse_total(self.tokens, "--tokens") if self.tokens else None,
            choices=self,
            progress=progress,
        )
        days = number(self.days, "--days", above=0, most=1e6, suffix=True) if self.days else None
        return Swept(
            name=cfg.name,
            points=points,
            days=days,
            result=sweep_result(points, days),
            warnings=unpriced(cfg),
            provenance={p.chip.id: p.chip.efficiency.source for p in pieces},
        )


def _range(text: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    if not dots:
        raise BadRequest(f"--chips '{text}' is no range; write it like --chips 256..16384")
    found = parse_count(low, "--chips"), parse_count(high, "--chips")
    if found[0] > found[1]:
        raise BadRequest(f"--chips '{text}' ends below its start; write it like 256..16384")
    if found[1] > MOST_CHIPS:
        raise BadRequest(f"--chips '{text}' goes beyond {MOST_CHIPS:,.0f} chips; end below it")
    return found


MOST_CHIPS = 1e6  # no job is larger, and the search of one would take minutes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Swept(Answer):
    """A sweep: a point for each slice, batch and length, and what follows from them."""

    name: str
    points: tuple[SweepPoint, ...]
    days: float | None

    def table(self) -> list[Row]:
        """One row per point."""
        rows = []
        for row in self.result["points"]:
            step = row.get("step_seconds", {})
            flat = row | {f"{bound}_s": seconds for bound, seconds in step.items()}
            flat["mesh"] = mesh_text(row["mesh"]) if "mesh" in row else ""
            rows.append({name: flat.get(name, "") for name in _COLUMNS})
        return rows

    def page(self) -> Page:
        """The points as a table, why some have no plan, and the verdicts."""
        run = any(p.days is not None for p in self.points)
        header = ["slice", "mesh", "batch", "seq", "expected", "tokens/s", "MFU", "eff", "added"]
        header += ["bound by", *(["days", "cost"] if run else []), "front"]
        title = "predicted (expected), one search a row"
        yield TextTable(header, [_cells(p, run) for p in self.points], title, left=2)
        for point in self.points:
            if point.miss:
                yield f"  {point.piece}, batch {point.batch}: {point.miss}"
        yield from (f"\n{line}" for line in self.result["verdicts"])


_COLUMNS = (
    *("slice", "chips", "batch", "sequence_length", "batch_tokens", "mesh", "microbatches"),
    *("remat", "lower_s", "expected_s", "upper_s", "tokens_per_second", "mfu", "bound_by"),
    *("peak_bytes_per_chip", "efficiency", "marginal", "days", "usd", "on_front", "miss"),
)


def _cells(point: SweepPoint, run: bool) -> list[str]:
    start = [str(point.piece)]
    asked = [point.batch, str(point.sequence_length)]
    if point.answer is None:
        return [*start, "no plan", *asked, *[""] * (9 if run else 7)]
    answer = point.answer
    return [
        *start,
        mesh_text(answer.plan.mesh),
        *asked,
        format_seconds(answer.step_seconds["expected"]),
        format_count(answer.tokens_per_second),
        f"{answer.mfu:.1%}",
        "" if point.efficiency is None else f"{point.efficiency:.0%}",
        "" if point.marginal is None else f"{point.marginal:.0%}",
        answer.estimate.bound_by(),
        *([sig(point.days or 0.0), _usd(point)] if run else []),
        "*" if point.on_front else "",
    ]


def _usd(point: SweepPoint) -> str:
    return "unknown" if point.usd is None else format_usd(point.usd)


plan_sweep = verb("plan_sweep", SweepRequest)
