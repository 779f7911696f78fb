"""Memory and the bounds of step time of many candidates at once, from the parts of a step.

Bodies are those of `train_work.train_work`, in the same composition: what stands there as ops
stands here as their sums (`step_parts.py`); the closed form of a body, the idle time of a pipeline
and the memory are the functions that price a single plan. The loops go from what costs most to what
costs least: the chains of a layer, what stores and gathers parameters, ZeRO, and innermost the
pipeline schedule, which takes two closed forms.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwise.models.specs import Moe
from shardwise.planner.price.memory.working import loss_bytes
from shardwise.planner.price.seconds import Passes, idle_factor
from shardwise.planner.search.figures import SERIAL, Figures, Sums
from shardwise.planner.search.leaves import OnKeys, StepParts, column_shape
from shardwise.planner.search.request import Structure
from shardwise.planner.step.strategies.fsdp import end_gathers_again, gathers_per_round
from shardwise.planner.step.work import reductions
from shardwise.roofline.bodies import closed_form
from shardwise.scheduling.pipeline import PIPELINE_KINDS, PLAIN, schedule_row
from shardwise.work import Quantity

_TRANSFER = "net:stage"


@dataclass(frozen=True, slots=True)
class Priced:
    """Candidates of one structure: bytes per device, and seconds per step."""

    structure: Structure
    memory: np.ndarray
    lower: np.ndarray
    expected: np.ndarray
    upper: np.ndarray


class Chunk:
    """Candidates that use the same axes, few enough to stay in cache."""

    def __init__(self, parts: StepParts, index: np.ndarray) -> None:
        self.parts, self.index = parts, index
        self.columns = parts.columns.take(index)
        stages, layers = self.columns.degrees["stage"], parts.request.cfg.layers
        self.stages, self.piped = stages, bool(stages[0] > 1)
        self.microbatches = self.columns.microbatches.astype(float)
        self.share = np.ceil(layers / stages) / layers
        self.rounds = np.asarray(parts.layers)[:, None] * (self.share * self.microbatches)
        self._gathered: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.index)

    def lying(self, structure: Structure) -> tuple[bool, bool]:
        """What the ends of the model depend on of a schedule: whether they lie apart, and whether
        passes are paired."""
        return self.piped and structure.ends == "apart", self.paired(structure)

    def paired(self, structure: Structure) -> bool:
        """Whether passes of two microbatches run together under this structure."""
        return self.piped and structure.paired

    def at(self, part: OnKeys) -> Any:
        """A part's figures of these candidates."""
        if id(part) not in self._gathered:
            self._gathered[id(part)] = part.at(self.index)
        return self._gathered[id(part)]


@dataclass(frozen=True, slots=True)
class _Body:
    """Seconds of one round of a body (or one row per layer group), without transfers."""

    chain: Quantity
    wire: Quantity
    sides: Sums

    def beside(self, seconds: Mapping[str, Quantity], times: Quantity = 1.0) -> "_Body":
        """The body with more beside it."""
        return _Body(self.chain, self.wire, Sums(self.sides).add(seconds, times))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """All layers of a stage: a round of their bodies, totals and weight gradients of the step."""

    forward: _Body
    backward: _Body
    totals: Sums
    weight: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """Both ends of the model without reductions: bodies, totals and weight gradients of the step,
    and the part of their time that is the forward pass. `rounds` are the microbatches that meet
    them on the counted device."""

    bodies: tuple[_Body | None, ...]
    rounds: Quantity
    totals: Sums
    weight: Quantity
    forward_part: Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    """All of a step but its layers: time of the ends, of the update, totals of the stage's work
    (its layers among it) and of what comes once per step."""

    ends: "_Time"
    update: Quantity
    totals: Sums
    rest: Mapping[str, np.ndarray]
    weight: Quantity
    forward_part: Quantity


