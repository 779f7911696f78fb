"""Resharding: the cheapest steps from one layout of an array to another, found exactly.

The layouts of an array over a mesh are the nodes of a small graph and one communication step or
slice is an edge, so that the cheapest way is a shortest path. What a step costs is passed in:
`wire` counts the bytes that a device sends, `roofline.strategies` gives seconds.

Steps keep blocks contiguous: a gather takes the minor axes of a dim, a scatter, a slice and an
all-to-all add axes at the minor end, and a permute changes who holds which block. So
`A[I_XY] -> A[I_Y]` is a permute to `I_YX` and a gather over X, and a gather helped by an idle axis
is a slice over it and a gather over both.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from itertools import combinations, count, permutations
from math import inf, prod
from typing import NamedTuple

from shardwise.errors import BadRequest
from shardwise.sharding.count import collective_op, wire_bytes
from shardwise.sharding.layout import Dim, Layout
from shardwise.sharding.local import Sizes, local_shape
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.steps import Step, StepKind
from shardwise.units import dtype_bytes
from shardwise.work import Op

Cost = Callable[[Op], float]
"""What is minimised: a number per op, in bytes or seconds, that adds up over a program."""

Cut = tuple[str, ...]


class Node(NamedTuple):
    """A layout without names: the axes of each dim, major to minor, and the unreduced axes."""

    dims: tuple[Cut, ...]
    unreduced: Cut


class Move(NamedTuple):
    """An edge: one step of some kind to another node."""

    kind: StepKind
    axes: Cut
    dim: int
    to_dim: int
    node: Node
    cost: float


class Label(NamedTuple):
    """A way to a node: its cost and memory, and the label and move (or product) before it.

    `stored` are bytes of inputs that stay, `transient` the most that copies took beside them at any
    time, `held` what the array at this node takes beside them, in bytes per device.
    """

    cost: float
    stored: float
    transient: float
    held: float
    node: Node
    before: object = None
    move: Move | None = None


def wire(mesh: Mesh) -> Cost:
    """The cost without hardware: bytes that one device sends."""
    return lambda op: float(wire_bytes(op, mesh))


@dataclass(frozen=True, slots=True)
class Graph:
    """All layouts of one array: which moves leave each node, and what they cost."""

    letters: tuple[str, ...]
    lengths: tuple[int, ...]
    mesh: Mesh
    itemsize: float
    price: Callable[[str, Cut, float], float]
    _moves: dict[Node, tuple[Move, ...]]
    _profiles: dict[tuple[int, ...], list[tuple[Cut, ...]]]
    _tick: float

    @classmethod
    def of(cls, letters: Sequence[str], sizes: Sizes, mesh: Mesh, dtype: str, cost: Cost):
        """The graph of an array with these dims; `cost` is asked once per kind, axes and bytes."""
        price = cache(lambda kind, axes, size: float(cost(collective_op(kind, axes, size))))
        lengths = tuple(sizes[x] for x in letters)
        profiles: dict[tuple[int, ...], list[tuple[Cut, ...]]] = {}
        for dims in arrangements(lengths, mesh):
            profiles.setdefault(_profile(dims, mesh), []).append(dims)
        whole = prod(lengths) * dtype_bytes(dtype)
        # Among equally cheap ways the one with fewer steps counts.
        tick = 1e-9 * price("all_gather", tuple(mesh), whole) or 1e-30
        return cls(tuple(letters), lengths, mesh, dtype_bytes(dtype), price, {}, profiles, tick)

    def node(self, layout: Layout) -> Node:
        return Node(tuple(layout.dim(x).axes for x in self.letters), layout.unreduced)

    def layout(self, name: str, node: Node) -> Layout:
        dims = tuple(map(Dim, self.letters, node.dims))
        return Layout(name=name, dims=dims, unreduced=node.unreduced)

    def nodes(self) -> tuple[Node, ...]:
        """Every layout without partial sums."""
        return tuple(Node(dims, ()) for some in self._profiles.values() for dims in some)

    def held(self, node: Node) -> float:
        """Bytes of one device's block."""
        cut = prod(self.mesh[axis] for dim in node.dims for axis in dim)
        return prod(self.lengths) * self.itemsize / cut

    def moves(self, node: Node) -> tuple[Move, ...]:
        if node not in self._moves:
            self._moves[node] = tuple(self._expand(node))
        return self._moves[node]

    def _expand(self, node: Node) -> Iterable[Move]:
        yield from self._gathers(node)
        yield from self._slices(node)
        yield from self._reductions(node)
        yield from self._permutes(node)

    def _gathers(self, node: Node) -> Iterable[Move]:
        for i, cut in enumerate(node.dims):
            for n in range(len(cut)):
                kept, moved = cut[:n], cut[n:]
                dims = _put(node.dims, i, kept)
                yield self._move("all_gather", moved, i, -1, node, node._replace(dims=dims))
                for j, other in enumerate(node.dims):
                    if j != i and self._fits(j, other + moved):
                        there = node._replace(dims=_put(dims, j, other + moved))
                        yield self._move("all_to_all", moved, i, j, node, there)

    def _slices(self, node: Node) -> Iterable[Move]:
        used = {*node.unreduced, *(axis for cut in node.dims for axis in cut)}
        for axis in self.mesh:
            if axis in used:
                continue
            for i, cut in enumerate(node.dims):
                if self._fits(i, (*cut, axis)):
                    there = node._replace(dims=_put(node.dims, i, (*cut, axis)))
                    yield Move("slice", (axis,), i, -1, there, self._tick / 4)

    def _reductions(self, node: Node) -> Iterable[Move]:
        for n in range(1, len(node.unreduced) + 1):
            for axes in combinations(node.unreduced, n):
                rest = tuple(axis for axis in node.unreduced if axis not in axes)
                yield self._move("all_reduce", axes, -1, -1, node, Node(node.dims, rest))
                for order in permutations(axes):
                    for i, cut in enumerate(node.dims):
                        if self._fits(i, cut + order):
                            there = Node(_put(node.dims, i, cut + order), rest)
                            yield self._move("reduce_scatter", order, i, -1, node, there)

    def _permutes(self, node: Node) -> Iterable[Move]:
        """Any layout with blocks of the same shape: the axes change places."""
        before = _places(node.dims, self.mesh)
        for dims in self._profiles[_profile(node.dims, self.mesh)]:
            after = _places(dims, self.mesh)
            moved = tuple(axis for axis in self.mesh if before.get(axis) != after.get(axis))
            if moved and not any(axis in node.unreduced for axis in after):
                yield self._move("permute", moved, -1, -1, node, node._replace(dims=dims))

    def _move(self, kind: StepKind, axes: Cut, i: int, j: int, node: Node, there: Node) -> Move:
        size = self.held(node)
        if kind in ("all_gather", "all_to_all"):
            size *= prod(self.mesh[axis] for axis in axes)
        over = tuple(axis for axis in self.mesh if axis in axes)
        return Move(kind, axes, i, j, there, self.price(kind, over, size) + self._tick)

    def _fits(self, dim: int, cut: Cut) -> bool:
        return self.lengths[dim] % prod(self.mesh[axis] for axis in cut) == 0


