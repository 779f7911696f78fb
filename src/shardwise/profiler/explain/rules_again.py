"""Faults of communication that is done more often than its numbers change: gathers of the same
weights, sums and gathers in every round of a loop, sums of what all devices have alike."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwise.profiler.explain.evidence import HANDS_ON, Evidence
from shardwise.profiler.explain.finding import Finding, Rule, by_source, moved
from shardwise.profiler.explain.lineage import largest_bytes
from shardwise.profiler.explain.rules_larger import handed
from shardwise.profiler.explain.rules_twice import pointwise
from shardwise.profiler.explain.tables import spent, users_place
from shardwise.profiler.hlo.shapes import arrays
from shardwise.profiler.hlo.text import Computation, Instruction
from shardwise.profiler.timeline import OpRow
from shardwise.units import format_bytes
from shardwise.work import grouped

SAME = (*HANDS_ON, "copy-done", "opt-barrier", "convert", "async-done")
"""Opcodes whose result has the numbers of their first operand."""


def gathered_twice(e: Evidence) -> Iterator[Finding]:
    """Stored arrays gathered at several places of one pass."""
    rows = [(r, _origin(e, r)) for r in e.collectives("all_gather")]
    same = grouped(
        ((r, o) for r, o in rows if o),
        lambda pair: (pair[0].op.computation, pair[0].op.op.phase, pair[1]),
    )
    again = [r for pairs in same.values() for r, _ in pairs[1:]]
    first = {r.op.op.id: pairs[0][0] for pairs in same.values() for r, _ in pairs[1:]}
    for where, group in by_source(e, again).items():
        size, axes = moved(group)
        before = users_place(e, e.where(first[group[0].op.op.id].op))
        before = "the same line" if before == users_place(e, where) else before
        yield Finding(
            rule="gathered twice",
            seconds=sum(r.exposed for r in group),
            where=where,
            what=(
                f"{format_bytes(size)} per step are gathered over {' and '.join(axes)} that "
                f"{before} has gathered before"
            ),
            remedy=(
                "gather once and pass the whole array to both: w = "
                "jax.lax.with_sharding_constraint(w, NamedSharding(mesh, P())) before the first "
                "use (a barrier or jax.checkpoint around one of the two keeps the compiler from it)"
            ),
        )


def _origin(e: Evidence, row: OpRow) -> str:
    """The stored array that a gather is of, with what was cut out of it; "" of what is computed."""
    computation, gather = e.located(row.op)
    if gather is None or not gather.operands or not e.pieces_of(computation.name, gather.name):
        return ""
    found = computation.find(gather.operands[0])
    while found is not None and found.operands:
        if found.opcode == "async-start":
            return found.operands[0]
        joined = found.target == "ConcatBitcast"
        if found.opcode not in SAME and not joined:
            return found.name
        if found.opcode == "get-tuple-element" and _is_parameter(computation, found.operands[0]):
            return found.name
        found = computation.find(found.operands[0])
    return found.name if found is not None else ""


def _is_parameter(computation: Computation, name: str) -> bool:
    found = computation.find(name)
    return found is not None and found.opcode == "parameter"


def in_every_round(e: Evidence) -> Iterator[Finding]:
    """Sums that a loop only adds up, and gathers of what it does not change."""
    sums = (r for r in e.collectives("all_reduce", "reduce_scatter") if _only_added(e, r))
    yield from _rounds(
        e,
        sums,
        "sums in a loop",
        "are reduced in every iteration of a loop that only adds them up",
        "add up local sums, and reduce over the devices once after the loop: within jax.shard_map "
        "over these axes, or with an unreduced carry",
    )
    gathers = (r for r in e.collectives("all_gather") if _unchanged(e, r))
    yield from _rounds(
        e,
        gathers,
        "gathers in a loop",
        "are gathered in every iteration of a loop that does not change them",
        "gather them once before the loop (a constraint to the unsharded layout outside of it), "
        "if they fit in memory",
    )


def _rounds(
    e: Evidence, rows: Iterator[OpRow], rule: str, what: str, remedy: str
) -> Iterator[Finding]:
    for where, group in by_source(e, rows).items():
        size, axes = moved(group)
        yield Finding(
            rule=rule,
            seconds=sum(_once_less(e, r) + _adding(e, r) for r in group),
            where=where,
            what=f"{format_bytes(size)} per step over {' and '.join(axes)} {what}",
            remedy=remedy,
        )


def _once_less(e: Evidence, row: OpRow) -> float:
    """Seconds per step that compute waits for a collective in all rounds, less those of one: of a
    sum that of the total, which nothing hides and which may be wider."""
    wire = row.op.op.collective
    if wire is None or wire.kind == "all_gather":
        return row.exposed * (1 - 1 / row.count)
    computation = e.module.computation(row.op.computation)
    total = max((largest_bytes(i) for i in e.users(computation, row.op.name)), default=0.0)
    wider = max(total / max(largest_bytes(computation.names[row.op.name]), 1.0), 1.0)
    once = e.cost(replace(row.op.op, collective=replace(wire, bytes=float(wire.bytes) * wider)))
    return max(row.exposed - once, 0.0)


def _adding(e: Evidence, row: OpRow) -> float:
    """Seconds per step of the ops that add up a sum: without it products add their own results,
    unless each is a kernel of its own that is told nothing of the total."""
    if row.op.op.collective is None or row.op.op.collective.kind == "all_gather":
        return 0.0
    computation, operands = e.given_to(row)
    given = (handed(computation, n) for n in operands)
    if any(i is not None and i.attribute("kind") == "kCustom" for i in given):
        return 0.0
    return sum(map(spent, e.readers_of(row)))


def _only_added(e: Evidence, row: OpRow) -> bool:
    """Whether all that reads a collective within a loop adds it to what the loop carries."""
    computation, found = e.located(row.op)
    if row.count <= 1 or found is None:
        return False
    readers = e.users(computation, found.name)
    return bool(readers) and all(_adds(e, computation, reader) for reader in readers)


def _adds(e: Evidence, computation: Computation, reader: Instruction) -> bool:
    """Whether an elementwise op reads a part of the carried tuple and becomes that part."""
    root = computation.root
    inside = {i.opcode for c in reader.called for i in e.module.computation(c).instructions}
    if root.opcode != "tuple" or not pointwise(e, reader) or "dynamic-update-slice" in inside:
        return False  # a loop over layers stacks up each layer's own
    parts = [computation.find(name) for name in reader.operands]
    places = {
        int(p.attribute("index"))
        for p in parts
        if p is not None and p.opcode == "get-tuple-element"
        if _is_parameter(computation, p.operands[0])
        # What more than the sum reads is no mere total: activations are carried so too.
        if _read_by(e, computation, p) == {reader.name}
    }
    if not _only_adds(e, reader):
        return False  # moments of an optimizer are carried so, and are no totals
    made = {reader.name, *(i.name for i in computation.readers(reader.name) if _hands(i))}
    return any(at < len(root.operands) and root.operands[at] in made for at in places)


def _only_adds(e: Evidence, reader: Instruction) -> bool:
    """Whether each result of an op is a part of what it reads with something added."""
    body = e.module.computation(reader.called[0]) if reader.opcode == "fusion" else None
    if body is None:
        return reader.opcode == "add"
    names = body.root.operands if body.root.opcode == "tuple" else (body.root.name,)
    sums = [_plain(body, name) for name in names]
    return all(i.opcode == "add" and any(_is_given(body, n) for n in i.operands) for i in sums)


def _is_given(computation: Computation, name: str) -> bool:
    """Whether a value comes into a fusion, or takes the place of zeros after the first round."""
    found = _plain(computation, name)
    if found.opcode == "select":
        return any(_is_given(computation, n) for n in found.operands[1:])
    return found.opcode == "parameter"


def _plain(computation: Computation, name: str) -> Instruction:
    """What a value is, before it was handed on or given another dtype."""
    found = computation.names[name]
    while found.opcode in SAME:
        found = computation.names[found.operands[0]]
    return found


def _read_by(e: Evidence, computation: Computation, part: Instruction) -> set[str]:
    """What reads a part of the carried tuple, under whatever name."""
    index = part.attribute("index")
    same = (i for i in computation.readers(part.operands[0]) if i.attribute("index") == index)
    return {user.name for i in same for user in e.users(computation, i.name)}


def _hands(found: Instruction) -> bool:
    return found.opcode in HANDS_ON


def _unchanged(e: Evidence, row: OpRow) -> bool:
    """Whether a gather within a loop is of a part of the carried tuple that goes round as it is."""
    computation = e.module.computation(row.op.computation)
    if row.count <= 1:
        return False
    origin = computation.find(_origin(e, row))
    if origin is None or origin.opcode != "get-tuple-element":
        return False
    return e.is_stored(computation, origin.name)


def equal_sums(e: Evidence) -> Iterator[Finding]:
    """Sums over an axis along which every device has the same numbers."""
    pairs = [(r, axes) for r in e.collectives("all_reduce") if (axes := _equal_over(e, r))]
    for (where, axes), same in grouped(pairs, lambda p: (e.where(p[0].op), p[1])).items():
        rows = [row for row, _ in same]
        size, _ = moved(rows)
        over = " and ".join(axes)
        yield Finding(
            rule="sum of equal numbers",
            seconds=sum(r.exposed + _divided(e, r) for r in rows),
            where=where,
            what=(
                f"{format_bytes(size)} per step are reduced over {over}, although all "
                f"{e.degree(axes)} devices have the same values"
            ),
            remedy=(
                f"leave the psum over {over} out (a mean of equal numbers is the number), and let "
                "jax.shard_map check it: check_vma=True says which values differ over which axes"
            ),
        )


def _equal_over(e: Evidence, row: OpRow) -> tuple[str, ...]:
    """The axes of a sum, where its operands differ over none of them."""
    collective = row.op.op.collective
    _, found = e.located(row.op)
    if collective is None or found is None or not collective.axes or e.small(row):
        return ()
    differs = frozenset().union(
        *(e.spread.facts(row.op.computation, name) for name in found.operands)
    )
    return collective.axes if not differs & set(collective.axes) else ()


def _divided(e: Evidence, row: OpRow) -> float:
    """Seconds of the op that divides a sum by the number of devices, where it does only that."""
    computation = e.module.computation(row.op.computation)
    readers = e.users(computation, row.op.name)
    if len(readers) != 1 or not pointwise(e, readers[0]):
        return 0.0
    large = [n for n in readers[0].operands if _is_array(computation, n)]
    return sum(map(spent, e.readers_of(row))) if len(large) == 1 else 0.0


def _is_array(computation: Computation, name: str) -> bool:
    found = computation.find(name)
    return found is not None and any(a.dims for a in arrays(found.shape))


RULES: Sequence[Rule] = (gathered_twice, in_every_round, equal_sums)
