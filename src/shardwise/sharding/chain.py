"""Resolution of einsums and chains: the cheapest programs, found by search over layouts.

A chain is multiplied from left to right. The search walks through it once: for every layout that
the running product may have it keeps the cheapest way there, and with a memory limit every way that
needs less memory. So all intermediate layouts, and the stored layouts of inputs that are left free,
are chosen together (exercise 3.7). A single product is a chain of one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from itertools import count
from math import inf, prod
from typing import NamedTuple, TypeVar

from shardwise.errors import NoFeasiblePlan, Remark, check_known
from shardwise.sharding.bounded import orders_of, without_units
from shardwise.sharding.count import count as counted
from shardwise.sharding.count import wire_bytes
from shardwise.sharding.einsum import Einsum
from shardwise.sharding.layout import Layout
from shardwise.sharding.local import Padded, Sizes, local_shape, padded
from shardwise.sharding.mesh import Mesh
from shardwise.sharding.notation import print_axes
from shardwise.sharding.reshard import (
    Cost,
    Cut,
    Effort,
    Graph,
    Label,
    Move,
    Node,
    moved,
    remaining,
    search,
    steps_to,
    unreachable,
    wire,
)
from shardwise.sharding.resolve import ComputeSharding, compute_shardings, product_cost
from shardwise.sharding.steps import Program, ShardStep
from shardwise.units import format_bytes
from shardwise.work import Work

Way = TypeVar("Way")
"""Whatever is listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way to compute an einsum: its program and what that takes of a device.

    `inputs` are the layouts that the operands are stored in. `compute` has, per product, the axes
    on each letter. `cost` is in the unit of the cost that was searched with; `peak_bytes` are the
    stored inputs with the most copies and intermediate arrays beside them.
    """

    program: Program
    inputs: tuple[Layout, ...]
    result: Layout
    compute: tuple[Mapping[str, Cut], ...]
    cost: float
    peak_bytes: float

    @property
    def work(self) -> Work:
        """The counted ops of one device."""
        return counted(self.program)

    @property
    def wire_bytes(self) -> float:
        """Bytes that one device sends."""
        return sum(float(wire_bytes(op, self.program.mesh)) for op in self.work.ops)

    @property
    def summary(self) -> str:
        """The collectives in order, such as 'AllGather_X(A), AllReduce_Y(C)'; or that none are."""
        return ", ".join(map(short, self.collectives)) or "no communication"

    @property
    def collectives(self) -> tuple[ShardStep, ...]:
        """The steps that move bytes, in order."""
        return tuple(step for step in self.program.steps if step.communicates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """The cheapest strategies, best first, and how many legal ones there are to choose from.

    `notes` say what the search left out.
    """

    einsum: Einsum
    strategies: tuple[Strategy, ...]
    enumerated: int
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Strategy:
        return self.strategies[0]


def short(step: ShardStep) -> str:
    """A communication step without its layouts, such as 'AllGather_X(A)'."""
    return f"{step.title}{print_axes(step.axes)}({step.output.name})"


def distinct(strategies: Iterable[Strategy]) -> tuple[Strategy, ...]:
    """Without those that do the same collectives on as many bytes and FLOPs as an earlier one: they
    differ in the order of axes, or in which of two like dims is cut."""

    def done(strategy: Strategy) -> tuple[object, ...]:
        work = strategy.work
        sizes = tuple(op.collective.bytes for op in work.ops if op.collective is not None)
        return strategy.summary, sizes, work.flops(), work.hbm_bytes(), strategy.peak_bytes

    return firsts(strategies, done)


def told_apart(strategies: Iterable[Strategy]) -> tuple[Strategy, ...]:
    """Without those that read like an earlier one: of two with one summary, which cut products or
    dims otherwise, only the better one is worth a line."""
    return firsts(strategies, lambda way: (way.summary, way.inputs, way.result))


def firsts(found: Iterable[Way], key: Callable[[Way], object]) -> tuple[Way, ...]:
    """The first of those of one key, in order."""
    seen: dict[object, Way] = {}
    for way in found:
        seen.setdefault(key(way), way)
    return tuple(seen.values())


class _Product(NamedTuple):
    """How a running product came to be: the labels of both operands and the compute sharding."""

    stage: int
    left: Label
    right: Label
    way: ComputeSharding


def padded_sizes(einsum: Einsum, sizes: Sizes, mesh: Mesh) -> Padded:
    """The smallest sizes that divide in every array as it is written; with what was padded."""
    grown: Sizes = sizes
    arrays = [*einsum.operands, *(() if einsum.free else (einsum.result,))]
    while True:
        before = dict(grown)
        for layout in arrays:
            grown = padded(layout, grown, mesh).sizes
        if grown == before:
            break
    notes = tuple(
        Remark(f"{x} padded from {sizes[x]} to {grown[x]}, as its blocks must be equal")
        for x in einsum.letters
        if grown[x] != sizes[x]
    )
    return Padded(sizes=grown, notes=notes)


def resolve(
    einsum: Einsum,
    mesh: Mesh,
    sizes: Sizes,
    *,
    dtype: str = "bf16",
    cost: Cost | None = None,
    free_inputs: Collection[str] = (),
    max_bytes: float = inf,
    top: int = 16,
) -> Resolution:
    """The `top` cheapest programs for an einsum, a chain or a reshard, best first.

    Every legal compute sharding of the last product is one strategy, with the cheapest way to it
    and from it. `cost` is what is minimised, the bytes a device sends where not given; equal costs
    are told apart by FLOPs. `free_inputs` names operands whose stored layout is to be chosen too.
    `max_bytes` limits what a device holds. Raises BadRequest for sizes that do not divide (pad with
    `padded_sizes`) and for sums wanted open that nothing leaves open, NoFeasiblePlan where nothing
    fits.
    """
    _check(einsum, mesh, sizes, free_inputs)
    written, (einsum, cutting) = einsum, without_units(einsum, mesh)
    run = _Search(
        einsum=einsum,
        mesh=mesh,
        cutting=cutting,
        sizes=sizes,
        dtype=dtype,
        cost=cost or wire(mesh),
        free_inputs=frozenset(free_inputs),
        limit=max_bytes,
        orders=orders_of(einsum, cutting, sizes),
    )
    found = run.resharded() if einsum.is_reshard else run.solved(top)
    if not found.strategies:
        raise _too_small(run, max_bytes)
    return replace(found, notes=_left_out(written, run))


def _left_out(written: Einsum, run: "_Search") -> tuple[str, ...]:
    """Sentences on what the search does not look at."""
    said = []
    idle = [axis for axis in run.mesh if axis not in run.cutting and axis in _axes(written)]
    if idle:
        said.append(f"{', '.join(idle)} have one device and are left out of layouts")
    if run.orders is not None:
        said.append(
            "the mesh has too many layouts for these arrays: axes that share a dim are tried "
            "only in mesh order and as written, and permutes move at most two axes"
        )
    return tuple(said)


def _axes(einsum: Einsum) -> set[str]:
    layouts = (*einsum.operands, einsum.result)
    return {axis for layout in layouts for axis in (*layout.axes, *layout.unreduced)}


def _check(einsum: Einsum, mesh: Mesh, sizes: Sizes, free_inputs: Collection[str]) -> None:
    names = [operand.name for operand in einsum.operands]
    for name in free_inputs:
        check_known("array", name, names, f"only the operands of '{einsum}' can be free")
    for layout in (*einsum.operands, einsum.result):
        local_shape(layout, sizes, mesh)


def _too_small(run: "_Search", max_bytes: float) -> NoFeasiblePlan:
    least = replace(run, limit=_UNLIMITED).least_bytes()
    return NoFeasiblePlan(
        f"no program for '{run.einsum}' fits {format_bytes(max_bytes)} per device; the smallest "
        f"found takes {format_bytes(least)}, so raise --max-hbm to that, use a "
        f"larger mesh, or leave more inputs free"
    )


_UNLIMITED = 1e300
"""A limit that nothing reaches but that keeps every trade of time for memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """`cutting` is the mesh without axes of one device; `orders` see `Graph`."""

    einsum: Einsum
    mesh: Mesh
    cutting: Mesh
    sizes: Sizes
    dtype: str
    cost: Cost
    free_inputs: frozenset[str]
    limit: float
    orders: frozenset[Cut] | None
    effort: Effort = field(default_factory=Effort)
    made: dict[tuple[str, ...], Graph] = field(default_factory=dict)

    def graph(self, layout: Layout) -> Graph:
        """The graph of an array's letters, made once."""
        letters = layout.letters
        if letters not in self.made:
            self.made[letters] = Graph.of(
                letters,
                self.sizes,
                self.cutting,
                self.dtype,
                self.cost,
                self.orders,
                self.effort,
            )
        return self.made[letters]

    def resharded(self) -> Resolution:
        start, goal = self.einsum.operands[0], self.einsum.result
        graph = self.graph(start)
        seeds = self.seeds(graph, start)
        wanted = self.goals(graph)
        ends = None if self.einsum.free or self.limit < inf else wanted  # else all are counted
        found = search(graph, seeds, limit=self.limit, goal=ends)
        labels = [label for node, some in found.items() if wanted(node) for label in some]
        if not labels:
            if self.limit < inf and graph.node(goal) in search(graph, seeds):
                raise _too_small(self, self.limit)
            raise unreachable(goal, start.unreduced)
        best = min(labels, key=lambda label: label.cost)
        ways = [best]
        (first, move) = seeds[0], self.one_step(seeds[0], graph)
        if move is not None and best.before not in (None, first):
            direct = moved(first, move)
            ways += [direct] * (direct.stored + direct.transient <= self.limit)
        strategies = [self.strategy(way, graph, steps_to(graph, start.name, way)) for way in ways]
        return Resolution(
            einsum=self.einsum, strategies=tuple(strategies), enumerated=len(labels) + len(ways) - 1
        )

    def solved(self, top: int) -> Resolution:
        """The best finished programs: in order of cost so far plus the least that remains."""
        graphs = self.graphs()
        ends = list(self.candidates())
        rest = remaining(graphs[-1], (end.node for end in ends), self.goals(graphs[-1]))
        if not any(end.node in rest for end in ends) and ends:
            raise unreachable(self.einsum.result, ())
        number = count()
        ways = []
        for end in ends:
            if end.node not in rest:
                continue
            least, first = rest[end.node]
            ways.append((end.cost + least, self.flops(end), next(number), end, None))
            direct = self.one_step(end, graphs[-1])
            if direct is not None and direct != first:
                ways.append((end.cost + direct.cost, self.flops(end), next(number), end, direct))
        ranked = nsmallest(top if self.limit == inf else len(ways), ways)
        done: list[tuple[float, float, float, int, Strategy]] = []
        for bound, work, order, end, direct in ranked:
            if len(done) >= top and bound > sorted(done)[top - 1][0]:
                break
            finished = self.finish(end, graphs[-1], rest, direct)
            if finished is not None:
                done.append((finished.cost, work, finished.peak_bytes, order, finished))
        best = tuple(strategy for *_, strategy in sorted(done)[:top])
        return Resolution(einsum=self.einsum, strategies=best, enumerated=len(ways))

    def one_step(self, label: Label, graph: Graph) -> Move | None:
        """The cheapest single step from an array to the wanted layout, where one does it. It counts
        beside the cheapest way of several steps: it waits once and keeps no array in between."""
        if self.einsum.free:
            return None
        wanted = self.goals(graph)
        moves = (move for move in graph.moves(label.node) if wanted(move.node))
        return min(moves, key=lambda move: move.cost, default=None)

    def least_bytes(self) -> float:
        """The smallest peak of any program; the limit must let every trade through."""
        graph, first = self.graphs()[-1], self.einsum.operands[0]
        ends = self.seeds(graph, first) if self.einsum.is_reshard else self.candidates()
        wanted = self.goals(graph)
        found = search(graph, sorted(ends, key=lambda end: end.cost), limit=self.limit)
        peaks = (x.stored + x.transient for n, some in found.items() if wanted(n) for x in some)
        return min(peaks, default=inf)

    def graphs(self) -> tuple[Graph, ...]:
        """The graph of each running product."""
        if self.einsum.is_reshard:
            return (self.graph(self.einsum.operands[0]),)
        return tuple(self.graph(product.result) for product in self.einsum.products())

    def candidates(self) -> Iterable[Label]:
        """Every way to have the last product made, not yet in the wanted layout."""
        products, graphs = self.einsum.products(), self.graphs()
        first = self.einsum.operands[0]
        graph = self.graph(first)
        running = search(graph, self.seeds(graph, first), limit=self.limit)
        for stage, product in enumerate(products):
            made = self.multiplied(stage, product, running, graphs[stage])
            if stage + 1 == len(products):
                return made
            running = search(graphs[stage], made, limit=self.limit)
        return ()

    def multiplied(
        self, stage: int, product: Einsum, running: Mapping[Node, list[Label]], graph: Graph
    ) -> list[Label]:
        """Every compute sharding of a product, from every way to have its operands."""
        operand = product.operands[1]
        side = self.graph(operand)
        brought = search(side, self.seeds(side, operand), limit=self.limit)
        open_left = sorted({axis for node in running for axis in node.unreduced})
        ways = compute_shardings(
            product, self.cutting, self.sizes, (open_left, operand.unreduced), self.orders
        )
        price = product_cost(product, self.mesh, self.sizes, self.dtype, self.cost)
        made = []
        for way in ways:
            lefts, rights = running.get(way.needs(product, 0)), brought.get(way.needs(product, 1))
            if not lefts or not rights:
                continue
            node = way.makes(product)
            held, seconds = graph.held(node), price(way)
            for left in lefts:
                for right in rights:
                    beside = max(left.held + right.transient, left.held + right.held + held)
                    transient, stored = max(left.transient, beside), left.stored + right.stored
                    if stored + transient <= self.limit:
                        total = left.cost + right.cost + seconds
                        before = _Product(stage, left, right, way)
                        made.append(Label(total, stored, transient, held, node, before))
        return made

    def seeds(self, graph: Graph, layout: Layout) -> list[Label]:
        """Where an input starts: as it is stored, or anywhere if that is free."""
        nodes = graph.nodes() if layout.name in self.free_inputs else (graph.node(layout),)
        return [Label(0.0, graph.held(node), 0.0, 0.0, node) for node in nodes]

    def goals(self, graph: Graph):
        """Whether a layout of the result will do."""
        if self.einsum.free:
            return lambda node: not node.unreduced
        wanted = graph.node(self.einsum.result)
        return lambda node: node == wanted

    def finish(
        self,
        end: Label,
        graph: Graph,
        rest: Mapping[Node, tuple[float, Move | None]],
        direct: Move | None = None,
    ) -> Strategy | None:
        """Bring a product into the wanted layout, in the one step `direct` if given, else by the
        cheapest way; None if that needs more memory than there is."""
        if direct is not None:
            last = moved(end, direct)
        elif self.limit < inf:
            wanted = self.goals(graph)
            found = search(graph, [end], limit=self.limit, goal=wanted)
            labels = [label for node, some in found.items() if wanted(node) for label in some]
            last = min(labels, key=lambda label: label.cost, default=None)
        else:
            last = end
            while (move := rest[last.node][1]) is not None:
                last = moved(last, move)
        if last is None or last.stored + last.transient > self.limit:
            return None
        return self.strategy(last, graph, self.steps(last, graph))

    def steps(self, label: Label, graph: Graph) -> tuple[ShardStep, ...]:
        """All steps up to a label of a running product."""
        end = label
        while isinstance(end.before, Label):
            end = end.before
        made = end.before
        assert isinstance(made, _Product)
        products = self.einsum.products()
        product = products[made.stage]
        left, right = product.operands
        if made.stage:
            before = self.steps(made.left, self.graph(left))
        else:
            before = steps_to(self.graph(left), left.name, made.left)
        side = self.graph(right)
        name = product.result.name
        inputs = (
            self.graph(left).layout(left.name, made.way.needs(product, 0)),
            side.layout(right.name, made.way.needs(product, 1)),
        )
        output = graph.layout(name, end.node)
        local = ShardStep(kind="einsum", inputs=inputs, output=output)
        after = steps_to(graph, name, label)
        return (*before, *steps_to(side, right.name, made.right), local, *after)

    def strategy(self, label: Label, graph: Graph, steps: tuple[ShardStep, ...]) -> Strategy:
        program = Program(mesh=self.mesh, sizes=self.sizes, dtype=self.dtype, steps=steps)
        made = self.origins(label)
        stored = made[0].left if made else label
        inputs = [self.stored(self.einsum.operands[0], stored)]
        for product, operand in zip(made, self.einsum.operands[1:], strict=True):
            inputs.append(self.stored(operand, product.right))
        return Strategy(
            program=program,
            inputs=tuple(inputs),
            result=graph.layout(self.einsum.result.name, label.node),
            compute=tuple(product.way.cuts for product in made),
            cost=sum(float(self.cost(op)) for op in counted(program).ops),
            peak_bytes=label.stored + label.transient,
        )

    def origins(self, label: Label) -> list[_Product]:
        """The products behind a label, first to last."""
        found: list[_Product] = []
        while label.before is not None:
            if isinstance(label.before, _Product):
                found.append(label.before)
                label = label.before.left
            else:
                assert isinstance(label.before, Label)
                label = label.before
        return found[::-1]

    def stored(self, operand: Layout, label: Label) -> Layout:
        """The layout an input was in before any step."""
        while label.before is not None:
            if isinstance(label.before, _Product):
                label = label.before.left
            else:
                assert isinstance(label.before, Label)
                label = label.before
        return self.graph(operand).layout(operand.name, label.node)

    def flops(self, label: Label) -> float:
        """FLOPs of the local product that made a label over those of the whole; only to tell equal
        costs apart."""
        made = label.before
        assert isinstance(made, _Product)
        return 1 / prod(self.mesh[axis] for cut in made.way.cuts.values() for axis in cut)
