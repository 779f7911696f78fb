"""Count one training step on the busiest device: forward, backward, gradient reduction, optimizer.

The step is a few bodies, each a loop over layers and microbatches; what can hide behind what is in
the ops' streams and `after` ids (the algorithm boxes of ch. 5.1): parameter gathers wait for
nothing and run ahead, gradient reductions are waited for by nobody, tensor and expert exchanges
stand between the matmuls. Bodies: `forward.g`, `backward.g` and `backward_last.g` (the microbatch
that also reduces gradients) of each layer group g; `first` and `last`, the two ends of the model,
forward and backward told apart by phase; `optimizer`. Where stages exist twice two devices hold
both ends, and each runs them for half of the microbatches. Everything broadcasts over candidates.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.planner.step.parts import (
    end_chains,
    gradient_accumulation,
    gradient_reduction,
    layer_chains,
    optimizer_ops,
    parameter_casts,
    parameter_exchanges,
    step_rows,
)
from shardwise.planner.step.shape import TrainShape
from shardwise.planner.step.strategies.fsdp import end_gathers_again, gathers_per_round
from shardwise.planner.step.strategies.pipeline import stage_transfer, tied_reduction
from shardwise.plans.layouts import replica_axes
from shardwise.work import Op, Quantity, Work

__all__ = ["TrainShape", "train_work"]


def train_work(cfg: ModelConfig, shape: TrainShape) -> Work:
    """All ops of one step on the busiest device, which with pipeline stages holds the head: body
    `first` is then another device's and counts 0. Towers are left out: they are never priced."""
    rows = step_rows(cfg, shape)
    ops = _ends_work(cfg, rows, shape)
    for group, (_, layers) in enumerate(cfg.layer_groups()):
        ops += _group_work(cfg, rows, group, layers, shape)
    ops += _named(optimizer_ops(cfg, rows, shape), "optimizer", 1.0)
    return Work(tuple(ops))


def _group_work(
    cfg: ModelConfig, rows: Sequence[Parameter], group: int, layers: int, shape: TrainShape
) -> list[Op]:
    """Forward and backward of one kind of layer; the last microbatch also reduces gradients."""
    mine = [r for r in rows if r.group == group]
    forward, backward = layer_chains(cfg, group, rows, shape)
    gathers, scatters = parameter_exchanges(mine, shape)
    ahead, again = gathers_per_round(shape)
    casts = parameter_casts(mine, shape)
    rounds = layers * shape.stage_share
    transfer = stage_transfer(cfg, shape)
    ahead_ops = _extended(_waiting(forward, gathers), _times(casts, ahead))
    body = [*_times(gathers, ahead), *transfer, *ahead_ops]
    out = _named(body, f"forward.{group}", rounds * shape.microbatches)
    regathers = _times(gathers, again)
    tail = [*_times(casts, again), *gradient_accumulation(mine, shape)]
    backward = _extended(_waiting(backward, regathers), tail)
    back = [*regathers, *_after(scatters, backward), *transfer, *backward]
    reduced = _after(gradient_reduction(mine, shape), backward)
    times = reductions(mine, shape)
    # Split even where no microbatch comes before the last, so that bodies do not depend on degrees.
    if reduced and shape.zero < 2:
        out += _named(back, f"backward.{group}", rounds * (shape.microbatches - times))
        return out + _named([*reduced, *back], f"backward_last.{group}", rounds * times)
    return out + _named([*reduced, *back], f"backward.{group}", rounds * shape.microbatches)


def reductions(rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """Microbatches whose backward pass reduces gradients: the last one, under ZeRO-2 each. A
    candidate without replicas reduces nothing, so that none of its microbatches stands apart."""
    copies: Quantity = 1.0
    for axis in {axis for r in rows for axis in replica_axes(r, shape.storage_axes)}:
        copies = copies * shape.degree(axis)
    each = 1.0 if shape.zero < 2 else shape.microbatches
    return np.where(np.asarray(copies) > 1, each, 0.0)


def _ends_work(cfg: ModelConfig, rows: Sequence[Parameter], shape: TrainShape) -> list[Op]:
    """Both ends of the model, each with its gathers, scatters and reductions."""
    ops: list[Op] = []
    ends = end_chains(cfg, rows, shape).items()
    for (name, end), again in zip(ends, end_gathers_again(shape), strict=True):
        gathers, scatters = parameter_exchanges(end.rows, shape)
        gathers = [replace(g, phase="forward") for g in gathers]
        casts = [replace(c, phase="forward") for c in parameter_casts(end.rows, shape)]
        regathers = [replace(g, id=f"re.{g.id}", phase="backward") for g in _times(gathers, again)]
        chain = [*_waiting(end.forward, gathers), *_waiting(end.backward, regathers)]
        chain = _extended(chain, [*casts, *_phase(gradient_accumulation(end.rows, shape))])
        side = [*gathers, *regathers, *_phase(_after(scatters, chain))]
        here = 1.0 - shape.apart if name == "first" else 1.0
        met = here * shape.ends_share * shape.microbatches
        ops += _named([*side, *chain], name, met)
        reduced = _after(gradient_reduction(end.rows, shape), chain)
        reduced += tied_reduction(end.rows, shape)
        ops += _named(_phase(reduced), name, met if shape.zero == 2 else here)
    return ops


def _phase(ops: Sequence[Op]) -> list[Op]:
    return [replace(op, phase="backward") for op in ops]


def _named(ops: Sequence[Op], body: str, count: Quantity) -> list[Op]:
    """The ops as one body: ids made unique, `after` renamed with them, counts set."""
    phase = body.split(".")[0].removesuffix("_last")
    return [
        replace(
            op,
            id=f"{body}/{op.id}",
            after=tuple(f"{body}/{a}" for a in op.after),
            body=body,
            phase=op.phase or phase,
            count=count * op.count,
        )
        for op in ops
    ]


def _times(ops: Sequence[Op], count: Quantity) -> list[Op]:
    """The ops so often per round; none where that is never."""
    return [replace(op, count=count * op.count) for op in ops] if np.any(count) else []


def _waiting(ops: Sequence[Op], gathers: Sequence[Op]) -> list[Op]:
    """The chain's first op also waits for the parameters."""
    ids = tuple(g.id for g in gathers)
    start = next((i for i, op in enumerate(ops) if op.after), None)
    return [replace(op, after=(*ids, *op.after)) if i == start else op for i, op in enumerate(ops)]


def _extended(chain: Sequence[Op], tail: Sequence[Op]) -> list[Op]:
    """The chain with more ops at its end, for which its first op then waits."""
    ops = list(chain)
    for op in tail:
        last = ops[-1].id
        ops = [replace(o, after=tuple(op.id if a == last else a for a in o.after)) for o in ops]
        ops.append(replace(op, after=(last,)))
    return ops


def _after(ops: Sequence[Op], chain: Sequence[Op]) -> tuple[Op, ...]:
    """The ops wait for the chain's last op, and nobody for them."""
    return tuple(replace(op, after=(chain[-1].id,)) for op in ops)