class Stored:
    """A step whose layers and storage are chosen: all but ZeRO and the pipeline schedule."""

    def __init__(self, chunk: Chunk, structure: Structure) -> None:
        self.chunk, parts = chunk, chunk.parts
        self.shape = column_shape(parts.request, chunk.columns, structure)
        self.structure = structure
        self.ahead, self.again = gathers_per_round(self.shape)
        # What a schedule makes of the layers: whether it pairs passes.
        pairs = chunk.piped and any(schedule_row(k).pairs_passes for k in parts.request.schedules)
        self.kinds = (False, True) if pairs and self._travels() else (False,)
        self._layers: dict[bool, _Layers] = {}
        self._ends: dict[tuple[bool, bool], _Ends] = {}

    def _travels(self) -> bool:
        """Whether tokens travel to experts, so that pairing passes makes a difference."""
        moe = any(isinstance(g.mlp, Moe) for g in self.chunk.parts.request.cfg.groups)
        return moe and bool(np.any(np.asarray(self.shape.layer_shape.expert_group) > 1))

    def layers(self, paired: bool) -> _Layers:
        """The layers under schedules that pair passes, or under the others."""
        paired = paired and True in self.kinds
        if paired not in self._layers:
            self._layers[paired] = self._make_layers(paired)
        return self._layers[paired]

    def _make_layers(self, paired: bool) -> _Layers:
        chunk, parts, ahead, again = self.chunk, self.chunk.parts, self.ahead, self.again
        structure = _with_pairing(self.structure, paired)
        forth, back = chunk.at(parts.layer(structure))
        gathers, scatters, summed, casts = chunk.at(parts.exchanges(structure))
        moved = Sums().add(gathers.sides, again).add(scatters.sides)
        forward = _Body(forth.chain + casts.chain * ahead, forth.wire, Sums(forth.sides))
        chain = back.chain + summed.chain + casts.chain * again
        rounds = chunk.share * chunk.microbatches
        totals = Sums(forth.totals).add(back.totals).add(summed.totals).add(scatters.totals)
        totals.add(gathers.totals, ahead + again).add(casts.totals, ahead + again)
        return _Layers(
            forward=forward.beside(gathers.sides, ahead),
            backward=_Body(chain, back.wire, Sums(back.sides)).beside(moved),
            totals=Sums().add(totals, rounds),
            weight=back.weight * rounds,
        )

    def floor(self) -> Quantity:
        """Seconds that no ZeRO stage and no schedule goes below: the layers without reductions,
        transfers and idle time."""
        chunk, least = self.chunk, np.inf
        for layers in map(self.layers, self.kinds):
            forward = _time(layers.forward, chunk.rounds, chunk.parts).plain
            backward = _time(layers.backward, chunk.rounds, chunk.parts).plain
            least = np.minimum(least, forward + backward)
        return least

    def ends(self, structure: Structure) -> _Ends:
        """Both ends on the counted device, or where they lie apart the last one."""
        key = self.chunk.lying(structure)
        if key not in self._ends:
            self._ends[key] = self._make_ends(structure, key[0])
        return self._ends[key]

    def _make_ends(self, structure: Structure, apart: bool) -> _Ends:
        chunk, parts = self.chunk, self.chunk.parts
        paired = chunk.paired(structure)
        first, last, last_share, share = chunk.at(parts.ends(_with_pairing(structure, paired)))
        rounds = chunk.microbatches / 2 if paired else chunk.microbatches
        bodies: list[_Body | None] = []
        totals, weight = Sums(), 0.0
        ends = zip(
            (first, last),
            chunk.at(parts.end_exchanges(structure)),
            end_gathers_again(self.shape),
            strict=True,
        )
        for end, moved, again in ends:
            if end is first and apart:
                bodies.append(None)
                continue
            gathers, scatters, summed, casts = moved
            sides = Sums(end.sides).add(gathers.sides, 1 + again).add(scatters.sides)
            bodies.append(_Body(end.chain + summed.chain + casts.chain, end.wire, sides))
            once = Sums(end.totals).add(summed.totals).add(scatters.totals).add(casts.totals)
            totals.add(once.add(gathers.totals, 1 + again), rounds)
            weight = weight + end.weight * rounds
        return _Ends(
            rounds=rounds,
            bodies=tuple(bodies),
            totals=totals,
            weight=weight,
            forward_part=last_share if apart else share,
        )