def reshard(
    start: Layout, goal: Layout, *, mesh: Mesh, sizes: Sizes, dtype: str, cost: Cost | None = None
) -> tuple[Step, ...]:
    """The cheapest steps that turn one layout of an array into another; no step if they are equal.

    Raises BadRequest where sizes do not divide, or where the goal leaves sums open that the start
    does not have.
    """
    for layout in (start, goal):
        local_shape(layout, sizes, mesh)
    graph = Graph.of(start.letters, sizes, mesh, dtype, cost or wire(mesh))
    node = graph.node(goal)
    found = search(graph, [Label(0.0, 0.0, 0.0, 0.0, graph.node(start))], goal=node).get(node)
    if not found:
        raise unreachable(goal, start.unreduced)
    return steps_to(graph, start.name, found[0])


def unreachable(goal: Layout, unreduced: Cut) -> BadRequest:
    """The error for a wanted layout with partial sums that nothing before it leaves."""
    extra = [axis for axis in goal.unreduced if axis not in unreduced]
    axes = ", ".join(extra or goal.unreduced)
    rule = "steps finish sums and never open them, so want the result reduced"
    return BadRequest(f"'{goal}' leaves sums over {axes} open that nothing here makes; {rule}")


def search(
    graph: Graph, seeds: Iterable[Label], *, limit: float = inf, goal: Node | None = None
) -> dict[Node, list[Label]]:
    """The best labels of every node that can be reached, or until `goal` is.

    Without a limit one per node, the cheapest. With one, all that no other beats in cost and every
    kind of memory, as long as stored + transient bytes stay within it.
    """
    found: dict[Node, list[Label]] = {}
    number = count()
    heap = [(seed.cost, next(number), seed) for seed in seeds]
    heap.sort()
    while heap:
        _, _, label = heappop(heap)
        kept = found.setdefault(label.node, [])
        if kept and (limit == inf or any(_beats(other, label) for other in kept)):
            continue
        kept.append(label)
        if label.node == goal:
            break
        for move in graph.moves(label.node):
            if limit == inf and move.node in found:
                continue
            held = graph.held(move.node)
            transient = max(label.transient, label.held + held)
            if label.stored + transient <= limit:
                cost = label.cost + move.cost
                then = Label(cost, label.stored, transient, held, move.node, label, move)
                heappush(heap, (cost, next(number), then))
    return found


