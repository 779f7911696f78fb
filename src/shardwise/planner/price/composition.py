"""Seconds of training steps from those of their parts: for one plan, or for columns of candidates.

    Stored     layers and storage are chosen: rounds of the layers and of the ends
    Reduced    the ZeRO stage too: reductions, the update, totals of every resource
    seconds    the schedule too: what a pipeline idles, and the bounds

The stages are those of the search's loops, from what costs most to what costs least; what a later
one needs again is kept. A plan goes through all three once. Rounds are put together as `step/tree`
says, from `Figures`; each is the closed form of `roofline/bodies.py`.

    expected = layers + ends + (factor - 1) (layers + ends, without what comes once) + update

`factor` is a pipeline's time over the counted device's own work: the closed form of its schedule,
or for one plan what the timeline of its own stages says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.planner.price.figures import SERIAL, Figures, Sums
from shardwise.planner.price.seconds import Passes, idle_factor
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.strategies.fsdp import end_gathers_again, gathers_per_round
from shardwise.planner.step.tree import (
    Body,
    EndParts,
    LayerParts,
    backward_body,
    end_body,
    forward_body,
)
from shardwise.planner.step.work import reductions
from shardwise.plans.train import Structure
from shardwise.roofline.bodies import BodyTime, closed_form
from shardwise.roofline.stacks import Stack
from shardwise.scheduling.pipeline import PLAIN
from shardwise.work import Quantity

_TRANSFER = "net:stage"


class Steps(Protocol):
    """Steps to be priced together: one plan, or candidates that use the same mesh axes; their
    numbers, and what each of their parts takes under a structure.

    `share` is the part of all layers that the counted device has, `piped` whether there are stages,
    `pairs` whether some schedule among the choices runs a forward and a backward pass of two
    microbatches together.
    """

    @property
    def cfg(self) -> ModelConfig: ...
    @property
    def stack(self) -> Stack: ...
    @property
    def groups(self) -> Sequence[Sequence[Parameter]]: ...
    @property
    def layers(self) -> Sequence[float]: ...
    @property
    def stages(self) -> Quantity: ...
    @property
    def microbatches(self) -> Quantity: ...
    @property
    def share(self) -> Quantity: ...
    @property
    def piped(self) -> bool: ...
    @property
    def pairs(self) -> bool: ...
    def __len__(self) -> int: ...
    def shape(self, structure: Structure) -> TrainShape:
        """The steps as numbers."""
        ...

    def layer_parts(self, structure: Structure) -> LayerParts[Figures]:
        """A layer of every kind, one per row."""
        ...

    def end_parts(
        self, structure: Structure
    ) -> tuple[EndParts[Figures], EndParts[Figures], Quantity, Quantity]:
        """Both ends, and the part of the last one's time, and of both ones', that is forward."""
        ...

    def reduction(self, structure: Structure) -> Figures:
        """The gradient reduction of a layer of every kind."""
        ...

    def end_reductions(self, structure: Structure) -> tuple[Figures, Figures]:
        """Those of the ends."""
        ...

    def transfer(self, structure: Structure) -> Figures:
        """The share per layer of sending activations on, with one chunk per stage."""
        ...

    def update(self, structure: Structure) -> Figures:
        """The optimizer's update."""
        ...


C = TypeVar("C", bound=Steps)


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of a step: the expected seconds between their bounds, seconds of each resource at its peak
    rate, and the factor by which a pipeline takes longer than the counted device works."""

    lower: Quantity
    expected: Quantity
    upper: Quantity
    resources: Mapping[str, Quantity]
    factor: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Seconds of one round of a body, or one row per kind of layer: see `Figures`."""

    chain: Quantity = 0.0
    wire: Quantity = 0.0
    sides: Sums
    totals: Sums
    weight: Quantity = 0.0

    def beside(self, seconds: Mapping[str, Quantity], times: Quantity = 1.0) -> "Round":
        """The round with more beside its chain; the totals are left as they are."""
        return replace(self, sides=Sums(self.sides).add(seconds, times))


def round_of(body: Body[Figures]) -> Round:
    """The parts of a body added up, each as often as it comes."""
    chain: Quantity = 0.0
    wire: Quantity = 0.0
    weight: Quantity = 0.0
    sides, totals = Sums(), Sums()
    for part, times in body:
        chain = _plus(chain, part.chain, times)
        wire = _plus(wire, part.wire, times)
        weight = _plus(weight, part.weight, times)
        sides.add(part.sides, times)
        totals.add(part.totals, times)
    return Round(chain=chain, wire=wire, sides=sides, totals=totals, weight=weight)


def _plus(total: Quantity, value: Quantity, times: Quantity) -> Quantity:
    """total + value x times, without arrays of what adds nothing."""
    if not isinstance(value, np.ndarray):
        return total + value * times if value else total
    return total + (value if np.ndim(times) == 0 and times == 1.0 else value * times)


