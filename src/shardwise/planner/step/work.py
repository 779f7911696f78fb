"""One training step of the busiest device: its parts as a tree, and the tree laid out as loops.

    forward    gathers, as often as ahead | layer, casts                       | transfer
    backward   gathers, as often as again | layer, casts, accumulation         | transfer, scatters
    an end     gathers, ahead and again   | forward, backward, casts, accum.   | scatters

A *body* is a loop. In the middle stands its chain, whose ops follow one another; left of it what
the chain waits for, and right of it what the chain does not wait for. The gradient reduction comes
at the end of those backward rounds whose microbatch is the last one (with ZeRO-2 of all).

`count_parts` counts the parts (`parts.py`), `loops_of` lays them out as a few loops over layers and
microbatches, `train_work` lists their ops. What can hide behind what is in the ops' streams and
`after` ids (the algorithm boxes of ch. 5.1): parameter gathers wait for nothing and run ahead,
gradient reductions are waited for by nobody, tensor and expert exchanges stand between the matmuls.
Loops: `forward.g`, `backward.g` and `backward_last.g` (the microbatch that also reduces gradients)
of each layer group g; `first` and `last`, the two ends of the model, forward and backward told
apart by phase; `optimizer`. Where stages exist twice two devices hold both ends, and each runs them
for half of the microbatches. Everything broadcasts over candidate plans.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Generic, TypeVar

import numpy as np

from shardwise.models import ModelConfig, Parameter
from shardwise.planner.step.parts import (
    END_EXCHANGES,
    END_REDUCTIONS,
    ENDS,
    LAYER,
    LAYER_EXCHANGES,
    PARTS,
    REDUCTION,
    TRANSFER,
    UPDATE,
    Bodies,
    StepPart,
    tensors_of,
)
from shardwise.planner.step.shape import TrainShape
from shardwise.plans.layouts import gather_axes, replica_axes
from shardwise.work import Op, Quantity, Work, changed

__all__ = ["Loop", "TrainShape", "count_parts", "loops_of", "reductions", "train_work"]

Ops = tuple[Op, ...]
Counted = Mapping[str, tuple[Bodies, ...]]
"""The ops of every part of a step, by its name."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LayerParts(Generic[T]):
    """One layer and microbatch, in the order of `LAYER` and `LAYER_EXCHANGES`: both chains, the
    gathers of its parameters, the scatters of their gradients, adding these to those of earlier
    microbatches, casts of parameters."""

    forward: T
    backward: T
    gathers: T
    scatters: T
    accumulation: T
    casts: T


@dataclass(frozen=True, slots=True)
class EndParts(Generic[T]):
    """One end of the model and one microbatch: its chain of both passes, and what parameters and
    gradients take. `regathers` are the gathers once more, for the backward pass."""

    chain: T
    gathers: T
    regathers: T
    scatters: T
    accumulation: T
    casts: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[T]):
    """One step of the counted device: parts of a layer of every kind and of both ends, the gradient
    reductions of each, the transfer to the next stage as a share per layer and chunk, the
    update."""

    layers: tuple[LayerParts[T], ...]
    ends: tuple[EndParts[T], EndParts[T]]
    reductions: tuple[T, ...]
    end_reductions: tuple[T, T]
    transfer: T
    update: T


def step_of(parts: Mapping[str, tuple[tuple[T, ...], ...]]) -> Step[T]:
    """The tree of all parts by name: ops, or times, by thing and body as in `StepPart.count`."""

    def part(row: StepPart) -> tuple[tuple[T, ...], ...]:
        return parts[row.name]

    layers = zip(*part(LAYER), *part(LAYER_EXCHANGES), strict=True)
    (first,), (last,) = part(ENDS)
    exchanges = [ops for (ops,) in part(END_EXCHANGES)]
    ((transfer,),), ((update,),) = part(TRANSFER), part(UPDATE)
    (first_reduction,), (last_reduction,) = part(END_REDUCTIONS)
    return Step(
        layers=tuple(LayerParts(*each) for each in layers),
        ends=(EndParts(first, *exchanges[:5]), EndParts(last, *exchanges[5:])),
        reductions=part(REDUCTION)[0],
        end_reductions=(first_reduction, last_reduction),
        transfer=transfer,
        update=update,
    )


def count_parts(cfg: ModelConfig, shape: TrainShape) -> Counted:
    """The parts of a step, each once: a layer of every kind, the ends, the update."""
    tensors = tensors_of(cfg, shape)
    return {part.name: part.count(tensors, shape) for part in PARTS}


def train_work(cfg: ModelConfig, shape: TrainShape) -> Work:
    """All ops of one step on the busiest device, which with pipeline stages holds the head: body
    `first` is then another device's and counts 0. Towers are left out: they are never priced."""
    counted = count_parts(cfg, shape)
    loops = loops_of(cfg, shape, step_of(counted))
    return Work(tuple(op for loop in loops for op in loop.items))