def remaining(
    graph: Graph, sources: Iterable[Node], goals: Callable[[Node], bool]
) -> dict[Node, tuple[float, Move | None]]:
    """From every node that the sources reach: the cost to the nearest goal and the move to make."""
    into: dict[Node, list[tuple[Node, Move]]] = {}
    todo = list(dict.fromkeys(sources))
    seen = dict.fromkeys(todo)  # not a set: ties must not depend on hashes
    while todo:
        node = todo.pop()
        for move in graph.moves(node):
            into.setdefault(move.node, []).append((node, move))
            if move.node not in seen:
                seen[move.node] = None
                todo.append(move.node)
    number = count()
    heap: list = [(0.0, next(number), node, None) for node in seen if goals(node)]
    best: dict[Node, tuple[float, Move | None]] = {}
    while heap:
        cost, _, node, move = heappop(heap)
        if node in best:
            continue
        best[node] = (cost, move)
        for before, edge in into.get(node, ()):
            if before not in best:
                heappush(heap, (cost + edge.cost, next(number), before, edge))
    return best


def steps_to(graph: Graph, name: str, label: Label) -> tuple[Step, ...]:
    """The moves that led to a label, as steps; slices of one dim in a row become one."""
    path: list[tuple[Node, Move]] = []
    while label.move is not None:
        assert isinstance(label.before, Label)
        path.append((label.before.node, label.move))
        label = label.before
    return as_steps(graph, name, path[::-1])


def as_steps(graph: Graph, name: str, path: Sequence[tuple[Node, Move]]) -> tuple[Step, ...]:
    """Moves in order, each with the node it leaves, as steps."""
    steps: list[Step] = []
    for node, move in path:
        step = Step(
            kind=move.kind,
            inputs=(graph.layout(name, node),),
            output=graph.layout(name, move.node),
            axes=move.axes,
            dim=graph.letters[move.dim] if move.dim >= 0 else "",
            to_dim=graph.letters[move.to_dim] if move.to_dim >= 0 else "",
        )
        last = steps[-1] if steps else step
        if steps and last.kind == step.kind == "slice" and last.dim == step.dim:
            steps[-1] = Step(
                kind="slice",
                inputs=last.inputs,
                output=step.output,
                axes=last.axes + step.axes,
                dim=step.dim,
            )
        else:
            steps.append(step)
    return tuple(steps)


def arrangements(lengths: Sequence[int], mesh: Mesh) -> tuple[tuple[Cut, ...], ...]:
    """Every way to cut dims of these lengths: each axis on one dim or on none, in every order."""
    found: list[tuple[Cut, ...]] = [((),) * len(lengths)]
    for axis in mesh:
        for dims in tuple(found):
            for i, cut in enumerate(dims):
                if lengths[i] % prod(mesh[a] for a in (*cut, axis)) == 0:
                    ways = ((*cut[:at], axis, *cut[at:]) for at in range(len(cut), -1, -1))
                    found.extend(_put(dims, i, way) for way in ways)
    return tuple(found)


def _beats(one: Label, other: Label) -> bool:
    return (
        one.stored <= other.stored and one.transient <= other.transient and one.held <= other.held
    )


def _put(dims: tuple[Cut, ...], i: int, cut: Cut) -> tuple[Cut, ...]:
    return (*dims[:i], cut, *dims[i + 1 :])


def _profile(dims: tuple[Cut, ...], mesh: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(prod(mesh[axis] for axis in cut) for cut in dims)


def _places(dims: tuple[Cut, ...], mesh: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Axis -> (dim, stride of the axis in blocks of it): equal where a device's block is."""
    places = {}
    for i, cut in enumerate(dims):
        stride = 1
        for axis in reversed(cut):
            places[axis] = (i, stride)
            stride *= mesh[axis]
    return places
