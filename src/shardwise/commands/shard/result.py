"""What is told of a sharded product, chain or reshard: the fields of `shard`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from shardwise.boundary.records import Record, values
from shardwise.commands.shard.expression import Sharding
from shardwise.hardware import Placement, describe
from shardwise.roofline import PricedStrategy
from shardwise.roofline.bounds import Bounds
from shardwise.roofline.latency import WireBound, wire_bound
from shardwise.sharding import Layout, Program, Strategy, global_shape, group_bytes, local_shape
from shardwise.sharding.bounded import without_units
from shardwise.sharding.count import count
from shardwise.sharding.steps import StepKind


@dataclass(frozen=True, kw_only=True)
class Movement(Record):
    """A step of the best strategy that moves bytes."""

    step: int
    """Its number, from 1."""
    kind: StepKind
    """Kind of the step."""
    axes: Sequence[str]
    """Mesh axes that it goes over."""
    array: str
    """The array that moves."""
    dim: str | None
    """The dim that is gathered, scattered or cut; null where it has none."""
    to_dim: str | None
    """The dim that is cut instead; null where it has none."""
    bytes: float
    """V in bytes: the array of one group, as the book has it."""


@dataclass(frozen=True, kw_only=True)
class TimedMovement(Movement, WireBound):
    """The same on a slice, with the seconds of its bytes and of its hops."""


@dataclass(frozen=True, kw_only=True)
class ShardedStrategy(Record):
    """A way to compute it."""

    summary: str
    """The collectives in order."""
    steps: Sequence[str]
    """Its steps in the notation."""
    wire_bytes_per_device: float
    """Bytes that a device sends."""
    flops_per_device: float
    """FLOPs of a device."""
    hbm_bytes_per_device: float
    """Bytes that a device reads and writes in its memory."""
    peak_bytes_per_device: float
    """Bytes that a device holds at most."""


@dataclass(frozen=True, kw_only=True)
class TimedStrategy(ShardedStrategy):
    """A way to compute it on a slice, with its time."""

    seconds: Bounds
    """Seconds of all steps."""
    bound_by: str | None
    """The resource with the most seconds at peak rates; null where nothing takes time."""
    resource_seconds: Mapping[str, float]
    """Seconds of each resource at peak rates."""
    collective_matmul: int | None
    """The number of the step whose collective runs under the product; null where none does."""


@dataclass(frozen=True, kw_only=True)
class ShardedProduct(Record):
    """The cheapest ways to compute with sharded arrays."""

    expression: str
    """The expression in the notation."""
    result_free: bool
    """Whether the layout of the result is chosen."""
    mesh: Mapping[str, int]
    """Mesh axis -> degree, outermost first."""
    slice: str | None
    """The chips; null without a slice."""
    slice_means: str | None
    """The same in words."""
    placement: Sequence[str] | None
    """Placement of each mesh axis on the network, in words; null without a slice."""
    sizes: Mapping[str, int]
    """The size of each dim, padded so that it divides."""
    obstacles: Sequence[str]
    """Why local products alone do not compute it as written."""
    ranked_by: Literal["expected seconds", "bytes on the wire"]
    """Quantity by which programs are ranked."""
    steps: Sequence[str]
    """The steps of the best strategy."""
    layouts: Mapping[str, str]
    """The layout of each of its arrays."""
    global_shapes: Mapping[str, Sequence[int]]
    """The shape of each array."""
    local_shapes: Mapping[str, Sequence[int]]
    """The shape of a device's block of each array."""
    collectives: Sequence[Movement | TimedMovement]
    """Its steps that move bytes."""
    peak_bytes_per_device: float
    """Bytes that a device holds at most."""
    max_bytes_per_device: float | None
    """Bytes that a device may hold; null without a limit."""
    strategies: Sequence[ShardedStrategy | TimedStrategy]
    """The best ones, best first."""
    enumerated: int
    """Legal strategies."""
    why: Sequence[str]
    """Why the best is the best."""


