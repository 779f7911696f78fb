"""Faults of what is done again or for nothing: by all devices alike, there and back, again in the
backward pass, or for ones and zeros."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

from shardwise.profiler.explain.evidence import HANDS_ON, Evidence
from shardwise.profiler.explain.finding import Finding, Rule, by_source, moved
from shardwise.profiler.explain.flow import Flow
from shardwise.profiler.explain.lineage import elements, ones
from shardwise.profiler.explain.tables import spent
from shardwise.profiler.hlo.flops import multiplies
from shardwise.profiler.hlo.rules import rule
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.timeline import OpRow
from shardwise.units import format_bytes, format_flops
from shardwise.work import grouped

FARTHEST = 100
"""Values that are followed from one collective to the next."""


def duplicated_work(e: Evidence) -> Iterator[Finding]:
    """Products whose operands are the same on all devices of an axis: each multiplies it all."""
    told = {r.op.op.id for one in whole_by_constraints(e) for r in one.rows}
    products = [(r, _same(e, r)) for r in e.timeline.rows if r.flops and r.op.op.id not in told]
    found = grouped(
        (pair for pair in products if pair[1]), lambda pair: (e.where(pair[0].op), pair[1])
    )
    for (where, axes), pairs in found.items():
        rows, n = [row for row, _ in pairs], e.degree(axes)
        over, given = " and ".join(axes), list(_computed_for(e, rows))
        yield Finding(
            rule="duplicated work",
            seconds=(sum(r.per_step for r in rows) + _summed_after(e, rows)) * (1 - 1 / n)
            + sum(map(spent, given)),
            where=where,
            what=(
                f"{format_flops(sum(r.flops * r.count for r in rows))} per step repeat the same "
                f"matmul on all {n} devices of {over}"
            )
            + (f", and {format_bytes(moved(given)[0])} are gathered for it" if given else ""),
            remedy=(
                f"shard the batch, the tokens or a width over {over}: in the arguments' shardings, "
                "or with a constraint on its operands"
            )
            + (f"; a constraint that leaves {over} out asks for these gathers" if given else ""),
        )


def _computed_for(e: Evidence, rows: list[OpRow]) -> Iterator[OpRow]:
    """The gathers of what was computed, and not stored, for products that are alike."""
    found = {g.op.op.id: (g, _same(e, r)) for r in rows for g in gathered_for(e, r)}
    for g, axes in found.values():
        if not e.pieces_of(g.op.computation, g.op.name) and {*moved([g])[1]} <= {*axes}:
            yield g


def _summed_after(e: Evidence, rows: list[OpRow]) -> float:
    """Seconds that compute waits for the sums of what products give."""
    found = {reader.op.op.id: reader for r in rows for reader in e.readers_of(r)}
    return sum(r.exposed for r in found.values() if r.op.op.collective is not None)


@dataclass(frozen=True, slots=True)
class WholeByConstraint:
    """An array that a constraint at a line asks for whole over some axes: the gathers and the
    products, alike on all devices, that make it or read it."""

    where: str
    axes: tuple[str, ...]
    rows: tuple[OpRow, ...]


def constraints_to_whole(e: Evidence) -> Iterator[Finding]:
    """Constraints that ask for an array whole, of which what follows takes pieces, or computes the
    same on every device."""
    for where, same in grouped(whole_by_constraints(e), lambda one: one.where).items():
        rows = {r.op.op.id: r for one in same for r in one.rows}.values()
        gathers = [r for r in rows if r.op.op.collective is not None]
        alike = [(r, 1 - 1 / e.degree(_same(e, r))) for r in rows if r.flops]
        axes = tuple(a for a in e.mesh if any(a in one.axes for one in same))
        over, flops = " and ".join(axes), sum(r.flops * r.count for r, _ in alike)
        yield Finding(
            rule="whole by a constraint",
            seconds=sum(map(spent, gathers)) + sum(r.per_step * part for r, part in alike),
            where=where,
            what=(
                f"a constraint unshards an array over {over}, and each device then reads a shard "
                f"or repeats the same work: {format_bytes(moved(gathers)[0])} per step are "
                f"gathered for it, and {format_flops(flops)} are repeated"
            ),
            remedy=(
                f"keep it sharded: name its axes in the constraint's P(...), {over} among them, or "
                "take the constraint away"
            ),
        )


def whole_by_constraints(e: Evidence) -> list[WholeByConstraint]:
    """The constraints that make whole what is not needed so, in either pass: what goes back through
    one that is needed is asked for whole, too."""
    asked = [
        (c, i, axes)
        for c in e.module.computations.values()
        for i in c.instructions
        if i.op_name.endswith("/sharding_constraint")
        and (axes := frozenset(_over(e)) - e.spread.facts(c.name, i.name))
    ]
    after = [_alike_after(e, *one) for one in asked]
    frames = [e.module.sources(i) for _, i, _ in asked]
    needed = {at for at, rows in zip(frames, after, strict=True) if rows is None}
    found: list[WholeByConstraint] = []
    for (c, i, axes), rows, at in zip(asked, after, frames, strict=True):
        made = (*_made_of(e, c, i), *(rows or ())) if at not in needed else ()
        if alike := tuple(r for r in made if _whole(e, r, axes)):
            over = tuple(a for a in _over(e) if a in axes)
            found.append(WholeByConstraint(e.line_of(i), over, alike))
    return found


def _whole(e: Evidence, row: OpRow, axes: frozenset[str]) -> bool:
    """Whether it gathers over some axes alone, or multiplies the same on all devices of some."""
    if row.op.op.collective is not None:
        return {*moved([row])[1]} <= axes
    return bool(axes.intersection(_same(e, row)))


def _made_of(e: Evidence, c: Computation, found: Instruction) -> Iterator[OpRow]:
    """The gathers and the products that a value comes of number by number, and gathers for these
    products."""
    waiting, seen = [found], {found.name}
    while waiting and len(seen) < FARTHEST:
        i = waiting.pop()
        row = e.named.get((c.name, i.name))
        if row is not None and row.flops:
            yield from (row, *gathered_for(e, row))
        elif row is not None and row.op.op.collective is not None:
            yield from (row,) if row.op.op.collective.kind == "all_gather" else ()
        elif pointwise(e, i):
            names = [n for n in i.operands if n in c.names and n not in seen]
            seen |= {*names}
            waiting += [c.names[n] for n in names]


def _alike_after(
    e: Evidence, c: Computation, found: Instruction, axes: frozenset[str]
) -> list[OpRow] | None:
    """The products that read a value or what follows from it, all the same on each device, or a
    piece of it; None where one needs it whole to compute something of its own, or it goes on
    elsewhere."""
    rows: list[OpRow] = []
    waiting, seen = [found], {found.name}
    while waiting:
        i = waiting.pop()
        for reader in e.users(c, i.name):
            if reader.name in seen:
                continue
            seen.add(reader.name)
            row, own = e.named.get((c.name, reader.name)), e.spread.facts(c.name, reader.name)
            if reader.opcode == "dynamic-slice" and axes & own:
                pieces = e.rows_of(c, (user.name for user in e.users(c, reader.name)))
                rows += [r for r in pieces if r.flops]
                continue
            if reader is c.root or axes & own or row is None or len(seen) > FARTHEST:
                return None
            rows += [row] if row.flops else []
            waiting += [] if row.flops else [reader]
    return rows


def duplicated_rest(e: Evidence) -> Iterator[Finding]:
    """A step whose other ops are mostly the same on all devices: its arguments lie whole."""
    rows = [r for r in e.timeline.rows if _computes(r) and len(_same(e, r)) == len(_over(e))]
    gathers = {r.op.op.id: gathered_for(e, r) for r in rows}
    taken = [*rows, *(g for given in gathers.values() for g in given)]
    if not rows or sum(map(spent, taken)) < MOSTLY * e.timeline.expected:
        return
    axes = _over(e)
    n, over = e.degree(axes), " and ".join(axes)
    for where, group in by_source(e, rows).items():
        given = [g for r in group for g in gathers[r.op.op.id]]
        yield Finding(
            rule="duplicated work",
            seconds=sum(map(spent, group)) * (1 - 1 / n) + sum(map(spent, given)),
            where=where,
            what=(
                f"{format_bytes(sum(r.hbm_bytes for r in group))} per step are read and written "
                f"for the same values on all {n} devices of {over}"
            )
            + (f", once {format_bytes(moved(given)[0])} are gathered for it" if given else ""),
            remedy=f"run it on each device's shard: {WHOLE.format(over=over)}"
            if given
            else (
                f"shard the arguments over {over}: jax.device_put(x, NamedSharding(mesh, P(...))) "
                "before the first step; an array without a sharding is replicated"
            ),
        )


WHOLE = (
    "jax.shard_map(f, mesh=mesh, in_specs=P(...), out_specs=P(...)) with the dims over {over} that "
    "the operation does not mix; the partitioner shards some operations (a Fourier transform, a "
    "factorization, your own kernel) along no dim"
)


def gathered_for(e: Evidence, row: OpRow) -> list[OpRow]:
    """The gathers of what an op reads."""
    computation = e.module.computation(row.op.computation)
    given = list(computation.names[row.op.name].operands)
    found: list[OpRow] = []
    while given:
        i = computation.find(given.pop())
        own = e.named.get((computation.name, i.name)) if i is not None else None
        if own is not None and own.op.op.collective is not None:
            found += [own] if own.op.op.collective.kind == "all_gather" else []
        elif i is not None and (i.opcode in HANDS_ON or i.opcode.endswith("-done")):
            given += i.operands[:1]
    return found


MOSTLY = 0.3
"""The share of a step that ops without products, the same on all devices, take at least: less is
what norms and biases beside cut products take."""


def _computes(row: OpRow) -> bool:
    plain = row.op.op.op_class in ("elementwise", "reduction", "gather", "sort")
    return plain and not row.flops and row.op.op.stream == "compute" and bool(row.hbm_bytes)


def _over(e: Evidence) -> tuple[str, ...]:
    return tuple(a for a in e.mesh if e.mesh[a] > 1)


def _same(e: Evidence, row: OpRow) -> tuple[str, ...]:
    """The axes over whose devices a product's result is the same."""
    differs = e.spread.facts(row.op.computation, row.op.name)
    return tuple(a for a in e.mesh if e.mesh[a] > 1 and a not in differs)


