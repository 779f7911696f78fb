"""The arrays of a training step on one device, by name and bytes: what an allocation of some size
is likely to be.

Sizes are those that `price/memory.py` and `price/working.py` add up, each array by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.planner.evaluate import TrainAnswer, plan_shape
from shardwise.planner.step.parts import tensors_of
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.strategies.remat import bytes_of, kept_activations
from shardwise.units import dtype_bytes

ROUNDED = 2.0 * 2**20
"""PyTorch's allocator rounds up to 2 MiB (c10/cuda/CUDACachingAllocator.cpp, kRoundLarge)."""
_NEAR = 0.02
"""An array is what was asked for where its size is that near: the rest is padding (ours)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepArray:
    """An array that a step makes or holds: `kind` is that of memory it counts as, and `of_loss`
    says that it is there while the loss is made alone."""

    name: str
    kind: str
    size: float
    of_loss: bool = False


def arrays_near(answer: TrainAnswer, size: float) -> list[StepArray]:
    """The arrays of about that size, the nearest first; of one size that which is named first."""
    near = [
        (abs(one.size / size - 1), i, one)
        for i, one in enumerate(step_arrays(answer))
        if size - ROUNDED - _NEAR * size <= one.size <= size * (1 + _NEAR)
    ]
    near.sort(key=lambda row: (round(row[0], 3), row[1]))
    return [one for _, _, one in near]


def step_arrays(answer: TrainAnswer) -> Sequence[StepArray]:
    """Every array of a step on one device, those that most often are too much first."""
    shape = plan_shape(answer.plan, answer.cfg, answer.piece.chip)
    found = [*_logits(answer, shape), *_activations(answer, shape), *_parameters(answer, shape)]
    return [one for one in found if one.size > 0]


def _logits(answer: TrainAnswer, shape: TrainShape) -> Iterator[StepArray]:
    entries = answer.cfg.vocabulary / float(shape.degree("tensor"))
    tokens = float(np.max(shape.tokens)) / shape.logit_chunks
    where = "a piece of a microbatch" if shape.logit_chunks > 1 else "one microbatch"
    told = f"({tokens:,.0f} tokens x {entries:,.0f} entries)"
    for width, dtype in ((4, "float32"), (dtype_bytes(shape.layer_shape.activations), "16 bits")):
        name = f"the logits of {where} in {dtype} {told}, or their gradient"
        size = width * tokens * entries
        yield StepArray(name=name, kind="transient", size=size, of_loss=True)


def _activations(answer: TrainAnswer, shape: TrainShape) -> Iterator[StepArray]:
    """Each activation of a layer: of one, and as XLA keeps it of all layers that a stage holds; and
    scores of attention, which no plan has that calls a kernel."""
    layers = max(answer.plan.layers_per_stage)
    for layer in answer.cfg.groups:
        for one in kept_activations(answer.cfg, layer, shape):
            size = float(np.max(bytes_of([one], shape)))
            name = f"{one.name} of one layer and microbatch"
            yield StepArray(name=name, kind="transient", size=size)
            if layers > 1:
                name = f"{one.name} of {layers} layers, kept for the backward pass"
                yield StepArray(name=name, kind="checkpoints", size=size * layers)
        if layer.attention is not None:
            heads = layer.attention.heads / float(shape.degree("tensor"))
            size = float(np.max(shape.tokens)) * heads * shape.sequence_length
            for width, dtype in ((4, "float32"), (2, "16 bits")):
                name = f"attention scores in {dtype}, which a flash kernel never writes"
                yield StepArray(name=name, kind="transient", size=width * size)


def _parameters(answer: TrainAnswer, shape: TrainShape) -> Iterator[StepArray]:
    """Each matrix as it lies and as it is gathered, and what stays as one buffer."""
    tensors, share = tensors_of(answer.cfg, shape), float(np.max(shape.stage_share))
    kept = dtype_bytes(shape.dtypes.param), dtype_bytes(shape.dtypes.grad)
    local = 0.0
    for row in tensors.rows:
        stored, used = (
            row.size * float(np.max(part))
            for part in (shape.stored_share(row), shape.compute_share(row))
        )
        of = "" if row.layers == 1 else " of one layer"
        local += stored * row.layers * (1.0 if row.group is None else share) * (not row.shares)
        yield StepArray(name=f"{row.name}{of}", kind="params", size=stored * kept[0])
        yield StepArray(
            name=f"the gradient of {row.name}{of}", kind="gradients", size=used * kept[1]
        )
        if used > stored:
            size = used * dtype_bytes(shape.weights)
            yield StepArray(name=f"{row.name}{of}, gathered", kind="transient", size=size)
        if row.layers > 1:
            size = stored * row.layers * share * kept[0]
            yield StepArray(name=f"{row.name} of all layers", kind="params", size=size)
    for group in tensors.groups:
        whole = sum(r.size * float(np.max(shape.compute_share(r))) for r in group if not r.shares)
        for width, what in ((dtype_bytes(shape.weights), "gathered"), (kept[1], "its gradients")):
            yield StepArray(name=f"a whole layer, {what}", kind="transient", size=whole * width)
    yield StepArray(name="all parameters of the device", kind="params", size=local * kept[0])
    yield StepArray(name="all gradients of the device", kind="gradients", size=local * kept[1])
    for width, what in ((4, "float32"), (2, "16 bits")):
        name = f"a copy or a moment of all parameters in {what}"
        yield StepArray(name=name, kind="optimizer", size=local * width)
