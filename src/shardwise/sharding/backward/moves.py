"""The moves from one layout of an array to another: slices, reductions, swaps, gathers.

Blocks are contiguous and the first axis of a dim is its major one, so only the minor end of a dim
can be gathered, swapped away or scattered to; a permute brings the axes there first. What shrinks
the array goes before what grows it. `sharding/reshard.py` finds the cheapest way by price; this is
the plain one, which asks for no sizes, so that a strategy gives the same steps at every size.
"""

from collections.abc import Iterable
from dataclasses import replace

from shardwise.sharding.layout import Dim, Layout
from shardwise.sharding.steps import ShardStep, StepKind


def moves(before: Layout, after: Layout) -> tuple[ShardStep, ...]:
    """Steps that take an array from `before` to `after`; the names and dims are the same.

    Unreduced axes of `after` must be unreduced in `before`: partial sums come of products only.

    >>> for step in moves(Layout.parse("A[I_XY, J]{U_Z}"), Layout.parse("A[I_X, J_Z]")):
    ...     print(step)
    A[I_XY, J_Z] = ReduceScatter_Z(A[I_XY, J]{U_Z}, J)
    A[I_X, J_Z] = AllGather_Y(A[I_XY, J_Z])
    """
    assert before.letters == after.letters, f"{before} -> {after}"
    assert set(after.unreduced) <= set(before.unreduced), f"{before} -> {after}"
    walk = _Walk(before)
    target = {dim.name: dim.axes for dim in after.dims}
    home = {axis: name for name, axes in target.items() for axis in axes}
    walk.slices(home)
    walk.reductions(home, after.unreduced)
    walk.swaps(home)
    walk.gathers(home)
    for name, axes in target.items():
        walk.order(name, axes)
    assert walk.at == replace(after, name=before.name), f"{before} -> {after}: {walk.at}"
    return tuple(walk.steps)


class _Walk:
    """The layout so far and the steps that led there."""

    def __init__(self, start: Layout) -> None:
        self.at = start
        self.steps: list[ShardStep] = []

    def go(
        self,
        kind: StepKind,
        dims: dict[str, tuple[str, ...]],
        axes: Iterable[str],
        *,
        reduced: bool = False,
        dim: str = "",
        to_dim: str = "",
    ) -> None:
        over = tuple(axes)
        unreduced = tuple(a for a in self.at.unreduced if not (reduced and a in over))
        changed = tuple(Dim(d.name, dims.get(d.name, d.axes)) for d in self.at.dims)
        after = Layout(name=self.at.name, dims=changed, unreduced=unreduced)
        step = ShardStep(
            kind=kind, inputs=(self.at,), output=after, axes=over, dim=dim, to_dim=to_dim
        )
        self.steps.append(step)
        self.at = after

    def slices(self, home: dict[str, str]) -> None:
        used = {*self.at.axes, *self.at.unreduced}
        for dim in self.at.dims:
            new = tuple(a for a in home if home[a] == dim.name and a not in used)
            if new:
                self.go("slice", {dim.name: dim.axes + new}, new, dim=dim.name)

    def reductions(self, home: dict[str, str], kept: tuple[str, ...]) -> None:
        for dim in self.at.dims:
            new = tuple(a for a in home if home[a] == dim.name and a in self.at.unreduced)
            if new:
                cut = {dim.name: dim.axes + new}
                self.go("reduce_scatter", cut, new, reduced=True, dim=dim.name)
        summed = tuple(a for a in self.at.unreduced if a not in kept)
        if summed:
            self.go("all_reduce", {}, summed, reduced=True)

    def swaps(self, home: dict[str, str]) -> None:
        for source in self.at.letters:
            goals = dict.fromkeys(home[a] for a in self.at.dim(source).axes if a in home)
            for goal in goals:
                axes = self.at.dim(source).axes
                moved = tuple(a for a in axes if home.get(a) == goal)
                if goal == source or not moved:
                    continue
                stay = tuple(a for a in axes if a not in moved)
                self.order(source, stay + moved)
                dims = {source: stay, goal: self.at.dim(goal).axes + moved}
                self.go("all_to_all", dims, moved, dim=source, to_dim=goal)

    def gathers(self, home: dict[str, str]) -> None:
        for name in self.at.letters:
            axes = self.at.dim(name).axes
            dropped = tuple(a for a in axes if a not in home)
            if dropped:
                stay = tuple(a for a in axes if a in home)
                self.order(name, stay + dropped)
                self.go("all_gather", {name: stay}, dropped, dim=name)

    def order(self, name: str, axes: tuple[str, ...]) -> None:
        if self.at.dim(name).axes != axes:
            self.go("permute", {name: axes}, axes, dim=name)