def ping_pong(e: Evidence) -> Iterator[Finding]:
    """Arrays that are cut another way, and back, with nothing in between that needed it."""
    for where, same in grouped(round_trips(e), lambda trip: e.where(trip[0].op)).items():
        rows = [row for trip in same for row in trip[:2]]
        size, axes = moved(rows)
        yield Finding(
            rule="ping-pong",
            seconds=sum(spent(row) for trip in same for row in trip),
            where=where,
            what=(
                f"{format_bytes(size)} per step are exchanged over {' and '.join(axes)} into "
                "another layout and back, and only elementwise functions run in between"
            ),
            remedy="keep the layout: remove the constraint between the two",
        )


def round_trips(e: Evidence) -> list[list[OpRow]]:
    """Exchanges with those that undo them, and the copies in between."""
    back = {r.op.op.id: r for r in e.collectives("all_to_all")}
    return [trip for r in back.values() if (trip := _returned(e, r, back))]


def _returned(e: Evidence, row: OpRow, back: dict[str, OpRow]) -> list[OpRow]:
    """An exchange, the one that undoes it, where that is all that comes of its result, and the
    copies in between."""
    computation = e.module.computation(row.op.computation)
    waiting, seen, found = [row.op.name], set(), None
    while waiting and len(seen) < FARTHEST:
        for i in computation.readers(waiting.pop()):
            other = back.get(i.name)
            if i.name in seen:
                continue
            seen.add(i.name)
            if other is not None and _undoes(row, other):
                found = other
            elif pointwise(e, i):
                waiting.append(i.name)
            else:
                return []
    if found is None or waiting:
        return []
    between = e.rows_of(computation, seen - {found.op.name})
    copies = [r for r in between if r.op.op.op_class == "copy"]
    return [row, found, *copies]


