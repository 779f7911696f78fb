"""Which slice of a chip a training run takes: the fewest chips, or the fewest dollars, in time.

    seconds a step may take = tokens of a step / tokens of the run x seconds of the deadline

A search that knows it leaves out what is slower by its floors, so that a slice that is too small
costs little. Slices that double are planned first; then those between the largest that is too slow
and the first that is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path

from shardwise.commands.plan_train.points import SweepPoint, doublings, planned_point
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.errors import BadRequest
from shardwise.hardware import Chip, Slice
from shardwise.hardware.prices import Price, PriceRange, range_beside
from shardwise.models import load_model
from shardwise.models.flops import model_flops_per_token
from shardwise.planner.price.goodput import Overheads, goodput
from shardwise.plans.batch_words import parse_batch
from shardwise.units import DAY, dtype_bytes, sig

Plan = Callable[[Slice, float, str | None], SweepPoint]
"""The best plan on a slice whose step takes less than so many seconds, of a program where one is
named; a point without an answer where there is none."""

Allowed = Callable[[Slice], float]
"""The seconds that a step on a slice may take."""

WIDEST = 4
"""To look for a cheaper slice than the smallest, up to so many times its chips."""


@dataclass(kw_only=True)
class SliceChoice:
    """One chip's slice and plan, every slice that was planned for it, and the plans `in_time` of
    those. `keeps`: within the deadline, where there is one."""

    point: SweepPoint
    keeps: bool
    looked: Sequence[Slice] = field(default_factory=list)
    in_time: Sequence[SweepPoint] = ()

    @property
    def chip(self) -> Chip:
        """Of which it is a slice."""
        return self.point.piece.chip

    @cached_property
    def prices(self) -> PriceRange | None:
        """Over the providers; None for a chip that none lists, or whose price is the user's own."""
        return range_beside(self.chip.id, self.chip.price)

    def too_slow(self, days: float) -> str:
        """Why no slice of the chip keeps a deadline."""
        point = self.point
        if point.days is None:
            return f"no slice of {self.chip.id} has a plan; the largest: {point.miss}"
        fastest = f"{point.piece}, takes {sig(point.days)}"
        return (
            f"no slice of {self.chip.id} trains it within {sig(days)} days; the fastest tried, "
            f"{fastest}: give more --days or a larger --batch"
        )

    def dollars(self, price: Price, tokens: float) -> float:
        """Of so many tokens at a price."""
        answer = self.point.answer
        assert answer is not None
        hours = tokens / answer.tokens_per_second / 3600
        return hours * self.point.piece.chips * price.usd_per_chip_hour


@dataclass(frozen=True, kw_only=True)
class DatedRun:
    """A training of so many `tokens`, to be done within `days` where there is a deadline, less what
    `overheads` lose."""

    model: str | Path
    tokens: float | None
    days: float | None
    choices: TrainChoices
    overheads: Overheads = field(default_factory=Overheads)

    def choice(
        self, job: SweepPoint, pieces: Sequence[Slice], tell: Callable[[], None]
    ) -> SliceChoice:
        """The slice that the objective prefers, with its plan: the slice that keeps the deadline,
        else the fastest; without a deadline the largest. `tell` hears each search go on."""
        plan = self._planned(job, tell)
        if self.days is None or self.tokens is None:
            point = plan(pieces[-1], inf, None)
            return SliceChoice(point=point, keeps=point.answer is not None, looked=pieces[-1:])
        tokens = parse_batch(job.batch, job.sequence_length) * job.sequence_length
        each = tokens * self.days * DAY / self.tokens
        cfg = load_model(self.model)
        flops = tokens * float(model_flops_per_token(cfg, job.sequence_length, causal=True))
        if self.choices.lora:  # a frozen weight has no gradient of its own
            flops *= 2 / 3
        able = [p for p in pieces if flops <= each * _peak(p, self.choices.dtype)]
        found = slice_for(able, plan, lambda p: each * self._trains(p), self.choices.objective)
        return found or _late(pieces, plan)

    def _trains(self, piece: Slice) -> float:
        """The share of time in which so many chips train; 0 where they never finish."""
        try:
            return goodput(self.overheads, piece.chips).share
        except BadRequest:
            return 0.0

    def _planned(self, job: SweepPoint, tell: Callable[[], None]) -> Plan:
        """Plans the job on a slice; what its software or its chip cannot do is a miss."""

        def plan(piece: Slice, below: float, program: str | None) -> SweepPoint:
            asked = replace(job, piece=piece)
            own = self.choices if program is None else replace(self.choices, software=program)
            try:
                return planned_point(
                    asked, self.model, self.tokens, own, lambda *_: tell(), better_than=below
                )
            except BadRequest as error:
                return replace(asked, miss=str(error))

        return plan


