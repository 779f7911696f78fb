"""Faults of what is exchanged though each device could compute its share alone: alike arrays that
are all cut, and weights that are cut along another dim than what they multiply."""

from collections.abc import Iterator, Sequence

from shardwise.profiler.explain.evidence import Argument, Evidence
from shardwise.profiler.explain.finding import Finding, Rule, moved
from shardwise.profiler.explain.rules_larger import handed
from shardwise.profiler.explain.rules_twice import gathered_for
from shardwise.profiler.explain.rules_wire import copies_beside
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.text import Computation
from shardwise.profiler.timeline import OpRow
from shardwise.units import format_bytes
from shardwise.work import grouped

CHAINS, ROUNDS = 4, 3
"""Arrays of one shape from which they are worth computing apart, and exchanges of each (a
feeling)."""
STAY = 2
"""Exchanges of all arrays that stay, each of the bytes of one gather: into the layout of whole
arrays, and back."""


def alike_chains(e: Evidence) -> Iterator[Finding]:
    """Arrays of one shape that are all cut, of which what is computed is gathered many times."""
    cut = (a for a in e.floats() if len(a.dims) > 1 and a.axes)
    for same in grouped(cut, lambda a: (a.dims, a.cuts)).values():
        n, whole = len(same), _whole(e, same[0])
        rows = [r for r in e.collectives("all_gather") if _computed(e, r, whole)]
        if n < CHAINS or len(rows) < ROUNDS * n:
            continue
        times, (size, axes) = len(rows) / n, moved(rows)
        over = " and ".join(axes)
        yield Finding(
            rule="alike chains",
            seconds=sum(r.exposed for r in rows) * (1 - STAY / times / n),
            where=e.where(max(rows, key=lambda r: r.exposed).op),
            what=(
                f"what is computed of {n} arrays of one shape ('{same[0].name}' is one) is "
                f"gathered over {over} {times:.3g} times each, {format_bytes(size)} together"
            ),
            remedy=(
                f"let each device compute whole arrays: x = jnp.stack(arrays), sharded over {over} "
                "along the new dim (a constraint to P(axes, None, ...)), and jax.vmap of the "
                "function"
            ),
        )


def _whole(e: Evidence, a: Argument) -> tuple[int, ...]:
    """The dims of an argument on all devices together."""
    return tuple(d * e.degree(axes) for d, axes in zip(a.dims, a.cuts, strict=True))


def _computed(e: Evidence, row: OpRow, whole: tuple[int, ...]) -> bool:
    """Whether a gather is of a computed array with these dims: what is stored is gathered for
    products with what is not cut so."""
    found = e.module.computation(row.op.computation).names[row.op.name]
    made = {tuple(sorted(a.dims)) for a in arrays(found.shape)}
    return tuple(sorted(whole)) in made and not e.pieces_of(row.op.computation, row.op.name)


def turned_weights(e: Evidence) -> Iterator[Finding]:
    """Activations gathered for a weight that is cut, and what the product gives exchanged back into
    the cut that they had."""
    for row in e.collectives("all_to_all"):
        computation = e.module.computation(row.op.computation)
        product = _product(e, computation, row)
        wire = row.op.op.collective
        if product is None or wire is None:
            continue
        gathers = [g for g in _gathers(e, product) if _over(g) == wire.axes]
        weight = _weight(e, product, wire.axes)
        if not gathers or weight is None:
            continue
        over = " and ".join(wire.axes)
        beside = [copy for r in (row, *gathers) for copy in copies_beside(e, r)]
        rows = {r.op.op.id: r for r in (row, *gathers, *beside)}
        yield Finding(
            rule="weight cut another way",
            seconds=sum(map(spent, rows.values())),
            where=e.where(product.op),
            what=(
                f"'{weight.name}' has layout {weight.layout}: the other operand is gathered over "
                f"{over} for it, and the result, {format_bytes(float(wire.bytes))}, is resharded "
                "to the layout that the operand had"
            ),
            remedy=(
                f"shard it over {over} along the dim that it shares with the other operand (heads, "
                "experts), so that each device multiplies its own shard"
            ),
        )


def _gathers(e: Evidence, product: OpRow) -> list[OpRow]:
    """The gathers of what a product reads, through copies of it."""
    computation, operands = e.given_to(product)
    given = (handed(computation, n) for n in operands)
    made = e.rows_of(computation, (i.name for i in given if i is not None))
    copies = [r for r in made if r.op.op.op_class == "copy"]
    return [g for r in (product, *copies) for g in gathered_for(e, r)]


def _over(row: OpRow) -> tuple[str, ...]:
    return row.op.op.collective.axes if row.op.op.collective else ()


def _product(e: Evidence, computation: Computation, row: OpRow) -> OpRow | None:
    """The product whose result an exchange is of."""
    found = computation.names[row.op.name]
    for _ in range(MOST_MOVES):
        found = handed(computation, found.operands[0]) if found.operands else None
        own = e.named.get((computation.name, found.name)) if found is not None else None
        if found is None or (own is not None and own.flops):
            return own
        if found.opcode not in ("copy", "bitcast", "transpose", "fusion", "reshape"):
            return None
    return None


MOST_MOVES = 4
"""Ops that lay a result out before it is sent."""


def _weight(e: Evidence, product: OpRow, axes: Sequence[str]) -> Argument | None:
    """A stored operand of a product that is cut over some axes."""
    computation, operands = e.given_to(product)
    numbers = set().union(*(e.pieces_of(computation.name, n) for n in operands))
    cut = (a for a in e.arguments if a.number in numbers and set(axes) <= a.axes)
    return next((a for a in cut if e.is_stored(computation, _operand(e, product, a))), None)


def _operand(e: Evidence, product: OpRow, a: Argument) -> str:
    computation, operands = e.given_to(product)
    return next(n for n in operands if a.number in e.pieces_of(computation.name, n))


RULES: Sequence[Rule] = (alike_chains, turned_weights)