def _undoes(row: OpRow, other: OpRow) -> bool:
    one, two = row.op.op.collective, other.op.op.collective
    return (
        one is not None
        and two is not None
        and one.axes == two.axes
        and float(one.bytes) == float(two.bytes)
    )


def pointwise(e: Evidence, found: Instruction) -> bool:
    """Whether each number of its result comes of the numbers at one place."""
    if found.opcode == "fusion":
        inside = (i for c in found.called for i in e.module.computation(c).instructions)
        return all(pointwise(e, i) for i in inside)
    handed = found.opcode in HANDS_ON or found.opcode.endswith("-done")
    return handed or rule(found.opcode) in ("elementwise", "movement", "free")


def repeated_collectives(e: Evidence) -> Iterator[Finding]:
    """Activations that the backward pass exchanges again, where there is room to keep them."""
    rows = [r for r in e.timeline.rows if _again(e, r)]
    room = e.capacity - sum(b.bytes for b in e.buffers)
    kept = sum(e.made_bytes(r) * r.count for r in rows)
    if not e.buffers or kept > room:
        return
    for where, group in by_source(e, rows).items():
        size = sum(e.made_bytes(r) * r.count for r in group)
        _, axes = moved(group)
        yield Finding(
            rule="repeated collective",
            seconds=sum(r.exposed for r in group),
            where=where,
            what=(
                f"the backward pass runs {sum(r.count for r in group):g} collectives over "
                f"{' and '.join(axes)} of the forward pass again; {format_bytes(room)} are free, "
                f"and their results are {format_bytes(size)}"
            ),
            remedy=(
                "keep their results: name them with checkpoint_name, and give jax.checkpoint "
                "policy=save_only_these_names(...)"
            ),
        )


def _again(e: Evidence, row: OpRow) -> bool:
    op = row.op.op
    if op.collective is None or op.phase != "recompute":
        return False
    return not e.pieces_of(row.op.computation, row.op.name)  # weights are gathered again on purpose


