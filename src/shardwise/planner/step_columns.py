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

from shardwise.planner.parallel.fsdp import gathers_per_round
from shardwise.planner.step_parts import OnKeys, StepParts, column_shape
from shardwise.planner.train_figures import SERIAL, Figures, Sums
from shardwise.planner.train_request import Structure
from shardwise.planner.train_time import Passes, idle_factor
from shardwise.planner.train_work import reductions
from shardwise.roofline.bodies import closed_form
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
class _Ends:
    """Both ends of the model without reductions: bodies, totals and weight gradients of the step,
    and the part of their time that is the forward pass."""

    bodies: tuple[_Body | None, ...]
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
        ahead, again = gathers_per_round(self.shape)
        self.again = again
        forth, back = chunk.at(parts.layer(structure))
        gathers, scatters, summed, casts = chunk.at(parts.exchanges(structure))
        moved = Sums().add(gathers.sides, again).add(scatters.sides)
        self.forward = _Body(forth.chain + casts.chain * ahead, forth.wire, Sums(forth.sides))
        self.forward = self.forward.beside(gathers.sides, ahead)
        chain = back.chain + summed.chain + casts.chain * again
        self.backward = _Body(chain, back.wire, Sums(back.sides)).beside(moved)
        rounds = chunk.share * chunk.microbatches
        totals = Sums(forth.totals).add(back.totals).add(summed.totals).add(scatters.totals)
        totals.add(gathers.totals, ahead + again).add(casts.totals, ahead + again)
        self.totals = Sums().add(totals, rounds)
        self.weight = back.weight * rounds
        self._ends: dict[bool, _Ends] = {}

    def floor(self) -> Quantity:
        """Seconds that no ZeRO stage and no schedule goes below: the layers without reductions,
        transfers and idle time."""
        chunk = self.chunk
        forward = _time(self.forward, chunk.rounds, chunk.parts)
        return forward.plain + _time(self.backward, chunk.rounds, chunk.parts).plain

    def ends(self, structure: Structure) -> _Ends:
        """Both ends on the counted device, or where they lie apart the last one."""
        apart = self.chunk.piped and structure.ends == "apart"
        if apart not in self._ends:
            self._ends[apart] = self._make_ends(structure, apart)
        return self._ends[apart]

    def _make_ends(self, structure: Structure, apart: bool) -> _Ends:
        chunk, parts, again = self.chunk, self.chunk.parts, self.again
        first, last, last_share, share = chunk.at(parts.ends(structure))
        bodies: list[_Body | None] = []
        totals, weight = Sums(), 0.0
        for end, moved in zip((first, last), chunk.at(parts.end_exchanges(structure)), strict=True):
            if end is first and apart:
                bodies.append(None)
                continue
            gathers, scatters, summed, casts = moved
            sides = Sums(end.sides).add(gathers.sides, 1 + again).add(scatters.sides)
            bodies.append(_Body(end.chain + summed.chain + casts.chain, end.wire, sides))
            once = Sums(end.totals).add(summed.totals).add(scatters.totals).add(casts.totals)
            totals.add(once.add(gathers.totals, 1 + again), chunk.microbatches)
            weight = weight + end.weight * chunk.microbatches
        return _Ends(
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
        reduction = chunk.at(parts.reduction(structure))
        self.last = stored.backward.beside(reduction.sides) if reduction.sides else None
        self.times = chunk.microbatches if structure.zero == 2 else 1.0
        self.totals = Sums(stored.totals).add(reduction.totals, chunk.share * self.times)
        self._once: np.ndarray | None = None
        self._around: dict[bool, _Around] = {}
        self._by_chunks: dict[int, tuple[_Time, _Time]] = {}

    def floor(self) -> Quantity:
        """Seconds that no schedule goes below: the step without transfers and idle time, the ends
        apart where there are stages."""
        forward, backward = self._layers(0, 0.0)
        around = self.around(replace(self.structure, schedule="1f1b"))
        ends = around.ends
        # With stages the ends may lie on one that has fewer layers and waits for the others.
        beside = ends.seconds - ends.plain if self.chunk.piped else ends.seconds
        return forward.seconds + backward.seconds + beside + around.update

    def around(self, structure: Structure) -> _Around:
        """Ends and update; they depend on the schedule by where the ends lie."""
        apart = self.chunk.piped and structure.ends == "apart"
        if apart not in self._around:
            self._around[apart] = self._make_around(structure)
        return self._around[apart]

    def _make_around(self, structure: Structure) -> _Around:
        chunk, parts = self.chunk, self.chunk.parts
        ends = self.stored.ends(structure)
        totals, time = Sums(self.totals).add(ends.totals), _Time(0.0, 0.0)
        for body, reduced in zip(
            ends.bodies, chunk.at(parts.end_reduction(structure)), strict=True
        ):
            if body is not None:
                totals.add(reduced.totals, self.times)
                whole = body.beside(reduced.sides, self.times / chunk.microbatches)
                time = time + _time(whole, chunk.microbatches, parts)
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
        forward, backward = self._layers(chunks, moved.sides[_TRANSFER] * chunks)
        step = forward + backward + around.ends
        m, part, count = chunk.microbatches, around.forward_part, parts.request.cfg.layers
        factor = idle_factor(
            structure.schedule,
            chunk.stages,
            m,
            chunks,
            Passes(forward.plain / m, backward.plain / m, self.stored.weight / m),
            Passes(
                around.ends.plain * part / m, around.ends.plain * (1 - part) / m, around.weight / m
            ),
            moved.sides[_TRANSFER][0] * (count * chunk.share),
            count,
        )
        totals = Sums(around.totals).add(moved.totals, 2 * chunks * chunk.share * m)
        expected = step.seconds + (factor - 1) * step.plain + around.update
        return _bounded(structure, memory, totals, around.rest, factor, expected)

    def _layers(self, chunks: int, transfer: Quantity) -> "tuple[_Time, _Time]":
        """The forward and the backward bodies of all layers, with a number of chunks."""
        if chunks not in self._by_chunks:
            self._by_chunks[chunks] = self._make_layers(transfer)
        return self._by_chunks[chunks]

    def _make_layers(self, transfer: Quantity) -> "tuple[_Time, _Time]":
        chunk, parts, stored = self.chunk, self.chunk.parts, self.stored
        sent = {_TRANSFER: transfer} if np.ndim(transfer) else {}
        forward = _time(stored.forward.beside(sent), chunk.rounds, parts)
        early = stored.backward.beside(sent)
        if self.last is None:
            return forward, _time(early, chunk.rounds, parts)
        once = self._reductions()
        before = chunk.rounds - once
        usual, last = _time(early, before, parts), _time(self.last.beside(sent), once, parts)
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


def least_memory(chunk: Chunk, structure: Structure) -> np.ndarray:
    """Bytes that no ZeRO stage and no schedule goes below: those with ZeRO-2, and with 1F1B, which
    has the fewest microbatches in flight and both ends apart."""
    return memory_of(chunk, replace(structure, zero=2, schedule="1f1b", virtual_stages=1))


def memory_of(chunk: Chunk, structure: Structure) -> np.ndarray:
    """Bytes per device at the fullest point of the step (`train_memory.train_memory`)."""
    parts = chunk.parts
    first, last, update, summed = chunk.at(parts.standing(structure))
    kept, moving, modules = chunk.at(parts.kept(structure))
    gathered, stays, ends = chunk.at(parts.gathered(structure))
    layer, logits = chunk.at(parts.flying(structure))
    held, held_last, less = chunk.at(parts.flight(structure))
    of_stage = kept * chunk.share
    alive = np.maximum(of_stage * held, of_stage * less + summed)
    backward = first + alive + gathered + layer
    loss = last + of_stage * held_last + modules + stays + ends + logits
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
