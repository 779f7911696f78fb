"""Strategies in seconds: programs of the resolver on a placed mesh, ranked, with the reason.

`seconds` is the cost that the resolver minimises; `rank` prices what it found as whole Works, so
that what overlaps counts, and adds the collective matmuls (book ch. 3 and 10.1.2): a gather before
or a reduce-scatter after a product, cut into one permute and one partial product per shard.
`times` is the book's own arithmetic for one program: FLOPs over the peak, V over W.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np

from shardwise.hardware.chip import Chip
from shardwise.hardware.network import Torus
from shardwise.hardware.placement import AxisLinks, Part, Placement
from shardwise.roofline.chip_roofline import Times
from shardwise.roofline.collectives import Mode, collective_seconds
from shardwise.roofline.groups import group_of
from shardwise.roofline.price import Estimate, price, price_op
from shardwise.sharding.chain import Resolution, Strategy, distinct, short
from shardwise.sharding.count import Quantities, collective_op, count, product_op, wire_bytes
from shardwise.sharding.layout import Layout
from shardwise.sharding.reshard import Cost
from shardwise.sharding.steps import Program, ShardStep
from shardwise.units import dtype_bytes, format_seconds, sig
from shardwise.work import Op, Quantity, Work

MOST_CHUNKS = 32
"""A collective matmul over a longer axis would be cut into chunks too small to be worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStrategy:
    """A strategy with its Work, its seconds and the bytes that one device sends. `overlapped` is
    the number of the step whose collective runs under the product as a collective matmul, 0 where
    none does."""

    strategy: Strategy
    work: Work
    estimate: Estimate
    sent_bytes: float
    overlapped: int = 0

    @property
    def summary(self) -> str:
        """The collectives in order, and what is overlapped."""
        if not self.overlapped:
            return self.strategy.summary
        step = self.strategy.program.steps[self.overlapped - 1]
        return f"{self.strategy.summary}; {short(step)} as collective matmul"

    @property
    def expected(self) -> float:
        return float(self.estimate.expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Strategies by expected time, quickest first, and why the first one is."""

    strategies: tuple[PricedStrategy, ...]
    reasons: tuple[str, ...]

    @property
    def best(self) -> PricedStrategy:
        return self.strategies[0]


def seconds(chip: Chip, placement: Placement) -> Cost:
    """The cost of an op on hardware: its derated seconds, latency and tile padding included."""
    return lambda op: float(price_op(op, chip, placement).derated)


def rank(resolution: Resolution, chip: Chip, placement: Placement, *, top: int = 5) -> Ranking:
    """Price the resolved strategies, plain and as collective matmuls, and keep the `top` quickest.

    Strategies come in order of their serial cost. Those that repeat an earlier one with axes in
    another order are left out, as are those that read like a quicker one; and one whose busiest
    stream alone takes longer than the last that is kept is not priced.
    """
    found: dict[object, PricedStrategy] = {}
    for strategy in distinct(resolution.strategies):
        work = strategy.work
        kept = sorted(p.expected for p in found.values())[top - 1] if len(found) >= top else inf
        if _least(work, chip, placement) > kept:
            continue
        ways = [_priced(strategy, work, chip, placement)]
        for number in overlappable(strategy.program):
            chunked = collective_matmul(strategy.program, number, placement)
            ways.append(_priced(strategy, chunked, chip, placement, number))
        for way in ways:
            # Of two that read alike, which cut products or dims otherwise, the quicker one counts.
            known = found.setdefault((way.summary, strategy.inputs, strategy.result), way)
            if _order(way) < _order(known):
                found[way.summary, strategy.inputs, strategy.result] = way
    order = sorted(found.values(), key=_order)
    return Ranking(strategies=tuple(order[:top]), reasons=_reasons(order))


def _order(priced: PricedStrategy) -> tuple[float, int, int]:
    """By time; at equal times the plain strategy with the fewest steps comes first."""
    return float(f"{priced.expected:.9e}"), len(priced.work.ops), priced.overlapped


def overlappable(program: Program) -> tuple[int, ...]:
    """Numbers (from 1) of the steps that can run as a collective matmul.

    A gather over one axis whose output a product reads next, or a reduce-scatter over one axis of
    what a product has just made.
    """
    steps = program.steps
    found = []
    for number, step in enumerate(steps, 1):
        one = len(step.axes) == 1 and 1 < program.mesh[step.axes[0]] <= MOST_CHUNKS
        if one and step.kind == "all_gather" and _reader(steps, step.output):
            found.append(number)
        if one and step.kind == "reduce_scatter" and _maker(steps, step.inputs[0]):
            found.append(number)
    return tuple(found)


def collective_matmul(program: Program, number: int, placement: Placement) -> Work:
    """The Work of a program whose step `number` is cut into chunks that pass under the product.

    A gather over N devices becomes N - 1 permutes of V/N and N partial products, each of which
    waits for its chunk alone; a reduce-scatter the same the other way round. On a torus ring half
    of each chunk goes either way round. Partial products re-read what they share; where the cut dim
    is contracted they add up in memory.
    """
    step = program.steps[number - 1]
    gather = step.kind == "all_gather"
    product = (
        _reader(program.steps, step.output) if gather else _maker(program.steps, step.inputs[0])
    )
    assert product is not None, f"step {number} of the program cannot be overlapped"
    whole = {op.id: op for op in count(program).ops}
    at = str(program.steps.index(product) + 1)
    chunks = _chunks(program, product, step, whole[at], whole[str(number)], placement)
    last = {str(number): (chunks[-1].id,), at: (chunks[-1].id,)}
    # The chunks stand where the later of the two stood: all that they need is done by then. What
    # stood in between waited for a gather's links only, which are now free as early as it was.
    freed = {str(number): whole[str(number)].after}
    ops: list[Op] = []
    for op_id, op in whole.items():
        if op_id == (at if gather else str(number)):
            ops += chunks
        elif op_id not in last:
            moved = last if chunks[-1] in ops else freed
            after = tuple(i for before in op.after for i in moved.get(before, (before,)))
            ops.append(replace(op, after=tuple(dict.fromkeys(after))))
    return Work(tuple(ops))


def times(
    program: Program,
    chip: Chip,
    links: Mapping[str, AxisLinks],
    *,
    sizes: Quantities | None = None,
    degrees: Quantities | None = None,
    mode: Mode = "asymptotic",
) -> Times:
    """T_math and T_comms of a program at peak rates, as functions of its sizes and degrees.

    T_math = FLOPs of a device / peak, T_comms = the bandwidth terms of its collectives, one after
    the other; in mode "asymptotic" V/W as in book ch. 3. HBM and latency are left out.
    """
    work = count(program, sizes=sizes, degrees=degrees)
    flops = sum((op.flops[d] / chip.peak(d) for op in work.ops for d in op.flops), 0.0)
    comms: Quantity = 0.0
    for op in work.ops:
        if op.collective is not None:
            used = [links[axis] for axis in op.collective.axes]
            comms = comms + _bandwidth(op, used, mode)
    return Times(
        math_seconds=flops * chip.jax_devices_per_chip, comms_seconds=comms, channel="network"
    )


def rings(chip: Chip, degrees: Quantities) -> dict[str, AxisLinks]:
    """Every axis on a ring of its own, which is how the book counts links (errata 3.3).

    A real slice of that shape may have lines or shared links: `hardware.place` knows.
    """
    network = chip.network
    assert isinstance(network, Torus), f"{chip.id} has no rings"
    unused = Part(size=1, oneway=0.0, ring=False, hop_seconds=network.hop_seconds, stride=1)
    axes = {}
    for i, (axis, degree) in enumerate(degrees.items()):
        ring = Part(
            size=degree,  # type: ignore[arg-type]
            oneway=network.link_oneway,
            ring=True,
            hop_seconds=network.hop_seconds,
            stride=1,
        )
        parts = tuple(ring if j == i else unused for j in range(len(degrees)))
        axes[axis] = AxisLinks(
            size=degree,  # type: ignore[arg-type]
            within=unused,
            devices_per_chip=1,
            parts=parts,
            outer=unused,
            kind="torus",
            sharp=False,
            ramp_bytes=0.0,
        )
    return axes


def _bandwidth(op: Op, links: Sequence[AxisLinks], mode: Mode) -> Quantity:
    assert op.collective is not None
    wire = op.collective
    moved = collective_seconds(wire.kind, wire.bytes, links, exchange=wire.exchange, mode=mode)
    return moved.bandwidth * op.count


def _priced(
    strategy: Strategy, work: Work, chip: Chip, placement: Placement, overlapped: int = 0
) -> PricedStrategy:
    return PricedStrategy(
        strategy=strategy,
        work=work,
        estimate=price(work, chip, placement),
        sent_bytes=float(sum(sent_bytes(op, strategy.program.mesh, placement) for op in work.ops)),
        overlapped=overlapped,
    )


def sent_bytes(op: Op, degrees: Quantities, placement: Placement) -> Quantity:
    """Bytes that one device sends in the algorithm that its price takes (`collectives`).

    `wire_bytes`, save in an all-reduce over g > 1 chips of a network whose switches reduce (SHARP):
    each sends what it holds, V/d, once, where a ring sends 2 (g-1)/g of it.
    """
    ring = wire_bytes(op, degrees)
    if op.collective is None or op.collective.kind != "all_reduce":
        return ring
    group = group_of(placement.links(op.collective.axes))
    if not group.sharp:
        return ring
    held = op.collective.bytes * op.count / group.devices
    return ring + held * ((group.inner > 1) - 2 * (group.inner - 1) / group.inner)


def _least(work: Work, chip: Chip, placement: Placement) -> float:
    """The busiest stream alone: no overlap makes a strategy quicker."""
    streams: dict[str, float] = {}
    for op in work.ops:
        spent = float(price_op(op, chip, placement).derated)
        streams[op.stream] = streams.get(op.stream, 0.0) + spent
    # A collective matmul pays other latencies than the collective that it replaces.
    return 0.5 * max(streams.values(), default=0.0)


def _reasons(order: Sequence[PricedStrategy]) -> tuple[str, ...]:
    """What binds the best strategy, and what the next one costs."""
    best = order[0]
    if not best.estimate.resources:
        return ("the program moves and multiplies nothing",)
    bound = best.estimate.bound_by()
    alone = float(best.estimate.resources[bound])
    whole = format_seconds(best.expected)
    said = [f"{bound} is the bound: {format_seconds(alone)} at peak rates, of {whole} expected"]
    if len(order) > 1:
        other = order[1]
        more = other.expected / best.expected - 1 if best.expected else inf
        dearer = f"{sig(100 * more)} % more" if more > 5e-5 else "as long"
        said.append(f"next best, {dearer}: {other.summary} ({format_seconds(other.expected)})")
    return tuple(said)


def _reader(steps: Sequence[ShardStep], layout: Layout) -> ShardStep | None:
    return next((s for s in steps if s.kind == "einsum" and layout in s.inputs), None)


def _maker(steps: Sequence[ShardStep], layout: Layout) -> ShardStep | None:
    return next((s for s in steps if s.kind == "einsum" and s.output == layout), None)


def _chunks(
    program: Program,
    product: ShardStep,
    step: ShardStep,
    whole: Op,
    collective: Op,
    placement: Placement,
) -> list[Op]:
    """Permutes and partial products in program order."""
    assert collective.collective is not None
    gather, (axis,) = step.kind == "all_gather", step.axes
    parts = program.mesh[axis]
    partial = _partial_product(program, product, step.dim, parts)
    links = placement.axes[axis]
    ring = links.kind == "torus" and all(p.ring for p in links.parts if p.size > 1)
    ways = ("", "'") if ring and parts > 2 and np.max(links.outer.size) == 1 else ("",)
    size = collective.collective.bytes / parts / len(ways)
    given = tuple(i for i in collective.after if gather) + tuple(
        i for i in whole.after if i != collective.id
    )
    ops: list[Op] = []
    sent: tuple[str, ...] = ()
    for i in range(parts):
        moves = [
            replace(
                collective_op("permute", (axis,), size, f"{collective.id}.{i}{way}"),
                name=f"chunk {i} of {short(step)}",
                stream=f"net:{axis}{way}",
            )
            for way in ways
        ]
        made = replace(partial, id=f"{whole.id}.{i}")
        if gather:
            ops += [replace(move, after=sent or given) for move in moves] if i else []
            sent = tuple(move.id for move in moves) if i else ()
            ops.append(replace(made, after=(*given, *sent)))
        else:
            ops.append(replace(made, after=given))
            if i + 1 < parts:
                ops += [replace(move, after=(made.id, *sent)) for move in moves]
                sent = tuple(move.id for move in moves)
    if not gather:
        ops[-1] = replace(ops[-1], after=(*given, *sent))
    return ops


def _partial_product(program: Program, product: ShardStep, dim: str, parts: int) -> Op:
    """One of `parts` equal products, cut along a dim."""
    mesh, sizes = program.mesh, program.sizes

    def local(layout: Layout) -> dict[str, Quantity]:
        cut = {d.name: prod(mesh[a] for a in d.axes) for d in layout.dims}
        return {x: sizes[x] / cut[x] / (parts if x == dim else 1) for x in layout.letters}

    inputs, result = [local(array) for array in product.inputs], local(product.output)
    op = product_op(inputs, result, program.dtype, name=f"part of {product}")
    if dim in result:
        return op
    summed = prod(result.values(), start=1.0) * dtype_bytes(program.dtype)
    return replace(op, hbm_bytes=op.hbm_bytes + summed * (parts - 1) / parts)