class Reduced:
    """A step whose ZeRO stage is chosen too: all but the pipeline schedule."""

    def __init__(self, stored: Stored, structure: Structure) -> None:
        self.stored, self.chunk = stored, stored.chunk
        chunk, parts = stored.chunk, stored.chunk.parts
        self.structure = structure
        self.shape = replace(stored.shape, zero=structure.zero)
        self.reduction = chunk.at(parts.reduction(structure))
        self._once: np.ndarray | None = None
        self._around: dict[tuple[bool, bool], _Around] = {}
        self._by_chunks: dict[tuple[int, bool], tuple[_Time, _Time]] = {}

    def floor(self) -> Quantity:
        """Seconds that no schedule goes below: the step without transfers and idle time, the ends
        apart where there are stages."""
        around = self.around(replace(self.structure, schedule=PLAIN))
        ends = around.ends
        # With stages the ends may lie on one that has fewer layers and waits for the others.
        beside = ends.seconds - ends.plain if self.chunk.piped else ends.seconds
        if True in self.stored.kinds:
            beside = 0.0 * beside  # of prediction modules less may hide where passes are paired
        least = np.inf
        for paired in self.stored.kinds:
            forward, backward = self._layers(0, 0.0, paired)
            least = np.minimum(least, forward.seconds + backward.seconds)
        return least + beside + around.update

    def around(self, structure: Structure) -> _Around:
        """Ends and update; they depend on the schedule by where the ends lie."""
        key = self.chunk.lying(structure)
        if key not in self._around:
            self._around[key] = self._make_around(structure)
        return self._around[key]

    def _make_around(self, structure: Structure) -> _Around:
        chunk, parts = self.chunk, self.chunk.parts
        ends, layers = self.stored.ends(structure), self.stored.layers(chunk.paired(structure))
        often = structure.zero == 2
        reductions = chunk.share * (chunk.microbatches if often else 1.0)
        totals = Sums(layers.totals).add(self.reduction.totals, reductions).add(ends.totals)
        time, times = _Time(0.0, 0.0), ends.rounds if often else 1.0
        for body, reduced in zip(
            ends.bodies, chunk.at(parts.end_reduction(structure)), strict=True
        ):
            if body is not None:
                totals.add(reduced.totals, times)
                whole = body.beside(reduced.sides, times / ends.rounds)
                time = time + _time(whole, ends.rounds, parts)
        update = chunk.at(parts.optimizer(structure))
        body = _Body(update.chain, update.wire, Sums(update.sides))
        return _Around(
            ends=time,
            update=_time(body, 1.0, parts).seconds,
            totals=totals,
            rest=dict(update.totals),
            weight=ends.weight,
            forward_part=ends.forward_part,
        )

    def priced(self, structure: Structure) -> Priced:
        """The candidates under a pipeline schedule."""
        chunk, parts = self.chunk, self.chunk.parts
        around, memory = self.around(structure), memory_of(chunk, structure)
        if not chunk.piped:
            expected = self.floor()
            return _bounded(structure, memory, around.totals, around.rest, 1.0, expected)
        moved: Figures = chunk.at(parts.transfer(structure))
        chunks = structure.virtual_stages
        paired = chunk.paired(structure)
        forward, backward = self._layers(chunks, moved.sides[_TRANSFER] * chunks, paired)
        step = forward + backward + around.ends
        m, part, count = chunk.microbatches, around.forward_part, parts.request.cfg.layers
        factor = idle_factor(
            structure.schedule,
            chunk.stages,
            m,
            chunks,
            Passes(forward.plain / m, backward.plain / m, self.stored.layers(paired).weight / m),
            Passes(
                around.ends.plain * part / m, around.ends.plain * (1 - part) / m, around.weight / m
            ),
            moved.sides[_TRANSFER][0] * (count * chunk.share),
            count,
        )
        totals = Sums(around.totals).add(moved.totals, 2 * chunks * chunk.share * m)
        expected = step.seconds + (factor - 1) * step.plain + around.update
        return _bounded(structure, memory, totals, around.rest, factor, expected)

    def _layers(self, chunks: int, transfer: Quantity, paired: bool) -> "tuple[_Time, _Time]":
        """The forward and the backward bodies of all layers, with a number of chunks."""
        if (chunks, paired) not in self._by_chunks:
            self._by_chunks[chunks, paired] = self._make_layers(transfer, paired)
        return self._by_chunks[chunks, paired]

    def _make_layers(self, transfer: Quantity, paired: bool) -> "tuple[_Time, _Time]":
        chunk, parts, layers = self.chunk, self.chunk.parts, self.stored.layers(paired)
        sent = {_TRANSFER: transfer} if np.ndim(transfer) else {}
        forward = _time(layers.forward.beside(sent), chunk.rounds, parts)
        early = layers.backward.beside(sent)
        if not self.reduction.sides:
            return forward, _time(early, chunk.rounds, parts)
        once = self._reductions()
        before, late = chunk.rounds - once, early.beside(self.reduction.sides)
        usual, last = _time(early, before, parts), _time(late, once, parts)
        # The reduction comes once: where other microbatches stand before, it is no usual round.
        plain = np.where(chunk.microbatches > 1, _time(early, once, parts).plain, last.plain)
        last = _Time(last.seconds, last.plain if self.shape.zero == 2 else plain)
        return forward, usual + last

    def _reductions(self) -> np.ndarray:
        """Rounds of every group whose backward pass reduces gradients."""
        if self._once is None:
            chunk, groups = self.chunk, self.chunk.parts.groups
            times = [np.broadcast_to(reductions(r, self.shape), (len(chunk),)) for r in groups]
            self._once = chunk.rounds * (np.stack(times) / chunk.microbatches)
        return self._once


