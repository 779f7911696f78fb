"""Count one training step on the busiest device: forward, backward, gradient reduction, optimizer.

`count_step` counts its parts as a tree (`tree.py`), `loops_of` lays the tree out as a few loops
over layers and microbatches, `train_work` lists their ops. What can hide behind what is in the ops'
streams and `after` ids (the algorithm boxes of ch. 5.1): parameter gathers wait for nothing and run
ahead, gradient reductions are waited for by nobody, tensor and expert exchanges stand between the
matmuls. Loops: `forward.g`, `backward.g` and `backward_last.g` (the microbatch that also reduces
gradients) of each layer group g; `first` and `last`, the two ends of the model, forward and
backward told apart by phase; `optimizer`. Where stages exist twice two devices hold both ends, and
each runs them for half of the microbatches. Everything broadcasts over candidate plans.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

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
from shardwise.planner.step.tree import (
    Body,
    EndParts,
    LayerParts,
    Step,
    backward_body,
    end_body,
    forward_body,
    with_reduction,
    with_transfer,
)
from shardwise.plans.layouts import replica_axes
from shardwise.work import Op, Quantity, Work

__all__ = ["Loop", "TrainShape", "count_step", "loops_of", "reductions", "train_work"]

Ops = tuple[Op, ...]
T = TypeVar("T")


def train_work(cfg: ModelConfig, shape: TrainShape) -> Work:
    """All ops of one step on the busiest device, which with pipeline stages holds the head: body
    `first` is then another device's and counts 0. Towers are left out: they are never priced."""
    loops = loops_of(cfg, shape, count_step(cfg, shape))
    return Work(tuple(op for loop in loops for op in loop.items))


def count_step(cfg: ModelConfig, shape: TrainShape) -> Step[Ops]:
    """The parts of a step, each once: a layer of every kind, the ends, the update."""
    rows = step_rows(cfg, shape)
    groups = [[r for r in rows if r.group == g] for g in range(len(cfg.groups))]
    first, last = end_chains(cfg, rows, shape).values()
    return Step(
        layers=tuple(layer_parts(cfg, g, rows, mine, shape) for g, mine in enumerate(groups)),
        ends=(end_parts(first, shape), end_parts(last, shape)),
        reductions=tuple(gradient_reduction(mine, shape) for mine in groups),
        end_reductions=(end_reduction(first.rows, shape), end_reduction(last.rows, shape)),
        transfer=stage_transfer(cfg, shape),
        update=optimizer_ops(cfg, rows, shape),
    )


def layer_parts(
    cfg: ModelConfig,
    group: int,
    rows: Sequence[Parameter],
    mine: Sequence[Parameter],
    shape: TrainShape,
) -> LayerParts[Ops]:
    """One layer of a group; `mine` are its rows of the step's `rows`."""
    forward, backward = layer_chains(cfg, group, rows, shape)
    gathers, scatters = parameter_exchanges(mine, shape)
    return LayerParts(
        forward=forward,
        backward=backward,
        gathers=gathers,
        scatters=scatters,
        accumulation=gradient_accumulation(mine, shape),
        casts=parameter_casts(mine, shape),
    )


def end_parts(end, shape: TrainShape) -> EndParts[Ops]:
    """One end of the model (`parts.End`)."""
    gathers, scatters = parameter_exchanges(end.rows, shape)
    return EndParts(
        chain=(*end.forward, *end.backward),
        gathers=_phase(gathers, "forward"),
        regathers=tuple(replace(g, id=f"re.{g.id}", phase="backward") for g in gathers),
        scatters=_phase(scatters, "backward"),
        accumulation=_phase(gradient_accumulation(end.rows, shape), "backward"),
        casts=_phase(parameter_casts(end.rows, shape), "forward"),
    )


def end_reduction(rows: Sequence[Parameter], shape: TrainShape) -> Ops:
    """The gradient reduction of an end, a tied head's with it."""
    return _phase((*gradient_reduction(rows, shape), *tied_reduction(rows, shape)), "backward")


def reductions(rows: Sequence[Parameter], shape: TrainShape) -> Quantity:
    """Microbatches whose backward pass reduces gradients: the last one, or under ZeRO-2 all. None
    where there are no replicas: then all rounds of a candidate are alike."""
    copies: Quantity = 1.0
    for axis in {axis for r in rows for axis in replica_axes(r, shape.storage_axes)}:
        copies = copies * shape.degree(axis)
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
    rows = step_rows(cfg, shape)
    lay = _Layout(op_of, with_op)
    loops = list(_end_loops(lay, shape, step))
    chunks = float(shape.virtual_stages)
    ahead, again = gathers_per_round(shape)
    for group, (_, layers) in enumerate(cfg.layer_groups()):
        mine = [r for r in rows if r.group == group]
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
    lay: "_Layout[T]", shape: TrainShape, step: Step[tuple[T, ...]]
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
class _Layout(Generic[T]):
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
            found += [(t, replace(op, after=last)) for t, op in self._times(part, times)]
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
                items.append((t, replace(op, after=(last,))))
        return items

    def _times(self, part: tuple[T, ...], times: Quantity) -> list[tuple[T, Op]]:
        """The items so often per round; none where that is never."""
        if not np.any(times):
            return []
        ops = ((t, self.op_of(t)) for t in part)
        return [(t, replace(op, count=times * op.count)) for t, op in ops]


def _named(op: Op, body: str, phase: str, rounds: Quantity) -> Op:
    return replace(
        op,
        id=f"{body}/{op.id}",
        after=tuple(f"{body}/{a}" for a in op.after),
        body=body,
        phase=op.phase or phase,
        count=rounds * op.count,
    )


def _renamed(op: Op, old: str, new: str) -> Op:
    """The op, waiting for another one instead."""
    return replace(op, after=tuple(new if a == old else a for a in op.after))


def _waiting(chain: Sequence[Op], gathers: Sequence[Op]) -> list[Op]:
    """The chain, whose first op waits for the parameters; gathers that name a pass are waited for
    by its first op."""
    found = list(chain)
    for phase in ("", "forward", "backward"):
        ids = tuple(g.id for g in gathers if g.phase == phase)
        mine = (i for i, op in enumerate(found) if op.after and _within(op, phase))
        if ids and (start := next(mine, None)) is not None:
            found[start] = replace(found[start], after=(*ids, *found[start].after))
    return found


def _within(op: Op, phase: str) -> bool:
    """Whether an op belongs to a pass; weight gradients belong to the backward pass."""
    return not phase or (op.phase == "forward") == (phase == "forward")


def _phase(ops: Iterable[Op], phase: str) -> Ops:
    return tuple(replace(op, phase=phase) for op in ops)
