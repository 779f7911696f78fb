"""`plan sweep`: the same training over slices, batches and lengths; what it is worth."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from shardwise.boundary import Command, number
from shardwise.boundary.options import option, required
from shardwise.boundary.records import hidden, plain, values
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.inputs import FAMILY, Words, check_choice, parse_total, words
from shardwise.commands.base.layout import Facts, wrapped
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.plan_train.chips_beside import ChipsBeside, chips_beside
from shardwise.commands.plan_train.points import (
    USUAL_CHIPS,
    SweepPoint,
    chosen_point,
    slices_between,
    sweep,
    verdicts,
)
from shardwise.commands.plan_train.side_by_side import BesideRequest, side_by_side
from shardwise.commands.plan_train.swept_result import SweepJob, SweepPlan, sweep_row
from shardwise.commands.pricing.train_choices import TrainChoices, coarsely
from shardwise.commands.pricing.whole_run import (
    RUN_TOKENS,
    Word,
    days_text,
    own_runs,
    price_facts,
    slow_end,
    wide_ranges,
)
from shardwise.errors import BadRequest
from shardwise.evidence.training.own import read_own_runs
from shardwise.hardware import Chip
from shardwise.models import load_model
from shardwise.models.describe import unpriced
from shardwise.models.zoo import with_family
from shardwise.planner.search.request import OBJECTIVES
from shardwise.plans.batch_words import parse_batch, parse_length
from shardwise.plans.train import mesh_text
from shardwise.units import format_count, format_seconds, format_usd, parse_count


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest(TrainChoices, Command):
    """Plan every slice, batch and length: scaling, the front of cost and speed, the cheapest slice.

    A bare chip means its slices of `chips` ("256..16384") chips, one per doubling. Several bare
    chips ("h100,v5p") with `days`, or with one number of `chips`, are compared, one row each: the
    cheapest slice that meets the deadline, or by `objective` the one of fewest "chips" or the
    fastest ("time"). Every chip of a slice counts as paid, so a slice's plan is its fastest. Raises
    BadRequest, and NoFeasiblePlan if no point has a plan.
    """

    COMMAND: ClassVar[str] = "plan sweep"

    model: str | Path = field(
        kw_only=False, metadata=required("Zoo name, config.json, or a folder with one.")
    )
    as_: str | None = option(FAMILY)
    on: Words = field(
        metadata=required(
            "Slice, or a bare chip for its slices within --chips; several as h100,v5p or repeated.",
            kind="several",
        )
    )
    chips: str | int | None = option(
        "Chips of a slice; N for several chips side by side.  [default: 1..65536]",
        metavar="N|LOW..HIGH",
        group="What is planned",
    )
    batches: Words = field(
        metadata=required("As in plan train; may be repeated.", kind="several", flag="--batch")
    )
    lengths: Words = field(
        metadata=required("Tokens; may be repeated.", kind="several", flag="--seq")
    )
    tokens: Word = option(RUN_TOKENS)
    days: float | str | None = option("Deadline of --tokens.", kind="number")
    objective: str = option(
        "Which slice that meets --days is the answer, and which plan -o writes. cost: the cheapest "
        "per token. chips: the fewest chips. time: the fastest. Every chip of a slice counts as "
        "paid.",
        values=OBJECTIVES,
        default="cost",
        show_default=True,
    )

    def answer(self, progress: Progress | None = None) -> "Swept | ChipsBeside":
        """Search each point, or of each chip the slices that its deadline needs."""
        self = replace(self, evidence=read_own_runs(self.evidence))
        if self.days is not None and not self.tokens:
            raise BadRequest("--days is the deadline of a run; give its length with --tokens")
        check_choice(self.objective, "--objective", OBJECTIVES)
        places = self._places()
        model, batches = with_family(self.model, self.as_), words(self.batches)
        cfg = load_model(model)
        lengths = [parse_length(text, "--seq") for text in words(self.lengths)]
        for batch in batches:
            for length in lengths:
                parse_batch(batch, length)
        tokens = parse_total(self.tokens, "--tokens") if self.tokens else None
        days = None
        if self.days is not None:
            days = number(self.days, "--days", above=0, most=1e6, suffix=True)
        low, high = self._range()
        if self._is_beside(places):
            asked = BesideRequest(
                model=model,
                places=places,
                batches=batches,
                lengths=lengths,
                low=low,
                high=high,
                tokens=tokens,
                days=days,
                choices=self,
            )
            return chips_beside(cfg, asked, side_by_side(asked, progress))
        found = [p for place in places for p in slices_between(place, low, high, self.hardware)]
        pieces = list({str(p): p for p in found}.values())
        jobs = sweep(
            model,
            pieces,
            batches=batches,
            lengths=lengths,
            tokens=tokens,
            choices=self,
            progress=progress,
        )
        return Swept(
            points=[sweep_row(job) for job in jobs],
            verdicts=verdicts(jobs, days=days),
            name=cfg.name,
            jobs=jobs,
            days=days,
            objective=self.objective,
            warnings=[*unpriced(cfg), *coarsely(self.coarse)],
            provenance={p.chip.id: p.chip.efficiency.source for p in pieces},
        )

    def _places(self) -> list[str]:
        """The slices and chips of `on`, each once."""
        names = [name.strip() for text in words(self.on) for name in text.split(",")]
        if not all(names):
            raise BadRequest(f"--on {','.join(words(self.on))} has an empty name; write h100,v5p")
        return list(dict.fromkeys(names))

    def _is_beside(self, places: list[str]) -> bool:
        """Whether it is chips side by side: several bare ones, of one size or with a deadline."""
        targets = [self.hardware.target(place) for place in places]
        if len({target.id for target in targets if isinstance(target, Chip)}) < 2:
            return False
        if self.chips is None and not self.days:
            raise BadRequest(
                "to compare several chips, give --chips N, or --tokens with --days; to sweep "
                "their slices, give --chips LOW..HIGH"
            )
        return bool(self.days) or ".." not in str(self.chips)

    def _range(self) -> tuple[float, float]:
        """The fewest and the most chips of a slice; N alone is up to N of several chips."""
        text = str(self.chips or EVERY_SIZE)
        if ".." not in text and len(self._places()) > 1:
            text = f"1..{text}"
        return _range(text)


EVERY_SIZE = f"1..{USUAL_CHIPS}"


def _range(text: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    if not dots:
        raise BadRequest(f"--chips '{text}' is not a range; write it like --chips 256..16384")
    found = parse_count(low, "--chips"), parse_count(high, "--chips")
    if found[0] > found[1]:
        raise BadRequest(f"--chips '{text}' ends below its start; write it like 256..16384")
    if found[1] > MOST_CHIPS:
        raise BadRequest(f"--chips '{text}' goes beyond {MOST_CHIPS:,.0f} chips; end below it")
    return found


MOST_CHIPS = 1e6  # no job is larger, and the search of one would take minutes


@dataclass(frozen=True, kw_only=True, repr=False)
class Swept(Answer):
    """A sweep: a point for each slice, batch and length, and what follows from them."""

    points: Sequence[SweepPlan | SweepJob]
    """Each slice with each batch and length."""
    verdicts: Sequence[str]
    """Where scaling stops paying, and the cheapest slice within the deadline."""

    name: str = hidden()
    jobs: tuple[SweepPoint, ...] = hidden()
    days: float | None = hidden()
    objective: str = hidden()

    @property
    def chosen(self) -> SweepPoint | None:
        """The plan to take: the cheapest within the deadline, or as the objective says; None where
        all are late."""
        return chosen_point(self.jobs, self.objective, self.days)

    def table(self) -> list[Row]:
        """One row per point."""
        return [_flat(row) for row in self.points]

    def page(self) -> Page:
        """The points as a table, why some have no plan, and the verdicts."""
        run = any(p.days is not None for p in self.jobs)
        header = ["slice", "mesh", "batch", "seq", "expected", "tokens/s", "MFU", "eff", "added"]
        header += ["bound by", *(["days", "cost"] if run else []), "front"]
        title = f"predicted (expected), one search per row; MFU of the {_dtype(self.jobs)} peak"
        yield TextTable(header, [_cells(p, run, self.days) for p in self.jobs], title, left=2)
        for point in self.jobs:
            if point.miss:
                yield f"  {point.piece}, batch {point.batch}: {point.miss}"
        yield from (f"\n{line}" for line in self.verdicts)
        if self.days and self.chosen and (slow := slow_end(self.chosen.days_80, self.days)):
            yield wrapped(slow, 2, 4)
        if run:
            yield from (wrapped(line, 2, 4) for line in wide_ranges(p.answer for p in self.jobs))
        yield from (wrapped(line, 2, 4) for line in own_runs(p.answer for p in self.jobs))
        if run:
            yield Facts(price_facts(p.piece.chip for p in self.jobs))
        if self.days and len(self.jobs) > 1:
            yield (
                "  sizes shown double; plan train with --days on a bare chip also tries the sizes "
                "between"
            )


def _flat(row: SweepJob) -> Row:
    """A point in one line of cells."""
    flat = plain(row)
    if isinstance(row, SweepPlan):
        step = {f"{bound}_s": seconds for bound, seconds in values(row.step_seconds).items()}
        flat |= step | {"mesh": mesh_text(row.mesh)}
    return {name: flat.get(name, "") for name in _COLUMNS}


def _dtype(points: Sequence[SweepPoint]) -> str:
    """Of the matmuls of the plans, which is one choice for all of a sweep."""
    return next(p.answer.plan.dtypes.compute for p in points if p.answer is not None)


_COLUMNS = (
    *("slice", "chips", "batch", "sequence_length", "batch_tokens", "mesh", "microbatches"),
    *("remat", "lower_s", "expected_s", "upper_s", "tokens_per_second", "mfu", "bound_by"),
    *("peak_bytes_per_chip", "efficiency", "marginal", "days", "usd", "on_front", "miss"),
)


def _cells(point: SweepPoint, run: bool, deadline: float | None) -> list[str]:
    start = [str(point.piece)]
    asked = [point.batch, str(point.sequence_length)]
    if point.answer is None:
        return [*start, "no plan", *asked, *[""] * (9 if run else 7)]
    answer = point.answer
    return [
        *start,
        mesh_text(answer.plan.mesh),
        *asked,
        format_seconds(answer.step_seconds.expected),
        format_count(answer.tokens_per_second),
        f"{answer.mfu:.1%}",
        "" if point.efficiency is None else f"{point.efficiency:.0%}",
        "" if point.marginal is None else f"{point.marginal:.0%}",
        answer.estimate.bound_by(),
        *([days_text(point.days or 0.0, point.days_80, deadline), _usd(point)] if run else []),
        "*" if point.on_front else "",
    ]


def _usd(point: SweepPoint) -> str:
    return "unknown" if point.usd is None else format_usd(point.usd)


plan_sweep = verb("plan_sweep", SweepRequest)