def round_time(found: Round, count: Quantity, stack: Stack) -> BodyTime:
    """All rounds, by the closed form of a body."""
    return closed_form(found.chain, found.wire, found.sides.values(), count, stack)


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds per step of bodies; `plain` leaves out what comes once (`BodyTime.fill`)."""

    seconds: Quantity
    plain: Quantity

    def __add__(self, other: "Time") -> "Time":
        return Time(self.seconds + other.seconds, self.plain + other.plain)


def time_of(found: Round, count: Quantity, stack: Stack) -> Time:
    """All rounds of a body, its kinds of layers added up."""
    time = round_time(found, count, stack)
    return Time(_summed(time.expected), _summed(count * time.period))


def _summed(rows: Quantity) -> Quantity:
    return np.sum(rows, axis=0) if np.ndim(rows) > 1 else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """All layers of a stage: a round of their bodies, totals and weight gradients of the step."""

    forward: Round
    backward: Round
    totals: Sums
    weight: Quantity


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


class Stored(Generic[C]):
    """Steps whose layers and storage are chosen: all but ZeRO and the pipeline schedule."""

    def __init__(self, steps: C, structure: Structure) -> None:
        self.steps, self.structure = steps, structure
        self.shape = steps.shape(structure)
        self.ahead, self.again = gathers_per_round(self.shape)
        self.rounds = np.asarray(steps.layers)[:, None] * (steps.share * steps.microbatches)
        # What a schedule makes of the layers: whether it pairs passes.
        self.kinds = (False, True) if steps.piped and steps.pairs and self._travels() else (False,)
        self._layers: dict[bool, Layers] = {}
        self._ends: dict[tuple[bool, bool], Ends] = {}

    def _travels(self) -> bool:
        """Whether tokens travel to experts, so that pairing passes makes a difference."""
        moe = self.steps.cfg.has_experts
        return moe and bool(np.any(np.asarray(self.shape.layer_shape.expert_group) > 1))

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
        parts = self.steps.layer_parts(self.structure.with_pairing(paired))
        forward = round_of(forward_body(parts, self.ahead))
        backward = round_of(backward_body(parts, self.again))
        once = Sums(forward.totals).add(backward.totals)
        return Layers(
            forward=forward,
            backward=backward,
            totals=Sums().add(once, self.steps.share * self.steps.microbatches),
            weight=_summed(backward.weight * self.rounds),
        )

    def floor(self) -> Quantity:
        """Seconds that no ZeRO stage and no schedule goes below.

            floor = min over pairing of (forward + backward),   rounds of the layers alone

        Reductions and transfers only add to a round, ends and update to the step, and a pipeline
        takes at least M rounds of a stage with the most layers. What comes once (the first round's
        gathers) is left out, as `Reduced.floor` counts it.
        """
        least: Quantity = np.inf
        for layers in map(self.layers, self.kinds):
            forward = time_of(layers.forward, self.rounds, self.steps.stack).plain
            backward = time_of(layers.backward, self.rounds, self.steps.stack).plain
            least = np.minimum(least, forward + backward)
        return least

    def ends(self, structure: Structure) -> Ends:
        """Both ends on the counted device, or where they lie apart the last one."""
        key = self._place(structure)
        if key not in self._ends:
            self._ends[key] = self._make_ends(structure, *key)
        return self._ends[key]

    def _make_ends(self, structure: Structure, apart: bool, paired: bool) -> Ends:
        found = self.steps.end_parts(structure.with_pairing(paired))
        first, last, last_forward, both_forward = found
        rounds = self.steps.microbatches / 2 if paired else self.steps.microbatches
        before, after = (
            round_of(end_body(parts, again))
            for parts, again in zip((first, last), end_gathers_again(self.shape), strict=True)
        )
        here = [after] if apart else [before, after]
        totals, weight = Sums(), 0.0
        for body in here:
            totals.add(body.totals, rounds)
            weight = weight + _summed(body.weight) * rounds
        return Ends(
            rounds=rounds,
            bodies=(None if apart else before, after),
            totals=totals,
            weight=weight,
            forward_part=last_forward if apart else both_forward,
        )


class Reduced(Generic[C]):
    """Steps whose ZeRO stage is chosen too: all but the pipeline schedule."""

    def __init__(self, stored: Stored[C], structure: Structure) -> None:
        self.stored, self.steps, self.structure = stored, stored.steps, structure
        self.shape = replace(stored.shape, zero=structure.zero)
        self.often = structure.zero == 2
        self.reduction = self.steps.reduction(structure)
        self._once: np.ndarray | None = None
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
        update = self.steps.update(structure)
        totals, once = Sums(layers.totals).add(ends.totals), Sums(update.totals)
        # No idle time repeats what comes once.
        reduced = totals if self.often else once
        reduced.add(
            self.reduction.totals, steps.share * (steps.microbatches if self.often else 1.0)
        )
        time, times = Time(0.0, 0.0), ends.rounds if self.often else 1.0
        for body, reduction in zip(ends.bodies, steps.end_reductions(structure), strict=True):
            if body is not None:
                reduced.add(reduction.totals, times)
                whole = body.beside(reduction.sides, times / ends.rounds)
                time = time + time_of(whole, ends.rounds, steps.stack)
        whole = Round(chain=update.chain, wire=update.wire, sides=Sums(update.sides), totals=Sums())
        return Around(
            ends=time,
            update=time_of(whole, 1.0, steps.stack).seconds,
            totals=totals,
            once=once,
            weight=ends.weight,
            forward_part=ends.forward_part,
        )

    def seconds(self, structure: Structure, factor: Quantity | None = None) -> Seconds:
        """The steps under a pipeline schedule; without a `factor`, by its closed form."""
        around = self.around(structure)
        if not self.steps.piped:
            return _bounded(around.totals, around.once, 1.0, self.floor())
        chunks = structure.virtual_stages
        forward, backward = self.layers_time(structure)
        own = forward + backward + around.ends
        if factor is None:
            factor = self._idle_factor(structure, forward, backward, around)
        moved = self.steps.transfer(structure)
        often = 2 * chunks * self.steps.share * self.steps.microbatches
        totals = Sums(around.totals).add(moved.totals, often)
        expected = own.seconds + (factor - 1) * own.plain + around.update
        return _bounded(totals, around.once, factor, expected)

    def _idle_factor(
        self, structure: Structure, forward: Time, backward: Time, around: Around
    ) -> Quantity:
        steps, m, part = self.steps, self.steps.microbatches, around.forward_part
        weight = self.stored.layers(self.stored.paired(structure)).weight
        ends = around.ends.plain
        return idle_factor(
            structure.pipeline_schedule,
            steps.stages,
            m,
            structure.virtual_stages,
            Passes(forward.plain / m, backward.plain / m, weight / m),
            Passes(ends * part / m, ends * (1 - part) / m, around.weight / m),
            self.transfer_seconds(structure),
            steps.cfg.layers,
        )

    def transfer_seconds(self, structure: Structure) -> Quantity:
        """One transfer of a microbatch's activations to the next stage."""
        sent = self.steps.transfer(structure).sides[_TRANSFER][0]
        return sent * (self.steps.cfg.layers * self.steps.share)

    def layers_time(self, structure: Structure) -> tuple[Time, Time]:
        """The forward and the backward bodies of all layers under a schedule."""
        return self._layers(
            structure.virtual_stages if self.steps.piped else 0, self.stored.paired(structure)
        )

    def _layers(self, chunks: int, paired: bool) -> tuple[Time, Time]:
        """With a number of chunks per stage, or without transfers."""
        if (chunks, paired) not in self._by_chunks:
            self._by_chunks[chunks, paired] = self._make_layers(chunks, paired)
        return self._by_chunks[chunks, paired]

    def rounds_of(self, chunks: int, paired: bool) -> tuple[Round, Round]:
        """A forward and a backward round with their transfers, without reductions."""
        layers = self.stored.layers(paired)
        sent = self.steps.transfer(self.structure).sides if chunks else {}
        return layers.forward.beside(sent, chunks), layers.backward.beside(sent, chunks)

    def _make_layers(self, chunks: int, paired: bool) -> tuple[Time, Time]:
        steps, rounds, stack = self.steps, self.stored.rounds, self.steps.stack
        ahead, early = self.rounds_of(chunks, paired)
        forward = time_of(ahead, rounds, stack)
        if not self.reduction.sides:
            return forward, time_of(early, rounds, stack)
        once = self.rounds_reduced()
        late = early.beside(self.reduction.sides)
        usual, last = time_of(early, rounds - once, stack), time_of(late, once, stack)
        if not self.often:
            # The reduction comes once: where other microbatches stand before, it is no usual round.
            plain = time_of(early, once, stack).plain
            last = Time(last.seconds, np.where(steps.microbatches > 1, plain, last.plain))
        return forward, usual + last

    def rounds_reduced(self) -> np.ndarray:
        """Rounds of every kind of layer whose backward pass reduces gradients."""
        if self._once is None:
            times = [
                np.broadcast_to(reductions(rows, self.shape), (len(self.steps),))
                for rows in self.steps.groups
            ]
            self._once = self.stored.rounds * (np.stack(times) / self.steps.microbatches)
        return self._once


def _bounded(totals: Sums, once: Sums, factor: Quantity, expected: Quantity) -> Seconds:
    """The expected seconds between their bounds.

        lower = max over resources of (factor x total + once)    the busiest resource at its peak
        upper = the same sum for all ops one after the other     nothing overlaps, derated rates

    `once` are the seconds of what comes once per step (the update, reductions unless ZeRO-2), which
    a pipeline's idle time does not repeat.
    """
    spent = {name: seconds * factor for name, seconds in totals.items()}
    for name, seconds in once.items():
        spent[name] = spent[name] + seconds if name in spent else seconds
    upper, lower = spent.pop(SERIAL), 0.0
    for seconds in spent.values():
        lower = np.maximum(lower, seconds)
    expected = np.minimum(np.maximum(expected, lower), upper)
    return Seconds(lower, expected, upper, spent, factor)
