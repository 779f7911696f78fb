"""Faults of products whose cut dim is the one that is summed over: every device has a part of each
number of the result, and the sum over devices is far larger than what was multiplied."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from shardwise.profiler.explain.evidence import Evidence
from shardwise.profiler.explain.finding import Finding, Rule
from shardwise.profiler.explain.flow import inside
from shardwise.profiler.explain.lineage import elements
from shardwise.profiler.explain.rules_larger import handed, product_behind
from shardwise.profiler.explain.rules_masks import of_size
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.timeline import OpRow
from shardwise.roofline.price import MATH
from shardwise.sharding import Dim, Layout
from shardwise.sharding.count import collective_op
from shardwise.units import format_bytes, format_seconds
from shardwise.work import Matmul, grouped

FAR = 2
"""How many times as large as both whole operands together a sum is, from which it is told: then
another cut is better even where both are exchanged for it."""
ADDS = frozenset({"add", "parameter", "convert", "bitcast", "reshape", "transpose", "copy"})
"""Opcodes of an op that only adds up."""


@dataclass(frozen=True, slots=True)
class PartialSum:
    """A sum over devices, the product that it adds up ([batch, m, k] x [batch, k, n] on a device),
    bytes of a number, and the ops that read the sum or as large an array that follows from it."""

    row: OpRow
    axes: tuple[str, ...]
    product: OpRow
    dims: Matmul
    width: float
    readers: Sequence[OpRow]

    @property
    def result(self) -> float:
        """Numbers of the result on a device, before they are scattered."""
        return float(self.dims.batch) * float(self.dims.m) * float(self.dims.n)


def partial_sums(e: Evidence) -> Iterator[Finding]:
    """Products cut along the dim that they sum over, whose result is far larger than both operands:
    cut along another dim, it needs no sum over devices."""
    told: set[str] = set()
    for (where, axes), same in grouped(
        sums_of_parts(e), lambda one: (e.where(one.row.op), one.axes)
    ).items():
        over, first = " and ".join(axes), same[0]
        exchanged, after = _way(e, first)
        cost = exchanged * sum(one.row.count for one in same)
        waits = sum(one.row.exposed for one in same)
        rows = {r.op.op.id: _saved(e, one, r) for one in same for r in (one.product, *one.readers)}
        size = sum(one.row.count * one.result * one.width for one in same)
        yield Finding(
            rule="partial sums",
            seconds=max(waits + sum(s for i, s in rows.items() if i not in told) - cost, 0.0),
            where=where,
            what=(
                f"{format_bytes(size)} of partial sums per step are reduced over {over}, "
                f"{first.result / _given(e, first):.2g} times as much as both operands together: "
                f"{_notation(first, 'L')} shards the contracted dim"
            ),
            remedy=(
                f"shard heads, the batch or another dim that is not contracted: {after}. If a "
                "reshape splits a sharded dim, its first part is the sharded one: make it (heads, "
                "size), not (size, heads). Resharding both operands first takes "
                f"{format_seconds(cost)}"
            ),
        )
        told |= rows.keys()


def sums_of_parts(e: Evidence) -> list[PartialSum]:
    """The sums over devices of products that are far larger than what is multiplied."""
    rows = e.collectives("all_reduce", "reduce_scatter")
    return [one for row in rows if not e.small(row) and (one := _partial(e, row)) is not None]


def _partial(e: Evidence, row: OpRow) -> PartialSum | None:
    (c, found), wire = e.located(row.op), row.op.op.collective
    if found is None or wire is None or len(found.operands) != 1:
        return None
    product, given = product_behind(e, c, found.operands[0]), c.array_of(found.operands[0])
    dims = product.op.op.matmul if product is not None else None
    if product is None or dims is None:
        return None
    followed = of_size(e, c, found)
    width = given.bytes / max(prod(given.dims), 1)
    readers = [r for r in e.rows_of(c, (i.name for i in followed[1:])) if not r.op.op.collective]
    one = PartialSum(row, wire.axes, product, dims, width, readers)
    far = one.result >= FAR * _given(e, one) and prod(given.dims) == one.result
    needed = _leaves(e, c, row, followed) or any(_adds_sums(e, c, i) for i in followed[1:])
    return one if far and _cuts(e, one) and not needed else None


def _adds_sums(e: Evidence, c: Computation, found: Instruction) -> bool:
    """Whether an op does nothing but add sums over devices up, which are one sum: of what goes back
    through queries, keys and values, say, of which keys alone are narrow."""
    if any(i.opcode not in ADDS for _, i in inside(e.module, c, found)):
        return False
    given = (handed(c, name) for name in found.operands)
    return sum(i is not None and i.opcode.startswith("all-reduce") for i in given) > 1


def _leaves(e: Evidence, c: Computation, row: OpRow, followed: Sequence[Instruction]) -> bool:
    """Whether the sum leaves the program, or is what a pass backwards keeps: a gradient, of which
    each device needs its share or the whole."""
    last = c.root.operands if c.root.opcode == "tuple" else (c.root.name,)
    large = {i.name for i in followed if elements(i) == elements(followed[0])}
    leaves = any(i is not None and i.name in large for i in (handed(c, name) for name in last))
    return leaves and (c.name == e.module.entry or row.op.op.phase == "backward")


def _given(e: Evidence, one: PartialSum) -> float:
    """Numbers of both operands, of all devices that share the sum."""
    d = one.dims
    return e.degree(one.axes) * float(d.batch) * float(d.k) * (float(d.m) + float(d.n))


def _saved(e: Evidence, one: PartialSum, row: OpRow) -> float:
    """Seconds per step that an op takes less where each device has its share of the result."""
    wire = row.op.op.collective or one.row.op.op.collective
    assert wire is not None
    if wire.kind == "reduce_scatter" and row is not one.product:
        return 0.0
    math = row.peak.get(MATH, 0.0) / e.piece.chip.efficiency.matmul * row.count
    return max(spent(row) - max(spent(row) / e.degree(one.axes), math), 0.0)


def _cuts(e: Evidence, one: PartialSum) -> list[str]:
    """The dims along which the devices could share the product: I of the batch, J and K of the
    rows and columns."""
    sizes = {"I": one.dims.batch, "J": one.dims.m, "K": one.dims.n}
    return [name for name, size in sizes.items() if not float(size) % e.degree(one.axes)]


def _way(e: Evidence, one: PartialSum) -> tuple[float, str]:
    """The cheapest cut of one product: seconds to exchange both operands, and the notation."""
    d, n = one.dims, e.degree(one.axes)
    sizes = [n * float(d.batch) * float(d.k) * float(side) * one.width for side in (d.m, d.n)]

    def seconds(cut: str) -> float:
        kinds = ["all_to_all" if cut in dims else "all_gather" for dims in ("IJ", "IK")]
        return sum(
            e.cost(collective_op(kind, one.axes, size))
            for kind, size in zip(kinds, sizes, strict=True)
        )

    cut = min(_cuts(e, one), key=seconds)
    return seconds(cut), _notation(one, cut)


def _notation(one: PartialSum, cut: str) -> str:
    """The product with a dim that is cut, and partial sums where that is summed over."""
    batch = "I" if one.dims.batch != 1 else ""

    def array(name: str, letters: str) -> Layout:
        dims = tuple(Dim(x, one.axes if x == cut else ()) for x in batch + letters)
        return Layout(name=name, dims=dims, unreduced=one.axes if cut + name == "LC" else ())

    return f"{array('A', 'JL')} * {array('B', 'KL')} -> {array('C', 'JK')}"


RULES: Sequence[Rule] = (partial_sums,)
