"""Counting steps: a step of a program becomes an op of Work, with FLOPs and bytes of one device.

Sizes and degrees may be floats or arrays, so that a program found for one mesh can be counted as a
function of them (exercises 3.4 and 7.7). Nothing is rounded and no chip is seen.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import cast

from shardwise.sharding.exchange import exchange_of
from shardwise.sharding.layout import Layout
from shardwise.sharding.steps import Program, ShardStep
from shardwise.units import dtype_bytes
from shardwise.work import Collective, CollectiveKind, Exchange, Matmul, Op, Quantity, Sends, Work

Quantities = Mapping[str, Quantity]


def count(
    program: Program, *, sizes: Quantities | None = None, degrees: Quantities | None = None
) -> Work:
    """One op per step that multiplies or communicates; slices cost nothing and are left out.

    `sizes` and `degrees` replace the program's own. An op comes after those that made its inputs
    and, as they share links, after the last collective over one of its axes.
    """
    sizes = program.sizes if sizes is None else sizes
    degrees = program.mesh if degrees is None else degrees
    makers: dict[Layout, tuple[str, ...]] = {}
    linked: dict[str, str] = {}
    ops = []
    for number, step in enumerate(program.steps, 1):
        after = tuple(i for array in step.inputs for i in makers.get(array, ()))
        if step.kind == "slice":
            makers[step.output] = after
            continue
        if step.communicates:
            after += tuple(linked[axis] for axis in step.axes if axis in linked)
        op = op_of(step, sizes, degrees, program.dtype, str(number), tuple(dict.fromkeys(after)))
        linked |= dict.fromkeys(step.axes, op.id)
        makers[step.output] = (op.id,)
        ops.append(op)
    return Work(tuple(ops))


def op_of(
    step: ShardStep,
    sizes: Quantities,
    degrees: Quantities,
    dtype: str,
    op_id: str = "1",
    after: tuple[str, ...] = (),
) -> Op:
    """The op of one communication step or local product."""
    if step.kind == "einsum":
        inputs = [_local(array, sizes, degrees) for array in step.inputs]
        result = _local(step.output, sizes, degrees)
        return product_op(inputs, result, dtype, op_id, name=str(step), after=after)
    assert step.communicates, f"a {step.kind} step has no counting rule"
    size = collective_bytes(step, sizes, degrees, dtype)
    # In the order of the mesh: the same links carry XY and YX.
    axes = tuple(axis for axis in degrees if axis in step.axes)
    exchange = step_exchange(step, axes) if step.kind == "permute" else None
    return collective_op(
        step.kind, axes, size, op_id, exchange=exchange, name=str(step), after=after
    )


def step_exchange(step: ShardStep, axes: Sequence[str]) -> Exchange:
    """Whose block each device gets in a permute step, over its axes in the order of the mesh.

    A partial sum is a block too: the axes that are unreduced on both sides stay with it.
    """
    before, after = (
        [*(dim.axes for dim in layout.dims), layout.unreduced]
        for layout in (step.inputs[0], step.output)
    )
    return exchange_of(before, after, axes)


def product_op(
    inputs: Sequence[Quantities],
    result: Quantities,
    dtype: str,
    op_id: str = "1",
    *,
    name: str = "",
    after: tuple[str, ...] = (),
) -> Op:
    """A local product from the local sizes of each operand's letters and of the result's.

    2 x all letters, once each, or 1 x where none is contracted (book 4.1); every operand is read
    and the result written once.
    """
    every = {letter: size for operand in inputs for letter, size in operand.items()}
    contracted = [letter for letter in every if letter not in result]
    flops = (2 if contracted else 1) * _product(every.values())
    held = sum(_product(array.values()) for array in (*inputs, result))
    return Op(
        id=op_id,
        name=name,
        phase="forward",
        component="product",
        op_class="matmul",
        flops={dtype: flops},
        hbm_bytes=held * dtype_bytes(dtype),
        matmul=_matmul(inputs, result),
        after=after,
    )


def collective_op(
    kind: str,
    axes: tuple[str, ...],
    size: Quantity,
    op_id: str = "1",
    *,
    exchange: Exchange | Sends | None = None,
    name: str = "",
    after: tuple[str, ...] = (),
) -> Op:
    """A collective over axes, of V bytes as `work.Collective` has it."""
    return Op(
        id=op_id,
        name=name,
        phase="forward",
        component="reshard",
        op_class="collective",
        collective=Collective(
            kind=cast(CollectiveKind, kind), axes=axes, bytes=size, exchange=exchange
        ),
        stream="net:" + ",".join(axes),
        after=after,
    )


def collective_bytes(
    step: ShardStep, sizes: Quantities, degrees: Quantities, dtype: str
) -> Quantity:
    """V of a communication step; `steps.group_bytes` for sizes and degrees of any kind."""
    before = _product(_local(step.inputs[0], sizes, degrees).values()) * dtype_bytes(dtype)
    if step.kind in ("all_gather", "all_to_all"):
        return before * _product(degrees[axis] for axis in step.axes)
    return before


def wire_bytes(op: Op, degrees: Quantities) -> Quantity:
    """Bytes that one device sends in a collective over a group of N; nothing for other ops.

    (N-1)/N V for an all-gather or reduce-scatter, twice that for an all-reduce, (N-1)/N^2 V for an
    all-to-all, V for a permute of more than one device.
    """
    if op.collective is None:
        return 0.0
    group = _product(degrees[axis] for axis in op.collective.axes)
    size = op.collective.bytes * op.count
    match op.collective.kind:
        case "all_gather" | "reduce_scatter":
            return size * (group - 1) / group
        case "all_reduce":
            return 2 * size * (group - 1) / group
        case "permute":
            return size * (group > 1)
        case _:
            return size * (group - 1) / group**2


def _local(layout: Layout, sizes: Quantities, degrees: Quantities) -> dict[str, Quantity]:
    return {d.name: sizes[d.name] / _product(degrees[a] for a in d.axes) for d in layout.dims}


def _matmul(inputs: Sequence[Quantities], result: Quantities) -> Matmul:
    """m and n are the letters of the left and of the right operand alone, k the contracted ones."""
    left, right = inputs[0], inputs[-1]
    both = [letter for letter in left if letter in right]
    return Matmul(
        m=_product(size for letter, size in left.items() if letter not in both),
        k=_product(left[letter] for letter in both if letter not in result),
        n=_product(size for letter, size in right.items() if letter not in both),
        batch=_product(left[letter] for letter in both if letter in result),
    )


def _product(values) -> Quantity:
    return prod(values, start=1.0)
