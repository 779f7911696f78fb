"""Seconds of a training step from those of its bodies: what a pipeline idles on top.

Every body but the optimizer runs on each microbatch of a stage; a pipeline takes longer than one
stage's work by a factor that its schedule's closed form gives (`pipeline.py`), from the seconds
that a microbatch spends in the forward pass, the input gradients and the weight gradients of the
busiest stage. Plans priced alone and columns of candidates take the same way.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.planner.price.pipeline import pipeline_seconds
from shardwise.roofline.stacks import IDEAL, Stack, load_stack
from shardwise.scheduling import PipelineKind, schedule_row
from shardwise.work import Quantity


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
    """The pipeline's seconds over those that the counted device works; 1 without stages.

        factor = T(F, B - W, W) / (M (layers + ends)),   layers = F_l + B_l,   ends = F_e + B_e

    T is the closed form of the schedule (`pipeline_seconds`), in which all stages are alike, so all
    are taken to be as slow as the slowest. Layers are spread so that the stages with the ends have
    as few of them as any (`stages.spread`). The slowest is then one of two, whichever takes longer:

        a stage in the middle   layers                          most = ceil(count / S) layers
        the last stage          layers fewest / most + ends     fewest = floor(count / S), the head

    The counted device is neither of them: it has the most layers and the head too. So a pipeline
    that waits for little takes less than it would work, and the factor may be below 1.
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


def stack_for(name: str, constants: str) -> Stack:
    """The constants of a plan's software; the book derates no rate and overlaps all that may."""
    return IDEAL if constants == "book" else load_stack(name)


def forward_share(forward: Quantity, whole: Quantity) -> Quantity:
    """The part of both ends' time that is the forward pass."""
    return forward / np.maximum(whole, 1e-300)