# Bodies ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Body(Generic[T]):
    """One round of a loop: each part with how often it comes. The chain waits for `before`, `after`
    waits for the chain; `beside` and the chain do not wait for each other."""

    before: tuple[tuple[T, Quantity], ...] = ()
    chain: tuple[tuple[T, Quantity], ...]
    after: tuple[tuple[T, Quantity], ...] = ()
    beside: tuple[tuple[T, Quantity], ...] = ()

    def __iter__(self) -> Iterator[tuple[T, Quantity]]:
        yield from (*self.before, *self.chain, *self.after, *self.beside)


def forward_body(parts: LayerParts[T], ahead: Quantity) -> Body[T]:
    """A forward round, in which parameters are gathered `ahead` times."""
    return Body(
        before=((parts.gathers, ahead),), chain=((parts.forward, 1.0), (parts.casts, ahead))
    )


def backward_body(parts: LayerParts[T], again: Quantity) -> Body[T]:
    """A backward round without the gradient reduction; parameters are gathered `again` times."""
    return Body(
        before=((parts.gathers, again),),
        chain=((parts.backward, 1.0), (parts.casts, again), (parts.accumulation, 1.0)),
        after=((parts.scatters, 1.0),),
    )


def end_body(parts: EndParts[T], again: Quantity) -> Body[T]:
    """Both passes of an end, without the gradient reduction."""
    return Body(
        before=((parts.gathers, 1.0), (parts.regathers, again)),
        chain=((parts.chain, 1.0), (parts.casts, 1.0), (parts.accumulation, 1.0)),
        after=((parts.scatters, 1.0),),
    )


def gathers_per_round(shape: TrainShape) -> tuple[Quantity, Quantity]:
    """How often parameters are gathered per forward and per backward round.

    Once each `per_pass`; else the backward pass finds them gathered. With pipeline stages some
    microbatch is always between its two passes, so that what stays for both stays for the whole
    step: one gather for all microbatches, as `per_step` has it.
    """
    if shape.weight_gather == "per_pass":
        return 1.0, 1.0
    stays = shape.piped if shape.weight_gather == "per_microbatch" else 1.0
    return np.where(np.asarray(stays) > 0, 1.0 / np.asarray(shape.microbatches), 1.0), 0.0


def end_gathers_again(shape: TrainShape) -> tuple[Quantity, Quantity]:
    """How often the parameters before and after the stack are gathered for the backward pass.

    Not at all without pipeline stages: the backward pass of a lookup reads no table, and that of
    the head follows its forward pass while the head is still gathered. With stages the head's two
    passes are apart, and each gathers.
    """
    _, again = gathers_per_round(shape)
    return 0.0, again * shape.piped


def with_transfer(body: Body[T], transfer: T, chunks: Quantity) -> Body[T]:
    """The round of a stage, which also sends a share of its activations on, once per chunk."""
    return replace(body, beside=(*body.beside, (transfer, chunks)))


def with_reduction(body: Body[T], reduction: T, times: Quantity = 1.0) -> Body[T]:
    """The round with the gradient reduction at its end."""
    return replace(body, after=(*body.after, (reduction, times)))