def _peak(piece: Slice, dtype: str) -> float:
    """FLOP/s of all chips: no plan has more. Wider matmuls are never faster than those in two
    bytes."""
    least = min(dtype_bytes(dtype), 2)
    every = piece.chip.peak_flops
    wide = [peak for name, peak in every.items() if dtype_bytes(name) >= least]
    return piece.chips * max(wide or every.values())


def slice_for(
    pieces: Sequence[Slice], plan: Plan, allowed: Allowed, objective: str
) -> SliceChoice | None:
    """The slice that the `objective` prefers among slices in order of chips whose step is in time;
    None where no step is.

    "chips" is the fewest of them, "cost" the fewest chip-seconds a token (all chips of a slice are
    paid for), "time" the fastest.
    """
    looked: list[Slice] = []
    in_time: list[SweepPoint] = []

    def look(piece: Slice, below: float, program: str | None = None) -> SweepPoint | None:
        looked.append(piece)
        point = plan(piece, below, program)
        if point.answer is None or step_of(point) > below:
            return None
        in_time.append(point)
        return point

    if objective == "time":
        found = _fastest(pieces, look, allowed)
    else:
        found = _fewest(pieces, look, allowed)
        if found is not None and objective == "cost":
            found = _cheapest(found, pieces, look, allowed)
    return found and SliceChoice(point=found, keeps=True, looked=looked, in_time=in_time)


Look = Callable[..., SweepPoint | None]


def _fewest(pieces: Sequence[Slice], look: Look, allowed: Allowed) -> SweepPoint | None:
    """The smallest slice that is fast enough."""
    before = 0
    for piece in doublings(pieces):
        found = look(piece, allowed(piece))
        if found is not None:
            between = [p for p in pieces if before < p.chips < piece.chips]
            smaller = (look(p, allowed(p), _program(found)) for p in between)
            return next((point for point in smaller if point is not None), found)
        before = piece.chips
    return None


def _cheapest(
    first: SweepPoint, pieces: Sequence[Slice], look: Look, allowed: Allowed
) -> SweepPoint:
    """The slice of the fewest chip-seconds a step, among those up to `WIDEST` times as large."""
    best, chips = first, first.piece.chips
    for piece in pieces:
        if chips < piece.chips <= WIDEST * chips:
            below = best.piece.chips * step_of(best) / piece.chips
            best = look(piece, min(allowed(piece), below), _program(first)) or best
    return best


def _fastest(pieces: Sequence[Slice], look: Look, allowed: Allowed) -> SweepPoint | None:
    """The fastest slice of those that double, the largest first, until two are slower than it."""
    best, slower = None, 0
    for piece in reversed(doublings(pieces)):
        found = look(piece, min(allowed(piece), step_of(best) if best else inf))
        slower = 0 if found is not None else slower + (best is not None)
        best = found or best
        if slower == 2:
            break
    return best


def _late(pieces: Sequence[Slice], plan: Plan) -> SliceChoice:
    """The fastest slice, where none keeps the deadline."""
    found = slice_for(pieces, plan, lambda _: inf, "time")
    if found is None:
        return SliceChoice(point=plan(pieces[-1], inf, None), keeps=False, looked=pieces[-1:])
    return replace(found, keeps=False)


def _program(point: SweepPoint) -> str | None:
    return None if point.answer is None else point.answer.plan.software


def step_of(point: SweepPoint) -> float:
    """Expected seconds of a step."""
    return inf if point.answer is None else point.answer.step_seconds.expected
