"""One plan's step, priced: a column of length one, whose ops are kept to say where time goes.

Constants of the chip or of the stack may be arrays of n trial values; then n steps are priced.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwise.hardware import Chip, Placement
from shardwise.models import ModelConfig, Parameter
from shardwise.planner.price.composition import Reduced, Seconds, Stored
from shardwise.planner.price.figures import Figures, figures_of
from shardwise.planner.price.seconds import forward_share
from shardwise.planner.step.parts import step_rows
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.tree import EndParts, LayerParts, Step, mapped
from shardwise.planner.step.work import Loop, loops_of
from shardwise.plans.train import Structure
from shardwise.roofline import Estimate
from shardwise.roofline.bodies import OpTime
from shardwise.roofline.price import price_ops
from shardwise.roofline.stacks import Stack
from shardwise.work import Op, Quantity

Times = tuple[OpTime, ...]


def price_step(
    cfg: ModelConfig,
    shape: TrainShape,
    counted: Step[tuple[Op, ...]],
    chip: Chip,
    placement: Placement,
    stack: Stack,
) -> "PricedStep":
    """A counted step (`count_step`) on a placed mesh, under a stack of software."""
    times = mapped(counted, lambda ops: price_ops(ops, chip, placement, stack))
    rows = step_rows(cfg, shape)
    steps = PlanSteps(
        cfg=cfg,
        plan_shape=shape,
        times=times,
        stack=stack,
        groups=[[r for r in rows if r.group == g] for g in range(len(cfg.groups))],
        layers=[float(n) for _, n in cfg.layer_groups()],
        n=_trials(times),
    )
    reduced = Reduced(Stored(steps, shape), shape)
    return PricedStep(steps=steps, structure=shape, reduced=reduced)


def _trials(times: Step[Times]) -> int:
    """Trial values that are priced at once."""
    shapes: list[tuple[int, ...]] = []
    mapped(times, lambda part: shapes.extend(np.shape(t.derated) for t in part))
    return int(np.prod(np.broadcast_shapes(*shapes), dtype=int))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSteps:
    """One plan as `composition.Steps`: its structure is its own, whatever is asked."""

    cfg: ModelConfig
    plan_shape: TrainShape
    times: Step[Times]
    stack: Stack
    groups: Sequence[Sequence[Parameter]]
    layers: Sequence[float]
    n: int

    def __len__(self) -> int:
        return self.n

    @property
    def stages(self) -> Quantity:
        return self.plan_shape.degree("stage")

    @property
    def microbatches(self) -> Quantity:
        return self.plan_shape.microbatches

    @property
    def share(self) -> Quantity:
        return self.plan_shape.stage_share

    @property
    def piped(self) -> bool:
        return self.plan_shape.has("stage")

    @property
    def pairs(self) -> bool:
        return self.plan_shape.paired

    def shape(self, structure: Structure) -> TrainShape:
        """The step as numbers."""
        return self.plan_shape

    def layer_parts(self, structure: Structure) -> LayerParts[Figures]:
        """A layer of every kind, one per row."""
        layers = self.times.layers
        return LayerParts(
            forward=self._rows([p.forward for p in layers]),
            backward=self._rows([p.backward for p in layers]),
            gathers=self._rows([p.gathers for p in layers]),
            scatters=self._rows([p.scatters for p in layers]),
            accumulation=self._rows([p.accumulation for p in layers]),
            casts=self._rows([p.casts for p in layers]),
        )

    def end_parts(
        self, structure: Structure
    ) -> tuple[EndParts[Figures], EndParts[Figures], Quantity, Quantity]:
        """Both ends, and the part of the last one's time, and of both ones', that is forward."""
        spent, forward = [], []
        for end in self.times.ends:
            spent.append(sum(t.total for t in end.chain))
            forward.append(sum(t.total for t in end.chain if t.op.phase == "forward"))
        shares = forward_share(forward[1], spent[1]), forward_share(sum(forward), sum(spent))
        first, last = (self._end(end) for end in self.times.ends)
        return first, last, *shares

    def _end(self, end: EndParts[Times]) -> EndParts[Figures]:
        return EndParts(
            chain=self._row(end.chain),
            gathers=self._row(end.gathers),
            regathers=self._row(end.regathers),
            scatters=self._row(end.scatters),
            accumulation=self._row(end.accumulation),
            casts=self._row(end.casts),
        )

    def reduction(self, structure: Structure) -> Figures:
        """The gradient reduction of a layer of every kind."""
        return self._rows(self.times.reductions)

    def end_reductions(self, structure: Structure) -> tuple[Figures, Figures]:
        """Those of the ends."""
        first, last = self.times.end_reductions
        return self._row(first), self._row(last)

    def transfer(self, structure: Structure) -> Figures:
        """The share per layer of sending activations on, with one chunk per stage."""
        return self._row(self.times.transfer, float(self.cfg.layers))

    def update(self, structure: Structure) -> Figures:
        """The optimizer's update."""
        return self._row(self.times.update)

    def _rows(self, parts: Sequence[Times]) -> Figures:
        return figures_of(parts, self.layers, self.n)

    def _row(self, part: Times, layers: float = 1.0) -> Figures:
        return figures_of([part], [layers], self.n)


@dataclass(frozen=True, kw_only=True)
class PricedStep:
    """A step whose ops have times, put together but for what a pipeline idles."""

    steps: PlanSteps
    structure: Structure
    reduced: Reduced[PlanSteps]

    @cached_property
    def loops(self) -> list[Loop[OpTime]]:
        """The step's ops with their times, loop by loop."""
        return loops_of(
            self.steps.cfg,
            self.steps.plan_shape,
            self.steps.times,
            lambda t: t.op,
            lambda t, op: replace(t, op=op),
        )

    @property
    def own(self) -> Quantity:
        """Seconds of the counted device's own work in the pipeline's rounds, without what comes
        once."""
        forward, backward = self.reduced.layers_time(self.structure)
        return _one((forward + backward + self.reduced.around(self.structure).ends).plain)

    def seconds(self, factor: Quantity | None = None) -> Seconds:
        """The bounds with a pipeline's `factor`, by default the closed form's."""
        found = self.reduced.seconds(self.structure, factor)
        return Seconds(
            lower=_one(found.lower),
            expected=_one(found.expected),
            upper=_one(found.upper),
            resources={name: _one(seconds) for name, seconds in found.resources.items()},
            factor=_one(found.factor),
        )

    def estimate(self, factor: Quantity | None = None) -> Estimate:
        """The same with every op and what each resource and stream is busy for."""
        found = self.seconds(factor)
        streams: dict[str, Quantity] = {}
        for loop in self.loops:
            for t in loop.items:
                once = loop.name == "optimizer" or (
                    t.op.id in loop.reductions and not self.reduced.often
                )
                seconds = t.total if once else t.total * found.factor
                streams[t.op.stream] = streams.get(t.op.stream, 0.0) + seconds
        return Estimate(
            lower=found.lower,
            expected=found.expected,
            upper=found.upper,
            resources=found.resources,
            streams=streams,
            ops=tuple(t for loop in self.loops for t in loop.items),
        )


def _one(values: Quantity) -> Quantity:
    """A number where there is one."""
    return values if np.size(values) > 1 else float(np.reshape(values, ()))
