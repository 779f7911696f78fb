"""Lowering: a program in steps that one collective of a compiler does exactly, and their bytes.

A tiled collective gathers the minor axes of a dim and scatters to a new minor one: it joins or cuts
contiguous blocks. `A[I_XY] -> A[I_Y]` (book 3.2) keeps the minor axis, so the blocks must change
places first: a permute to `I_YX`, then the gather over X. Steps that already fit stay as they are.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import lcm, prod

import numpy as np

from shardwise.errors import BadRequest
from shardwise.sharding.exchange import block_numbers, places, sources
from shardwise.sharding.layout import Dim, Layout
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.steps import Program, ShardStep, group_bytes
from shardwise.work import Collective, CollectiveKind

MOST_SMALL = 2**24
"""Elements that all dims of a small run span together: a second of work for one core."""
_KINDS: dict[str, CollectiveKind] = {
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_to_all": "all_to_all",
    "permute": "permute",
}


def lowered(program: Program) -> Program:
    """The same program with every step a single tiled collective, slice or local product."""
    steps = tuple(part for step in program.steps for part in _parts(step, program.mesh))
    return replace(program, steps=steps)


def predicted_collectives(program: Program) -> tuple[Collective, ...]:
    """What a compiled program must contain, in order: kind, axes in mesh order and V in bytes.

    A collective over one device and a permute that moves nothing are not there. A permute's axes
    are those along which some block moves.
    """
    mesh = program.mesh
    found = []
    for step in lowered(program).steps:
        axes = moved_axes(step, mesh) if step.kind == "permute" else step.axes
        axes = tuple(axis for axis in mesh if axis in axes and mesh[axis] > 1)
        if step.communicates and axes:
            dtypes = {step.inputs[0].name: program.dtype}
            size = group_bytes(step, program.sizes, mesh, dtypes)
            found.append(Collective(kind=_KINDS[step.kind], axes=axes, bytes=size))
    return tuple(found)


def permutation(step: ShardStep, mesh: Mesh) -> tuple[tuple[int, int], ...]:
    """(source, target) pairs of a permute, as positions in the group `step.axes`, major to minor.

    A device keeps its block where it may. Raises BadRequest if no exchange within the group turns
    one layout into the other.
    """
    others = [axis for axis in mesh if axis not in step.axes]
    answers = set()
    for rest in product(*(range(mesh[axis]) for axis in others)):
        answers.add(_exchange(step, mesh, dict(zip(others, rest, strict=True))))
    if len(answers) != 1 or () in answers:
        over = ", ".join(step.axes)
        rule = "the blocks must change places within the group; name every axis that moves"
        raise BadRequest(f"'{step}' is not a permute over {over}; {rule}")
    return answers.pop()


def moved_axes(step: ShardStep, mesh: Mesh) -> tuple[str, ...]:
    """The axes along which a permute's source and target differ, in the step's order."""
    places = list(product(*(range(mesh[axis]) for axis in step.axes)))
    pairs = [(places[s], places[t]) for s, t in permutation(step, mesh)]
    return tuple(axis for i, axis in enumerate(step.axes) if any(s[i] != t[i] for s, t in pairs))


def small_sizes(program: Program) -> dict[str, int]:
    """Sizes for a run anywhere: none above the program's, and cut into equal blocks by each layout.

    Each dim keeps at most 64 elements, fewer where the product of all dims would pass 2^24, but
    never less than its layouts cut it into.
    """
    units: dict[str, int] = {}
    for layout in (x for step in program.steps for x in (*step.inputs, step.output)):
        for dim in layout.dims:
            cut = prod(program.mesh[axis] for axis in dim.axes)
            units[dim.name] = lcm(units.get(dim.name, 1), cut)
    small: dict[str, int] = {}
    for most in (64, 32, 16, 8, 4, 2, 1):
        small = {d: min(program.sizes[d], max(1, most // n) * n) for d, n in units.items()}
        if prod(small.values()) <= MOST_SMALL:
            break
    return small


def _parts(step: ShardStep, mesh: Mesh) -> tuple[ShardStep, ...]:
    if step.kind in ("einsum", "all_reduce", "map", "reshape"):
        return (step,)
    if step.kind == "permute":
        return (step,) if moved_axes(step, mesh) else (_renamed(step),)
    first = step.inputs[0]
    begin = first
    if step.kind in ("all_gather", "all_to_all"):
        begin = _minor(first, step.dim, step.axes)
    axes = _order(step, begin)
    end = _natural(step, begin, axes)
    core = replace(step, inputs=(begin,), output=end, axes=axes)
    return (*_permute(first, begin, mesh), core, *_permute(end, step.output, mesh))


def _renamed(step: ShardStep) -> ShardStep:
    """A permute that moves nothing: a slice over no axes, which is not an operation."""
    return replace(step, kind="slice", axes=(), dim="", to_dim="")


def _minor(layout: Layout, dim: str, axes: Sequence[str]) -> Layout:
    held = layout.dim(dim).axes
    rest = tuple(axis for axis in held if axis not in axes)
    return _with(layout, dim, rest + tuple(axis for axis in held if axis in axes))


def _order(step: ShardStep, begin: Layout) -> tuple[str, ...]:
    """The order of the group: that of the dim it comes from, else that of the dim it goes to."""
    where = step.output if step.kind in ("reduce_scatter", "slice") else begin
    return tuple(axis for axis in where.dim(step.dim).axes if axis in step.axes)


def _natural(step: ShardStep, begin: Layout, axes: tuple[str, ...]) -> Layout:
    """What one tiled collective makes of `begin`."""
    held = begin.dim(step.dim).axes
    if step.kind == "all_gather":
        end = _with(begin, step.dim, held[: len(held) - len(axes)])
    elif step.kind == "all_to_all":
        there = begin.dim(step.to_dim).axes
        end = _with(begin, step.dim, held[: len(held) - len(axes)])
        end = _with(end, step.to_dim, there + axes)
    else:
        reduced = axes if step.kind == "reduce_scatter" else ()
        unreduced = tuple(axis for axis in begin.unreduced if axis not in reduced)
        begin = replace(begin, unreduced=unreduced)
        end = _with(begin, step.dim, held + axes)
    return replace(end, name=step.output.name)


def _permute(before: Layout, after: Layout, mesh: Mesh) -> tuple[ShardStep, ...]:
    if before.spec() == after.spec():
        return ()
    axes = tuple(axis for axis in mesh if axis in before.axes)
    return _parts(ShardStep(kind="permute", inputs=(before,), output=after, axes=axes), mesh)


def _with(layout: Layout, dim: str, axes: tuple[str, ...]) -> Layout:
    dims = tuple(Dim(d.name, axes) if d.name == dim else d for d in layout.dims)
    return replace(layout, dims=dims)


def _exchange(step: ShardStep, mesh: Mesh, rest: dict[str, int]) -> tuple[tuple[int, int], ...]:
    at = rest | dict(zip(step.axes, places([mesh[axis] for axis in step.axes]), strict=True))
    before, after = _cuts(step.inputs[0]), _cuts(step.output)
    if [_count(cut, mesh) for cut in before] != [_count(cut, mesh) for cut in after]:
        return ()
    size = _count(step.axes, mesh)
    held, wanted = (
        np.broadcast_to(block_numbers(cuts, mesh, at), size) for cuts in (before, after)
    )
    found = sources(held, wanted)
    if found is None:
        return ()
    return tuple(sorted((int(source), target) for target, source in enumerate(found)))


def _cuts(layout: Layout) -> list[tuple[str, ...]]:
    """The axes on each dim, and those of which every place has another partial sum."""
    return [*(dim.axes for dim in layout.dims), layout.unreduced]


def _count(axes: Sequence[str], mesh: Mesh) -> int:
    return prod(mesh[axis] for axis in axes)
