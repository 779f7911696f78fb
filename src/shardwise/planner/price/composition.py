"""Seconds of training steps from those of their parts: for one plan, or for columns of candidates.

    Stored     layers and storage are chosen: rounds of the layers and of the ends
    Reduced    the ZeRO stage too: reductions, the update, totals of every resource
    seconds    the schedule too: what a pipeline idles, and the bounds

The stages are those of the search's loops, from what costs most to what costs least; what a later
one needs again is kept. A plan goes through all three once. Bodies are those of `step/work.py`, put
together from `Figures`; each takes the closed form of `roofline/bodies.py`.

    device   = layers + ends + (factor - 1) (layers + ends, without what comes once) + update
    expected = max(device, host) + begin

`factor` is a pipeline's time over the counted device's own work: the closed form of its schedule,
or for one plan what the timeline of its own stages says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from shardwise.planner.price.figures import (
    SERIAL,
    STARTS,
    Period,
    Priced,
    Round,
    Steps,
    Sums,
    Time,
    period_of,
    round_of,
    summed,
    totals_of,
    weight_of,
)
from shardwise.planner.price.pipeline import Passes
from shardwise.planner.step.parts import (
    END_EXCHANGES,
    END_REDUCTIONS,
    ENDS,
    LAYER,
    LAYER_EXCHANGES,
    REDUCTION,
    TRANSFER,
    UPDATE,
)
from shardwise.planner.step.work import (
    Body,
    EndParts,
    LayerParts,
    backward_body,
    end_body,
    end_gathers_again,
    forward_body,
    gathers_per_round,
    reductions,
)
from shardwise.plans.train import Structure
from shardwise.scheduling.pipeline import PLAIN
from shardwise.work import Quantity, total

_TRANSFER = "net:stage"


@dataclass(frozen=True, slots=True)
class Seconds:
    """The expected seconds of a step, their bounds, and each resource's seconds at its peak rate.

    `factor` is a pipeline's time over the time that the counted device works. One part of the
    expected seconds is the device's wait for the host.
    """

    lower: Quantity
    expected: Quantity
    upper: Quantity
    resources: Mapping[str, Quantity]
    factor: Quantity
    host: Quantity


@dataclass(frozen=True, kw_only=True)
class Layers:
    """All layers of a stage: a round of their bodies, totals and weight gradients of the step.
    `rounds` are those of a layer, `rows` those of every kind of layer."""

    forward: Round
    backward: Round
    bodies: tuple[Body[Priced], Body[Priced]]
    rounds: Quantity
    rows: np.ndarray

    @cached_property
    def totals(self) -> Sums:
        """Seconds of every resource."""
        forward, backward = map(totals_of, self.bodies)
        return Sums().add(Sums(forward).add(backward), self.rounds)

    @cached_property
    def weight(self) -> Quantity:
        """Seconds of the weight gradients."""
        return summed(weight_of(self.bodies[1]) * self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Both ends of the model without reductions: bodies, totals and weight gradients of the step,
    and the part of their time that is the forward pass. `rounds` are the microbatches that meet
    them on the counted device; an end on another device is None."""

    bodies: tuple[Round | None, Round]
    rounds: Quantity
    totals: Sums
    weight: Quantity
    forward_part: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What surrounds the layers in a step: the time of the ends and of the update; and the step's
    seconds by resource, `totals` of what every microbatch repeats (layers included) and `once` of
    what comes once."""

    ends: Time
    update: Quantity
    totals: Sums
    once: Sums
    weight: Quantity
    forward_part: Quantity


class Stored:
    """Steps whose layers and storage are chosen: all but ZeRO and the pipeline schedule."""

    def __init__(self, steps: Steps, structure: Structure) -> None:
        self.steps, self.structure = steps, structure
        self.ahead = steps.of(structure, lambda shape: gathers_per_round(shape)[0], _gather)
        self.again = steps.of(structure, lambda shape: gathers_per_round(shape)[1], _gather)
        layers = np.array([float(many) for _, many in steps.cfg.layer_groups()])
        self.rounds = layers[:, None] * steps.rounds
        self.sent = steps.figures(TRANSFER, structure)[0] if steps.piped else None
        # What a schedule makes of the layers: whether it pairs passes.
        self.kinds = (False, True) if steps.piped and steps.pairs and self._travels() else (False,)
        self._layers: dict[bool, Layers] = {}
        self._periods: dict[tuple[int, bool], tuple[Time, Round, Period]] = {}
        self._ends: dict[tuple[bool, bool], Ends] = {}

    def _travels(self) -> bool:
        """Whether tokens travel to experts, so that pairing passes makes a difference."""
        moe = self.steps.cfg.has_experts
        return moe and bool(np.any(np.asarray(self.steps.expert_group) > 1))

    def paired(self, structure: Structure) -> bool:
        """Whether passes of two microbatches run together under a structure."""
        return self.steps.piped and structure.paired

    def _place(self, structure: Structure) -> tuple[bool, bool]:
        """What the ends depend on of a schedule: whether they lie apart, and whether passes are
        paired."""
        return self.steps.piped and structure.ends == "apart", self.paired(structure)

    def layers(self, paired: bool) -> Layers:
        """The layers under schedules that pair passes, or under the others."""
        paired = paired and True in self.kinds
        if paired not in self._layers:
            self._layers[paired] = self._make_layers(paired)
        return self._layers[paired]

    def _make_layers(self, paired: bool) -> Layers:
        structure, steps = self.structure.with_pairing(paired), self.steps
        chains, others = steps.figures(LAYER, structure), steps.figures(LAYER_EXCHANGES, structure)
        parts = LayerParts(*chains, *others)
        forward = forward_body(parts, self.ahead)
        backward = backward_body(parts, self.again)
        return Layers(
            forward=round_of(forward),
            backward=round_of(backward),
            bodies=(forward, backward),
            rounds=steps.rounds,
            rows=self.rounds,
        )

    def periods(self, chunks: int, paired: bool) -> tuple[Time, Round, Period]:
        """With a number of chunks per stage, or without transfers (0): all forward rounds, and a
        backward round without reductions with its period."""
        if (chunks, paired) not in self._periods:
            ahead, early = self.rounds_of(chunks, paired)
            stack = self.steps.stack
            forward = period_of(ahead, stack).times(self.rounds)
            self._periods[chunks, paired] = forward, early, period_of(early, stack)
        return self._periods[chunks, paired]

    def rounds_of(self, chunks: int, paired: bool) -> tuple[Round, Round]:
        """A forward and a backward round with their transfers, without reductions."""
        layers = self.layers(paired)
        if not chunks or self.sent is None:
            return layers.forward, layers.backward
        sent = self.sent.sides
        return layers.forward.beside(sent, chunks), layers.backward.beside(sent, chunks)

    def sends(self, structure: Structure) -> int:
        """How often a layer's round sends activations on beside its work: once per chunk; never
        where the schedule waits for them."""
        beside = self.steps.piped and "pipeline" in structure.hidden
        return structure.virtual_stages if beside else 0

    def transfer_seconds(self, structure: Structure) -> Quantity:
        """For how long a stage waits for the activations of a microbatch from the one before: one
        transfer, nothing where it has other passes to run meanwhile."""
        if self.sent is None or "pipeline" in structure.hidden:
            return 0.0
        return np.asarray(self.sent.sides[_TRANSFER])[0] * (
            self.steps.cfg.layers * self.steps.share
        )

    def floor(self) -> Quantity:
        """Seconds that no ZeRO stage and no schedule goes below.

            floor = min over pairing of (forward + backward),   rounds of the layers alone

        Reductions and transfers only add to a round, ends and update to the step, and a pipeline
        takes at least M rounds of a stage with the most layers. What comes once (the first round's
        gathers) is left out, as `Reduced.floor` counts it.
        """
        least: Quantity = np.inf
        for paired in self.kinds:
            forward, _, early = self.periods(0, paired)
            least = np.minimum(least, forward.plain + early.times(self.rounds).plain)
        return least

    def ends(self, structure: Structure) -> Ends:
        """Both ends on the counted device, or where they lie apart the last one."""
        key = self._place(structure)
        if key not in self._ends:
            self._ends[key] = self._make_ends(structure, *key)
        return self._ends[key]

    def _make_ends(self, structure: Structure, apart: bool, paired: bool) -> Ends:
        structure, steps = structure.with_pairing(paired), self.steps
        first, last = steps.figures(ENDS, structure)
        others = steps.figures(END_EXCHANGES, structure)
        rounds = steps.microbatches / 2 if paired else steps.microbatches
        both = EndParts(first, *others[:5]), EndParts(last, *others[5:])
        late = steps.of(structure, lambda shape: end_gathers_again(shape)[1], _gather)
        before, after = (
            end_body(parts, again) for parts, again in zip(both, (0.0, late), strict=True)
        )
        totals, weight = Sums(), 0.0
        for body in [after] if apart else [before, after]:
            totals.add(totals_of(body), rounds)
            weight = weight + summed(weight_of(body)) * rounds
        return Ends(
            rounds=rounds,
            bodies=(None if apart else round_of(before), round_of(after)),
            totals=totals,
            weight=weight,
            forward_part=_forward_part((last,) if apart else (first, last)),
        )


class Reduced:
    """Steps whose ZeRO stage is chosen too: all but the pipeline schedule."""

    def __init__(self, stored: Stored, structure: Structure) -> None:
        self.stored, self.steps, self.structure = stored, stored.steps, structure
        self.often = self.steps.of(structure, lambda shape: shape.zero == 2, lambda s: s.zero == 2)
        (self.reduction,) = self.steps.figures(REDUCTION, structure)
        self._around: dict[tuple[bool, bool], Around] = {}
        self._by_chunks: dict[tuple[int, bool], tuple[Time, Time]] = {}

    def floor(self) -> Quantity:
        """Seconds that no schedule goes below: the step without transfers and idle time.

            without stages    layers + ends + update, which is the step itself
            with stages       layers + (ends - ends in every round) + update

        With stages `seconds` gives layers + ends + (factor - 1) (their plain parts) + update. The
        pipeline runs at least the M passes of a stage in the middle, so that factor (layers + ends)
        is at least the layers' plain part (`idle_factor`): of the ends only what comes once is
        sure to be paid.
        """
        around = self.around(replace(self.structure, pipeline_schedule=PLAIN))
        ends = around.ends
        sure = ends.seconds - ends.plain if self.steps.piped else ends.seconds
        if True in self.stored.kinds:
            # These ends are those of a schedule that pairs no passes. With pairs, the exchanges of
            # a multi-token prediction module overlap in another way, and what comes once may be
            # less: nothing of it is sure.
            sure = 0.0 * sure
        least: Quantity = np.inf
        for paired in self.stored.kinds:
            forward, backward = self._layers(0, paired)
            least = np.minimum(least, forward.seconds + backward.seconds)
        return least + sure + around.update

    def around(self, structure: Structure) -> Around:
        """Ends and update, kept by what they depend on of the schedule (`Stored._place`)."""
        key = self.stored._place(structure)
        if key not in self._around:
            self._around[key] = self._make_around(structure)
        return self._around[key]

    def _make_around(self, structure: Structure) -> Around:
        steps, stored = self.steps, self.stored
        ends, layers = stored.ends(structure), stored.layers(stored.paired(structure))
        (update,) = self.steps.figures(UPDATE, structure)
        totals, once = Sums(layers.totals).add(ends.totals), Sums(update.totals)
        often, time = self.often, Time(0.0, 0.0)
        times = np.where(often, ends.rounds, 1.0)
        self._reduce(totals, once, self.reduction.totals, steps.rounds, steps.share)
        reduced_ends = steps.figures(END_REDUCTIONS, structure)
        for body, reduction in zip(ends.bodies, reduced_ends, strict=True):
            if body is not None:
                self._reduce(totals, once, reduction.totals, ends.rounds, 1.0)
                whole = body.beside(reduction.sides, times / ends.rounds)
                time = time + period_of(whole, steps.stack).times(ends.rounds)
        whole = Round(chain=update.chain, wire=update.wire, sides=Sums(update.sides))
        return Around(
            ends=time,
            update=period_of(whole, steps.stack).times(1.0).seconds,
            totals=totals,
            once=once,
            weight=ends.weight,
            forward_part=ends.forward_part,
        )

    def _reduce(
        self,
        totals: Sums,
        once: Sums,
        seconds: Mapping[str, Quantity],
        rounds: Quantity,
        last: Quantity,
    ) -> None:
        """Add a reduction: to what every microbatch repeats under ZeRO-2, else to what comes once.
        No idle time repeats the latter."""
        if np.any(self.often):
            totals.add(seconds, rounds * np.where(self.often, 1.0, 0.0))
        if not np.all(self.often):
            once.add(seconds, last * np.where(self.often, 0.0, 1.0))

    def seconds(self, structure: Structure, factor: Quantity | None = None) -> Seconds:
        """The steps under a pipeline schedule; without a `factor`, by its closed form."""
        around = self.around(structure)
        if not self.steps.piped:
            return self._bounded(around.totals, around.once, 1.0, self.floor())
        chunks = structure.virtual_stages
        forward, backward = self.layers_time(structure)
        own = forward + backward + around.ends
        if factor is None:
            factor = self._idle_factor(structure, forward, backward, around)
        totals = Sums(around.totals)
        if self.stored.sent is not None:
            totals.add(self.stored.sent.totals, 2 * chunks * self.steps.rounds)
        expected = own.seconds + (factor - 1) * own.plain + around.update
        return self._bounded(totals, around.once, factor, expected)

    def _bounded(self, totals: Sums, once: Sums, factor: Quantity, expected: Quantity) -> Seconds:
        """The expected seconds between their bounds.

            lower    = max over resources of (factor x total + once)   the busiest at its peak
            expected = max(device, host) + begin                       whoever of them is behind
            upper    = max(sum of all ops, host) + begin               nothing overlaps, derated

        `once` are the seconds of what comes once per step (the update, reductions unless ZeRO-2),
        which a pipeline's idle time does not repeat. The host runs ahead of the device: it starts
        all kernels of the counted device, and the slower of the two decides.
        """
        spent = {name: seconds * factor for name, seconds in totals.items()}
        for name, seconds in once.items():
            spent[name] = spent[name] + seconds if name in spent else seconds
        del spent[STARTS]
        host, begin = totals[STARTS] + once.get(STARTS, 0.0), self.steps.stack.begin_seconds
        upper, lower = np.maximum(spent.pop(SERIAL), host), 0.0
        for seconds in spent.values():
            lower = np.maximum(lower, seconds)
        device = np.minimum(np.maximum(expected, lower), upper)
        expected = np.maximum(device, host) + begin
        return Seconds(lower, expected, upper + begin, spent, factor, expected - device)

    def _idle_factor(
        self, structure: Structure, forward: Time, backward: Time, around: Around
    ) -> Quantity:
        pipeline, share = self.steps.pipeline(structure)
        weight = self.stored.layers(self.stored.paired(structure)).weight
        ends, part = around.ends.plain, around.forward_part
        return pipeline.idle_factor(
            Passes(forward.plain, backward.plain, weight),
            Passes(ends * part, ends * (1 - part), around.weight),
            self.stored.transfer_seconds(structure) * self.steps.microbatches,
            share,
        )

    def layers_time(self, structure: Structure) -> tuple[Time, Time]:
        """The forward and the backward bodies of all layers under a schedule."""
        return self._layers(self.stored.sends(structure), self.stored.paired(structure))

    def _layers(self, chunks: int, paired: bool) -> tuple[Time, Time]:
        """With a number of chunks per stage, or without transfers."""
        if (chunks, paired) not in self._by_chunks:
            self._by_chunks[chunks, paired] = self._make_layers(chunks, paired)
        return self._by_chunks[chunks, paired]

    def _make_layers(self, chunks: int, paired: bool) -> tuple[Time, Time]:
        steps, rounds = self.steps, self.stored.rounds
        forward, early, period = self.stored.periods(chunks, paired)
        if not self.reduction.sides:
            return forward, period.times(rounds)
        once = self.rounds_reduced
        last = period_of(early.beside(self.reduction.sides), steps.stack).times(once)
        if not np.all(self.often):
            # The reduction comes once: where other microbatches stand before, it is no usual round.
            plain = summed(once * period.seconds)
            first = np.logical_and(steps.microbatches > 1, np.logical_not(self.often))
            last = Time(last.seconds, np.where(first, plain, last.plain))
        return forward, period.times(rounds - once) + last

    @cached_property
    def rounds_reduced(self) -> np.ndarray:
        """Rounds of every kind of layer whose backward pass reduces gradients."""
        times = [
            np.broadcast_to(
                self.steps.of(self.structure, partial(reductions, rows), _reduced), (self.steps.n,)
            )
            for rows in self.steps.tensors.groups
        ]
        return self.stored.rounds * (np.stack(times) / self.steps.microbatches)


def _gather(structure: Structure) -> str:
    return structure.weight_gather


def _reduced(structure: Structure) -> tuple[Any, ...]:
    return structure.storage_axes, structure.gradient_reduce, structure.zero == 2


def _forward_part(chains: tuple[Priced, ...]) -> Quantity:
    """The part of the time of ends that is the forward pass."""
    forward = summed(total(each.forward for each in chains))
    spent = summed(total(each.chain + each.wire + total(each.sides.values()) for each in chains))
    return forward / np.maximum(spent, 1e-300)
