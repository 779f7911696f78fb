"""Resharding: the cheapest steps from one layout of an array to another, found exactly.

The layouts of an array over a mesh are the nodes of a small graph and one communication step or
slice is an edge, so that the cheapest way is a shortest path. What a step costs is passed in:
`wire` counts the bytes that a device sends, `roofline.strategies` gives seconds.

Steps keep blocks contiguous: a gather takes the minor axes of a dim, a scatter, a slice and an
all-to-all add axes at the minor end, and a permute changes who holds which block. So
`A[I_XY] -> A[I_Y]` is a permute to `I_YX` and a gather over X, and a gather helped by an idle axis
is a slice over it and a gather over both.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from itertools import combinations, count, permutations
from math import inf, prod
from operator import ne
from typing import NamedTuple

from shardwise.errors import BadRequest
from shardwise.sharding.count import collective_op, wire_bytes
from shardwise.sharding.exchange import exchange_of
from shardwise.sharding.layout import Dim, Layout
from shardwise.sharding.local import Sizes, local_shape
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.steps import ShardStep, StepKind
from shardwise.units import dtype_bytes
from shardwise.work import Exchange, Op

Cost = Callable[[Op], float]
"""What is minimised: a number per op, in bytes or seconds, that adds up over a program."""

Cut = tuple[str, ...]


class Node(NamedTuple):
    """A layout without names: the axes of each dim, major to minor, and the unreduced axes."""

    dims: tuple[Cut, ...]
    unreduced: Cut


class Move(NamedTuple):
    """An edge: one step of some kind to another node, where a device holds `held` bytes."""

    kind: StepKind
    axes: Cut
    dim: int
    to_dim: int
    node: Node
    cost: float
    held: float


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


Places = tuple[tuple[int, int] | None, ...]
"""Per axis of the mesh its dim and its stride in blocks there; None where it cuts no dim."""


@dataclass(slots=True)
class Effort:
    """How much of what one search may look at is spent; a move is a layout beside another."""

    moves: int = 0

    def spend(self, moves: int) -> None:
        self.moves += moves
        if self.moves > MOST_MOVES:
            raise too_many(f"over {MOST_MOVES:,} changes of layout to compare")


MOST_MOVES = 600_000
"""Changes of layout that one search looks at: about 10 s and 300 MB (ours)."""


def too_many(found: str) -> BadRequest:
    """The error for a search that would not end in time."""
    return BadRequest(
        f"the mesh has too many layouts for these arrays: {found}; use fewer mesh axes (write axes "
        "that shard together as one), fewer dims, one product of a chain at a time, or leave "
        "--max-hbm and --free out"
    )


@dataclass(frozen=True, slots=True)
class Graph:
    """All layouts of one array: which moves leave each node, and what they cost.

    `orders`, where given, are the only runs of axes that may cut a dim, and a permute then moves
    two axes at most.
    """

    letters: tuple[str, ...]
    lengths: tuple[int, ...]
    mesh: Mesh
    itemsize: float
    price: Callable[..., float]
    orders: Collection[Cut] | None
    effort: Effort
    _profiles: dict[tuple[int, ...], list[tuple[tuple[Cut, ...], Places]]]
    _tick: float
    _whole: float
    _degrees: dict[Cut, int] = field(default_factory=dict)
    _moves: dict[Node, tuple[Move, ...]] = field(default_factory=dict)
    _nodes: dict[Node, Node] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        letters: Sequence[str],
        sizes: Sizes,
        mesh: Mesh,
        dtype: str,
        cost: Cost,
        orders: Collection[Cut] | None = None,
        effort: Effort | None = None,
    ):
        """The graph of an array with these dims; `cost` is asked once per kind, axes, bytes and
        exchange of a permute."""

        @cache
        def price(kind: str, axes: Cut, size: float, exchange: Exchange | None = None) -> float:
            return float(cost(collective_op(kind, axes, size, exchange=exchange)))

        lengths, degrees = tuple(sizes[x] for x in letters), dict(mesh)
        profiles: dict[tuple[int, ...], list[tuple[tuple[Cut, ...], Places]]] = {}
        for dims in arrangements(lengths, mesh, orders):
            places = _places(dims, degrees)
            profiles.setdefault(_profile(dims, degrees), []).append((dims, places))
        whole = prod(lengths) * dtype_bytes(dtype)
        # Among equally cheap ways the one with fewer steps counts.
        tick = 1e-9 * price("all_gather", tuple(mesh), whole) or 1e-30
        return cls(
            tuple(letters),
            lengths,
            mesh,
            dtype_bytes(dtype),
            price,
            orders,
            effort or Effort(),
            profiles,
            tick,
            whole,
        )

    def node(self, layout: Layout) -> Node:
        return Node(tuple(layout.dim(x).axes for x in self.letters), layout.unreduced)

    def layout(self, name: str, node: Node) -> Layout:
        dims = tuple(map(Dim, self.letters, node.dims))
        return Layout(name=name, dims=dims, unreduced=node.unreduced)

    def nodes(self) -> tuple[Node, ...]:
        """Every layout without partial sums."""
        return tuple(Node(dims, ()) for some in self._profiles.values() for dims, _ in some)

    def held(self, node: Node) -> float:
        """Bytes of one device's block."""
        return self._whole / prod(map(self._degree, node.dims))

    def _degree(self, cut: Cut) -> int:
        found = self._degrees.get(cut)
        if found is None:
            found = self._degrees[cut] = prod(self.mesh[axis] for axis in cut)
        return found

    def moves(self, node: Node) -> tuple[Move, ...]:
        found = self._moves.get(node)
        if found is None:
            found = self._moves[node] = tuple(self._expand(node))
            self.effort.spend(len(found))
        return found

    def _expand(self, node: Node) -> Iterable[Move]:
        blocks = prod(map(self._degree, node.dims))
        yield from self._gathers(node, blocks)
        yield from self._slices(node, blocks)
        yield from self._reductions(node, blocks)
        yield from self._permutes(node, blocks)

    def _gathers(self, node: Node, blocks: int) -> Iterable[Move]:
        for i, cut in enumerate(node.dims):
            for n in range(len(cut)):
                kept, moved = cut[:n], cut[n:]
                dims, fewer = _put(node.dims, i, kept), blocks // self._degree(moved)
                there = Node(dims, node.unreduced)
                yield self._move("all_gather", moved, i, -1, fewer, there, fewer)
                for j, other in enumerate(node.dims):
                    if j != i and self._fits(j, other + moved):
                        there = Node(_put(dims, j, other + moved), node.unreduced)
                        yield self._move("all_to_all", moved, i, j, fewer, there, blocks)

    def _slices(self, node: Node, blocks: int) -> Iterable[Move]:
        used = {*node.unreduced, *(axis for cut in node.dims for axis in cut)}
        for axis in self.mesh:
            if axis in used:
                continue
            for i, cut in enumerate(node.dims):
                if self._fits(i, (*cut, axis)):
                    there = Node(_put(node.dims, i, (*cut, axis)), node.unreduced)
                    there = self._nodes.setdefault(there, there)
                    held = self._whole / (blocks * self.mesh[axis])
                    yield Move("slice", (axis,), i, -1, there, self._tick / 4, held)

    def _reductions(self, node: Node, blocks: int) -> Iterable[Move]:
        for n in range(1, len(node.unreduced) + 1):
            for axes in combinations(node.unreduced, n):
                rest = tuple(axis for axis in node.unreduced if axis not in axes)
                there = Node(node.dims, rest)
                yield self._move("all_reduce", axes, -1, -1, blocks, there, blocks)
                for order in permutations(axes):
                    for i, cut in enumerate(node.dims):
                        if self._fits(i, cut + order):
                            there = Node(_put(node.dims, i, cut + order), rest)
                            more = blocks * self._degree(order)
                            yield self._move("reduce_scatter", order, i, -1, blocks, there, more)

    def _permutes(self, node: Node, blocks: int) -> Iterable[Move]:
        """Any layout with blocks of the same shape: the axes change places."""
        degrees = dict(self.mesh)
        before, unreduced = _places(node.dims, degrees), node.unreduced
        for dims, after in self._profiles[_profile(node.dims, degrees)]:
            if after == before or (self.orders is not None and sum(map(ne, before, after)) > 2):
                continue  # of permutes of more than two axes there are very many
            changes = zip(degrees, before, after, strict=True)
            moved = tuple(axis for axis, a, b in changes if a != b)
            if not (unreduced and any(axis in unreduced for cut in dims for axis in cut)):
                there = Node(dims, unreduced)
                yield self._move("permute", moved, -1, -1, blocks, there, blocks, node.dims)

    def _move(
        self,
        kind: StepKind,
        axes: Cut,
        i: int,
        j: int,
        sent: int,
        there: Node,
        blocks: int,
        before: tuple[Cut, ...] = (),
    ) -> Move:
        """The whole array in `sent` parts is what the step's collective is about (a group's V);
        in `blocks` parts it is what a device then holds; of a permute, `before` are the cuts that
        it changes."""
        over = axes if len(axes) == 1 else tuple(axis for axis in self.mesh if axis in axes)
        there = self._nodes.setdefault(there, there)  # one object each: there are many moves
        exchange = exchange_of(before, there.dims, over) if kind == "permute" else None
        cost = self.price(kind, over, self._whole / sent, exchange) + self._tick
        return Move(kind, axes, i, j, there, cost, self._whole / blocks)

    def _fits(self, dim: int, cut: Cut) -> bool:
        if self.orders is not None and cut not in self.orders:
            return False
        return self.lengths[dim] % self._degree(cut) == 0


