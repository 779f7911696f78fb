"""Where one plan's expected step goes: the composition of `composition.py`, told apart by part.

    expected = layers + ends + (factor - 1) (layers + ends, without what comes once) + update + host

The rounds of the priced step are the same bodies, each op with its part (`roofline/time_parts.py`).
In a pipeline the counted device stands for the stage that works longest, `busy` of its own work.
Its parts are scaled to that; the rest of the pipeline's time is the bubble.

    factor = busy + bubble
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardwise.models import ModelConfig
from shardwise.planner.price.pipeline import busiest_stage
from shardwise.planner.price.plan import PricedStep, Times, microbatch_costs
from shardwise.planner.step.parts import runs_beside
from shardwise.planner.step.work import (
    Body,
    backward_body,
    end_body,
    end_gathers_again,
    forward_body,
    with_reduction,
    with_transfer,
)
from shardwise.plans import TrainPlan
from shardwise.roofline.bodies import sides_of
from shardwise.roofline.time_parts import RoundParts, TimeParts, round_parts, scaled_to


@dataclass(frozen=True, slots=True)
class BodyParts:
    """All rounds of a body; `plain` leaves out what comes once, as in `figures.Time`."""

    seconds: TimeParts
    plain: TimeParts

    def __add__(self, other: "BodyParts") -> "BodyParts":
        return BodyParts(self.seconds + other.seconds, self.plain + other.plain)


def step_parts(plan: TrainPlan, cfg: ModelConfig, priced: PricedStep, factor: float) -> TimeParts:
    """The parts of the plan's expected step, which add up to it; `factor` is its pipeline's."""
    waited = float(priced.seconds(factor).host)
    found = composed_parts(plan, cfg, priced, factor) + TimeParts(host=waited)
    return scaled_to(found, float(priced.estimate(factor).expected))


def composed_parts(
    plan: TrainPlan, cfg: ModelConfig, priced: PricedStep, factor: float
) -> TimeParts:
    """The parts before the estimate's bounds, which hardly ever move it."""
    own = _own(plan, priced)
    update = float(np.sum(priced.reduced.around(priced.shape).update))
    if plan.degree("stage") == 1:
        return own.seconds + TimeParts(optimizer=update)
    work = own.plain.seconds
    busy = min(
        busiest_stage(*microbatch_costs(plan, cfg, priced)) * plan.microbatches / work, factor
    )
    bubble = TimeParts(bubble=(factor - busy) * work, optimizer=update)
    return own.seconds + own.plain * (busy - 1) + bubble


def _own(plan: TrainPlan, priced: PricedStep) -> BodyParts:
    """The counted device's own rounds: layers and ends."""
    found = BodyParts(TimeParts(), TimeParts())
    for parts in (*_layers(plan, priced), *_ends(plan, priced)):
        found = found + parts
    return found


def _layers(plan: TrainPlan, priced: PricedStep) -> Iterator[BodyParts]:
    """Forward and backward rounds of every kind of layer (`Reduced.layers_time`)."""
    reduced, step = priced.reduced, priced.times
    stored, shape = reduced.stored, priced.shape
    sends = float(stored.sends(shape))
    for group, parts in enumerate(step.layers):
        rounds = float(np.reshape(stored.rounds[group], ()))
        forward = with_transfer(forward_body(parts, stored.ahead), step.transfer, sends)
        yield _rounds(plan, priced, forward, rounds)
        early = with_transfer(backward_body(parts, stored.again), step.transfer, sends)
        late = with_reduction(early, step.reductions[group])
        once = float(reduced.rounds_reduced[group, 0]) if reduced.reduction.sides else 0.0
        yield _rounds(plan, priced, early, rounds - once)
        last = _rounds(plan, priced, late, once)
        if not reduced.often and plan.microbatches > 1:
            last = BodyParts(last.seconds, _rounds(plan, priced, early, once).plain)
        yield last


def _ends(plan: TrainPlan, priced: PricedStep) -> Iterator[BodyParts]:
    """Both ends where the counted device has them, gradients reduced (`Reduced.around`)."""
    reduced, step = priced.reduced, priced.times
    ends = reduced.stored.ends(priced.shape)
    rounds = float(ends.rounds)
    times = rounds if reduced.often else 1.0
    each = zip(
        ends.bodies, step.ends, step.end_reductions, end_gathers_again(priced.shape), strict=True
    )
    for here, parts, reduction, again in each:
        if here is not None:
            body = with_reduction(end_body(parts, again), reduction, times / rounds)
            yield _rounds(plan, priced, body, rounds)


def _rounds(plan: TrainPlan, priced: PricedStep, body: Body[Times], count: float) -> BodyParts:
    """So many rounds of a body (`figures.Period.times`)."""
    period, once = _round(plan, priced, body).shown(priced.steps.stack)
    plain = period * count
    return BodyParts(plain + once * min(count, 1.0), plain)


def _round(plan: TrainPlan, priced: PricedStep, body: Body[Times]) -> RoundParts:
    def items() -> Iterator[tuple]:
        for part, times in body:
            aside = sides_of(part)
            for t in part:
                beside = runs_beside(t.op, t.op.id in aside, priced.shape.hidden)
                yield t, float(np.reshape(times, ())), beside

    return round_parts(items(), plan.mesh)