def one_hot(e: Evidence) -> Iterator[Finding]:
    """Products with ones and zeros that take rows of a table."""
    facts = ones(e.module)
    rows = (r for r in e.timeline.rows if r.flops and _takes_rows(e, facts, r))
    for where, group in by_source(e, rows).items():
        yield Finding(
            rule="one-hot product",
            seconds=sum(_beyond_taking(e, facts, r) for r in group),
            where=where,
            what=(
                f"{format_flops(sum(r.flops * r.count for r in group))} per step multiply ones and "
                "zeros, to take rows of a table"
            ),
            remedy="take the rows: table[ids], or jnp.take; to sort tokens by expert, a ragged dot",
        )


def _takes_rows(e: Evidence, facts: Flow, row: OpRow) -> bool:
    computation, found = e.located(row.op)
    return found is not None and any(
        "one" in facts.facts(c.name, name)
        for c, product in _products(e, computation, found)
        for name in product.operands[:2]
    )


def _beyond_taking(e: Evidence, facts: Flow, row: OpRow) -> float:
    """Seconds that a product takes with its ones and zeros longer than to take the rows."""
    return max(row.per_step + _ones_made(e, facts, row) - _taken(e, row), 0.0)


def _ones_made(e: Evidence, facts: Flow, row: OpRow) -> float:
    """Seconds of the ops that write out ones and zeros for a product, or what they come of."""
    computation, operands = e.given_to(row)
    made = (n for n in operands if facts.facts(computation.name, n) & {"one", "iota"})
    return sum(spent(r) for r in e.rows_of(computation, made) if not r.flops)


def _products(
    e: Evidence, computation: Computation, found: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    if multiplies(found):
        yield computation, found
    for name in found.called if found.opcode == "fusion" else ():
        inside = e.module.computation(name)
        for i in inside.instructions:
            yield from _products(e, inside, i)


def _taken(e: Evidence, row: OpRow) -> float:
    """Seconds in which the rows that come out could have been read and written."""
    return 2 * e.made_bytes(row) * row.count / e.bandwidth


def unused_gathers(e: Evidence) -> Iterator[Finding]:
    """Arrays gathered whole of which only a slice is read."""
    rows = [(r, _read(e, r)) for r in e.collectives("all_gather")]
    few = [(r, share) for r, share in rows if share <= 0.5]
    share_of = {r.op.op.id: share for r, share in few}
    for where, group in by_source(e, (r for r, _ in few)).items():
        size, axes = moved(group)
        share = max(share_of[r.op.op.id] for r in group)
        yield Finding(
            rule="unused gather",
            seconds=sum(r.exposed * (1 - share_of[r.op.op.id]) for r in group),
            where=where,
            what=(
                f"{format_bytes(size)} per step are gathered over {' and '.join(axes)}, and only "
                f"{100 * share:.2g} % of it is read"
            ),
            remedy="take the slice first (x[:, -1] before the product), then gather or multiply",
        )


def _read(e: Evidence, row: OpRow) -> float:
    """The share of what was gathered that anything reads."""
    computation, found = e.located(row.op)
    if found is None or found.opcode not in ("all-gather", "all-gather-start"):
        return 1.0
    if e.of_cache(computation.name, found.name):
        return 1.0  # `gathered_caches` tells of it
    whole = max(elements(found), 1)
    return min(sum(slices_of(e, computation, found.name)) / whole, 1.0)


def slices_of(e: Evidence, computation: Computation, name: str) -> Iterator[float]:
    """Elements that each reader takes of a value; of one that reads it all, infinitely many."""
    readers = e.users(computation, name)
    if not readers or computation.root.name == name:
        yield float("inf")
    for reader in readers:
        if reader.opcode in ("slice", "dynamic-slice"):
            yield float(prod(next(arrays(reader.shape)).dims))
        elif reader.opcode == "reverse":
            yield from slices_of(e, computation, reader.name)
        elif reader.opcode == "fusion":
            yield from map(float, _inside(e, reader, computation, name))
        else:
            yield float("inf")


def _inside(e: Evidence, fusion: Instruction, outer: Computation, name: str) -> Iterator[float]:
    inside = e.module.computation(fusion.called[0])
    handed = partial(_comes_of, outer, name)
    for parameter in inside.parameters:
        if handed(fusion.operands[int(parameter.literal)]):
            yield from slices_of(e, inside, parameter.name)


def _comes_of(computation: Computation, name: str, operand: str) -> bool:
    found = computation.find(operand)
    while found is not None and found.name != name:
        if found.opcode not in HANDS_ON and not found.opcode.endswith("-done"):
            return False
        found = computation.find(found.operands[0])
    return found is not None


RULES: tuple[Rule, ...] = (
    constraints_to_whole,
    duplicated_work,
    duplicated_rest,
    ping_pong,
    repeated_collectives,
    one_hot,
    unused_gathers,
)