def reshard(
    start: Layout, goal: Layout, *, mesh: Mesh, sizes: Sizes, dtype: str, cost: Cost | None = None
) -> tuple[ShardStep, ...]:
    """The cheapest steps that turn one layout of an array into another; no step if they are equal.

    Raises BadRequest where sizes do not divide, or where the goal leaves sums open that the start
    does not have.
    """
    for layout in (start, goal):
        local_shape(layout, sizes, mesh)
    graph = Graph.of(start.letters, sizes, mesh, dtype, cost or wire(mesh))
    node = graph.node(goal)
    seed = Label(0.0, 0.0, 0.0, 0.0, graph.node(start))
    found = search(graph, [seed], goal=node.__eq__).get(node)
    if not found:
        raise unreachable(goal, start.unreduced)
    return steps_to(graph, start.name, found[0])


def unreachable(goal: Layout, unreduced: Cut) -> BadRequest:
    """The error for a wanted layout with partial sums that nothing before it leaves."""
    extra = [axis for axis in goal.unreduced if axis not in unreduced]
    axes = ", ".join(extra or goal.unreduced)
    rule = "steps complete sums and never start them, so ask for a reduced result"
    return BadRequest(f"'{goal}' needs partial sums over {axes}, which no step here makes; {rule}")


def search(
    graph: Graph,
    seeds: Iterable[Label],
    *,
    limit: float = inf,
    goal: Callable[[Node], bool] | None = None,
) -> dict[Node, list[Label]]:
    """The best labels of every node that can be reached, or until one is a `goal`.

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
        if goal is not None and goal(label.node):
            break
        moves = graph.moves(label.node)
        if limit < inf:
            graph.effort.spend(len(moves))  # a node has many labels
        for move in moves:
            if limit == inf and move.node in found:
                continue
            then = moved(label, move)
            if then.stored + then.transient <= limit:
                heappush(heap, (then.cost, next(number), then))
    return found


def moved(label: Label, move: Move) -> Label:
    """The label one move further: the array is there twice while it moves."""
    transient = max(label.transient, label.held + move.held)
    return Label(label.cost + move.cost, label.stored, transient, move.held, move.node, label, move)


def remaining(
    graph: Graph, sources: Iterable[Node], goals: Callable[[Node], bool]
) -> dict[Node, tuple[float, Move | None]]:
    """From every node that the sources reach: the cost to the nearest goal and the move to make."""
    into: dict[Node, list[tuple[Node, Move]]] = {}
    todo = list(dict.fromkeys(sources))
    seen = dict.fromkeys(todo)  # not a set: ties must not depend on hashes
    while todo:
        node = todo.pop()
        if goals(node):
            continue  # nothing is nearer than here
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


def steps_to(graph: Graph, name: str, label: Label) -> tuple[ShardStep, ...]:
    """The moves that led to a label, as steps; slices of one dim in a row become one."""
    path: list[tuple[Node, Move]] = []
    while label.move is not None:
        assert isinstance(label.before, Label)
        path.append((label.before.node, label.move))
        label = label.before
    steps: list[ShardStep] = []
    for node, move in reversed(path):
        step = ShardStep(
            kind=move.kind,
            inputs=(graph.layout(name, node),),
            output=graph.layout(name, move.node),
            axes=move.axes,
            dim=graph.letters[move.dim] if move.dim >= 0 else "",
            to_dim=graph.letters[move.to_dim] if move.to_dim >= 0 else "",
        )
        last = steps[-1] if steps else step
        if steps and last.kind == step.kind == "slice" and last.dim == step.dim:
            steps[-1] = ShardStep(
                kind="slice",
                inputs=last.inputs,
                output=step.output,
                axes=last.axes + step.axes,
                dim=step.dim,
            )
        else:
            steps.append(step)
    return tuple(steps)


def arrangements(
    lengths: Sequence[int], mesh: Mesh, orders: Collection[Cut] | None = None
) -> tuple[tuple[Cut, ...], ...]:
    """Every way to cut dims of these lengths: each axis on one dim or on none, in every order, or
    in one of `orders`. Raises BadRequest where there are over MOST_LAYOUTS."""
    degrees = dict(mesh)
    found: list[tuple[Cut, ...]] = [((),) * len(lengths)]
    for axis, degree in degrees.items():
        for dims in tuple(found):
            for i, cut in enumerate(dims):
                if lengths[i] % prod((degrees[a] for a in cut), start=degree) == 0:
                    ways = ((*cut[:at], axis, *cut[at:]) for at in range(len(cut), -1, -1))
                    found.extend(_put(dims, i, w) for w in ways if orders is None or w in orders)
            if len(found) > MOST_LAYOUTS:
                raise too_many(f"over {MOST_LAYOUTS:,} layouts of one array")
    return tuple(found)


def few_arrangements(lengths: Sequence[int], mesh: Mesh, most: int) -> bool:
    """Whether there are at most `most` arrangements, of axes in any order."""
    begun = (Mesh(mesh.axes[:n]) for n in range(1, len(mesh) + 1))
    return all(len(arrangements(lengths, some)) <= most for some in begun)


MOST_LAYOUTS = 200_000
"""Layouts of one array, or ways to cut one product, that are listed (ours)."""


def _beats(one: Label, other: Label) -> bool:
    return (
        one.stored <= other.stored and one.transient <= other.transient and one.held <= other.held
    )


def _put(dims: tuple[Cut, ...], i: int, cut: Cut) -> tuple[Cut, ...]:
    return (*dims[:i], cut, *dims[i + 1 :])


def _profile(dims: tuple[Cut, ...], mesh: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(prod(mesh[axis] for axis in cut) for cut in dims)


def _places(dims: tuple[Cut, ...], mesh: Mapping[str, int]) -> Places:
    """Per axis (dim, stride of the axis in blocks of it): equal where a device's block is."""
    places: dict[str, tuple[int, int]] = {}
    for i, cut in enumerate(dims):
        stride = 1
        for axis in reversed(cut):
            places[axis] = (i, stride)
            stride *= mesh[axis]
    return tuple(map(places.get, mesh))