def sharded_product(answer: Sharding) -> ShardedProduct:
    """The answer with the steps, arrays and collectives of its best strategy."""
    best, einsum = answer.best, answer.einsum
    arrays = named_arrays(answer)
    return ShardedProduct(
        expression=str(einsum),
        result_free=einsum.free,
        mesh=dict(answer.mesh),
        slice=str(answer.piece) if answer.piece else None,
        slice_means=describe(answer.piece) if answer.piece else None,
        placement=answer.placement.describe() if answer.placement else None,
        sizes=answer.sizes,
        obstacles=without_units(einsum, answer.mesh)[0].obstacles(),
        ranked_by="expected seconds" if answer.ranking else "bytes on the wire",
        steps=[str(step) for step in best.program.steps],
        layouts={name: str(layout) for name, layout in arrays.items()},
        global_shapes={name: global_shape(a, answer.sizes) for name, a in arrays.items()},
        local_shapes={
            name: local_shape(a, answer.sizes, answer.mesh) for name, a in arrays.items()
        },
        collectives=movements(best.program, answer.placement),
        peak_bytes_per_device=best.peak_bytes,
        max_bytes_per_device=answer.limit if answer.limit < inf else None,
        strategies=_strategies(answer),
        enumerated=answer.resolution.enumerated,
        why=answer.reasons,
    )


def named_arrays(answer: Sharding) -> dict[str, Layout]:
    """The best strategy's inputs and result by name; a result named like an input gets a prime."""
    arrays = {layout.name: layout for layout in answer.best.inputs}
    result = answer.best.result
    if arrays.get(result.name) != result:
        arrays[f"{result.name}'" if result.name in arrays else result.name] = result
    return arrays


def movements(program: Program, placement: Placement | None = None) -> list[Movement]:
    """Every step that moves bytes; on a slice with the seconds of its bytes and of its hops, which
    of them binds, and the V where that turns."""
    rows = []
    wires = iter([op.collective for op in count(program).ops if op.collective is not None])
    for number, step in enumerate(program.steps, 1):
        if not step.communicates:
            continue
        dtypes, wire = {step.inputs[0].name: program.dtype}, next(wires)
        row = Movement(
            step=number,
            kind=step.kind,
            axes=step.axes,
            array=step.inputs[0].name,
            dim=step.dim or None,
            to_dim=step.to_dim or None,
            bytes=group_bytes(step, program.sizes, program.mesh, dtypes),
        )
        if placement is not None:
            row = TimedMovement.of(row, **values(wire_bound(wire, placement)))
        rows.append(row)
    return rows


def _strategies(answer: Sharding) -> Sequence[ShardedStrategy]:
    if answer.ranking is not None:
        return [_timed(priced) for priced in answer.ranking.strategies]
    return [_strategy(strategy) for strategy in answer.resolution.strategies]


def _strategy(strategy: Strategy) -> ShardedStrategy:
    work = strategy.work
    return ShardedStrategy(
        summary=strategy.summary,
        steps=[str(step) for step in strategy.program.steps],
        wire_bytes_per_device=strategy.wire_bytes,
        flops_per_device=float(work.flops()),
        hbm_bytes_per_device=float(work.hbm_bytes()),
        peak_bytes_per_device=strategy.peak_bytes,
    )


def _timed(priced: PricedStrategy) -> TimedStrategy:
    estimate = priced.estimate
    return TimedStrategy.of(
        _strategy(priced.strategy),
        summary=priced.summary,
        wire_bytes_per_device=priced.sent_bytes,
        seconds=Bounds(
            lower=float(estimate.lower),
            expected=float(estimate.expected),
            upper=float(estimate.upper),
        ),
        bound_by=estimate.bound_by() if estimate.resources else None,
        resource_seconds={name: float(s) for name, s in estimate.resources.items()},
        collective_matmul=priced.overlapped or None,
    )
