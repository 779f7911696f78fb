"""Seconds of a training step from those of its bodies: what a pipeline idles on top.

Every body but the optimizer runs on each microbatch of a stage; a pipeline takes longer than one
stage's work by a factor that its schedule's closed form gives (`pipeline.py`), from the seconds
that a microbatch spends in the forward pass, the input gradients and the weight gradients of the
busiest stage. Plans priced alone and columns of candidates take the same way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from shardwise.planner.price.pipeline import pipeline_seconds
from shardwise.planner.step.shape import TrainShape
from shardwise.roofline import Estimate, stretched
from shardwise.roofline.bodies import BodyTime, OpTime
from shardwise.roofline.stacks import IDEAL, Stack, load_stack
from shardwise.scheduling import PipelineKind, schedule_row
from shardwise.work import Quantity

WEIGHT_PHASE = "weight"


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds per microbatch of the counted device, of one kind of work. `backward` is the whole
    backward pass, `weight` the weight gradients among it."""

    forward: Quantity
    backward: Quantity
    weight: Quantity


def idle_factor(
    kind: PipelineKind,
    stages: Quantity,
    microbatches: Quantity,
    chunks: Quantity,
    layers: Passes,
    ends: Passes,
    transfer: Quantity,
    count: int,
) -> Quantity:
    """Seconds of the pipeline over those of the counted device's own work; 1 without stages.

    The counted device has the most of `count` layers per stage and the head. Layers are spread so
    that the stages with the ends have as few as any (`stages.spread`): the busiest stage is
    one in the middle or the last one, and all are taken to be as slow as that.
    """
    fewest, most = np.floor_divide(count, stages), np.ceil(count / stages)
    share = fewest / most
    if schedule_row(kind).ends_together:
        # Both ends lie on the first stage, which is the last but one to get a layer more.
        share = np.where(np.remainder(count, stages) == stages - 1, 1.0, share)
    last = [here * share + end for here, end in zip(_three(layers), _three(ends), strict=True)]
    late = np.asarray(last[0] + last[1] >= layers.forward + layers.backward)
    forward, backward, weight = (
        np.where(late, one, other) for one, other in zip(last, _three(layers), strict=True)
    )
    piped = pipeline_seconds(
        kind,
        stages,
        microbatches,
        chunks,
        forward,
        np.maximum(backward - weight, 0.0),
        weight,
        transfer,
    )
    counted = layers.forward + layers.backward + ends.forward + ends.backward
    return np.where(np.asarray(stages) > 1, piped / (microbatches * counted), 1.0)


def _three(passes: Passes) -> tuple[Quantity, Quantity, Quantity]:
    return passes.forward, passes.backward, passes.weight


def piped_estimate(plain: Estimate, shape: TrainShape, layers: int) -> Estimate:
    """The estimate with what a pipeline idles by its closed form; `plain` was priced without."""
    if not shape.has("stage"):
        return plain
    inner, ends = _passes(plain, shape)
    factor = idle_factor(
        shape.pipeline_schedule,
        shape.degree("stage"),
        shape.microbatches,
        shape.virtual_stages,
        inner,
        ends,
        next((t.derated for t in plain.ops if t.op.name == "transfer.stage"), 0.0),
        layers,
    )
    piped = set(plain.bodies) - {"optimizer"}
    whole = stretched(plain, dict.fromkeys(piped, factor))
    # The exposed reduction of the last microbatch comes once: no bubble repeats it.
    spent = _sum(body.expected for body in plain.bodies.values())
    usual = inner.forward + inner.backward + ends.forward + ends.backward
    expected = spent + (factor - 1) * usual * shape.microbatches
    return replace(whole, expected=np.minimum(np.maximum(expected, whole.lower), whole.upper))


def _passes(plain: Estimate, shape: TrainShape) -> tuple[Passes, Passes]:
    """The passes of layers and of ends of a step that was priced without a pipeline's idle time,
    every microbatch being like the first ones."""
    bodies, m = plain.bodies, shape.microbatches
    forward = _sum(b.count * b.period for n, b in bodies.items() if n.startswith("forward."))
    backward = _sum(b.count * usual_period(bodies, n) for n, b in bodies.items() if "backward" in n)
    chained = [t for t in plain.ops if t.op.body in ("first", "last") and _chained(t)]
    share = forward_share(
        _sum(t.total for t in chained if t.op.phase == "forward"), _sum(t.total for t in chained)
    )
    both = _sum(bodies[n].count * bodies[n].period for n in ("first", "last") if n in bodies)
    weights = [t for t in plain.ops if t.op.phase == WEIGHT_PHASE]
    of_ends = _sum(t.total for t in weights if t.op.body in ("first", "last"))
    of_layers = _sum(t.total for t in weights if t.op.body not in ("first", "last"))
    return (
        Passes(forward / m, backward / m, of_layers / m),
        Passes(both * share / m, both * (1 - share) / m, of_ends / m),
    )


def usual_period(bodies: Mapping[str, BodyTime], name: str) -> Quantity:
    """Seconds per round of a backward body without what comes once: those of the microbatches
    before the last one, where there are any."""
    early = bodies.get(name.replace("backward_last", "backward"), bodies[name])
    return np.where(np.asarray(early.count) > 0, early.period, bodies[name].period)


def stack_for(name: str, constants: str) -> Stack:
    """The constants of a plan's software; the book derates nothing and hides everything."""
    return IDEAL if constants == "book" else load_stack(name)


def forward_share(forward: Quantity, whole: Quantity) -> Quantity:
    """The part of both ends' time that is the forward pass."""
    return forward / np.maximum(whole, 1e-300)


def _chained(t: OpTime) -> bool:
    return t.op.component not in ("parameters", "gradients")


def _sum(values: Iterable[Quantity]) -> Quantity:
    total: Quantity = 0.0
    for value in values:
        total = total + value
    return total
