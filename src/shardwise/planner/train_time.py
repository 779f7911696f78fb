"""Seconds of a training step from those of its bodies: what a pipeline idles on top.

Every body but the optimizer runs on each microbatch of a stage; a pipeline takes longer than one
stage's work by a factor that its schedule's closed form gives (`pipeline.py`), from the seconds
that a microbatch spends in the forward pass, the input gradients and the weight gradients of the
busiest stage. Plans priced alone and columns of candidates take the same way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from shardwise.planner.pipeline import pipeline_seconds
from shardwise.planner.train_shape import TrainShape
from shardwise.roofline import Estimate, stretched
from shardwise.roofline.bodies import BodyTime, OpTime
from shardwise.roofline.stacks import IDEAL, Stack, load_stack
from shardwise.scheduling import PipelineKind
from shardwise.work import Quantity

WEIGHT_PHASE = "weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Seconds per microbatch of the busiest stage. `backward` is the whole backward pass, `weight`
    the weight gradients among it, `transfer` the way of the activations to the next stage."""

    forward: Quantity
    backward: Quantity
    weight: Quantity
    transfer: Quantity


def idle_factor(
    kind: PipelineKind, stages: Quantity, microbatches: Quantity, chunks: Quantity, passes: Passes
) -> Quantity:
    """Seconds of the pipeline over those of one stage's own work: 1 without stages."""
    backward = np.maximum(passes.backward - passes.weight, 0.0)
    alone = microbatches * (passes.forward + backward + passes.weight)
    piped = pipeline_seconds(
        kind,
        stages,
        microbatches,
        chunks,
        passes.forward,
        backward,
        passes.weight,
        passes.transfer,
    )
    return np.maximum(piped / alone, 1.0)


def piped_estimate(plain: Estimate, shape: TrainShape) -> Estimate:
    """The estimate with what a pipeline of uniform stages idles; `plain` was priced without."""
    if not shape.has("stage"):
        return plain
    passes, plain_seconds = passes_of(plain, shape)
    kind, chunks = shape.pipeline_schedule, shape.virtual_stages
    factor = idle_factor(kind, shape.degree("stage"), shape.microbatches, chunks, passes)
    piped = set(plain.bodies) - {"optimizer"}
    whole = stretched(plain, dict.fromkeys(piped, factor))
    # The exposed reduction of the last microbatch comes once: no bubble repeats it.
    spent = _sum(body.expected for body in plain.bodies.values())
    expected = spent + (factor - 1) * plain_seconds
    return replace(whole, expected=np.minimum(np.maximum(expected, whole.lower), whole.upper))


def passes_of(plain: Estimate, shape: TrainShape) -> tuple[Passes, Quantity]:
    """The passes of a step that was priced without a pipeline's idle time, and the seconds of the
    step in which every microbatch is like the first ones."""
    bodies, m = plain.bodies, shape.microbatches
    forward = _sum(b.count * b.period for n, b in bodies.items() if n.startswith("forward."))
    backward = _sum(b.count * usual_period(bodies, n) for n, b in bodies.items() if "backward" in n)
    ends = [t for t in plain.ops if t.op.body in ("first", "last") and _chained(t)]
    share = forward_share(
        _sum(t.total for t in ends if t.op.phase == "forward"), _sum(t.total for t in ends)
    )
    both = _sum(bodies[n].count * bodies[n].period for n in ("first", "last") if n in bodies)
    weight = _sum(t.total for t in plain.ops if t.op.phase == WEIGHT_PHASE)
    moves = [t.derated for t in plain.ops if t.op.name == "transfer.stage"]
    passes = Passes(
        forward=(forward + both * share) / m,
        backward=(backward + both * (1 - share)) / m,
        weight=weight / m,
        transfer=moves[0] if moves else 0.0,
    )
    return passes, forward + backward + both


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