@dataclass(frozen=True, slots=True)
class _Time:
    """Seconds per step of bodies, and without what comes once (`plain`)."""

    seconds: Quantity
    plain: Quantity

    def __add__(self, other: "_Time") -> "_Time":
        return _Time(self.seconds + other.seconds, self.plain + other.plain)


def _with_pairing(structure: Structure, paired: bool) -> Structure:
    """The structure with a schedule that pairs passes, or with one that does not."""
    if structure.paired == paired:
        return structure
    kinds = (PLAIN, *PIPELINE_KINDS)
    kind = next(kind for kind in kinds if schedule_row(kind).pairs_passes == paired)
    return replace(structure, schedule=kind, virtual_stages=schedule_row(kind).chunks[0])


def least_memory(chunk: Chunk, structure: Structure) -> np.ndarray:
    """Bytes that no ZeRO stage and no schedule goes below: those with ZeRO-2, and with the plain
    schedule, which has the fewest microbatches in flight and both ends apart."""
    return memory_of(chunk, replace(structure, zero=2, schedule=PLAIN, virtual_stages=1))


def memory_of(chunk: Chunk, structure: Structure) -> np.ndarray:
    """Bytes per device at the fullest point of the step (`train_memory.train_memory`)."""
    parts = chunk.parts
    first, last, update, summed = chunk.at(parts.standing(structure))
    kept, moving, modules = chunk.at(parts.kept(structure))
    gathered, stays, *ends = chunk.at(parts.gathered(structure))
    layer, *logits = chunk.at(parts.flying(structure))
    held, held_last, less = chunk.at(parts.flight(structure))
    of_stage = kept * chunk.share
    alive = np.maximum(of_stage * held, of_stage * less + summed)
    backward = first + alive + gathered + layer
    loss = last + of_stage * held_last + modules + stays
    loss = loss + loss_bytes(ends, logits, parts.eager)
    return np.maximum(np.maximum(backward, loss) + moving, update)


def _time(body: _Body, count: Quantity, parts: StepParts) -> _Time:
    """All rounds of a body, its groups added up."""
    time = closed_form(body.chain, body.wire, body.sides.values(), count, parts.stack)
    seconds, plain = time.expected, count * time.period
    if np.ndim(seconds) > 1:
        return _Time(np.sum(seconds, axis=0), np.sum(plain, axis=0))
    return _Time(seconds, plain)


def _bounded(
    structure: Structure,
    memory: np.ndarray,
    totals: Sums,
    rest: Mapping[str, np.ndarray],
    factor: Quantity,
    expected: Quantity,
) -> Priced:
    """The bounds, as `price` has them: resources at peak below, everything in series above."""
    lower: Quantity = 0.0
    for name, seconds in totals.items():
        if name != SERIAL:
            spent = seconds * factor
            lower = np.maximum(lower, spent + rest[name] if name in rest else spent)
    for name in rest.keys() - totals.keys():
        lower = np.maximum(lower, rest[name])
    upper = totals[SERIAL] * factor + rest[SERIAL]
    expected = np.minimum(np.maximum(expected, lower), upper)
    bounds = (np.asarray(bound, float) for bound in (lower, expected, upper))
    return Priced(structure, memory, *bounds)
