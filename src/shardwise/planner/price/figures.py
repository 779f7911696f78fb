"""Seconds of the parts of a training step, and of rounds of its bodies, which are made of them.

    Figures   priced ops of one part, added up to what bodies and bounds need
    Round     the parts of a body added up, each as often as it comes
    Period    a round in the long run, by the closed form of `roofline/bodies.py`
    Time      all rounds of a step
    Steps     what is priced together: one plan, or candidates of a search

For one plan, or for columns of them. `composition.py` makes a step's seconds of these.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from shardwise.models import ModelConfig
from shardwise.planner.price.pipeline import Pipeline
from shardwise.planner.step.parts import StepPart, Tensors, runs_beside
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.work import Body
from shardwise.plans.stacks import Overlapped
from shardwise.plans.train import Structure
from shardwise.roofline.bodies import OpTime, round_form, sides_of
from shardwise.roofline.stacks import Stack
from shardwise.work import Quantity

PHASES = ("weight", "forward")
"""The phases that are told apart: weight gradients, and the forward pass of an end."""

SERIAL = "serial"
"""The row of totals that adds up to the upper bound; the other rows are resources, but for:"""

STARTS = "starts"
"""The row of totals of what the host works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Seconds of one part on its keys.

    Per body (rows) and round: `chain` on the compute stream, `wire` of the collectives within the
    chain, `sides` per stream of what runs beside it; among the chain `weight` are the weight
    gradients, and `forward` what is marked as forward pass. `totals` are sums over the bodies, each
    times its layers: the serial seconds, and every resource at peak rates.
    """

    chain: Quantity
    wire: Quantity
    sides: Mapping[str, np.ndarray]
    totals: Mapping[str, np.ndarray]
    weight: Quantity
    forward: Quantity


Pieces = Sequence[tuple[slice | np.ndarray, np.ndarray]]
"""Of each of several tables: the places of its rows among all of them, and their keys."""


def gathered(values: Sequence[Quantity], pieces: Pieces, n: int) -> Quantity:
    """The values of n rows, each of its own table."""
    shapes = [v.shape[:-1] for v in values if isinstance(v, np.ndarray) and v.ndim]
    if not shapes and len({float(v) for v in values}) == 1:
        return values[0]
    if len(values) == 1:
        return np.take(values[0], pieces[0][1], axis=-1)
    found = np.empty((*(shapes[0] if shapes else ()), n))
    for value, (places, keys) in zip(values, pieces, strict=True):
        found[..., places] = np.take(value, keys, axis=-1) if np.ndim(value) else value
    return found


@dataclass(frozen=True)
class FiguresAt:
    """Figures of n rows, each gathered from the tables when it is first read: floors need neither
    totals nor what is told apart."""

    tables: Sequence[Figures]
    pieces: Pieces
    n: int

    @cached_property
    def chain(self) -> Quantity:
        return self._rows([table.chain for table in self.tables])

    @cached_property
    def wire(self) -> Quantity:
        return self._rows([table.wire for table in self.tables])

    @cached_property
    def sides(self) -> Mapping[str, Quantity]:
        return self._named([table.sides for table in self.tables])

    @cached_property
    def totals(self) -> Mapping[str, Quantity]:
        return self._named([table.totals for table in self.tables])

    @cached_property
    def weight(self) -> Quantity:
        return self._rows([table.weight for table in self.tables])

    @cached_property
    def forward(self) -> Quantity:
        return self._rows([table.forward for table in self.tables])

    def _rows(self, values: Sequence[Quantity]) -> Quantity:
        return gathered(values, self.pieces, self.n)

    def _named(self, values: Sequence[Mapping[str, np.ndarray]]) -> Mapping[str, Quantity]:
        names = dict.fromkeys(name for each in values for name in each)
        return {name: self._rows([each.get(name, 0.0) for each in values]) for name in names}


Priced = Figures | FiguresAt
"""A part of a step with its seconds."""


def figures_of(
    bodies: Sequence[Sequence[OpTime]],
    layers: Sequence[float],
    n: int,
    hidden: frozenset[Overlapped],
    like: Figures | None = None,
) -> Figures:
    """Add up the priced ops of some bodies on n keys; `layers` is how many layers are like each,
    `hidden` says whose transfers run beside compute. Figures of the same ops, with others beside
    the chain, are `like` these in all but that."""
    rows: dict[str, np.ndarray] = {}
    for body, ops in enumerate(bodies):
        aside = sides_of(tuple(ops))
        for t in ops:
            place = "wire" if t.op.collective is not None else "chain"
            beside = runs_beside(t.op, t.op.id in aside, hidden)
            name = f"side {t.op.stream}" if beside else place
            _add(rows, name, (len(bodies), n), body, t.total)
    like = like or _apart(bodies, layers, n)
    return replace(
        like,
        chain=rows.get("chain", 0.0),
        wire=rows.get("wire", 0.0),
        sides={name[5:]: row for name, row in rows.items() if name.startswith("side ")},
    )


def _apart(bodies: Sequence[Sequence[OpTime]], layers: Sequence[float], n: int) -> Figures:
    """The figures that do not depend on what runs beside what: totals, and phases by themselves."""
    rows: dict[str, np.ndarray] = {}
    totals: dict[str, np.ndarray] = {}
    for body, (ops, many) in enumerate(zip(bodies, layers, strict=True)):
        for t in ops:
            for resource, seconds in ((SERIAL, t.serial), (STARTS, t.host), *t.peak.items()):
                _add(totals, resource, (n,), ..., seconds * (t.op.count * many))
            if t.op.phase in PHASES:
                _add(rows, t.op.phase, (len(bodies), n), body, t.total)
    weight, forward = (rows.get(phase, 0.0) for phase in PHASES)
    return Figures(chain=0.0, wire=0.0, sides={}, totals=totals, weight=weight, forward=forward)


def _add(into: dict[str, np.ndarray], name: str, shape: tuple, at: Any, seconds: Quantity) -> None:
    if name not in into:
        into[name] = np.zeros(shape)
    into[name][at] += seconds


class Sums(dict[str, Quantity]):
    """Seconds by name that add up: of streams, or of resources."""

    def add(self, seconds: Mapping[str, Quantity], times: Quantity = 1.0) -> "Sums":
        """These, and others so many times."""
        once = np.ndim(times) == 0 and times == 1.0
        for name, value in seconds.items():
            more = value if once else value * times
            self[name] = self[name] + more if name in self else more
        return self


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps to be priced together: one plan, or candidates that use the same mesh axes.

    `of` gives a number of them under a structure, from their shape and by the choices that it
    depends on; `figures` the seconds of one of their parts, thing by thing as `StepPart.count` has
    them. `pairs` says whether some schedule among the choices runs a forward and a backward pass of
    two microbatches together; `expert_group` over how many devices each one's experts are spread.
    """

    tensors: Tensors
    stack: Stack
    stages: Quantity
    microbatches: Quantity
    share: Quantity
    n: int
    pairs: bool
    expert_group: Quantity
    of: Callable[[Structure, Callable[[TrainShape], Any], Callable[[Structure], Any]], Any]
    figures: Callable[[StepPart, Structure], tuple[Priced, ...]]

    @property
    def cfg(self) -> ModelConfig:
        return self.tensors.cfg

    @cached_property
    def piped(self) -> bool:
        """Whether there are several stages: the same for all steps."""
        return bool(np.max(self.stages) > 1)

    @cached_property
    def rounds(self) -> Quantity:
        """Rounds of a layer on the counted device: its share of the layers, every microbatch."""
        return self.share * self.microbatches

    @cached_property
    def _pipelines(self) -> dict[tuple[str, int], tuple[Pipeline, Quantity]]:
        return {}

    def pipeline(self, structure: Structure) -> tuple[Pipeline, Quantity]:
        """The pipeline of a structure, and the last stage's layers over the most of any."""
        kind, chunks = structure.pipeline_schedule, structure.virtual_stages
        if (kind, chunks) not in self._pipelines:
            made = Pipeline(kind, self.stages, self.microbatches, chunks)
            self._pipelines[kind, chunks] = made, made.last_share(self.cfg.layers)
        return self._pipelines[kind, chunks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Seconds of one round of a body, or one row per kind of layer: see `Figures`."""

    chain: Quantity = 0.0
    wire: Quantity = 0.0
    sides: Sums

    def beside(self, seconds: Mapping[str, Quantity], times: Quantity = 1.0) -> "Round":
        """The round with more beside its chain."""
        return Round(chain=self.chain, wire=self.wire, sides=Sums(self.sides).add(seconds, times))


def round_of(body: Body[Priced]) -> Round:
    """The parts of a body added up, each as often as it comes."""
    chain: Quantity = 0.0
    wire: Quantity = 0.0
    sides = Sums()
    for part, times in body:
        chain = _plus(chain, part.chain, times)
        wire = _plus(wire, part.wire, times)
        sides.add(part.sides, times)
    return Round(chain=chain, wire=wire, sides=sides)


def totals_of(body: Body[Priced]) -> Sums:
    """Seconds of every resource in a round of a body, its layers together."""
    totals = Sums()
    for part, times in body:
        totals.add(part.totals, times)
    return totals


def weight_of(body: Body[Priced]) -> Quantity:
    """Seconds of the weight gradients in a round of a body."""
    weight: Quantity = 0.0
    for part, times in body:
        weight = _plus(weight, part.weight, times)
    return weight


def _plus(total: Quantity, value: Quantity, times: Quantity) -> Quantity:
    """total + value x times, without arrays of what adds nothing."""
    if not isinstance(value, np.ndarray):
        return total + value * times if value else total
    return total + (value if np.ndim(times) == 0 and times == 1.0 else value * times)


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds per step of bodies; `plain` leaves out what comes once (`BodyTime.fill`)."""

    seconds: Quantity
    plain: Quantity

    def __add__(self, other: "Time") -> "Time":
        return Time(self.seconds + other.seconds, self.plain + other.plain)


@dataclass(frozen=True, slots=True)
class Period:
    """Seconds of a round in the long run, and what one round hides, which the first must show."""

    seconds: Quantity
    hidden: Quantity

    def times(self, count: Quantity) -> Time:
        """So many rounds, kinds of layers added up."""
        plain = count * self.seconds
        once = self.hidden * np.minimum(count, 1.0)
        return Time(summed(plain + once), summed(plain))


def period_of(found: Round, stack: Stack) -> Period:
    """A round in the long run, by the closed form of a body."""
    return Period(*round_form(found.chain, found.wire, found.sides, stack))


def summed(rows: Quantity) -> Quantity:
    """One row for all kinds of layers."""
    if np.ndim(rows) < 2:
        return rows
    kinds = np.asarray(rows)
    return kinds[0] if len(kinds) == 1 else np.sum(kinds, axis=0)