def reductions(rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """Microbatches whose backward pass reduces gradients: the last one, or under ZeRO-2 all. None
    where there are no replicas: then all rounds of a candidate are alike."""
    axes = {axis for r in rows for axis in replica_axes(r, shape.storage_axes)}
    if shape.reduces_once:
        axes |= {axis for r in rows for axis in gather_axes(r, shape.storage_axes)}
    copies = prod((shape.degree(axis) for axis in axes), start=1.0)
    each = 1.0 if shape.zero < 2 else shape.microbatches
    return np.where(np.asarray(copies) > 1, each, 0.0)


# Loops --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Generic[T]):
    """A body laid out: its items in program order with their counts per step. `reductions` are the
    ids of those that reduce gradients."""

    name: str
    items: tuple[T, ...]
    reductions: frozenset[str] = frozenset()


def _same(op: Op) -> Op:
    return op


def _other(_: Op, op: Op) -> Op:
    return op


def loops_of(
    cfg: ModelConfig,
    shape: TrainShape,
    step: Step[tuple[T, ...]],
    op_of: Callable[[T], Op] = _same,  # type: ignore[assignment]
    with_op: Callable[[T, Op], T] = _other,  # type: ignore[assignment]
) -> list[Loop[T]]:
    """The loops of a step whose parts are ops, or anything that has an op."""
    tensors = tensors_of(cfg, shape)
    lay = _LoopLayout(op_of, with_op)
    loops = list(_end_loops(lay, shape, step))
    chunks = float(shape.virtual_stages)
    ahead, again = gathers_per_round(shape)
    for group, ((_, layers), mine) in enumerate(
        zip(cfg.layer_groups(), tensors.groups, strict=True)
    ):
        rounds, parts, reduction = (
            layers * shape.stage_share,
            step.layers[group],
            step.reductions[group],
        )
        forward = with_transfer(forward_body(parts, ahead), step.transfer, chunks)
        loops.append(lay(f"forward.{group}", "forward", forward, rounds * shape.microbatches))
        back = with_transfer(backward_body(parts, again), step.transfer, chunks)
        late = with_reduction(back, reduction)
        times = reductions(mine, shape)
        # Split even where no microbatch comes before the last: loops do not depend on degrees.
        if reduction and shape.zero < 2:
            early = rounds * (shape.microbatches - times)
            loops.append(lay(f"backward.{group}", "backward", back, early))
            loops.append(lay(f"backward_last.{group}", "backward", late, rounds * times, reduction))
        else:
            loops.append(lay(f"backward.{group}", "backward", late, rounds * shape.microbatches))
    loops.append(lay("optimizer", "optimizer", Body(chain=((step.update, 1.0),)), 1.0))
    return loops


def _end_loops(
    lay: "_LoopLayout[T]", shape: TrainShape, step: Step[tuple[T, ...]]
) -> Iterator[Loop[T]]:
    """Both ends of the model; gradients are reduced once, under ZeRO-2 in every round."""
    met = shape.ends_share * shape.microbatches
    times = 1.0 if shape.zero == 2 else 1.0 / met
    ends = zip(
        ("first", "last"), step.ends, step.end_reductions, end_gathers_again(shape), strict=True
    )
    for name, parts, reduction, again in ends:
        here = 1.0 - shape.apart if name == "first" else 1.0
        body = with_reduction(end_body(parts, again), reduction, times)
        yield lay(name, "", body, here * met, reduction)


@dataclass(frozen=True, slots=True)
class _LoopLayout(Generic[T]):
    """Lays bodies out: ids made unique, who waits for whom, counts per step."""

    op_of: Callable[[T], Op]
    with_op: Callable[[T, Op], T]

    def __call__(
        self,
        name: str,
        phase: str,
        body: Body[tuple[T, ...]],
        rounds: Quantity,
        reduction: tuple[T, ...] = (),
    ) -> Loop[T]:
        found: list[tuple[T, Op]] = []
        for part, times in body.before:
            found += self._times(part, times)
        chain = self._chain(body)
        chained = _waiting([op for _, op in chain], [op for _, op in found])
        for part, times in body.beside:
            found += self._times(part, times)
        found += [(t, op) for (t, _), op in zip(chain, chained, strict=True)]
        last = (chained[-1].id,) if chained else ()
        for part, times in body.after:
            found += [(t, changed(op, after=last)) for t, op in self._times(part, times)]
        return Loop(
            name=name,
            items=tuple(self.with_op(t, _named(op, name, phase, rounds)) for t, op in found),
            reductions=frozenset(f"{name}/{self.op_of(t).id}" for t in reduction),
        )

    def _chain(self, body: Body[tuple[T, ...]]) -> list[tuple[T, Op]]:
        """All parts of the chain, the first op waiting for the last of the round before."""
        (start, _), *more = body.chain
        items = [(t, self.op_of(t)) for t in start]
        for part, times in more:
            for t, op in self._times(part, times):
                last = items[-1][1].id
                items = [(t, _renamed(o, last, op.id)) for t, o in items]
                items.append((t, changed(op, after=(last,))))
        return items

    def _times(self, part: tuple[T, ...], times: Quantity) -> list[tuple[T, Op]]:
        """The items so often per round; none where that is never."""
        if not np.any(times):
            return []
        ops = ((t, self.op_of(t)) for t in part)
        return [(t, changed(op, count=times * op.count)) for t, op in ops]


def _named(op: Op, body: str, phase: str, rounds: Quantity) -> Op:
    return changed(
        op,
        id=f"{body}/{op.id}",
        after=tuple(f"{body}/{a}" for a in op.after),
        body=body,
        phase=op.phase or phase,
        count=rounds * op.count,
    )


def _renamed(op: Op, old: str, new: str) -> Op:
    """The op, waiting for another one instead."""
    return changed(op, after=tuple(new if a == old else a for a in op.after))


def _waiting(chain: Sequence[Op], gathers: Sequence[Op]) -> list[Op]:
    """The chain, whose first op waits for the parameters; gathers that name a pass are waited for
    by its first op."""
    found = list(chain)
    for phase in ("", "forward", "backward"):
        ids = tuple(g.id for g in gathers if g.phase == phase)
        mine = (i for i, op in enumerate(found) if op.after and _within(op, phase))
        if ids and (start := next(mine, None)) is not None:
            found[start] = changed(found[start], after=(*ids, *found[start].after))
    return found


def _within(op: Op, phase: str) -> bool:
    """Whether an op belongs to a pass; weight gradients belong to the backward pass."""
    return not phase or (op.phase == "forward") == (phase == "forward")
